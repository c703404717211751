"""The send as an asset: colours follow the ledger, and the stand-in's journal has the last word."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import dagster as dg
import pytest

from assets.deliveries import selected
from mailpipe import campaign, ledger
from mailpipe.errors import CampaignError
from tests.faces.conftest import Faces

ALL = {f"{number:02d}" for number in range(100)}


def complete_slices(faces: Faces, key: str) -> set[str]:
    """What the ledger calls complete."""
    with faces.world.database.connection() as connection:
        found = ledger.slices(connection, campaign.get(connection, key).campaign_id)
    return {f"{number:02d}" for number, counts in found.items() if counts.complete}


def green(faces: Faces, key: str) -> set[str]:
    return {name for name, colour in faces.colours(key).items() if colour == "MATERIALIZED"}


def test_a_whole_campaign_turns_green_and_the_journal_agrees(faces: Faces) -> None:
    faces.world.people(5_200)
    key = faces.ready()
    result = faces.send(f"{key}|00", f"{key}|99")
    assert result.success
    assert faces.world.keep_promises(key) == {"sent": 5_200}
    events = result.get_asset_materialization_events()
    assert {event.partition for event in events} == {f"{key}|{name}" for name in ALL}
    assert len(events) == 100, "each slice is told once, and there is no event for the range"
    assert green(faces, key) == ALL
    sent = [event.materialization.metadata["sent"].value for event in events]
    assert sum(int(str(number)) for number in sent) == 5_200
    last = events[-1].materialization.metadata
    assert last["eta_minutes"].value == 0.0
    assert float(str(last["rate_per_second"].value)) > 0
    tags = faces.instance.get_run_by_id(result.run_id)
    assert tags is not None
    assert tags.tags["mailpipe/end"] == "complete"
    assert tags.tags["mailpipe/campaign"] == key
    assert "@mail.example.com" not in faces.everything_written()


def test_empty_slices_of_a_small_campaign_are_green_at_once(faces: Faces) -> None:
    faces.world.people(51)
    key = faces.ready()
    assert faces.send(f"{key}|00", f"{key}|99").success
    assert green(faces, key) == ALL
    assert faces.world.keep_promises(key) == {"sent": 51}


def test_after_a_failed_run_the_done_slices_are_green_and_the_others_are_resumed(
    faces: Faces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is a consent query that the server refuses for one person in the middle."""
    faces.world.people(5_000)
    key = faces.ready(chunk_size=100)
    # One thread, so that what was done before the fault is certain.
    monkeypatch.setenv("MAILPIPE_THREADS", "1")
    # What the fault held is free again after a lease.
    for name, seconds in (("LEASE", "3"), ("CONNECT_TIMEOUT", "1"), ("READ_TIMEOUT", "1")):
        monkeypatch.setenv(f"MAILPIPE_{name}", seconds)
    monkeypatch.setenv("MAILPIPE_CONSENT", "1 / (CASE WHEN person.user_id = '2510' THEN 0 ELSE 1 END) = 1")
    failed = faces.send(f"{key}|00", f"{key}|99")
    assert not failed.success
    colours = faces.colours(key)
    assert {name for name, colour in colours.items() if colour == "MATERIALIZED"} == complete_slices(faces, key)
    assert set(colours.values()) == {"MATERIALIZED", "FAILED"}
    assert Counter(colours.values())["MATERIALIZED"] == 50

    monkeypatch.delenv("MAILPIPE_CONSENT")
    red = sorted(name for name, colour in colours.items() if colour == "FAILED")
    assert faces.send(f"{key}|{red[0]}", f"{key}|{red[-1]}", wait_seconds=30.0).success
    assert green(faces, key) == ALL
    assert faces.world.keep_promises(key) == {"sent": 5_000}


def test_a_stopped_run_ends_gracefully_and_is_resumed(faces: Faces) -> None:
    faces.world.people(3_000)
    key = faces.ready(rate=1_000.0)
    stopper = threading.Thread(target=stop_after, args=(faces, key, 500))
    stopper.start()
    assert not faces.send(f"{key}|00", f"{key}|99").success
    stopper.join()
    (run,) = faces.instance.get_runs()
    assert run.status is dg.DagsterRunStatus.CANCELED
    assert run.tags["mailpipe/end"] == "stopped"
    progress = faces.world.progress(key)
    assert 500 <= progress.sent < 3_000
    assert progress.sending == progress.unknown == 0, "answers in flight were recorded, and nobody is in doubt"
    assert progress.processing_chunks == 0, "chunks were given back"
    assert green(faces, key) == complete_slices(faces, key)

    assert faces.send(f"{key}|00", f"{key}|99").success
    assert green(faces, key) == ALL
    assert faces.world.keep_promises(key) == {"sent": 3_000}


def stop_after(faces: Faces, key: str, people: int) -> None:
    """Stop the run once that many people have their mail, as Dagster does: a note, then SIGINT to the run's process."""
    waiting = threading.Event()
    while faces.world.progress(key).sent < people:
        waiting.wait(0.02)
    (run,) = faces.instance.get_runs()
    faces.instance.report_run_canceling(run)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("state", ["draft", "paused", "cancelled"])
