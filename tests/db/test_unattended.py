"""Looking after an idle campaign of a million people costs next to nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from mailpipe import reconcile
from mailpipe.db import Connection
from tests.support import World

CHUNKS = 2_000
LIMIT = 0.020


def median(look: Callable[[], object]) -> float:
    times = []
    for _ in range(21):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def a_million(world: World) -> str:
    """A campaign of 2,000 chunks whose first half is sent and whose second half is due tomorrow."""
    world.people(100)
    key = world.ready(due_at="2099-01-01T00:00:00Z")
    world.send(key)
    number = {"id": world.campaign(key).campaign_id, "chunks": CHUNKS}
    with world.database.transaction() as connection:
        connection.execute("DELETE FROM mailpipe.chunk WHERE campaign_id = %(id)s", number)
        connection.execute(
            "INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, state, opened, finished, sent)"
            " SELECT %(id)s, n, n / 20, n * 500 + 1, 500, now() + interval '1 day',"
            " CASE WHEN n < 1000 THEN 'done' ELSE 'pending' END, CAST(repeat('0', 500) AS bit varying),"
            " CAST(repeat(CASE WHEN n < 1000 THEN '1' ELSE '0' END, 500) AS bit varying), CASE WHEN n < 1000 THEN 500 ELSE 0 END"
            " FROM generate_series(0, %(chunks)s - 1) AS n",
            number,
        )
        connection.execute(
            "INSERT INTO mailpipe.event_mask (campaign_id, chunk_no, kind, attempt, mask)"
            " SELECT %(id)s, n, kind, 1, CAST(repeat('1', 500) AS bit varying)"
            " FROM generate_series(0, 999) AS n, unnest(ARRAY['send', 'delivery']) AS kind",
            number,
        )
    world.execute("ANALYZE mailpipe.chunk, mailpipe.event_mask")
    return key


def test_an_idle_campaign_of_a_million_is_looked_at_within_20_ms(world: World) -> None:
    key = a_million(world)

    def looks(connection: Connection) -> dict[str, float]:
        assert reconcile.run(connection) == reconcile.Reconciled(0, 0, 0, ())
        assert reconcile.unattended(connection) == []
        return {
            "reconcile": median(lambda: reconcile.run(connection)),
            "unattended": median(lambda: reconcile.unattended(connection)),
        }

    with world.database.connection() as connection:
        measured = looks(connection)
    assert max(measured.values()) < LIMIT, measured
    # And it finds who is due: the second half.
    world.execute("UPDATE mailpipe.chunk SET due_at = now() WHERE state = 'pending'")
    with world.database.connection() as connection:
        assert reconcile.unattended(connection) == [reconcile.Unattended(key, 50, 99)]
