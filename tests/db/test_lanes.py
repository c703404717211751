"""The lanes: what waits is sent once, grows and shrinks its threads, and ends where it should when something goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from mailpipe import outbox, suppression
from mailpipe.db import Connection
from mailpipe.errors import CampaignError, SettingsError
from mailpipe.lane import DEFAULTS, Lane
from mailpipe.lanes import claims
from mailpipe.lanes.outcome import Next
from mailpipe.ses.answer import Kind, Result
from mailpipe.suppression import Entry
from tests.messages import (
    accepted,
    clean,
    enqueue,
    keep_promises,
    look,
    publish,
    queued,
    spec,
    states,
    wait_until,
    working,
)
from tests.support import World, wait_for

QUICK = {"least": 2, "most": 8, "poll": 0.01}


def lanes(**changes: Any) -> dict[str, Lane]:
    """All lanes, quick and small, with some fields changed."""
    return {name: replace(lane, **{**QUICK, **changes}) for name, lane in DEFAULTS.items()}


@pytest.fixture(scope="module")
def published(_scene: World) -> str:
    return publish(_scene)


@pytest.fixture
def box(scene: World, published: str) -> Iterator[World]:
    clean(scene)
    yield scene
    keep_promises(scene)


def test_every_lane_sends_what_waits_and_what_comes(box: World, published: str) -> None:
    before = enqueue(box, *(spec(number, lane=lane) for number, lane in enumerate(DEFAULTS, 1)))
    with working(box):
        inline = enqueue(box, spec(9, subject="Your order", text="It is on its way.", html="<p>It is on its way.</p>"))
        wait_until(box, sent=5)
    found = look(box, before[0].message_id)
    assert found.provider_id and found.finished_at
    [call] = found.calls
    assert (call.attempt, call.result) == (1, "sent")
    lines = {line["tags"]["message"]: line for line in box.stand_in.journal() if "message" in line["tags"]}
    line = lines[before[0].message_id]
    assert (line["template"], line["configuration_set"]) == (published, "mailpipe-transactional")
    assert line["to"] == "person1@mail.example.com"
    assert line["from"] == "login@notify.example.com"
    assert not any("unsubscribe" in header.lower() for header in line["headers"])
    assert box.stand_in.message(found.provider_id)["rendered"]["subject"] == "Your code 000001"
    mail = box.stand_in.message(str(look(box, inline[0].message_id).provider_id))["rendered"]
    assert (mail["subject"], mail["text"]) == ("Your order", "It is on its way.")


def test_ten_thousand_at_once_grow_the_threads_and_then_they_shrink_again(box: World) -> None:
    def threads() -> int:
        [(number,)] = box.execute("SELECT CAST(threads ->> 'critical' AS int) FROM mailpipe.lane_worker") or [(0,)]
        return number or 0

    box.stand_in.change(latency_ms=40)
    with working(box, names=["critical"]):
        wait_for(lambda: threads() == DEFAULTS["critical"].least, "the least number of threads")
        enqueue(box, *(spec(number) for number in range(10_000)))
        wait_for(lambda: threads() == DEFAULTS["critical"].most, "the most threads")
        wait_until(box, sent=10_000)
        wait_for(lambda: threads() == DEFAULTS["critical"].least, "the threads to leave")


def test_a_delayed_message_leaves_at_its_time_and_a_cancelled_one_never(box: World) -> None:
    with working(box, names=["critical"]):
        [first, second, _] = enqueue(box, spec(delay=1.0), spec(2, delay=1.0, cancel_key="cart"), spec(3, delay=60))
        with box.database.connection() as connection:
            assert outbox.cancel_by_key(connection, "cart") == 1
        wait_until(box, sent=1, cancelled=1, pending=1)
    found = look(box, first.message_id)
    assert found.finished_at is not None
    assert 0 <= (found.finished_at - found.send_at).total_seconds() < 1
    assert not look(box, second.message_id).calls


def test_an_opt_out_of_marketing_does_not_stop_a_code_and_a_hard_bounce_does(box: World) -> None:
    def entry(number: int, scope: str, reason: Any) -> Entry:
        return Entry(f"Person{number}@mail.example.com", scope, reason, "test")

    with box.database.connection() as connection:
        suppression.suppress(
            connection,
            [
                entry(1, "marketing", "unsubscribe"),
                entry(2, "topic:news", "unsubscribe"),
                entry(3, "all", "hard_bounce"),
            ],
        )
    answers = enqueue(box, *(spec(number) for number in (1, 2, 3)))
    # Not every writer of SQL keeps to one spelling of a domain.
    [(shouted,)] = box.execute(
        "SELECT mailpipe.enqueue('PERSON3@MAIL.EXAMPLE.COM', 'code', '{\"code\": 1}', lane => 'critical')"
    )
    with working(box, names=["critical"]):
        wait_until(box, sent=2, skipped=2)
    assert look(box, answers[2].message_id).reason == look(box, str(shouted)).reason == "suppressed"


def test_what_cannot_be_made_ends_alone(box: World) -> None:
    enqueue(box, spec())
    box.execute(
        "SELECT mailpipe.enqueue('nobody', 'code', '{\"code\": 1}', lane => 'critical'),"
        " mailpipe.enqueue('b@mail.example.com', 'code', lane => 'critical')"
    )
    with working(box, names=["critical"]):
        wait_until(box, sent=1, skipped=1, failed=1)
    reasons = {row[0] for row in box.execute("SELECT reason FROM mailpipe.message WHERE state <> 'sent'")}
    assert reasons == {"unusable_address", "missing_variable"}


def test_what_sql_enqueues_wrongly_stops_no_lane(box: World) -> None:
    box.approve(box.create())
    for wrong in (
        "'code', '{\"code\": 1}', sender => 'nobody'",
        "'code', '[]'",
        "'code', '\"text\"'",
        "'hello'",
    ):
        box.execute(f"SELECT mailpipe.enqueue('a@mail.example.com', {wrong}, lane => 'critical')")
    enqueue(box, spec())
    with working(box, names=["critical"]):
        wait_until(box, sent=1, failed=4)
    found = box.execute("SELECT reason, detail FROM mailpipe.message WHERE state = 'failed' ORDER BY reason, detail")
    assert found == [
        ("invalid_mail", "sender"),
        ("invalid_mail", "variables"),
        ("invalid_mail", "variables"),
        ("marketing_template", "hello"),
    ]


def test_a_code_that_is_too_late_is_dropped_and_seen(box: World) -> None:
    enqueue(box, spec(expires_in=0.001), spec(2, expires_in=60), spec(3))
    box.execute("UPDATE mailpipe.message SET send_at = send_at - interval '11 minutes' WHERE expires_at IS NULL")
    with working(box, names=["critical"]):
        wait_until(box, expired=2, sent=1)


def test_a_code_expires_while_it_waits_for_a_slot(box: World) -> None:
    box.stand_in.change(rate=1)
    with working(box, names=["critical"]):
        enqueue(box, *(spec(number, expires_in=1.5) for number in range(1, 31)))
        wait_for(
            lambda: states(box).get("expired", 0) > 20 and "pending" not in states(box), "codes to expire", seconds=30
        )


def test_a_lost_answer_of_a_code_is_sent_once_more_and_of_the_others_held(box: World) -> None:
    box.stand_in.add_faults({"kind": "reset_after_accept", "count": 2})
    [code] = enqueue(box, spec())
    with working(box, names=["critical"]):
        wait_until(box, unknown=1)
    found = look(box, code.message_id)
    assert [(call.attempt, call.result) for call in found.calls] == [(1, "unknown"), (2, "unknown")]
    assert accepted(box)[code.message_id, 1] == accepted(box)[code.message_id, 2] == 1
    clean(box)
    box.stand_in.clear_faults()
    box.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
    [mail] = enqueue(box, spec(lane="high"))
    with working(box, names=["high"]):
        wait_until(box, unknown=1)
    assert accepted(box)[mail.message_id, 1] == 1


def test_throttling_counts_nothing(box: World) -> None:
    box.stand_in.add_faults({"kind": "throttle_entries", "count": 1})
    [one] = enqueue(box, spec())
    with working(box, names=["critical"]):
        wait_until(box, sent=1)
    found = look(box, one.message_id)
    assert (found.attempt, found.tries) == (1, 0)
    assert [call.result for call in found.calls] == ["again", "sent"]


def test_what_certainly_did_not_leave_is_tried_again_and_dead_in_the_end(box: World) -> None:
    box.stand_in.add_faults({"kind": "transient_entries"})
    one, other = enqueue(box, spec(), spec(2, expires_in=900))
    with working(box, names=["critical"], lanes=lanes(retries=2)):
        wait_until(box, dead=2)
        box.stand_in.clear_faults()
        # As if a day had passed before somebody looked.
        box.execute(
            "UPDATE mailpipe.message SET send_at = send_at - interval '1 day', expires_at = expires_at - interval '1 day'"
        )
        with box.database.connection() as connection:
            for dead in (one, other):
                outbox.requeue(connection, dead.message_id, actor="ana", reason="SES is back")
        wait_until(box, sent=2)
    assert box.execute("SELECT expires_at > now() FROM mailpipe.message WHERE expires_at IS NOT NULL") == [(True,)]
    found = look(box, one.message_id)
    assert [call.result for call in found.calls] == ["retry", "retry", "retry", "sent"]
    assert found.attempt == 1


def test_a_call_that_is_refused_as_a_whole_is_halved_until_one_stands_alone(box: World) -> None:
    box.stand_in.add_faults(
        {"kind": "http_status", "status": 400, "type": "BadRequestException", "message": "no", "count": 2}
    )
    enqueue(box, *(spec(number) for number in range(1, 9)))
    with working(box, names=["critical"]):
        wait_until(box, sent=8)


def test_a_stop_gives_back_what_waits_and_records_what_is_in_a_call(box: World) -> None:
    box.stand_in.change(latency_ms=300, rate=200)
    before = len(accepted(box))
    enqueue(box, *(spec(number) for number in range(1, 201)))
    with working(box, names=["critical"]) as stop:
        wait_for(lambda: len(accepted(box)) > before, "a call")
        stop.set()
    left = states(box)
    assert set(left) == {"pending", "sent"}
    assert len(queued(box)) == left["pending"]
    box.stand_in.change(latency_ms=0, rate=100_000)
    with working(box, names=["critical"]):
        wait_until(box, sent=200)


def test_a_database_that_goes_away_is_waited_for(box: World) -> None:
    enqueue(box, *(spec(number, lane="high") for number in range(1, 301)))
    box.stand_in.change(latency_ms=20)
    with working(box, names=["high"]):
        for least in (10, 60, 120):
            wait_for(lambda least=least: len(accepted(box)) >= least, "some to be accepted")  # type: ignore[misc]
            box.cut_connections()
        wait_until(box, sent=300)


def test_a_claim_whose_answer_was_lost_with_the_connection_is_not_lost(box: World) -> None:
    """The process has it by the database's word, and knows nothing of it."""
    box.stand_in.change(latency_ms=300)
    with working(box, names=["high"]):
        # It works: while it starts, a lost connection would end it.
        enqueue(box, spec(9, lane="high"))
        wait_until(box, sent=1)
        with box.database.transaction() as connection:
            [one] = outbox.enqueue_many(connection, [spec(lane="high")])
            connection.execute(
                "WITH gone AS (DELETE FROM mailpipe.outbox RETURNING lane, message_id) INSERT INTO mailpipe.outbox_claim"
                " (message_id, lane, owner) SELECT g.message_id, g.lane, w.owner FROM gone g, mailpipe.lane_worker w"
            )
        enqueue(box, *(spec(number, lane="high") for number in range(2, 9)))
        box.cut_connections()
        wait_until(box, sent=9)
    assert [call.result for call in look(box, one.message_id).calls] == ["sent"]


