"""What is known of one person, and of everybody together. Reads only; no addresses: people are known by their ids here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

from psycopg.rows import class_row

from mailpipe.db import Connection, queries
from mailpipe.engagement import days as known_days
from mailpipe.engagement.days import Folded
from mailpipe.errors import EngagementError

QUERIES = queries.beside(__file__)


@dataclass(frozen=True)
class Person:
    """One row of `engagement`, brought to the last folded day. `ev` and `ex` have an element for each hour of the person's clocks
    (of UTC where `zone` is None)."""

    person_id: str
    tier: int
    zone: str | None
    machine: bool
    events: float
    mails: float
    since: datetime
    last_sent_at: datetime | None
    last_engaged_at: datetime | None
    last_clicked_at: datetime | None
    last_bought_at: datetime | None
    ev: list[float]
    ex: list[float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """Of everybody. `own_data` have reacted to something, `proxied` open through Apple's proxy, `zoneless` have no known zone;
    `tiers` are people of T1 to T5; `due` are the days that wait to be folded; `days` the last folded ones, the newest first."""

    folded_to: date | None
    due: list[date]
    people: int
    own_data: int
    proxied: int
    zoneless: int
    tiers: list[int]
    thinning: float
    freshness: list[float]
    days: list[Folded]
    imports: int

    @property
    def own_share(self) -> float:
        return self.own_data / self.people if self.people else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "own_share": self.own_share}


def person(connection: Connection, person_id: str) -> Person:
    """Raises EngagementError: nothing is known of them."""
    with connection.cursor(row_factory=class_row(Person)) as cursor:
        found = cursor.execute(QUERIES["person"], {"person_id": person_id}).fetchone()
    if found is None:
        raise EngagementError(
            f"{person_id!r}: nobody of that id was mailed or imported up to the last folded day. It is the user_id of your segments"
            if "@" not in person_id
            else "people are known by their ids here, not by addresses; give the user_id of your segments"
        )
    return found


def summary(connection: Connection, now: datetime, *, days: int = 14) -> Summary:
    """How things stand at an instant. Reads every person once."""
    row = connection.execute(QUERIES["people"]).fetchone()
    imports = connection.execute(QUERIES["imports"]).fetchone()
    assert row is not None
    assert imports is not None
    known = known_days.state(connection)
    folded = [Folded(*one) for one in connection.execute(QUERIES["days"], {"days": days}).fetchall()]
    return Summary(
        folded_to=known.folded_to,
        due=known_days.due(connection, now),
        people=row[0],
        own_data=row[1],
        proxied=row[2],
        zoneless=row[3],
        tiers=list(row[4:9]),
        thinning=known.thinning,
        freshness=known.freshness,
        days=folded,
        imports=imports[0],
    )
