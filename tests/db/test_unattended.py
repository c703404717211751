"""Looking after an idle campaign of a million people changes nothing, and finds whom nobody works on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mailpipe import identity, reconcile
from tests.support import World

CHUNKS = 2_000


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


def test_an_idle_campaign_is_left_alone_and_the_due_half_of_it_is_found(world: World) -> None:
    key = a_million(world)
    with world.database.connection() as connection:
        assert reconcile.run(connection) == reconcile.Reconciled(0, 0, 0, ())
        assert reconcile.unattended(connection) == []
    world.execute("UPDATE mailpipe.chunk SET due_at = now() WHERE state = 'pending'")
    with world.database.connection() as connection:
        assert reconcile.unattended(connection) == [reconcile.Unattended(key, 50, 99)]


def test_calls_are_looked_up_by_campaign_and_time(world: World) -> None:
    """Of millions of old calls none is read, when a sensor looks every minute and when a run begins."""
    key = a_million(world)
    number = {"id": world.campaign(key).campaign_id}
    world.execute(
        "INSERT INTO mailpipe.call (campaign_id, chunk_no, no, at, seconds, positions, accepted, message_ids)"
        " SELECT %(id)s, n, 1000, now() - interval '2 days', 0.1, B'1', 1, decode(repeat('00', 24), 'hex')"
        " FROM generate_series(1, 20000) AS n",
        number,
    )
    world.execute("UPDATE mailpipe.campaign SET state = 'sending' WHERE campaign_id = %(id)s", number)
    world.execute("UPDATE mailpipe.chunk SET due_at = now() WHERE state = 'pending'")
    world.execute("ANALYZE mailpipe.call")
    for statement, given in (
        (reconcile.QUERIES["unattended"], {"quiet": 60.0}),
        (identity.QUERIES["accepted_last_day"], {}),
    ):
        with world.database.connection() as connection:
            [(plan,)] = connection.execute(b"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement, given).fetchall()
        read = [one for one in scans(plan[0]["Plan"]) if one["Relation Name"] == "call"]
        assert read
        assert all("at" in one.get("Index Cond", "") and not one.get("Rows Removed by Filter") for one in read), read


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan:
        yield plan
    for one in plan.get("Plans", []):
        yield from scans(one)
