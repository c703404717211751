"""Puts the ledger in order after whatever happened: frees silent workers' chunks, lets events speak, finishes campaigns, and
tells of people who are due while nobody works on them.

Running it twice, or beside live workers, changes nothing that it should not: each step re-checks its right in its statement.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from psycopg.rows import class_row

from mailpipe import campaign, event, ledger
from mailpipe.db import Connection, queries
from mailpipe.schedule import window
from mailpipe.waves import advance

QUERIES = queries.beside(__file__)

SETTLED_AFTER = timedelta(days=1)
"""So long after its end a campaign is still looked at: an event can have come before the state that it corrects. Events that
come later settle what they touch when they are read."""

QUIET = 30.0
"""Seconds without a call after which nobody works on a campaign, if nobody holds a chunk of it either. A worker between two chunks
holds none for some milliseconds."""


@dataclass(frozen=True)
class Unattended:
    """A campaign that is sending while nobody works on it, though people are due: in these two slices, maybe in some between."""

    key: str
    first_slice: int
    last_slice: int
    lane: str = "normal"


@dataclass(frozen=True)
class Reconciled:
    """What was put in order: chunks freed from silent workers, people who became `unknown` by it, people whose mail has expired,
    people whom events settled, campaigns that are done by it, people whose wave or day may go."""

    freed_chunks: int
    became_unknown: int
    settled: int
    finished: tuple[str, ...]
    expired: int = 0
    released: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "finished": list(self.finished)}


def run(connection: Connection, key: str | None = None) -> Reconciled:
    """Reconcile one campaign, or all that are not over.

    Raises:
        CampaignError: there is no campaign of that key.
    """
    chosen = [campaign.get(connection, key)] if key else campaign.get_all(connection)
    freed, lost = ledger.expire_leases(connection, chosen[0].campaign_id if key else None)
    closed = window.close(connection, chosen[0].campaign_id if key else None)
    settled = 0
    released = 0
    finished = []
    for found in chosen:
        if key or found.state in ("sending", "paused") or found.now - found.changed_at < SETTLED_AFTER:
            settled += event.settle(connection, found.campaign_id)
            campaign.reopen(connection, found.campaign_id)
        if found.state == "sending" and found.spec.in_waves and (advanced := advance.run(connection, found.key)):
            released += advanced.people
        if found.state == "sending" and campaign.finish(connection, found.campaign_id):
            finished.append(found.key)
    return Reconciled(freed, lost, settled, tuple(finished), closed.expired, released)


def unattended(connection: Connection, *, quiet: float = QUIET) -> list[Unattended]:
    """Campaigns that want somebody to launch a run, the oldest first. A lease that has run out is a dead worker's."""
    with connection.cursor(row_factory=class_row(Unattended)) as cursor:
        return cursor.execute(QUERIES["unattended"], {"quiet": quiet}).fetchall()
