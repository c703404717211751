"""What is done about events beside taking them in, by whoever comes first: all of it can be done twice. `run` every now and then,
`daily` once a day.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mailpipe import breaker
from mailpipe.db import Connection
from mailpipe.feedback import archive
from mailpipe.feedback.ingest import bind_late


@dataclass(frozen=True)
class Kept:
    """Events that found their person late, campaigns that the breaker's second look paused."""

    bound: int
    paused: list[str]


@dataclass(frozen=True)
class Tidied:
    """Months that events will need, and months that were dropped, as names of partitions."""

    made: list[str]
    dropped: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(connection: Connection) -> Kept:
    """Tie events to calls that were recorded after them, look at the breaker's lines."""
    return Kept(bind_late(connection), breaker.evaluate_all(connection))


def daily(connection: Connection, keep_days: int) -> Tidied:
    """Make the partitions of this month and the next, so that no burst of events waits for it; drop the months that are over for
    `keep_days`. `connection` is in autocommit mode."""
    made = archive.ahead(connection)
    return Tidied(made, archive.drop(connection, keep_days))
