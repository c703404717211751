"""What is done about events beside taking them in, every now and then and by whoever comes first: it can be done twice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mailpipe import breaker
from mailpipe.db import Connection
from mailpipe.feedback import archive
from mailpipe.feedback.ingest import bind_late


@dataclass(frozen=True)
class Kept:
    """Events that found their person late, months that were dropped, campaigns that the breaker's second look paused."""

    bound: int
    dropped: list[str]
    paused: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(connection: Connection, keep_days: int) -> Kept:
    """Tie events to calls that were recorded after them, drop months that are over for `keep_days`, look at the breaker's lines."""
    bound = bind_late(connection)
    dropped = archive.drop(connection, keep_days)
    return Kept(bound, dropped, breaker.evaluate_all(connection))
