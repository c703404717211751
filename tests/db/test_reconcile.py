"""Putting the ledger in order: what the dead have left, what events have told, and which campaigns are over."""

from __future__ import annotations

import pytest

from mailpipe import campaign, event, ledger, reconcile
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.message import Recipient
from mailpipe.reconcile import Reconciled
from tests.support import World, opening

NOTHING = Reconciled(0, 0, 0, ())


def dies_in_a_call(scene: World, connection: Connection, key: str, *seqs: int) -> None:
    """A worker leases the first chunk, opens a call for these people, and is never heard of again."""
    campaign_id = scene.campaign(key).campaign_id
    if scene.campaign(key).state == "approved":
        campaign.start(connection, key, actor="test")
    held = ledger.lease(connection, campaign_id, (0, 99), owner="dead", seconds=60)
    assert held is not None
    people = [Recipient(seq, str(seq), "unread", None, None, ()) for seq in seqs]
    opened = ledger.open_calls(connection, held, [people], opening=opening(campaign_id), seconds=60)
    assert opened is not None and opened[0].seqs == seqs
    connection.execute(
        "UPDATE mailpipe.chunk SET leased_until = now() - interval '1 s' WHERE campaign_id = %s AND state = 'leased'",
        (campaign_id,),
    )


@pytest.fixture
def ready(scene: World) -> str:
    with scene.database.connection() as connection:
        connection.execute("UPDATE mailpipe.campaign SET state = 'cancelled', changed_at = '2020-01-01Z'")
    scene.people(4)
    return scene.ready()


def test_what_a_dead_worker_had_is_freed_and_its_call_is_unknown(scene: World, ready: str) -> None:
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1, 2)
        assert reconcile.run(connection) == Reconciled(1, 2, 0, ())
        assert scene.balance(ready) == {"unknown": 2, "pending": 2}
        assert reconcile.run(connection) == NOTHING
    scene.send(ready)
    assert scene.keep_promises(ready) == {"unknown": 2, "sent": 2}


def test_events_of_the_dead_worker_s_call_settle_it_in_the_same_pass(scene: World, ready: str) -> None:
    """The event came while the people were still in the call; the sweep and the settling are one reconcile."""
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1, 2, 3, 4)
        told = [event.Event("send", ready, 1), event.Event("delivery", ready, 2), event.Event("reject", ready, 3)]
        event.fold(connection, told)
        assert event.settle(connection, scene.campaign(ready).campaign_id) == 0
        assert reconcile.run(connection) == Reconciled(1, 4, 3, (ready,))
    assert {seq: state for seq, (state, _) in scene.states(ready).items()} == {
        1: "sent",
        2: "sent",
        3: "failed",
        4: "unknown",
    }
    assert scene.campaign(ready).state == "done"


@pytest.mark.parametrize("state", ["done", "cancelled", "paused"])
def test_a_campaign_that_has_stopped_is_settled_for_a_day(scene: World, ready: str, state: str) -> None:
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1, 2, 3, 4)
        reconcile.run(connection)
        connection.execute("UPDATE mailpipe.campaign SET state = %s, changed_at = now() WHERE key = %s", (state, ready))
        event.fold(connection, [event.Event("send", ready, 1)])
        assert reconcile.run(connection).settled == 1
        event.fold(connection, [event.Event("send", ready, 2)])
        connection.execute("UPDATE mailpipe.campaign SET changed_at = now() - interval '25 h' WHERE key = %s", (ready,))
        assert reconcile.run(connection).settled == (1 if state == "paused" else 0)
        assert reconcile.run(connection, ready).settled == (0 if state == "paused" else 1), "by name, always"


def test_a_live_worker_is_left_alone(scene: World, ready: str) -> None:
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1)
        connection.execute("UPDATE mailpipe.chunk SET leased_until = now() + interval '5 s' WHERE state = 'leased'")
        assert reconcile.run(connection) == NOTHING
        assert scene.balance(ready) == {"sending": 1, "pending": 3}


def test_a_campaign_with_nobody_left_is_finished(scene: World, ready: str) -> None:
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1, 2, 3, 4)
        assert reconcile.run(connection, ready).finished == (ready,)
        assert scene.campaign(ready).state == "done"


def test_campaigns_that_cannot_end_yet_are_not_finished(scene: World, ready: str) -> None:
    draft, approved = scene.create(), scene.create()
    scene.approve(approved)
    with scene.database.connection() as connection:
        campaign.start(connection, ready, actor="test")
        assert reconcile.run(connection) == NOTHING
    assert [scene.campaign(key).state for key in (draft, approved, ready)] == ["draft", "approved", "sending"]


def test_a_campaign_of_nobody_is_finished(scene: World) -> None:
    key = scene.ready()
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="test")
        assert reconcile.run(connection, key).finished == (key,)


def test_only_the_campaign_asked_for_is_touched(scene: World, ready: str) -> None:
    other = scene.ready()
    with scene.database.connection() as connection:
        dies_in_a_call(scene, connection, ready, 1)
        dies_in_a_call(scene, connection, other, 1)
        assert reconcile.run(connection, other).freed_chunks == 1
        assert scene.balance(ready) == {"sending": 1, "pending": 3}
        with pytest.raises(CampaignError, match="no campaign 'nobody'"):
            reconcile.run(connection, "nobody")
    assert reconcile.Reconciled(1, 2, 3, ("a",)).to_json() == {
        "freed_chunks": 1,
        "became_unknown": 2,
        "settled": 3,
        "finished": ["a"],
        "expired": 0,
        "released": 0,
    }
