"""Closes the windows of chunks whose time is over: expired mail is not sent any more, and quiet hours put off whom they catch.

Whether a chunk may be leased or opened, the ledger's statements ask for themselves, so nothing here is needed for safety. It is
what makes the closing visible: people of an expired chunk are `skipped(expired)`, and others are due again in the morning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mailpipe.db import Connection, queries
from mailpipe.schedule.when import Quiet, Window, after_quiet

QUERIES = queries.beside(__file__)


@dataclass(frozen=True)
class Closed:
    """People whose mail has expired, and people who wait for the end of quiet hours."""

    expired: int
    deferred: int


def close(connection: Connection, campaign_id: int | None = None, *, now: datetime | None = None) -> Closed:
    """Close what is over, of one campaign or of all. `now` is the database's clock unless it is given."""
    given = {"campaign_id": campaign_id, "now": now}
    expired = sum(int(people) for (people,) in connection.execute(QUERIES["expire"], given))
    deferred = 0
    for found_id, zone, quiet_at, hours, present in connection.execute(QUERIES["caught"], given).fetchall():
        window = after_quiet(Window(quiet_at), Quiet.parse(hours), zone, present)
        deferred += _put_off(connection, found_id, zone, quiet_at, window)
    return Closed(expired, deferred)


def _put_off(connection: Connection, campaign_id: int, zone: str, quiet_at: datetime, window: Window) -> int:
    """Open the next window of people whom quiet hours have caught. `window.due_at` is `quiet_at` still if they are over already:
    then nobody has to wait."""
    waits = window.due_at > quiet_at
    with connection.transaction():
        row = connection.execute(
            QUERIES["put_off"],
            {
                "campaign_id": campaign_id,
                "timezone": zone,
                "quiet_at": quiet_at,
                "due_at": window.due_at,
                "next_quiet_at": window.quiet_at,
                "waits": waits,
            },
        ).fetchone()
    return int(row[0]) if row is not None and waits else 0


def open_now(connection: Connection, campaign_id: int) -> int:
    """Let everybody of an approved, frozen campaign be due now; answers how many were not yet. Quiet hours and expiry stay."""
    row = connection.execute(QUERIES["open_now"], {"campaign_id": campaign_id}).fetchone()
    return 0 if row is None else int(row[0])
