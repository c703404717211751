"""The moves of a campaign: who may make them, from which state, and what is kept of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mailpipe import campaign, template
from mailpipe.errors import CampaignError, SegmentError, TemplateError
from tests.support import World

STATES = ["draft", "approved", "sending", "paused", "done", "cancelled"]
ALLOWED: dict[str, dict[str, str]] = {
    "approve": {"draft": "approved"},
    "start": {"approved": "sending", "sending": "sending"},
    "pause": {"approved": "paused", "sending": "paused", "paused": "paused"},
    "resume": {"paused": "sending"},
    "cancel": {"draft": "cancelled", "approved": "cancelled", "sending": "cancelled", "paused": "cancelled"},
}


def in_state(scene: World, state: str, *, snapshot: bool = True) -> str:
    """A campaign of two people in that state."""
    scene.clean()
    scene.people(2)
    key = scene.create()
    if snapshot:
        scene.freeze(key)
    if state != "draft":
        scene.approve(key)
    scene.execute("UPDATE mailpipe.campaign SET state = %(state)s WHERE key = %(key)s", {"state": state, "key": key})
    return key


def move(scene: World, name: str, key: str) -> campaign.Campaign:
    with scene.database.connection() as connection:
        if name == "approve":
            return campaign.approve(connection, scene.settings, scene.ses, key, approver="ben")
        reason = {"reason": "why not"} if name in ("pause", "cancel") else {}
        done: campaign.Campaign = getattr(campaign, name)(connection, key, actor="ben", **reason)
        return done


def history(scene: World, key: str) -> list[tuple[str, str]]:
    with scene.database.connection() as connection:
        found = campaign.get(connection, key)
        return [(row["actor"], row["action"]) for row in campaign.history(connection, found.campaign_id)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ALLOWED)
def test_each_move_is_made_from_its_states_alone(scene: World, name: str, state: str) -> None:
    key = in_state(scene, state)
    if state in ALLOWED[name]:
        assert move(scene, name, key).state == ALLOWED[name][state]
    else:
        with pytest.raises(CampaignError, match=f"campaign '{key}' is {state}"):
            move(scene, name, key)
        assert scene.campaign(key).state == state


def test_what_was_ordered_is_kept_with_who_and_why(scene: World) -> None:
    key = in_state(scene, "draft")
    for name in ("approve", "start", "pause", "pause", "resume", "cancel"):
        move(scene, name, key)
    assert history(scene, key) == [
        ("ana", "create"),
        ("ben", "approve"),
        ("ben", "start"),
        ("ben", "pause"),
        ("ben", "resume"),
        ("ben", "cancel"),
    ]
    with scene.database.connection() as connection:
        told = campaign.history(connection, scene.campaign(key).campaign_id)
    assert told[3]["detail"] == {"reason": "why not"}


def test_a_campaign_paused_before_its_snapshot_goes_back_to_approved(scene: World) -> None:
    key = in_state(scene, "paused", snapshot=False)
    assert move(scene, "resume", key).state == "approved"


def test_a_campaign_without_snapshot_cannot_be_started(scene: World) -> None:
    key = in_state(scene, "approved", snapshot=False)
    with pytest.raises(CampaignError, match="has no snapshot yet"):
        move(scene, "start", key)


@pytest.mark.parametrize("name", ["ana", "Ana", "ANA", " ana", "ana\t"])
def test_the_author_cannot_approve_under_any_spelling(scene: World, name: str) -> None:
    key = in_state(scene, "draft")
    with scene.database.connection() as connection, pytest.raises(CampaignError, match="its author cannot approve"):
        campaign.approve(connection, scene.settings, scene.ses, key, approver=name)
    assert scene.campaign(key).approver is None


@pytest.mark.parametrize("nobody", ["", "  "])
def test_nobody_can_order_anything(scene: World, nobody: str) -> None:
    key = in_state(scene, "approved")
    with scene.database.connection() as connection:
        orders: list[Callable[[], Any]] = [
            lambda: campaign.start(connection, key, actor=nobody),
            lambda: campaign.pause(connection, key, actor=nobody, reason="x"),
            lambda: campaign.cancel(connection, key, actor=nobody, reason="x"),
            lambda: campaign.create(connection, scene.settings, scene.campaign(key).spec, author=nobody),
            lambda: campaign.approve(connection, scene.settings, scene.ses, key, approver=nobody),
        ]
        for order in orders:
            with pytest.raises(CampaignError, match="say who you are"):
                order()
    assert scene.campaign(key).state == "approved"


def test_a_key_is_never_used_again(scene: World) -> None:
    key = in_state(scene, "cancelled")
    with pytest.raises(CampaignError, match="exists already; a key is never used again"):
        scene.create(key=key)


def test_two_who_create_the_same_key_at_once_are_told_apart(scene: World) -> None:
    together = threading.Barrier(3)

    def create() -> str:
        together.wait()
        try:
            return scene.create(key="the-same")
        except CampaignError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        answers = [future.result() for future in [pool.submit(create) for _ in range(3)]]
    assert answers.count("the-same") == 1
    assert sum("exists already" in answer for answer in answers) == 2


def test_of_several_who_move_a_campaign_at_once_one_wins_and_nothing_breaks(scene: World) -> None:
    key = in_state(scene, "sending")
    together = threading.Barrier(6)

    def order(name: str) -> str:
        together.wait()
        try:
            return move(scene, name, key).state
        except CampaignError as error:
            return str(error)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(order, name) for name in ("pause", "cancel") * 3]:
            future.result()
    assert scene.campaign(key).state in ("paused", "cancelled")
    actions = [action for _, action in history(scene, key)]
    assert actions.count("pause") <= 1 and actions.count("cancel") <= 1


def test_several_may_start_a_campaign_at_once(scene: World) -> None:
    key = in_state(scene, "approved")
    together = threading.Barrier(4)

    def start() -> str:
        together.wait()
        return move(scene, "start", key).state

    with ThreadPoolExecutor(4) as pool:
        assert [future.result() for future in [pool.submit(start) for _ in range(4)]] == ["sending"] * 4
    assert [action for _, action in history(scene, key)].count("start") == 1


def test_what_a_campaign_refers_to_is_checked_when_it_is_created(scene: World) -> None:
    with pytest.raises(SegmentError, match="segment 'nobody': not in"):
        scene.create(segment="nobody")
    with pytest.raises(TemplateError, match="known templates: goodbye, hello"):
        scene.create(template="nothing")
    with pytest.raises(SegmentError, match="no parameter 'days'"):
        scene.create(parameters={"days": 3})


def test_cancelling_skips_everybody_who_is_not_leased(scene: World) -> None:
    key = in_state(scene, "sending")
    move(scene, "cancel", key)
    assert set(scene.states(key).values()) == {("skipped", "cancelled")}
    assert scene.balance(key) == {"skipped": 2}


class TestChange:
    def change(self, scene: World, key: str, **fields: Any) -> campaign.Campaign:
        with scene.database.connection() as connection:
            return campaign.change(connection, scene.settings, scene.ses, key, actor="ben", **fields)

    @pytest.mark.parametrize("state", ["draft", "approved", "sending", "paused"])
    def test_a_rate_can_be_changed_any_time_before_the_end(self, scene: World, state: str) -> None:
        key = in_state(scene, state)
        found = self.change(scene, key, rate=77.5)
        assert (found.rate, found.spec.rate, found.state) == (77.5, 77.5, state)
        assert history(scene, key)[-1] == ("ben", "change")

    @pytest.mark.parametrize("state", ["draft", "approved", "paused"])
    def test_a_template_can_be_changed_while_nothing_is_sent(self, scene: World, state: str) -> None:
        key = in_state(scene, state)
        before = scene.campaign(key)
        found = self.change(scene, key, template_name="goodbye")
        assert found.spec.template == "goodbye"
        if state == "draft":
            assert found.template_version is None
        else:
            assert found.template_version not in (None, before.template_version)
            assert str(found.template_version).startswith("goodbye-")

    def test_a_template_cannot_be_changed_while_it_is_sent(self, scene: World) -> None:
        key = in_state(scene, "sending")
        with pytest.raises(CampaignError, match="pause it before its template is changed"):
            self.change(scene, key, template_name="goodbye")

    @pytest.mark.parametrize("state", ["done", "cancelled"])
    def test_nothing_can_be_changed_at_the_end(self, scene: World, state: str) -> None:
        key = in_state(scene, state)
        with pytest.raises(CampaignError, match="nothing of it can change any more"):
            self.change(scene, key, rate=5)

    @pytest.mark.parametrize("rate", [0, -3, 200_000, float("nan"), float("inf")])
    def test_a_rate_that_is_none_is_refused(self, scene: World, rate: float) -> None:
        key = in_state(scene, "paused")
        with pytest.raises(CampaignError, match="rate: expected recipients per second"):
            self.change(scene, key, rate=rate)


class TestTemplates:
    def test_what_was_approved_is_sent_although_the_folder_has_changed(self, scene: World) -> None:
        scene.people(1)
        key = scene.ready(template="goodbye")
        subject = scene.settings.templates / "goodbye" / "subject.txt"
        before = subject.read_text()
        subject.write_text("Something else {{first_name}}\n")
        try:
            scene.send(key)
        finally:
            subject.write_text(before)
        mail = scene.stand_in.message(scene.journal(key)[0]["message_id"])
        assert mail["rendered"]["subject"] == "Goodbye Name1"

    def test_publishing_again_is_no_fault(self, scene: World) -> None:
        with scene.database.connection() as connection:
            first = campaign.publish(connection, scene.settings, scene.ses, "hello")
            assert campaign.publish(connection, scene.settings, scene.ses, "hello") == first
            assert campaign.published_template(connection, first) == template.load(scene.settings.templates, "hello")
            with pytest.raises(CampaignError, match="was never published"):
                campaign.published_template(connection, "hello-000000000000")
