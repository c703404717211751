"""Chunks that wait for a decision: freed by it, or put off until it comes. What decides is told in `experiment` and `waves`.

A held chunk is frozen like any other, with the time for which it is planned, but nobody leases it and no run is launched for it;
its campaign does not end before it. This module alone frees one, and notes when it is due then.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mailpipe.cells import Held
from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)


def release(
    connection: Connection,
    campaign_id: int,
    *,
    held: Held,
    variant: str | None = None,
    due_at: datetime | None = None,
    label: str | None = None,
) -> int:
    """Let held people be mailed: all that wait for such a decision, or those with a label. They get the variant, if there is one,
    and are due when it was planned, but not before `due_at` (UTC). Answers how many people are pending by it; a second time nobody
    is.
    """
    row = connection.execute(
        QUERIES["release"],
        {"campaign_id": campaign_id, "held": held, "variant": variant, "due_at": due_at, "label": label},
    ).fetchone()
    return 0 if row is None else int(row[0])


def retime(connection: Connection, campaign_id: int, *, held: Held, by: timedelta, label: str | None = None) -> int:
    """Plan held people, all or those with a label, for so much later. Their quiet hours move along, and an end that is counted from
    their due time. Answers how many people that are."""
    row = connection.execute(
        QUERIES["retime"], {"campaign_id": campaign_id, "held": held, "by": by, "label": label}
    ).fetchone()
    return 0 if row is None else int(row[0])


def waiting(connection: Connection, campaign_id: int) -> dict[str, int]:
    """Pending people of a campaign by what they are held for."""
    rows = connection.execute(QUERIES["waiting"], {"campaign_id": campaign_id})
    return {held: int(people) for held, people in rows}
