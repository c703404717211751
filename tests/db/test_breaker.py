"""The breaker at ingest: stops a sending campaign with the event that crosses a line, says why, and waits for a person."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

import pytest

from mailpipe import breaker, campaign
from mailpipe.feedback.ingest import Ingested
from tests.db.test_feedback import COMPLAINT, DELIVERY, HARD, SEND, take, told
from tests.support import World

LINES = {"complaints": 0.1, "complaints_after": 10, "hard_bounces": 0.2, "hard_bounces_after": 10}


def halfway(scene: World, people: int = 40, **lines: float) -> str:
    """A campaign that is sending, with its first half sent."""
    scene.people(people)
    key = scene.ready(lines={**LINES, **lines})
    scene.send(key, (0, 49))
    assert scene.campaign(key).state == "sending"
    return key


def complain(scene: World, key: str, *seqs: int) -> Ingested:
    return take(scene, *(told(COMPLAINT, key, seq) for seq in seqs))


def test_the_event_that_crosses_the_line_pauses_the_campaign_and_says_why(scene: World) -> None:
    key = halfway(scene, 100)
    assert scene.progress(key).sent == 50
    assert complain(scene, key, 1, 2, 3, 4, 5).paused == []
    start = time.monotonic()
    assert complain(scene, key, 6).paused == [key]
    assert time.monotonic() - start < 5
    stopped = scene.campaign(key)
    assert stopped.state == "paused"
    assert stopped.state_reason == "breaker: complaints: 6 of 50 are 12.00%, the line is 10.00%"
    scene.send(key)
    assert scene.progress(key).sent == 50, "only a person lets it go on"


def test_the_same_complaint_eight_times_does_not_cross_a_line(scene: World) -> None:
    key = halfway(scene, 100)
    for _ in range(8):
        assert complain(scene, key, 1, 2, 3, 4, 5).paused == []
    assert scene.campaign(key).state == "sending"


def test_after_a_person_has_resumed_it_counting_starts_anew(scene: World) -> None:
    key = halfway(scene, 200)
    complain(scene, key, *range(1, 12))
    assert scene.campaign(key).state == "paused"
    with scene.database.connection() as connection:
        campaign.resume(connection, key, actor="ana")
    assert complain(scene, key, 12).paused == []
    scene.send(key, (50, 74))
    assert complain(scene, key, 101, 102, 103, 104).paused == []
    assert complain(scene, key, 105).paused == [key]
    assert "6 of 50" in (scene.campaign(key).state_reason or "")


def test_hard_bounces_wait_for_deliveries_and_events_may_come_before_our_record(scene: World) -> None:
    scene.people(40)
    key = scene.ready(lines=LINES)
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
    take(scene, *(told(SEND, key, seq) for seq in range(1, 21)))
    assert take(scene, *(told(HARD, key, seq) for seq in range(1, 6))).paused == []
    assert take(scene, *(told(DELIVERY, key, seq) for seq in range(6, 15))).paused == []
    done = take(scene, told(DELIVERY, key, 15), told(HARD, key, 16))
    assert done.paused == [key]
    assert "hard bounces: 6 of 20" in (scene.campaign(key).state_reason or "")


def test_a_slice_beyond_a_line_warns_and_the_sensor_s_look_finds_what_ingest_did_not_pause(scene: World) -> None:
    key = halfway(scene, 6_000, complaints_after=50)
    complain(scene, key, *range(1, 13))
    with scene.database.connection() as connection:
        found = campaign.get(connection, key)
        loud = breaker.look_at_slices(connection, found)
        assert [(number, [one.level for one in some]) for number, some in loud.items()] == [(0, ["pause"])]
        assert {one.level for one in breaker.look(connection, found)} <= {"ok", "too_few"}
        assert breaker.evaluate_all(connection) == []
        connection.execute(
            "UPDATE mailpipe.campaign SET spec = jsonb_set(spec, '{lines,complaints}', '0.0001') WHERE key = %s", (key,)
        )
        assert breaker.evaluate_all(connection) == [key]


@pytest.mark.parametrize("state", ["draft", "done"])
def test_a_campaign_that_is_not_sending_is_left_as_it_is(scene: World, state: str) -> None:
    scene.people(20)
    key = scene.ready(lines=LINES)
    if state == "done":
        scene.send(key)
    before = scene.campaign(key).state
    assert complain(scene, key, *range(1, 11)).paused == []
    assert scene.campaign(key).state == before


def test_gmail_s_silence_and_a_rate_of_postmaster_tools(scene: World) -> None:
    scene.people(4)
    scene.execute("UPDATE users SET email = 'Person1@GMAIL.com' WHERE user_id = 1")
    key = scene.ready()
    today = datetime.now(UTC).date()
    with scene.database.connection() as connection:
        assert breaker.gmail_share(connection, scene.campaign(key).campaign_id) == 0.25
        assert breaker.postmaster(connection, "mail.example.com") is None
        rates: list[tuple[str, date, float]] = [
            ("Mail.Example.com", today, 0.001),
            ("mail.example.com", today - timedelta(days=2), 0.004),
            ("mail.example.com", today - timedelta(days=20), 0.2),
        ]
        assert breaker.keep_postmaster(connection, rates) == 3
        assert breaker.postmaster(connection, "MAIL.example.com") == (today - timedelta(days=2), 0.004)
