"""The raw events: kept for some days, in one partition for each month of event time, and dropped partition by partition."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

KEEP_DAYS = 90
"""Days for which the text of an event is kept. The bits stay, and the times of all but sends, deliveries, opens and clicks."""
AHEAD = timedelta(days=1)
"""Events from further in the future have a wrong clock behind them, and are acted upon without being kept."""

_lock = threading.Lock()
_present: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True)
class Span:
    """Event times that are kept: [first, end)."""

    first: datetime
    end: datetime

    def __contains__(self, at: object) -> bool:
        return isinstance(at, datetime) and self.first <= at < self.end


def span(keep_days: int) -> Span:
    now = datetime.now(UTC)
    return Span(now - timedelta(days=keep_days), now + AHEAD)


def prepare(connection: Connection, times: Iterable[datetime], kept: Span) -> None:
    """See that there is a partition for each of these times. `connection` is in autocommit mode."""
    months = {f"{year}{month:02d}" for year, month in {(at.year, at.month) for at in times if at in kept}}
    database = hash(connection.info.dsn)
    for month in sorted(months):
        if (database, month) not in _present:
            with _lock:
                _create(connection, month)
                _present.add((database, month))


def ahead(connection: Connection) -> list[str]:
    """Make the partitions of this month and of the next. Answers the new ones. `connection` is in autocommit mode."""
    now = datetime.now(UTC)
    months = [now.strftime("%Y%m"), _first_of_next(now.strftime("%Y%m")).strftime("%Y%m")]
    return [f"event_{month}" for month in months if _create(connection, month)]


def drop(connection: Connection, keep_days: int = KEEP_DAYS) -> list[str]:
    """Drop the months that are over for so many days. Answers their partitions."""
    dropped = []
    for name, month in connection.execute(QUERIES["partitions"]).fetchall():
        if _first_of_next(month) <= datetime.now(UTC) - timedelta(days=keep_days):
            connection.execute(f"DROP TABLE mailpipe.{name}".encode())
            _present.clear()
            dropped.append(name)
    return dropped


def _create(connection: Connection, month: str) -> bool:
    """False: it is there already."""
    first = datetime.strptime(month, "%Y%m").replace(tzinfo=UTC)
    name = f"mailpipe.event_{month}"
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
    if row is not None and row[0]:
        return False
    # Another process may be faster.
    with contextlib.suppress(psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation):
        connection.execute(
            f"CREATE TABLE {name} PARTITION OF mailpipe.event"
            f" FOR VALUES FROM ('{first.isoformat()}') TO ('{_first_of_next(month).isoformat()}')".encode()
        )
        return True
    return False


def _first_of_next(month: str) -> datetime:
    first = datetime.strptime(month, "%Y%m").replace(tzinfo=UTC)
    return (first + timedelta(days=32)).replace(day=1)