def test_many_processes_share_the_work_without_doubling_any(box: World) -> None:
    enqueue(box, *(spec(number, lane="normal") for number in range(1, 601)))
    with working(box, names=["normal"]), working(box, names=["normal"], alone=False):
        wait_until(box, sent=600)


@pytest.mark.parametrize("where", ["campaign", "file"])
def test_a_domain_that_campaigns_send_from_is_refused_at_the_start(box: World, where: str) -> None:
    sender = f"Shop <news@{where}.example.com>"
    if where == "campaign":
        box.create(sender=sender)
    else:
        folder = box.settings.home / "assets" / "campaigns"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sale.yaml").write_text(f"key: sale\nsegment: everybody\ntemplate: hello\nsender: {sender}\n")
    with (
        pytest.raises(SettingsError, match=f"{where}.example.com"),
        working(box, transactional_sender=f"Shop <login@{where.upper()}.example.com>"),
    ):
        pass


def test_a_campaign_takes_neither_the_domain_nor_a_template_of_messages(box: World) -> None:
    with pytest.raises(CampaignError, match="transactional"):
        box.create(template="code")
    own = replace(box, settings=box.with_settings(transactional_sender="login@mail.example.com"))
    with pytest.raises(CampaignError, match="MAILPIPE_TRANSACTIONAL_SENDER"):
        own.create()


