"""The desk for people who are `unknown`: nobody can say whether SES accepted their mail, so no machine mails them again.

Here a person looks at them and decides, with a name and a reason: count them as sent, or mail them again as a new attempt. This
is the only way to a second attempt. What it does to the ledger stands in `ledger`; events and late answers need no desk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import class_row

from mailpipe import campaign, event, ledger
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError

QUERIES = queries.beside(__file__)

Verdict = Literal["sent", "resend"]


@dataclass(frozen=True)
class Unknown:
    """One person whose fate is not known, since when (UTC) and why. `attempt` is the one that was lost."""

    seq: int
    slice: int
    user_id: str
    reason: str
    detail: str | None
    attempt: int
    since: datetime

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "since": self.since.isoformat()}


@dataclass(frozen=True)
class Resolved:
    """What an order did: `people` were changed, `seqs` as ranges (first, last). `settled` were settled by events before it, and
    `reopened` tells that a campaign that was done is sending again."""

    campaign: str
    verdict: Verdict
    people: int
    seqs: list[tuple[int, int]]
    settled: int
    reopened: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def people(connection: Connection, key: str) -> list[Unknown]:
    """Who is `unknown`, in sending order.

    Raises:
        CampaignError: there is no such campaign.
    """
    found = campaign.get(connection, key)
    with connection.cursor(row_factory=class_row(Unknown)) as cursor:
        return cursor.execute(QUERIES["people"], {"campaign_id": found.campaign_id}).fetchall()


def resolve(
    connection: Connection, key: str, verdict: Verdict, *, seqs: Sequence[int] | None, actor: str, reason: str
) -> Resolved:
    """Decide about `unknown` people: these, or all of them (None). One transaction; a second time it finds nobody.

    `sent` counts them as sent. `resend` makes them pending again, as a new attempt: they may get the mail twice, and that is what
    the order accepts. Events that are known already speak first: nobody is mailed again who is proved to have the mail. What comes
    in later does not withdraw an order. A campaign that is done is sending again then; a paused one stays paused.

    Raises:
        CampaignError: no name, no reason, no such campaign, or a re-send in one that is cancelled.
    """
    if not reason.strip():
        raise CampaignError('reason: say why, for example --reason "the provider\'s log has no trace of them"')
    with connection.transaction():
        found = campaign.lock(connection, key)
        if verdict == "resend" and found.state == "cancelled":
            raise CampaignError(f"campaign {key!r} is cancelled; nobody of it is mailed any more")
        settled = event.settle(connection, found.campaign_id)
        change = ledger.send_again if verdict == "resend" else ledger.call_sent
        changed = change(connection, found.campaign_id, seqs)
        reopened = verdict == "resend" and campaign.reopen(connection, found.campaign_id)
        done = Resolved(key, verdict, len(changed), ranges(changed), settled, reopened)
        if changed:
            campaign.note(
                connection,
                found.campaign_id,
                actor=actor,
                action="resend" if verdict == "resend" else "resolve_as_sent",
                detail={"reason": reason, "people": done.people, "seqs": done.seqs, "reopened": reopened},
            )
    return done


def ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of each unbroken row: 1, 2, 3, 7 -> (1, 3), (7, 7)."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found