def test_a_campaign_that_may_not_send_sends_nothing_and_says_so(faces: Faces, state: str) -> None:
    faces.world.people(300)
    key = faces.world.create()
    if state != "draft":
        faces.world.approve(key)
    faces.world.freeze(key)
    with faces.world.database.connection() as connection:
        if state == "paused":
            campaign.start(connection, key, actor="ana")
            campaign.pause(connection, key, actor="ana", reason="wrong price")
        elif state == "cancelled":
            campaign.cancel(connection, key, actor="ana", reason="wrong price")
    faces.register(key)
    result = faces.send(f"{key}|00", f"{key}|99")
    assert result.success, "a paused campaign is no fault"
    run = faces.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["mailpipe/end"] == "not_sending"
    assert f"campaign {key} is " in faces.everything_written()
    assert faces.world.journal(key) == []
    # Whoever is cancelled waits for nothing any more; the others stay missing.
    filled = ALL if state == "cancelled" else complete_slices(faces, key)
    assert green(faces, key) == filled
    assert faces.world.campaign(key).state == state


def test_a_range_over_two_campaigns_is_refused(faces: Faces) -> None:
    faces.world.people(300)
    one, two = faces.ready(), faces.ready()
    assert "2 campaigns" in faces.failure(faces.send(f"{one}|00", f"{two}|99"))
    assert faces.world.journal(one) == faces.world.journal(two) == []
    assert {faces.world.campaign(key).state for key in (one, two)} == {"approved"}, "nothing was started"


def test_a_range_that_expands_to_nothing_is_refused_instead_of_turning_green(faces: Faces) -> None:
    faces.world.people(300)
    one, two = faces.ready(), faces.ready()
    assert "no slice" in faces.failure(faces.send(f"{one}|90", f"{two}|05"))
    assert "no slice" in faces.failure(faces.send(f"{one}|10", f"{one}|05"))
    assert faces.world.journal(one) == faces.world.journal(two) == []


def test_slices_that_others_completed_turn_green_without_a_call(faces: Faces) -> None:
    faces.world.people(500)
    key = faces.ready()
    faces.world.send(key)
    before = len(faces.world.journal(key))
    result = faces.send(f"{key}|20", f"{key}|29")
    assert result.success
    assert green(faces, key) == {f"{number}" for number in range(20, 30)}
    assert len(faces.world.journal(key)) == before == 500


def test_people_who_are_due_later_leave_their_slices_missing(faces: Faces) -> None:
    faces.world.people(500)
    key = faces.ready(due_at="2099-01-01T09:00:00+07:00")
    assert faces.send(f"{key}|00", f"{key}|99").success
    assert green(faces, key) == complete_slices(faces, key)
    assert len(green(faces, key)) == 90, "500 people are ten calls, each in a slice of its own"
    assert faces.world.journal(key) == []


def test_a_plan_that_cannot_be_met_and_a_missed_time_are_accepted_in_the_form(faces: Faces) -> None:
    faces.world.people(300)
    key = faces.ready(rate=250.0, finish_within="1s", due_at="2026-01-01T09:00:00+07:00")
    assert "cannot be sent as wanted" in faces.failure(faces.send(f"{key}|00", f"{key}|99"))
    assert "it is missed" in faces.failure(faces.send(f"{key}|00", f"{key}|99", accept_plan=True))
    assert faces.world.journal(key) == []
    assert faces.send(f"{key}|00", f"{key}|99", accept_plan=True, late=True).success
    assert faces.world.keep_promises(key) == {"sent": 300}


def test_a_restored_database_fails_the_run_in_words(faces: Faces) -> None:
    faces.world.people(300)
    key = faces.ready()
    assert faces.send(f"{key}|00", f"{key}|49").success
    faces.world.execute("UPDATE mailpipe.instance SET mark = mark - interval '1 day'")
    try:
        assert "confirm-restore" in faces.failure(faces.send(f"{key}|50", f"{key}|99"))
    finally:
        faces.world.execute("UPDATE mailpipe.instance SET mark = now()")
    assert faces.world.progress(key).pending > 0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a|00"], ("a", (0, 0))),
        (["a|07", "a|08", "a|09"], ("a", (7, 9))),
        (["winter-sale_2|98", "winter-sale_2|99"], ("winter-sale_2", (98, 99))),
    ],
)
def test_the_keys_of_a_run_are_one_range_of_one_campaign(
    keys: list[str], expected: tuple[str, tuple[int, int]]
) -> None:
    assert selected(keys) == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [([], "no slice"), (["a|00", "b|00"], "campaigns: a, b"), (["a|00", "a|02"], "follow each other")],
)
def test_anything_else_is_refused(keys: list[str], words: str) -> None:
    with pytest.raises(CampaignError, match=words):
        selected(keys)
