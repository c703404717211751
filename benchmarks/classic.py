"""The classic row ledger that `benchmarks.ledger` measures against, as it is often written: claim rows, mark rows, count rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from mailpipe.db import Connection, queries
from mailpipe.ses.answer import Answer, Kind

QUERIES = queries.beside(__file__)
CALL = 50


def create(connection: Connection) -> None:
    connection.execute(QUERIES["create"])


def take(connection: Connection, campaign_id: int, as_of: datetime, *, duplicates: bool) -> None:
    """The snapshot, in one statement."""
    name = "snapshot" if duplicates else "snapshot_without_duplicates"
    with connection.transaction():
        # As much memory for its sorts as our own snapshot takes.
        connection.execute("SET LOCAL work_mem = '256MB'")
        connection.execute(QUERIES[name], {"campaign_id": campaign_id, "as_of": as_of})


def work(
    connection: Connection, campaign_id: int, low: int, answer: Callable[[Sequence[int]], Answer]
) -> Iterator[int]:
    """Claim and mark 500 people at a time; yields the last seq of each claim."""
    while True:
        rows = connection.execute(QUERIES["claim"], {"campaign_id": campaign_id, "low": low}).fetchall()
        if not rows:
            return
        low = max(row[0] for row in rows)
        chosen = sorted(row[0] for row in rows if row[6] == "sending")
        for start in range(0, len(chosen), CALL):
            batch = chosen[start : start + CALL]
            results = answer(batch).results
            connection.execute(
                QUERIES["mark"],
                {
                    "campaign_id": campaign_id,
                    "seqs": batch,
                    "statuses": [result.kind.value for result in results],
                    "reasons": [result.reason if result.kind is not Kind.SENT else None for result in results],
                    "message_ids": [result.message_id for result in results],
                },
            )
        yield low


def progress(connection: Connection, campaign_id: int) -> dict[str, int]:
    return dict(connection.execute(QUERIES["progress"], {"campaign_id": campaign_id}).fetchall())
