"""The plan of waves and the gates between them, as a person types it; and a jump of the domain's volume that is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mailpipe import campaign, plan
from mailpipe.errors import CampaignError
from mailpipe.waves import usual
from tests.db.test_cli import Mailpipe, environment, mailpipe
from tests.support import World

__all__ = ["environment", "mailpipe"]

FILE = """\
key: warm
segment: everybody
template: hello
sender: Shop <news@mail.example.com>
warmup: {ramp: [50, 100, 200], timezone: Asia/Ho_Chi_Minh}
"""


def test_a_warm_up_is_seen_before_the_launch_and_followed_after_it(
    world: World, mailpipe: Mailpipe, tmp_path: Path
) -> None:
    world.people(400)
    (tmp_path / "warm.yaml").write_text(FILE)
    mailpipe("campaign", "create", str(tmp_path / "warm.yaml"))
    mailpipe("campaign", "snapshot", "warm")
    shown = mailpipe("campaign", "plan", "warm").output
    assert "done on day 4 (" in shown and "ramp own list from its day 1 on, days of Asia/Ho_Chi_Minh" in shown
    assert "day:3 ████████████████████████████████████████       200" in shown
    stages = json.loads(mailpipe("campaign", "plan", "warm", "--json").output)["timing"]["waves"]["stages"]
    assert [(one["label"], one["people"], one["cap"]) for one in stages] == [
        ("day:1", 50, 50), ("day:2", 100, 100), ("day:3", 200, 200), ("day:4", 50, 200)
    ]  # fmt: skip
    mailpipe("campaign", "approve", "warm", "--as", "ben")
    mailpipe("campaign", "start", "warm")
    told = json.loads(mailpipe("campaign", "progress", "warm", "--json").output)
    assert [(one["part"], one["people"], one["sent"], one["gate"]) for one in told["waves"]] == [
        ("day:1", 50, 50, "open"), ("day:2", 100, 0, "waits"), ("day:3", 200, 0, "waits"), ("day:4", 50, 0, "waits")
    ]  # fmt: skip
    assert told["waiting"].startswith("350 people wait for the gate after day:1 (to be judged at")
    assert "day:2 (100 people)" in mailpipe("campaign", "gate", "warm").output
    mailpipe("campaign", "gate", "warm", "--hold", "--reason", "a complaint", "--actor", "ben")
    gate = json.loads(mailpipe("campaign", "gate", "warm", "--json").output)
    assert (gate["verdict"], gate["text"]) == ("hold", "held by a person: a complaint")
    mailpipe("campaign", "gate", "warm", "--pass", "--hold", "--reason", "x", code=2)
    mailpipe("campaign", "gate", "warm", "--pass", code=2)
    history = json.loads(mailpipe("campaign", "show", "warm", "--json").output)["history"]
    assert (history[-1]["actor"], history[-1]["action"]) == ("ben", "gate hold")


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual, "FLOOR", 100)


def test_a_jump_of_the_volume_is_refused_without_a_ramp_or_a_recorded_word(scene: World, low: None) -> None:
    scene.people(150)
    key = scene.create(sender="Shop <a@jump.example.com>")
    scene.approve(key)
    scene.freeze(key)
    with scene.database.connection() as connection:
        assert plan.check(connection, key, accept=False) is not None
        with pytest.raises(CampaignError) as caught:
            plan.check(connection, key, accept=False, usual_factor=5.0)
        assert "150 mails of jump.example.com on" in str(caught.value)
        assert "it has sent nothing within the last 30 days" in str(caught.value)
        plan.check(connection, key, accept=True, usual_factor=5.0, actor="ben")
        last = campaign.history(connection, scene.campaign(key).campaign_id)[-1]
        assert (last["actor"], last["action"]) == ("ben", "accept plan")
    scene.send(key)
    # Now 150 a day are known: five times as many are nothing unusual.
    scene.people(550, first=151)
    more = scene.create(sender="Shop <b@jump.example.com>")
    scene.freeze(more)
    warm = scene.create(sender="Shop <c@fresh.example.com>", warmup={"ramp": "moderate"})
    scene.freeze(warm)
    with scene.database.connection() as connection:
        assert plan.check(connection, more, accept=False, usual_factor=6.0) is not None
        with pytest.raises(CampaignError, match="at most 150 on one of the last 30 days"):
            plan.check(connection, more, accept=False, usual_factor=4.0)
        assert plan.check(connection, warm, accept=False, usual_factor=5.0) is not None


def test_a_wave_that_cannot_be_sent_within_its_time_is_told(scene: World) -> None:
    scene.people(200)
    key = scene.create(waves=[{"rest": True, "within": "30s"}], rate=5)
    scene.freeze(key)
    with scene.database.connection() as connection:
        (told,) = plan.of(connection, key).problems
    assert told.startswith("wave:1: 200 people at 5/s take ")
