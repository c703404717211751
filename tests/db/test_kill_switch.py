"""Stopping in a hurry: the pause of the ledger and the switch at the provider; and what may be changed before going on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, kill_switch
from mailpipe.cli import main
from mailpipe.errors import CampaignError, ServiceError
from mailpipe.send import End, Outcome
from mailpipe.ses.client import connect
from tests.support import World, wait_for

THREADS = 4
CALL = 50


@contextmanager
def sending(scene: World, key: str) -> Iterator[Future[Outcome]]:
    """A run in a thread of its own; it is over at the end, and ended when the test fails."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(scene.send, key, stop=stop)
        except BaseException:
            stop.set()
            raise


def accepted(scene: World, key: str) -> int:
    return len(scene.journal(key))


def actions(scene: World, key: str) -> list[str]:
    with scene.database.connection() as connection:
        return [step["action"] for step in campaign.history(connection, scene.campaign(key).campaign_id)]


def pause(scene: World, key: str) -> campaign.Campaign:
    with scene.database.connection() as connection:
        return kill_switch.pause(connection, scene.settings, scene.ses, key, actor="ben", reason="wrong price")


def resume(scene: World, key: str) -> campaign.Campaign:
    with scene.database.connection() as connection:
        return kill_switch.resume(connection, scene.settings, scene.ses, key, actor="ben")


class TestSwitch:
    def test_it_stops_everything_that_sends_and_lets_it_go_on(self, scene: World) -> None:
        """Another campaign's calls are refused too: it pauses with the cause, and nobody is failed for it."""
        scene.people(120)
        first, second = scene.ready(), scene.ready()
        assert scene.send(first, (0, 30)).end is End.COMPLETE
        assert pause(scene, first).state == "paused"
        assert actions(scene, first)[-2:] == ["pause", "provider_off"]
        assert scene.send(first).calls == 0

        assert scene.send(second).accepted == 0
        found = scene.campaign(second)
        assert found.state == "paused" and "sending is paused" in str(found.state_reason)
        assert scene.keep_promises(second) == {"pending": 120}

        assert resume(scene, first).state == "sending"
        assert actions(scene, first)[-2:] == ["provider_on", "resume"]
        scene.send(first)
        assert scene.keep_promises(first) == {"sent": 120}
        with scene.database.connection() as connection:
            campaign.resume(connection, second, actor="ben")
        scene.send(second)
        assert scene.keep_promises(second) == {"sent": 120}

    def test_it_stops_a_run_on_its_way(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=80)
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 200, "a fifth")
            pause(scene, key)
            before = accepted(scene, key)
        assert run.result().end is End.NOT_SENDING
        assert accepted(scene, key) <= before + THREADS * CALL
        assert set(scene.keep_promises(key)) == {"sent", "pending"}
        resume(scene, key)
        scene.stand_in.change(latency_ms=0)
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 1000}

    def test_it_can_be_turned_after_the_pause(self, scene: World) -> None:
        scene.people(10)
        key = scene.ready()
        with scene.database.connection() as connection:
            campaign.start(connection, key, actor="ben")
            campaign.pause(connection, key, actor="ben", reason="wrong price")
        pause(scene, key)
        assert actions(scene, key)[-2:] == ["pause", "provider_off"]
        resume(scene, key)

    @pytest.mark.parametrize("state", ["draft", "done"])
    def test_it_is_not_touched_for_a_campaign_that_cannot_be_paused(self, scene: World, state: str) -> None:
        scene.people(10)
        key = scene.create() if state == "draft" else scene.ready()
        if state == "done":
            scene.send(key)
        with pytest.raises(CampaignError, match=f"is {state}"):
            pause(scene, key)
        other = scene.ready()
        assert scene.send(other).accepted == 10

    def test_a_campaign_is_paused_although_ses_cannot_be_told(self, scene: World) -> None:
        """And it is not resumed before SES could be told."""
        scene.people(10)
        key = scene.ready()
        nowhere = connect(scene.settings, endpoint="http://127.0.0.1:9", connections=1)
        with scene.database.connection() as connection:
            campaign.start(connection, key, actor="ben")
            with pytest.raises(ServiceError):
                kill_switch.pause(connection, scene.settings, nowhere, key, actor="ben", reason="wrong price")
            assert scene.campaign(key).state == "paused"
            with pytest.raises(ServiceError):
                kill_switch.resume(connection, scene.settings, nowhere, key, actor="ben")
        assert scene.campaign(key).state == "paused"
        assert actions(scene, key)[-1] == "pause"

    def test_only_a_paused_campaign_turns_it_on(self, scene: World) -> None:
        scene.people(10)
        key = scene.ready()
        with pytest.raises(CampaignError, match="only a paused one"):
            resume(scene, key)
        assert "provider_on" not in actions(scene, key)


