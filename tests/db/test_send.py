"""A campaign from segment to report, in process, against a real PostgreSQL and the stand-in: whoever starts, stops and shares it,
everybody has one state, nobody two mails, and the provider's own journal agrees."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mailpipe import campaign, event, ledger, reconcile
from mailpipe.errors import CampaignError
from mailpipe.feedback.ingest import ingest_lines
from mailpipe.send import End
from tests.db.runs import accepted, sending
from tests.support import THREADS, World, wait_for


class TestPlainRuns:
    @pytest.mark.parametrize("people", [0, 1, 49, 50, 51, 500, 501])
    def test_everybody_gets_one_mail(self, scene: World, people: int) -> None:
        """The numbers around a call and a chunk."""
        scene.people(people)
        key = scene.ready()
        outcome = scene.send(key)
        assert outcome.end is End.COMPLETE
        assert outcome.accepted == people
        assert scene.keep_promises(key) == ({"sent": people} if people else {})
        assert scene.campaign(key).state == "done"

    def test_the_mail_carries_what_it_must(self, scene: World) -> None:
        scene.people(1)
        key = scene.ready()
        scene.send(key)
        mail = scene.stand_in.message(scene.journal(key)[0]["message_id"])
        assert mail["tags"] == {"campaign": key, "seq": "1", "attempt": "1"}
        assert mail["rendered"]["subject"] == "Hello Name1"
        assert mail["to"] == ["person1@mail.example.com"]
        assert mail["configuration_set"] == scene.settings.configuration_set
        headers = {header["name"]: header["value"] for header in mail["headers"]}
        assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        assert headers["List-Unsubscribe"].startswith("<http") and "mail.example.com" not in headers["List-Unsubscribe"]

    def test_slices_are_told_once_when_they_are_complete(self, scene: World) -> None:
        scene.people(260)
        key = scene.ready(chunk_size=100)
        told: list[int] = []
        scene.send(key, (0, 49), on_slice=lambda counts: told.append(counts.slice))
        assert sorted(told) == list(range(50))
        assert scene.progress(key).sent == 150
        scene.send(key, on_slice=lambda counts: told.append(counts.slice))
        assert Counter(told) == {number: 2 if number < 50 else 1 for number in range(100)}
        assert scene.keep_promises(key) == {"sent": 260}

    def test_a_slice_with_somebody_who_is_tried_again_is_not_told(self, scene: World) -> None:
        scene.people(2)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "transient_entries", "positions": [0]})
        told: list[int] = []
        outcome = scene.send(key, on_slice=lambda counts: told.append(counts.slice))
        assert outcome.end is End.NOTHING_DUE
        assert len(told) == 99

    @pytest.mark.parametrize("slices", [(-1, 3), (0, 100), (7, 6)])
    def test_slices_that_do_not_exist_are_refused(self, scene: World, slices: tuple[int, int]) -> None:
        key = scene.ready()
        with pytest.raises(CampaignError, match="expected a range within 0"):
            scene.send(key, slices)

    def test_a_campaign_that_does_not_exist_is_refused(self, scene: World) -> None:
        with pytest.raises(CampaignError, match="no campaign 'nobody'"):
            scene.send("nobody")

    def test_an_approved_campaign_without_snapshot_is_refused(self, scene: World) -> None:
        key = scene.create()
        scene.approve(key)
        with pytest.raises(CampaignError, match="has no snapshot yet"):
            scene.send(key)

    def test_people_who_are_not_due_wait(self, scene: World) -> None:
        scene.people(2)
        key = scene.ready(due_at="2100-01-01T00:00:00+00:00")
        outcome = scene.send(key)
        assert outcome.end is End.NOTHING_DUE
        assert scene.keep_promises(key) == {"pending": 2}

    def test_a_run_waits_for_people_who_are_due_within_its_horizon(self, scene: World) -> None:
        scene.people(2)
        key = scene.ready()
        scene.execute(
            "UPDATE mailpipe.chunk SET due_at = now() + interval '0.7 s' WHERE campaign_id = %(id)s",
            {"id": scene.campaign(key).campaign_id},
        )
        assert scene.send(key, horizon=5.0).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 2}


class TestGates:
    def test_a_draft_sends_nothing_and_says_so(self, scene: World) -> None:
        scene.people(3)
        key = scene.create()
        scene.freeze(key)
        outcome = scene.send(key)
        assert (outcome.end, outcome.calls) == (End.NOT_SENDING, 0)
        assert "is not approved" in outcome.text
        assert scene.keep_promises(key) == {"pending": 3}

    def test_the_author_cannot_approve(self, scene: World) -> None:
        key = scene.create()
        with scene.database.connection() as connection:
            for name in ("ana", "ANA", " ana "):
                with pytest.raises(CampaignError, match="its author cannot approve it"):
                    campaign.approve(connection, scene.settings, scene.ses, key, approver=name)
        assert scene.campaign(key).state == "draft"

    @pytest.mark.parametrize("move", ["pause", "cancel"])
    def test_a_stopped_campaign_sends_nothing_and_says_so(self, scene: World, move: str) -> None:
        scene.people(3)
        key = scene.ready()
        with scene.database.connection() as connection:
            getattr(campaign, move)(connection, key, actor="ben", reason="wrong picture")
        outcome = scene.send(key)
        assert (outcome.end, outcome.calls) == (End.NOT_SENDING, 0)
        assert ("paused (wrong picture)" if move == "pause" else "is cancelled") in outcome.text
        assert scene.keep_promises(key) == ({"pending": 3} if move == "pause" else {"skipped": 3})

    def test_people_who_opt_out_after_the_snapshot_are_skipped(self, scene: World) -> None:
        scene.people(60)
        key = scene.ready()
        scene.execute("UPDATE users SET marketing_opt_in = false WHERE user_id = 3")
        scene.execute("DELETE FROM users WHERE user_id = 55")
        scene.execute(
            "INSERT INTO mailpipe.suppression VALUES ('person7@mail.example.com', 'all', 'complaint', 'test')"
        )
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 57, "skipped": 3}
        states = scene.states(key)
        assert [states[seq] for seq in (3, 7, 55)] == [
            ("skipped", "opted_out"),
            ("skipped", "suppressed"),
            ("skipped", "opted_out"),
        ]

    def test_a_missing_variable_fails_that_person_alone(self, scene: World) -> None:
        scene.people(120)
        scene.execute("UPDATE users SET city = NULL WHERE user_id IN (1, 60)")
        scene.execute("UPDATE users SET first_name = NULL WHERE user_id = 2")
        key = scene.ready()
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 118, "failed": 2}
        assert scene.states(key)[60] == ("failed", "missing_variable")
        mail = scene.stand_in.message(next(line["message_id"] for line in scene.journal(key) if int(line["seq"]) == 2))
        assert mail["rendered"]["subject"] == "Hello there"

    def test_a_chunk_in_which_nobody_can_be_mailed_ends(self, scene: World) -> None:
        scene.people(3)
        scene.execute("UPDATE users SET city = ' '")
        key = scene.ready()
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"failed": 3}
        assert scene.campaign(key).state == "done"


class TestStopping:
    def test_a_run_told_to_stop_leaves_nobody_unknown(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=100)
        stop = threading.Event()
        with sending(scene, key, stop=stop) as run:
            wait_for(lambda: accepted(scene, key) >= 200, "a few calls")
            stop.set()
        assert run.result().end is End.STOPPED
        by_state = scene.keep_promises(key)
        assert set(by_state) == {"sent", "pending"}
        assert scene.progress(key).processing_chunks == 0
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 1000}

    def test_a_run_told_to_stop_before_it_begins_sends_nothing(self, scene: World) -> None:
        scene.people(10)
        key = scene.ready()
        stop = threading.Event()
        stop.set()
        assert scene.send(key, stop=stop).end is End.STOPPED
        assert scene.keep_promises(key) == {"pending": 10}

    def test_an_exception_of_the_caller_ends_the_run_without_unknowns(self, scene: World) -> None:
        scene.people(2000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=500)

        def interrupt(_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            scene.send(key, on_tick=interrupt)
        assert set(scene.keep_promises(key)) == {"sent", "pending"}
        assert scene.progress(key).processing_chunks == 0

    def test_a_pause_at_a_fifth_is_resumed_exactly(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=80)
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 200, "a fifth")
            with scene.database.connection() as connection:
                campaign.pause(connection, key, actor="ben", reason="wrong picture")
        assert run.result().end is End.NOT_SENDING
        by_state = scene.keep_promises(key)
        assert set(by_state) == {"sent", "pending"} and by_state["sent"] <= 200 + 50 * 2 * THREADS
        assert scene.send(key).calls == 0
        with scene.database.connection() as connection:
            campaign.resume(connection, key, actor="ben")
        scene.stand_in.change(latency_ms=0)
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 1000}

    def test_stopped_by_the_provider_five_times_and_resumed_each_time_everybody_has_one_mail(
        self, scene: World
    ) -> None:
        """Nobody of the call that was refused is lost, and nobody before it is mailed again."""
        scene.people(330)
        key = scene.ready(chunk_size=100)
        for _ in range(5):
            scene.stand_in.clear_faults()
            scene.stand_in.add_faults({"kind": "entry_status", "status": "ACCOUNT_SUSPENDED", "after": 1})
            scene.send(key)
            before = scene.keep_promises(key)
            assert before["pending"] > 0
            assert scene.campaign(key).state == "paused"
            with scene.database.connection() as connection:
                campaign.resume(connection, key, actor="ben")
        assert before["sent"] >= 5 * 30, "each run sent something"
        scene.stand_in.clear_faults()
        assert scene.send(key).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 330}

    def test_a_cancel_on_the_way_skips_the_rest(self, scene: World) -> None:
        scene.people(3000)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=80)
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 200, "a fifth")
            with scene.database.connection() as connection:
                campaign.cancel(connection, key, actor="ben", reason="wrong picture")
        assert run.result().calls < 60
        by_state = scene.keep_promises(key)
        assert set(by_state) == {"sent", "skipped"}
        assert {reason for state, reason in scene.states(key).values() if state == "skipped"} == {"cancelled"}

    def test_a_template_changed_during_a_pause_is_what_the_rest_gets(self, scene: World) -> None:
        scene.people(300)
        key = scene.ready(chunk_size=100, rate=200)
        first = scene.campaign(key).template_version
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 50, "a call")
            with scene.database.connection() as connection:
                campaign.pause(connection, key, actor="ben", reason="a word is wrong")
                campaign.change(connection, scene.settings, scene.ses, key, actor="ben", template_name="goodbye")
                before = accepted(scene, key)
                campaign.resume(connection, key, actor="ben")
        run.result()
        while scene.send(key).end is not End.COMPLETE:
            pass
        assert scene.keep_promises(key) == {"sent": 300}
        second = scene.campaign(key).template_version
        names = Counter(line["template"] for line in scene.journal(key))
        assert set(names) == {first, second}
        assert names[first] <= before + 4 * 50

    def test_a_rate_changed_while_it_runs_holds_within_a_second_or_so(self, scene: World) -> None:
        scene.people(1000)
        key = scene.ready(chunk_size=100, rate=50)
        with sending(scene, key) as run:
            wait_for(lambda: accepted(scene, key) >= 50, "the first calls")
            assert accepted(scene, key) <= 150
            with scene.database.connection() as connection:
                campaign.change(connection, scene.settings, scene.ses, key, actor="ben", rate=50_000)
            wait_for(lambda: accepted(scene, key) == 1000, "the rest at the new rate", seconds=6)
        assert run.result().end is End.COMPLETE
        assert scene.campaign(key).rate == scene.campaign(key).spec.rate == 50_000
        assert scene.keep_promises(key) == {"sent": 1000}


class TestTogether:
    def test_the_same_range_launched_twice_at_once_sends_once(self, scene: World) -> None:
        scene.people(800)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=30)
        with ThreadPoolExecutor(3) as pool:
            runs = [future.result() for future in [pool.submit(scene.send, key) for _ in range(3)]]
        assert sum(run.accepted for run in runs) == 800
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 800}

    def test_two_ranges_at_once_share_the_work(self, scene: World) -> None:
        scene.people(800)
        key = scene.ready(chunk_size=100)
        with ThreadPoolExecutor(2) as pool:
            low, high = pool.submit(scene.send, key, (0, 49)), pool.submit(scene.send, key, (50, 99))
        assert (low.result().accepted, high.result().accepted) == (400, 400)
        assert low.result().end is high.result().end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 800}

    def test_several_campaigns_at_once_share_one_limit(self, scene: World) -> None:
        scene.people(100)
        keys = [scene.ready(rate=1000) for _ in range(3)]
        # Calls may be on their way for longer than others on a busy machine; three limits instead of one would be 300.
        scene.stand_in.change(rate=100, rate_tolerance=120)
        # What earlier tests have sent must have left the provider's sliding second.
        quiet = time.monotonic() + 1.1
        wait_for(lambda: time.monotonic() > quiet, "a second to pass")
        before = scene.stand_in.state()["throttled"]
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(scene.send, key) for key in keys]:
                future.result()
        for key in keys:
            assert scene.keep_promises(key) == {"sent": 100}
        left = scene.execute(
            "SELECT extract(epoch FROM at)::float - seconds, seconds, codes"
            " FROM mailpipe.call JOIN mailpipe.campaign USING (campaign_id) WHERE key = ANY(%(keys)s) ORDER BY 1",
            {"keys": keys},
        )
        told = [(round(at - left[0][0], 3), round(seconds, 3), codes) for at, seconds, codes in left]
        assert scene.stand_in.state()["throttled"] == before, f"left, took, codes: {told}"

    def test_chunks_of_a_worker_who_died_are_taken_over_within_the_horizon(self, scene: World) -> None:
        scene.people(200)
        key = scene.ready(chunk_size=100)
        with scene.database.connection() as connection:
            campaign.start(connection, key, actor="test")
            dead = ledger.lease(connection, scene.campaign(key).campaign_id, (0, 99), owner="dead", seconds=1.5)
            assert dead is not None
        assert scene.send(key).end is End.NOTHING_DUE
        assert scene.progress(key).pending == 50
        assert scene.send(key, horizon=30.0).end is End.COMPLETE
        assert scene.keep_promises(key) == {"sent": 200}

    def test_a_database_that_drops_every_connection_is_waited_for(self, scene: World) -> None:
        scene.people(1500)
        key = scene.ready(chunk_size=100)
        scene.stand_in.change(latency_ms=20)
        with sending(scene, key) as run:
            for number in range(1, 5):
                wait_for(lambda goal=150 * number: accepted(scene, key) >= goal, "progress")  # type: ignore[misc]
                scene.cut_connections()
        assert run.result().end is End.COMPLETE
        by_state = scene.keep_promises(key)
        assert by_state["sent"] + by_state.get("unknown", 0) == 1500
        assert by_state.get("unknown", 0) == 0


class TestAfterwards:
    def test_a_mail_that_could_not_be_made_after_it_was_accepted_is_failed(self, scene: World) -> None:
        scene.people(60)
        key = scene.ready()
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 60}
        lines = [line.replace('"Delivery"', '"Rendering Failure"') for line in event_lines(scene, key, seqs={4, 51})]
        assert ingest_lines(scene.database, lines).settled == 2
        assert scene.keep_promises(key) == {"sent": 58, "failed": 2}
        assert scene.states(key)[51] == ("failed", "rendering_failure")

    def test_the_provider_s_own_rendering_failure_is_believed(self, scene: World) -> None:
        """SES answers SUCCESS and then drops the mail: here because the published template wants more than we send."""
        scene.people(3)
        key = scene.ready()
        name = scene.campaign(key).template_version
        parts = {"Subject": "Hello {{surprise}}", "Html": "<p>x</p>", "Text": "x"}
        scene.ses._admin.update_email_template(TemplateName=name, TemplateContent=parts)
        scene.send(key)
        scene.ses._admin.delete_email_template(TemplateName=name)
        assert scene.keep_promises(key) == {"sent": 3}
        lines = [line for line in scene.stand_in.events_file.read_text().splitlines() if f'"{key}"' in line]
        assert ingest_lines(scene.database, lines).settled == 3
        assert scene.keep_promises(key) == {"failed": 3}

    def test_events_settle_people_whose_answer_was_lost(self, scene: World) -> None:
        scene.people(120)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
        scene.send(key)
        assert scene.keep_promises(key)["unknown"] in (20, 50)
        ingested = ingest_lines(scene.database, event_lines(scene, key))
        assert ingested.settled in (20, 50)
        assert scene.keep_promises(key) == {"sent": 120}
        assert scene.progress(key).delivered == 120

    def test_events_that_come_before_the_answer_is_known_settle_it_when_the_run_ends(self, scene: World) -> None:
        """The people are in a call when the event is folded; nothing else touches the campaign afterwards."""
        scene.people(30)
        key = scene.ready()
        with scene.database.connection() as connection:
            event.fold(connection, [event.Event("rendering_failure", key, 3), event.Event("send", key, 4)])
        scene.send(key)
        assert scene.states(key)[3] == ("failed", "rendering_failure")

    def test_reconcile_settles_a_campaign_that_is_done(self, scene: World) -> None:
        scene.people(30)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
        scene.send(key)
        assert scene.campaign(key).state == "done"
        with scene.database.connection() as connection:
            event.fold(connection, [event.Event("send", key, seq) for seq in range(1, 31)])
            assert reconcile.run(connection).settled == 30
        assert scene.keep_promises(key) == {"sent": 30}


def event_lines(scene: World, key: str, *, seqs: set[int] | None = None) -> list[str]:
    """The stand-in's delivery events of a campaign, as lines."""
    return [
        line
        for line in scene.stand_in.events_file.read_text().splitlines()
        if f'"{key}"' in line
        and '"eventType":"Delivery"' in line
        and (seqs is None or any(f'"seq":["{seq}"]' in line for seq in seqs))
    ]
