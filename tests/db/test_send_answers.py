"""A campaign in process against the stand-in: whatever the provider answers, everybody has one state, and nobody two mails."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from mailpipe import campaign, ledger
from mailpipe.job import HOPELESS_CALLS
from mailpipe.send import End
from mailpipe.ses.client import connect
from tests.db.runs import due_now, quick, sending, unblock
from tests.support import THREADS, World, wait_for

ENDS = {"INVALID_PARAMETER": ("failed", "invalid_parameter")}
PASSES = {"TRANSIENT_FAILURE": ("pending", "transient_failure"), "FAILED": ("pending", "failed")}
HALTS = [
    "ACCOUNT_SUSPENDED",
    "ACCOUNT_SENDING_PAUSED",
    "CONFIGURATION_SET_SENDING_PAUSED",
    "CONFIGURATION_SET_NOT_FOUND",
    "TEMPLATE_NOT_FOUND",
    "MAIL_FROM_DOMAIN_NOT_VERIFIED",
    "INVALID_SENDING_POOL_NAME",
    "MESSAGE_REJECTED",  # as the stand-in says it: the sender is not verified
]


class TestEntryStatuses:
    @pytest.mark.parametrize(("status", "state"), [*ENDS.items(), *PASSES.items()])
    def test_one_person_is_refused_and_the_others_are_not(
        self, scene: World, status: str, state: tuple[str, str]
    ) -> None:
        scene.people(3)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "entry_status", "status": status, "positions": [1], "count": 1})
        outcome = scene.send(key)
        assert outcome.end is (End.COMPLETE if status in ENDS else End.NOTHING_DUE)
        assert scene.keep_promises(key) == {"sent": 2, state[0]: 1}
        assert scene.states(key)[2] == state

    @pytest.mark.parametrize("status", PASSES)
    def test_a_passing_refusal_is_tried_again_and_can_end_well(self, scene: World, status: str) -> None:
        scene.people(3)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "entry_status", "status": status, "positions": [1], "count": 1})
        scene.send(key)
        due_now(scene, key)
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 3}
        assert scene.execute("SELECT count(*) FROM mailpipe.outcome WHERE campaign_id = %(id)s",
                             {"id": scene.campaign(key).campaign_id}) == [(0,)]  # fmt: skip

    def test_a_passing_refusal_that_does_not_pass_ends_as_failed(self, scene: World) -> None:
        scene.people(2)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "entry_status", "status": "TRANSIENT_FAILURE", "positions": [0], "after": 1})
        for _ in range(ledger.MAX_TRIES + 1):
            scene.stand_in.clear_faults()
            scene.stand_in.add_faults({"kind": "transient_entries", "positions": [0]})
            scene.send(key)
            due_now(scene, key)
        assert scene.states(key)[1] == ("failed", "transient_failure")
        assert scene.keep_promises(key) == {"sent": 1, "failed": 1}
        assert scene.campaign(key).state == "done"

    def test_a_throttled_person_is_pending_and_goes_out_in_the_same_run(self, scene: World) -> None:
        scene.people(3)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "throttle_entries", "positions": [0, 2], "count": 1})
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 3}
        assert scene.execute("SELECT blocked_reason FROM mailpipe.pace") == [("rate",)]
        codes = scene.execute(
            "SELECT codes FROM mailpipe.call WHERE campaign_id = %(id)s ORDER BY no",
            {"id": scene.campaign(key).campaign_id},
        )
        assert codes == [("asa",), (None,)]

    @pytest.mark.parametrize("status", HALTS)
    def test_what_speaks_against_the_account_pauses_the_campaign_and_fails_nobody(
        self, scene: World, status: str
    ) -> None:
        scene.people(3)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "entry_status", "status": status})
        outcome = scene.send(key)
        assert outcome.end is End.NOT_SENDING
        found = scene.campaign(key)
        assert found.state == "paused"
        assert found.state_reason and found.state_reason in outcome.text
        assert scene.keep_promises(key) == {"pending": 3}
        scene.stand_in.clear_faults()
        with scene.database.connection() as connection:
            campaign.resume(connection, key, actor="ben")
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 3}

    def test_a_campaign_whose_people_are_all_refused_stops(self, scene: World) -> None:
        scene.people(200)
        key = scene.ready(chunk_size=100)
        scene.stand_in.add_faults({"kind": "entry_status", "status": "INVALID_PARAMETER"})
        scene.send(key)
        assert scene.campaign(key).state == "paused"
        by_state = scene.keep_promises(key)
        assert 0 < by_state["failed"] <= 50 * 4
        assert by_state["failed"] + by_state.get("pending", 0) == 200


class TestWholeCalls:
    @pytest.mark.parametrize("status", [429, 400])
    def test_one_throttled_call_is_made_again(self, scene: World, status: int) -> None:
        scene.people(60)
        key = scene.ready()
        if status == 429:
            scene.stand_in.add_faults({"kind": "throttle_call", "count": 1})
        else:
            scene.stand_in.add_faults(
                {
                    "kind": "http_status",
                    "status": 400,
                    "type": "ThrottlingException",
                    "message": "Rate exceeded",
                    "count": 1,
                }
            )
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 60}

    def test_one_bad_person_among_fifty_fails_alone(self, scene: World) -> None:
        """SES refuses the whole call for one entry; halves of halves find it. The bad one is the 23rd: refused are the 50, the
        first 25, 13 to 25, 19 to 25, 22 to 25, 22 and 23, and 23."""
        scene.people(50)
        key = scene.ready()
        refusal = {"kind": "http_status", "status": 400, "type": "BadRequestException", "message": "Header is wrong."}
        for after, count in ((0, 2), (3, 1), (5, 1), (7, 2), (10, 1)):
            scene.stand_in.add_faults({**refusal, "after": after, "count": count})
        outcome = scene.send(key)
        assert (outcome.end, outcome.calls) == (End.COMPLETE, 13)
        assert scene.keep_promises(key) == {"sent": 49, "failed": 1}
        assert scene.states(key)[23] == ("failed", "bad_request")

    def test_when_every_call_is_refused_as_a_whole_the_campaign_stops_before_many_have_failed(
        self, scene: World
    ) -> None:
        scene.people(400)
        key = scene.ready(chunk_size=100)
        scene.stand_in.add_faults(
            {"kind": "http_status", "status": 400, "type": "BadRequestException", "message": "no"}
        )
        scene.send(key)
        assert scene.campaign(key).state == "paused"
        by_state = scene.keep_promises(key)
        assert by_state["failed"] <= HOPELESS_CALLS + THREADS
        assert by_state["failed"] + by_state["pending"] == 400

    def test_bad_people_side_by_side_stop_nobody_else(self, scene: World) -> None:
        """All ten of the second call are refused down to the last of them, which takes 19 requests."""
        scene.people(60)
        key = scene.ready()
        scene.stand_in.add_faults(
            {
                "kind": "http_status",
                "status": 400,
                "type": "BadRequestException",
                "message": "no",
                "after": 1,
                "count": 19,
            }
        )
        assert scene.with_threads(1).send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 50, "failed": 10}

    @pytest.mark.parametrize(
        "fault",
        [
            {"kind": "http_status", "status": 500, "type": "InternalFailure"},
            {"kind": "http_status", "status": 500, "type": "InternalFailure", "accept": True},
            {"kind": "http_status", "status": 503},
            {"kind": "http_status", "status": 503, "accept": True},
            {"kind": "http_status", "status": 408, "accept": True},
            {"kind": "silence_before_accept"},
            {"kind": "silence_after_accept"},
            {"kind": "reset_before_accept"},
            {"kind": "reset_after_accept"},
            {"kind": "close_after_accept"},
            {"kind": "truncated_200"},
            {"kind": "empty_200"},
            {"kind": "html_200"},
            {"kind": "short_results", "drop": 1},
        ],
        ids=lambda fault: "-".join(str(value) for value in fault.values()),
    )
    def test_people_of_a_call_without_a_clear_answer_are_unknown_and_stay_so(
        self, scene: World, fault: dict[str, Any]
    ) -> None:
        scene.people(100)
        key = scene.ready()
        scene.stand_in.add_faults({**fault, "count": 1})
        world = quick(scene)
        assert world.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 50, "unknown": 50}
        assert scene.campaign(key).state == "done"
        assert world.send(key).calls == 0
        assert scene.keep_promises(key) == {"sent": 50, "unknown": 50}

    def test_a_provider_that_never_answers_stops_the_campaign_before_all_are_unknown(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.add_faults({"kind": "http_status", "status": 500, "type": "InternalFailure"})
        outcome = scene.send(key)
        assert outcome.end is End.NOT_SENDING
        assert "no usable answer" in str(scene.campaign(key).state_reason)
        by_state = scene.keep_promises(key)
        assert by_state["unknown"] <= 50 * (HOPELESS_CALLS + THREADS)
        assert by_state["unknown"] + by_state["pending"] == 1000

    def test_a_template_that_ses_has_lost_pauses_the_campaign_and_fails_nobody(self, scene: World) -> None:
        scene.people(60)
        key = scene.ready()
        name = scene.campaign(key).template_version
        scene.ses._admin.delete_email_template(TemplateName=name)
        scene.send(key)
        found = scene.campaign(key)
        assert found.state == "paused" and "template" in str(found.state_reason)
        assert scene.keep_promises(key) == {"pending": 60}
        with scene.database.connection() as connection:
            campaign.publish(connection, scene.settings, scene.ses, "hello")
            campaign.resume(connection, key, actor="ben")
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 60}

    @pytest.mark.parametrize("switch", ["account", "configuration set"])
    def test_sending_that_is_switched_off_pauses_the_campaign_and_fails_nobody(self, scene: World, switch: str) -> None:
        scene.people(60)
        key = scene.ready()
        if switch == "account":
            scene.stand_in.change(sending_enabled=False)
        else:
            scene.ses.set_sending(scene.settings.configuration_set, False)
        try:
            scene.send(key)
        finally:
            scene.ses.set_sending(scene.settings.configuration_set, True)
        assert "paused" in str(scene.campaign(key).state_reason)
        assert scene.keep_promises(key) == {"pending": 60}

    def test_a_provider_that_cannot_be_reached_costs_nobody_anything(self, scene: World) -> None:
        scene.people(60)
        key = scene.ready()
        scene.send(key, (99, 99))
        settings = scene.settings
        lost = replace(scene, ses=connect(settings, endpoint="http://127.0.0.1:9", connections=8))
        stop = threading.Event()
        with sending(lost, key, stop=stop) as run:
            wait_for(lambda: bool(scene.execute(
                "SELECT 1 FROM mailpipe.call WHERE campaign_id = %(id)s", {"id": scene.campaign(key).campaign_id}
            )), "an attempt")  # fmt: skip
            stop.set()
        assert run.result().end is End.STOPPED
        assert scene.keep_promises(key) == {"pending": 60}
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 60}


class TestQuota:
    def test_a_quota_reached_on_the_way_is_waited_for_and_shown(self, scene: World) -> None:
        scene.people(200)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(daily_quota=scene.stand_in.state()["sent_last_24_hours"] + 75)
        stop = threading.Event()
        with sending(scene, key, stop=stop, accept_plan=True) as run:
            wait_for(lambda: scene.progress(key).waiting is not None, "the quota to be met")
            waiting = scene.progress(key)
            stop.set()
        assert str(waiting.waiting).startswith("waiting for quota until 2")
        assert waiting.state == "sending"
        assert run.result().end is End.STOPPED
        assert scene.keep_promises(key) == {"sent": 75, "pending": 125}
        scene.stand_in.change(daily_quota=-1)
        unblock(scene)
        due_now(scene, key)
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 200}

    def test_a_quota_that_others_have_used_up_is_met_in_the_middle_of_a_call(self, scene: World) -> None:
        """SES accepts the first twenty of a call and refuses the others: these are pending again, and nobody asks SES before it is
        time."""
        scene.people(60)
        key = scene.ready()
        scene.stand_in.add_faults(
            {
                "kind": "entry_status",
                "status": "ACCOUNT_DAILY_QUOTA_EXCEEDED",
                "positions": list(range(20, 50)),
                "count": 1,
            }
        )
        stop = threading.Event()
        with sending(scene.with_threads(1), key, stop=stop) as run:
            wait_for(lambda: scene.progress(key).waiting is not None, "the quota to be met")
            waiting = scene.progress(key)
            stop.set()
        assert str(waiting.waiting).startswith("waiting for quota until 2")
        assert run.result().end is End.STOPPED
        assert scene.keep_promises(key) == {"sent": 20, "pending": 40}
        unblock(scene)
        due_now(scene, key)
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 60}
        assert scene.execute("SELECT count(*) FROM mailpipe.outcome WHERE campaign_id = %(id)s",
                             {"id": scene.campaign(key).campaign_id}) == [(0,)], "no attempt was counted"  # fmt: skip