class TestPause:
    def test_while_all_wait_for_the_pace_no_call_is_opened_any_more(self, scene: World) -> None:
        scene.people(400)
        key = scene.ready(chunk_size=100, rate=20)
        identity = {"id": scene.campaign(key).campaign_id}

        def calls() -> int:
            ((number,),) = scene.execute("SELECT sum(calls) FROM mailpipe.chunk WHERE campaign_id = %(id)s", identity)
            return int(number)

        with sending(scene, key) as run:
            wait_for(lambda: calls() >= 2, "two calls")
            with scene.database.connection() as connection:
                campaign.pause(connection, key, actor="ben", reason="wrong price")
            at_pause = calls()
        outcome = run.result()
        assert outcome.end is End.NOT_SENDING
        # One may have been committing when the pause was.
        assert calls() <= at_pause + 1, "a call was opened after the pause"
        by_state = scene.keep_promises(key)
        assert by_state == {"sent": outcome.accepted, "pending": 400 - outcome.accepted}
        assert scene.progress(key).processing_chunks == 0

    def test_resumed_while_all_wait_for_the_pace_it_goes_on_at_once(self, scene: World) -> None:
        """The run that was there goes on: nobody has to launch another one, and nothing stands still while it shows `sending`."""
        scene.people(200)
        key = scene.ready(chunk_size=100, rate=100)
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 50, "a call")
            with scene.database.connection() as connection:
                campaign.pause(connection, key, actor="ben", reason="a question")
                campaign.resume(connection, key, actor="ben")
            before = accepted(scene, key)
            wait_for(lambda: accepted(scene, key) > before, "the next call", seconds=10)
        assert run.result().end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 200}

    def test_template_and_rate_changed_at_a_fifth_hold_for_the_rest(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100, rate=1000)
        old = scene.campaign(key).template_version
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 200, "a fifth")
            with scene.database.connection() as connection:
                campaign.pause(connection, key, actor="ben", reason="wrong price")
        run.result()
        before = accepted(scene, key)
        assert 200 <= before <= 200 + 2 * THREADS * CALL
        with scene.database.connection() as connection:
            campaign.change(connection, scene.settings, scene.ses, key, actor="ben", rate=400, template_name="goodbye")
            campaign.resume(connection, key, actor="ben")
        outcome = scene.send(key)
        assert scene.keep_promises(key) == {"sent": 1000}
        new = scene.campaign(key).template_version
        assert Counter(line["template"] for line in scene.journal(key)) == {old: before, new: 1000 - before}
        assert outcome.seconds >= (1000 - before) / 400 - 1.5


def test_the_switch_as_a_person_types_it(world: World) -> None:
    world.people(30)
    key = world.ready()
    with world.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
    environment = {
        "MAILPIPE_HOME": str(world.settings.home),
        "MAILPIPE_VAR": str(world.settings.var),
        "MAILPIPE_DATABASE_URL": world.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": world.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_USER": "ana",
    }

    def mailpipe(*arguments: str) -> Result:
        result = CliRunner().invoke(main, arguments, env=environment)
        assert result.exit_code == 0, result.output
        return result

    said = mailpipe("campaign", "pause", key, "--provider", "--reason", "wrong price").stdout
    assert f"{world.settings.configuration_set} is off at SES" in said and "wrong price" in said
    other = world.ready()
    assert world.send(other).accepted == 0
    assert world.campaign(other).state == "paused"
    answer = json.loads(mailpipe("campaign", "resume", key, "--provider", "--json").stdout)
    assert answer["state"] == "sending"
    assert world.send(key).accepted == 30
    steps = json.loads(mailpipe("campaign", "show", key, "--json").stdout)["history"]
    assert [(step["action"], step["detail"].get("configuration_set")) for step in steps[-4:]] == [
        ("pause", None),
        ("provider_off", world.settings.configuration_set),
        ("provider_on", world.settings.configuration_set),
        ("resume", None),
    ]
