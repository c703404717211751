"""Correction campaigns: people of an earlier campaign by what became of them, and nobody who must not be mailed."""

from __future__ import annotations

from typing import Any

import pytest

from mailpipe import campaign, ledger
from mailpipe.errors import CampaignError
from mailpipe.settings import Cap
from tests.support import World


def audience(world: World, key: str) -> dict[str, tuple[Any, ...]]:
    """Zone, locale and variables of everybody in a snapshot, by user id, in their order."""
    rows = world.execute(
        "SELECT r.user_id, r.timezone, r.locale, r.variables FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s ORDER BY r.seq",
        {"key": key},
    )
    return {row[0]: tuple(row[1:]) for row in rows}


def correction(world: World, key: str, *delivery: str, **fields: Any) -> str:
    return world.create(
        segment=None, audience={"campaign": key, "delivery": list(delivery)}, template="goodbye", **fields
    )


def set_states(world: World, key: str, states: dict[int, tuple[str, str]]) -> None:
    """Let these people of a sent campaign have ended otherwise."""
    campaign_id = world.campaign(key).campaign_id
    for seq, (state, reason) in states.items():
        world.execute(
            "WITH c AS (UPDATE mailpipe.chunk SET sent = sent - 1,"
            " failed = failed + (%(state)s = 'failed')::int, skipped = skipped + (%(state)s = 'skipped')::int,"
            " unknown = unknown + (%(state)s = 'unknown')::int"
            " WHERE campaign_id = %(id)s AND %(seq)s BETWEEN first_seq AND first_seq + size - 1 RETURNING chunk_no)"
            " INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)"
            " SELECT %(id)s, %(seq)s, chunk_no, %(state)s, %(reason)s FROM c",
            {"id": campaign_id, "seq": seq, "state": state, "reason": reason},
        )


def test_those_who_were_sent_get_the_correction_with_what_was_frozen_then(scene: World) -> None:
    scene.people(30)
    key = scene.ready()
    scene.send(key)
    set_states(scene, key, {1: ("failed", "rejected"), 2: ("unknown", "lost"), 3: ("skipped", "suppressed")})
    before = audience(scene, key)
    scene.execute("UPDATE users SET first_name = 'Changed', timezone = 'Europe/Berlin'")
    sorry = correction(scene, key, "sent")
    taken = scene.freeze(sorry)
    assert (taken.recipients, taken.segment) == (27, f"campaign {key}: sent")
    assert taken.variables == ["first_name", "city"]
    assert audience(scene, sorry) == {
        person: known for person, known in before.items() if person not in ("1", "2", "3")
    }
    assert list(audience(scene, sorry)) == list(before)[3:]
    scene.approve(sorry)
    scene.send(sorry)
    assert scene.keep_promises(sorry) == {"sent": 27}


def test_the_rest_are_those_who_can_still_be_mailed(scene: World) -> None:
    scene.people(60)
    key = scene.ready(chunk_size=100)
    scene.send(key, (0, 49))
    states = {seq: state for seq, (state, _) in scene.states(key).items()}
    left = [seq for seq, state in states.items() if state == "pending"]
    assert left
    set_states(
        scene,
        key,
        {
            1: ("failed", "rejected"),
            2: ("unknown", "lost"),
            3: ("skipped", "opted_out"),
            4: ("skipped", "suppressed"),
            5: ("skipped", "narrowed"),
        },
    )
    with scene.database.connection() as connection:
        campaign.cancel(connection, key, actor="ana", reason="wrong price")
    rest = correction(scene, key, "rest")
    scene.freeze(rest)
    assert set(audience(scene, rest)) == {"1", *(str(seq) for seq in left)}
    both = correction(scene, key, "failed", "unknown")
    scene.freeze(both)
    assert set(audience(scene, both)) == {"1", "2"}


def test_nobody_is_in_it_who_has_opted_out_or_is_suppressed_by_now(scene: World) -> None:
    scene.people(10)
    key = scene.ready()
    scene.send(key)
    scene.execute("INSERT INTO mailpipe.opt_out VALUES ('1', 'marketing', 'test')")
    scene.execute("INSERT INTO mailpipe.suppression VALUES ('person2@mail.example.com', 'all', 'hard_bounce', 'test')")
    scene.execute("UPDATE users SET marketing_opt_in = false WHERE user_id = 3")
    sorry = correction(scene, key, "sent")
    assert scene.freeze(sorry).excluded == {"opted_out": 2, "suppressed": 1}
    assert set(audience(scene, sorry)) == {str(number) for number in range(4, 11)}


def test_the_campaign_that_is_corrected_uses_up_nothing_of_the_cap_and_others_do(scene: World) -> None:
    capped = World(
        scene.database, scene.with_settings(frequency_cap=Cap(1, 7)), scene.stand_in, scene.ses, scene.numbers
    )
    capped.people(10, first=1001)
    key = capped.ready()
    capped.send(key)
    sorry = correction(capped, key, "sent")
    capped.approve(sorry)
    assert capped.freeze(sorry).recipients == 10
    assert capped.freeze(correction(capped, key, "sent")).excluded == {"frequency_cap": 10}


def test_nothing_is_frozen_while_it_can_still_change_who_was_sent(scene: World) -> None:
    scene.people(60)
    key = scene.ready()
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        lease = ledger.lease(connection, scene.campaign(key).campaign_id, (0, 99), owner="w", seconds=60)
        assert lease is not None
    sorry, rest = correction(scene, key, "sent"), correction(scene, key, "rest")
    with pytest.raises(CampaignError, match="is sending; pause it"):
        scene.freeze(sorry)
    with scene.database.connection() as connection:
        campaign.pause(connection, key, actor="ana", reason="wrong price")
        with pytest.raises(CampaignError, match="in somebody's hands"):
            scene.freeze(sorry)
        ledger.release(connection, lease)
    assert scene.freeze(sorry).recipients == 0
    with pytest.raises(CampaignError, match="mailed by both campaigns"):
        scene.freeze(rest)


def test_an_earlier_campaign_that_is_missing_or_has_mailed_nobody_is_told(scene: World) -> None:
    with pytest.raises(CampaignError, match="no campaign 'nobody'"):
        correction(scene, "nobody", "sent")
    draft = scene.create()
    with pytest.raises(CampaignError, match="has no snapshot"):
        scene.freeze(correction(scene, draft, "sent"))
