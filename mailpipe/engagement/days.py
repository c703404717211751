"""Which days are folded, which wait, and what the whole audience has taught so far. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from mailpipe.db import Connection, queries
from mailpipe.engagement import rule

QUERIES = queries.beside(__file__)

DAY = timedelta(days=1)
WINDOW = timedelta(hours=24)
"""A reaction to a mail counts for its hour when it comes within this time."""
GRACE = timedelta(hours=2)
"""News of a reaction may be so late."""


@dataclass(frozen=True)
class Folded:
    """Counts of one day. `people` were mailed; `opens` are mails that a human opened and did not click, `clicks` those that one
    clicked, `machines` those that only machines reacted to; `bought` are people with an order; `tiers` people of T1 to T5."""

    day: date
    people: int
    mails: int
    opens: int
    clicks: int
    machines: int
    bought: int
    tiers: list[int]
    seconds: float
    already: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class State:
    """What the whole audience has taught. See the table `engagement_state`."""

    folded_to: date | None
    freshness: list[float]
    thinning: float
    ages: list[float]
    mails: float
    opens: float
    clicks: float


def state(connection: Connection) -> State:
    """The present state; before the first fold that of the published curve."""
    row = connection.execute(QUERIES["state"]).fetchone()
    if row is None:
        return State(None, list(rule.DEFAULT_FRESHNESS), rule.thinning(0, 0), [0.0] * rule.HOURS, 0.0, 0.0, 0.0)
    return State(*row)


def ready_at(day: date) -> datetime:
    """From when on a day can be folded."""
    return midnight(day) + DAY + WINDOW + GRACE


def last_ready(now: datetime) -> date:
    """The last day that can be folded at an instant."""
    return (now - DAY - WINDOW - GRACE).astimezone(UTC).date()


def due(connection: Connection, now: datetime) -> list[date]:
    """The days that wait to be folded, in order; before the first fold they begin with the first mail."""
    first = first_due(connection)
    last = last_ready(now)
    return [] if first is None else [first + n * DAY for n in range((last - first).days + 1)]


def get(connection: Connection, day: date) -> Folded:
    """The counts of a day that was folded. One before the first mail never was, and there was nothing in it."""
    row = connection.execute(QUERIES["folded"], {"day": day}).fetchone()
    values = row or (day, 0, 0, 0, 0, 0, 0, [0] * 5, 0.0)
    return replace(Folded(*values), already=True)


def first_due(connection: Connection) -> date | None:
    """The day after the last that was folded; else that of the first mail. None: nothing was ever sent."""
    folded_to = state(connection).folded_to
    if folded_to is not None:
        return folded_to + DAY
    row = connection.execute(QUERIES["first_call"]).fetchone()
    first: date | None = row[0] if row else None
    return first


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