def test_a_message_from_a_domain_of_campaigns_is_not_sent(box: World) -> None:
    box.create()
    enqueue(box, spec(sender="Shop <x@mail.example.com>"))
    with working(box, names=["critical"]):
        wait_until(box, failed=1)


def test_the_dead_leave_their_messages_to_the_living(box: World) -> None:
    """A process that is gone had one message in a call and one in its hands, in a lane that resends and in one that holds."""
    answers = enqueue(box, spec(), spec(2), spec(3, lane="high"), spec(4, lane="high"))
    box.execute(
        "WITH gone AS (DELETE FROM mailpipe.outbox RETURNING lane, message_id)"
        " INSERT INTO mailpipe.outbox_claim (message_id, lane, owner, opened_at) SELECT message_id, lane, gen_random_uuid(),"
        " CASE WHEN message_id = ANY(CAST(%(open)s AS uuid[])) THEN clock_timestamp() END FROM gone",
        {"open": [answers[0].message_id, answers[2].message_id]},
    )
    box.execute(
        "UPDATE mailpipe.message SET state = 'sending', calls = 1 WHERE message_id IN (SELECT message_id FROM"
        " mailpipe.outbox_claim WHERE opened_at IS NOT NULL)"
    )
    start = time.monotonic()
    with working(box, lease=1.0):
        wait_until(box, sent=3, unknown=1)
    assert time.monotonic() - start < 10
    assert look(box, answers[0].message_id).attempt == 2
    assert [call.reason for call in look(box, answers[2].message_id).calls] == ["worker_lost"]


