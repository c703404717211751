"""Looking after an idle campaign of a million people changes nothing, and finds whom nobody works on."""

from __future__ import annotations

from mailpipe import reconcile
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
