"""What Prometheus reads agrees with the ledger, is the same from every process, and names nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mailpipe import pace, signals
from mailpipe.settings import Settings
from tests import messages
from tests.support import World, wait_for
from tests.web.conftest import Web, serving

Labels = frozenset[tuple[str, str]]


@pytest.fixture
def web(scene: World, web_settings: Settings) -> Iterator[Web]:
    messages.clean(scene)
    scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE state IN ('sending', 'paused')")
    with serving(replace(web_settings, ses_endpoint=scene.stand_in.url), scene.database) as running:
        yield running


def read(web: Web) -> dict[tuple[str, Labels], float]:
    """Every number by its name and labels. What was read less than FRESH seconds ago is given again, so it is waited for."""
    answer = web.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.data.decode())
        for sample in family.samples
    }


def of(numbers: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    return numbers[name, frozenset(labels.items())]


def test_a_campaign_under_way_is_told_as_the_ledger_has_it(scene: World, web: Web) -> None:
    scene.people(1000)
    scene.execute("UPDATE users SET city = NULL WHERE user_id <= 3")
    key = scene.ready(lane="low", chunk_size=100)
    scene.send(key, (0, 49))
    numbers = read(web)
    now = scene.progress(key)
    labels = {"campaign": key, "lane": "low"}
    for state in ("pending", "sending", "sent", "failed", "skipped", "unknown"):
        assert of(numbers, "mailpipe_campaign_recipients", **labels, state=state) == getattr(now, state)
    assert (now.sent, now.failed, now.pending) == (497, 3, 500)
    assert of(numbers, "mailpipe_campaign_chunks", **labels, state="pending") == now.queued_chunks > 0
    assert of(numbers, "mailpipe_campaign_answers_total", **labels, result="sent") == 497
    calls = scene.execute(
        "SELECT count(*), sum(seconds) FROM mailpipe.call JOIN mailpipe.campaign USING (campaign_id) WHERE key = %(key)s",
        {"key": key},
    )
    assert of(numbers, "mailpipe_campaign_call_seconds_count", **labels) == calls[0][0]
    assert of(numbers, "mailpipe_campaign_call_seconds_sum", **labels) == pytest.approx(calls[0][1], rel=1e-3)
    buckets = [
        of(numbers, "mailpipe_campaign_call_seconds_bucket", **labels, le=str(bound)) for bound in signals.BOUNDS
    ]
    assert buckets == sorted(buckets)
    assert of(numbers, "mailpipe_campaign_call_seconds_bucket", **labels, le="+Inf") == calls[0][0]
    assert of(numbers, "mailpipe_pace_ease_ratio") == 1
    assert of(numbers, "mailpipe_pace_handed_over_recipients_total", kind="transactional") >= 0
    assert of(numbers, "mailpipe_pace_recipients_per_second") == pytest.approx(49.7)
    assert 0 < of(numbers, "mailpipe_pace_utilisation_ratio") < 1


def test_people_whose_mail_has_expired_are_told_as_skipped(scene: World, web: Web) -> None:
    scene.people(20)
    key = scene.ready(lane="low")
    chosen = {"id": scene.campaign(key).campaign_id}
    scene.execute("UPDATE mailpipe.campaign SET state = 'sending' WHERE campaign_id = %(id)s", chosen)
    scene.execute("UPDATE mailpipe.chunk SET state = 'expired' WHERE campaign_id = %(id)s", chosen)
    numbers, now = read(web), scene.progress(key)
    told = {
        state: of(numbers, "mailpipe_campaign_recipients", campaign=key, lane="low", state=state)
        for state in ("pending", "skipped")
    }
    assert told == {"pending": now.pending, "skipped": now.skipped} == {"pending": 0, "skipped": 20}


def test_what_is_over_or_has_not_begun_is_not_told(scene: World, web: Web) -> None:
    scene.people(5)
    scene.create(key="not-begun")
    done = scene.ready(key="over-and-done")
    scene.send(done)
    assert scene.campaign(done).state == "done"
    text = web.ask("GET", "/metrics").data.decode()
    assert "not-begun" not in text and "over-and-done" not in text


def test_the_lanes_are_told_from_the_queue_to_the_answer(scene: World, web: Web) -> None:
    messages.publish(scene)
    messages.enqueue(scene, *(messages.spec(number) for number in range(7)), messages.spec(99, delay=3600))
    numbers = read(web)
    assert of(numbers, "mailpipe_queue_depth", lane="critical") == 7, "what is not due yet is no load"
    assert of(numbers, "mailpipe_queue_depth", lane="low") == 0
    assert 0 <= of(numbers, "mailpipe_queue_oldest_age_seconds", lane="critical") < 30
    assert of(numbers, "mailpipe_message_answers_total", lane="critical", result="sent") == 0
    with messages.working(scene, names=["critical"]):
        messages.wait_until(scene, sent=7, pending=1)
        wait_for(lambda: of(read(web), "mailpipe_lane_threads", lane="critical") > 0, "the threads to be told")
        wait_for(lambda: of(read(web), "mailpipe_queue_depth", lane="critical") == 0, "the queue to be told empty")
    numbers = read(web)
    assert of(numbers, "mailpipe_message_answers_total", lane="critical", result="sent") == 7
    assert of(numbers, "mailpipe_message_call_seconds_count", lane="critical") == 7
    assert of(numbers, "mailpipe_in_flight", lane="critical") == 0


@pytest.mark.parametrize("settled", [0.0, 3600.0])
def test_a_process_that_has_added_up_for_long_tells_the_same_as_one_that_begins(
    scene: World, web: Web, monkeypatch: pytest.MonkeyPatch, settled: float
) -> None:
    monkeypatch.setattr(signals, "SETTLED", settled)
    monkeypatch.setattr(signals, "FRESH", 0.0)
    messages.publish(scene)
    scene.people(300)
    key = scene.ready(chunk_size=100)
    old = signals.Watch()
    told: list[tuple[int, int]] = []
    for part in range(3):
        scene.send(key, (part * 20, part * 20 + 19))
        messages.enqueue(scene, *(messages.spec(number) for number in range(part)))
        with messages.working(scene, names=["critical"]):
            wait_for(lambda sent=part * (part + 1) // 2: messages.states(scene).get("sent", 0) == sent, "the messages")  # type: ignore[misc]
        with scene.database.connection() as connection:
            load, fresh = old.load(connection), signals.Watch().load(connection)
        for one, other in ((load.campaign_calls, fresh.campaign_calls), (load.lane_calls, fresh.lane_calls)):
            assert {key: (calls.classes, calls.results) for key, calls in one.items()} == {
                key: (calls.classes, calls.results) for key, calls in other.items()
            }
            assert [calls.seconds for calls in one.values()] == pytest.approx(
                [calls.seconds for calls in other.values()]
            )
        sent = sum(calls.results["sent"] for calls in load.campaign_calls.values())
        told.append((load.lane_calls["critical"].results["sent"], sent))
    assert told == [(0, 100), (1, 150), (3, 200)]


def test_a_pause_that_the_provider_asked_for_is_told(scene: World, web: Web) -> None:
    scene.execute(
        "UPDATE mailpipe.pace SET blocked_until = now() + interval '60 seconds', blocked_reason = 'quota', ease = 0.25,"
        " eased_at = now(), daily_quota = 1000, sent_last_day = 400, account_read_at = now()"
    )
    numbers = read(web)
    assert 50 < of(numbers, "mailpipe_pace_blocked_seconds", reason="quota") <= 60
    assert of(numbers, "mailpipe_pace_blocked_seconds", reason="rate") == 0
    assert 0.25 <= of(numbers, "mailpipe_pace_ease_ratio") < 1, "it throttled a moment ago"
    assert of(numbers, "mailpipe_pace_quota_left_recipients") <= 600


def test_what_the_provider_refuses_is_counted(scene: World, web: Web) -> None:
    with scene.database.connection() as connection:
        for reason in ("calls", "calls", "rate"):
            pace.Pace("normal").block(connection, reason)
    numbers = read(web)
    told = {reason: of(numbers, "mailpipe_pace_refusals_total", reason=reason) for reason in ("rate", "calls", "quota")}
    assert told == {"rate": 1, "calls": 2, "quota": 0}


def test_no_address_no_name_and_no_domain_is_in_it(scene: World, web: Web) -> None:
    scene.people(200)
    key = scene.ready(chunk_size=100)
    scene.send(key, (0, 49))
    messages.publish(scene)
    messages.enqueue(scene, messages.spec(1))
    text = web.ask("GET", "/metrics").data.decode()
    assert "@" not in text and "example" not in text and "Name1" not in text and key in text


def test_the_newer_format_is_spoken_to_who_asks_for_it(web: Web) -> None:
    answer = web.ask("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.data.endswith(b"# EOF\n")
