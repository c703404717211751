"""What wants to be launched: audiences to freeze, and due times to send. Derived from tables, so that who was away misses nothing.

Answering twice launches nothing twice: each answer has a name that stays the same until it is time for another try, and whoever
launches keeps those names apart. A due time is launched once a run has begun to work on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.rows import class_row

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

AHEAD = timedelta(minutes=2)
"""Runs are launched so long before their people are due: a process has to start, and then waits for the moment."""
AGAIN = timedelta(minutes=10)
"""What was launched and has not begun after so long gets another run: its first one may have died before it said anything."""


@dataclass(frozen=True)
class Freeze:
    """A campaign whose audience should be frozen now. `attempt` counts the tries, from 0."""

    key: str
    due_at: datetime
    attempt: int

    @property
    def name(self) -> str:
        return f"freeze-{self.key}-{self.attempt}"


@dataclass(frozen=True)
class Launch:
    """People of these slices are due soon, and no run has begun to work on them. `attempt` counts the tries, from 0."""

    key: str
    due_at: datetime
    first_slice: int
    last_slice: int
    attempt: int
    lane: str = "normal"

    def shares(self, number: int) -> list[tuple[str, int, int]]:
        """The same work for so many runs: a name and a range of slices for each."""
        slices = self.last_slice - self.first_slice + 1
        number = max(1, min(number, slices))
        borders = [self.first_slice + slices * share // number for share in range(number + 1)]
        stem = f"due-{self.key}-{self.due_at:%Y%m%dT%H%M%S}"
        return [(f"{stem}-{share}-{self.attempt}", borders[share], borders[share + 1] - 1) for share in range(number)]


@dataclass(frozen=True)
class Missed:
    """A campaign that nobody has started within the grace: a person has to say that it still makes sense."""

    key: str
    due_at: datetime


@dataclass(frozen=True)
class Wanted:
    """What should be launched now, and what has been missed."""

    freezes: list[Freeze]
    launches: list[Launch]
    missed: list[Missed]


def wanted(connection: Connection, *, grace: float, now: datetime | None = None) -> Wanted:
    """Look what is near. `grace` is in seconds; `now` is the database's clock unless it is given."""
    given = {"now": now, "grace": grace, "ahead": AHEAD, "again": AGAIN}
    with connection.cursor(row_factory=class_row(Freeze)) as cursor:
        freezes = cursor.execute(QUERIES["freezes"], given).fetchall()
    with connection.cursor(row_factory=class_row(Launch)) as cursor:
        launches = cursor.execute(QUERIES["launches"], given).fetchall()
    with connection.cursor(row_factory=class_row(Missed)) as cursor:
        missed = cursor.execute(QUERIES["missed"], given).fetchall()
    return Wanted(freezes, launches, missed)


def begun(connection: Connection, campaign_id: int, slices: tuple[int, int], horizon: float) -> None:
    """A run works on these slices, and waits `horizon` seconds for who is not due yet."""
    connection.execute(
        QUERIES["begun"],
        {"campaign_id": campaign_id, "first_slice": slices[0], "last_slice": slices[1], "horizon": horizon},
    )


def soonest(connection: Connection) -> tuple[str, datetime] | None:
    """The campaign that is due next, and when."""
    row = connection.execute(QUERIES["soonest"]).fetchone()
    return None if row is None else (str(row[0]), row[1])
