"""A living process keeps its leases, however slow its calls; a lease that has run out stays lost."""

from __future__ import annotations

from dataclasses import replace

from mailpipe import campaign, ledger
from mailpipe.db import Connection
from mailpipe.send import End
from tests.support import World


def test_a_call_longer_than_the_lease_does_not_cost_the_chunk(world: World) -> None:
    """The sweeper looks every second; without renewals it would call these people unknown."""
    world.people(60)
    key = world.ready()
    world.settings = replace(world.settings, lease=1.0)
    world.stand_in.change(latency_ms=3_000)
    swept: list[tuple[int, int]] = []

    def sweep(connection: Connection) -> None:
        swept.append(ledger.expire_leases(connection))

    assert world.send(key, on_tick=sweep).end is End.COMPLETE
    assert len(swept) >= 3
    assert set(swept) == {(0, 0)}
    assert world.keep_promises(key) == {"sent": 60}


def test_a_lease_that_has_run_out_is_not_renewed(world: World) -> None:
    world.people(10)
    key = world.ready()
    with world.database.connection() as connection:
        campaign_id = campaign.start(connection, key, actor="ana").campaign_id
        held = ledger.lease(connection, campaign_id, (0, 99), owner="slow", seconds=30)
        assert held is not None
        assert ledger.renew(connection, campaign_id, [], seconds=30) == 0
        assert ledger.renew(connection, campaign_id, [replace(held, fence=held.fence - 1)], seconds=30) == 0
        assert ledger.renew(connection, campaign_id, [held], seconds=30) == 1
        connection.execute("UPDATE mailpipe.chunk SET leased_until = clock_timestamp() - interval '1 ms'")
        assert ledger.renew(connection, campaign_id, [held], seconds=30) == 0