def test_who_is_silent_for_too_long_opens_nothing_and_gives_back_what_it_holds(box: World) -> None:
    """Its lease has run out, and nobody was there to take over: it goes on itself when it comes back."""
    [one] = enqueue(box, spec())
    owner = uuid4()
    with box.database.connection() as connection:
        claims.register(connection, owner, seconds=60)
        [taken] = claims.claim(connection, "critical", owner, mark=None, most=5)
        connection.execute("UPDATE mailpipe.lane_worker SET leased_until = clock_timestamp() - interval '1 s'")
        assert claims.open_call(connection, owner, {taken.message_id: "person1@mail.example.com"}, validity=600) == {}
        assert queued(box) == [one.message_id]
        assert claims.claim(connection, "critical", owner, mark=None, most=5) == []
        assert claims.beat(connection, owner, seconds=60, threads={})
        [again] = claims.claim(connection, "critical", owner, mark=None, most=5)
        assert claims.open_call(connection, owner, {again.message_id: "person1@mail.example.com"}, validity=600)
        claims.leave(connection, owner)


KEY = "person1@mail.example.com"


@pytest.mark.parametrize("step", ["open", "retract", "record", "beat"])
def test_who_is_swept_in_the_middle_of_a_step_loses_and_doubles_nothing(box: World, step: str) -> None:
    """A process that stood still for its whole lease goes on in the very moment in which another one sweeps up after it."""
    [one] = enqueue(box, spec(lane="high"))
    owner = uuid4()

    def sweep() -> int:
        with box.database.connection() as other:
            return claims.sweep(other, resend=["critical"])

    with box.database.connection() as connection, ThreadPoolExecutor(1) as pool:
        claims.register(connection, owner, seconds=60)
        [taken] = claims.claim(connection, "high", owner, mark=None, most=5)
        if step != "open":
            opened = claims.open_call(connection, owner, {taken.message_id: KEY}, validity=600)[taken.message_id]
        if step == "open":
            box.execute("UPDATE mailpipe.lane_worker SET leased_until = clock_timestamp() + interval '0.3 s'")
        with connection.transaction():
            if step == "open":
                assert claims.open_call(connection, owner, {taken.message_id: KEY}, validity=600)
                wait_for(lambda: expired(connection), "the lease to run out")
            elif step == "retract":
                claims.retract(connection, owner, [taken.message_id])
                expire(box)
            elif step == "record":
                told = claims.Told(taken.message_id, opened, Result(Kind.AGAIN, "not_sent"), Next("pending", 1, 1))
                claims.record(connection, owner, [told], seconds=None)
                expire(box)
            else:
                expire(box)
                assert claims.beat(connection, owner, seconds=60, threads={})
            sweeping = pool.submit(sweep)
            wait_for(lambda: sweeping.done() or waits(box), "the sweeper")
        sweeping.result()
        found = look(box, one.message_id)
        if step == "open":
            assert (found.state, found.attempt) == ("unknown", 1), "a call may have been made"
        elif step == "beat":
            assert found.state == "sending", "who lives keeps what it holds"
            claims.leave(connection, owner)
            assert sweep() == 1
        else:
            assert (found.state, found.attempt, queued(box)) == ("pending", 1, [one.message_id])


def expire(box: World) -> None:
    box.execute("UPDATE mailpipe.lane_worker SET leased_until = clock_timestamp() - interval '1 s'")


def expired(connection: Connection) -> bool:
    [(over,)] = connection.execute("SELECT leased_until < clock_timestamp() FROM mailpipe.lane_worker").fetchall()
    return bool(over)


def waits(box: World) -> bool:
    """Whether somebody waits for a lock."""
    return bool(
        box.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    )
