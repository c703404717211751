"""The outbox: a mail exists exactly if the caller's transaction does, once for each key, and can be called off."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from mailpipe import outbox
from mailpipe.outbox import Conflict, Fact, MessageError
from tests.messages import clean, enqueue, look, publish, queued, spec
from tests.support import World

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def published(_scene: World) -> str:
    return publish(_scene)


@pytest.fixture
def box(scene: World, published: str) -> World:
    """A world with a published template and an empty outbox."""
    clean(scene)
    return scene


def set_state(world: World, message_id: str, state: str, *, attempt: int = 1) -> None:
    """Bring a message to where only a worker brings it."""
    world.execute("DELETE FROM mailpipe.outbox WHERE message_id = CAST(%(id)s AS uuid)", {"id": message_id})
    world.execute(
        "UPDATE mailpipe.message SET state = %(state)s, attempt = %(attempt)s, finished_at = CASE WHEN %(state)s NOT IN"
        " ('pending', 'sending') THEN clock_timestamp() END WHERE message_id = CAST(%(id)s AS uuid)",
        {"id": message_id, "state": state, "attempt": attempt},
    )


def test_a_message_exists_exactly_if_the_transaction_of_its_caller_does(box: World) -> None:
    with box.database.transaction() as connection:
        connection.execute("CREATE TABLE orders (id int)")
        kept = outbox.enqueue(connection, spec())
        with box.database.connection() as other:
            assert outbox.get(other, kept.message_id) is None
    with box.database.connection() as connection:
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO orders VALUES (1)")
            lost = outbox.enqueue(connection, spec(2))
        assert outbox.get(connection, lost.message_id) is None
    assert look(box, kept.message_id).state == "pending"
    assert queued(box) == [kept.message_id]


def test_the_same_key_is_the_same_mail_and_another_body_under_it_is_refused(box: World) -> None:
    [first] = enqueue(box, spec(idempotency_key="order-1"))
    assert first.created
    [second] = enqueue(box, spec(idempotency_key="order-1"))
    assert (second.message_id, second.created) == (first.message_id, False)
    with pytest.raises(Conflict) as caught:
        enqueue(box, spec(2), spec(3, idempotency_key="order-1"))
    assert caught.value.message_id == first.message_id
    assert queued(box) == [first.message_id], "all or none"


def test_the_same_key_twice_in_one_batch_is_one_mail(box: World) -> None:
    answers = enqueue(box, spec(idempotency_key="a"), spec(2), spec(idempotency_key="a"))
    assert [one.created for one in answers] == [True, True, False]
    assert answers[0].message_id == answers[2].message_id
    assert len(queued(box)) == 2


def test_two_callers_with_one_key_at_the_same_moment_make_one_mail(box: World) -> None:
    answers = []
    barrier = threading.Barrier(4)

    def call() -> None:
        barrier.wait()
        answers.extend(enqueue(box, spec(idempotency_key="race")))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.created for one in answers) == [False, False, False, True]
    assert len({one.message_id for one in answers}) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"to": "nobody"}, "to"),
        ({"to": "a@mail.example.com\r\nBcc: b@mail.example.com"}, "to"),
        ({"template": None}, None),
        ({"subject": "Hello"}, None),
        ({"subject": "Hello\r\nBcc: x", "text": "x"}, "subject"),
        ({"lane": "urgent"}, "lane"),
        ({"send_at": "2026-11-29T12:00:00"}, "send_at"),
        ({"send_at": "2026-11-29T12:00:00Z", "delay": 5}, None),
        ({"delay": -1}, "delay"),
        ({"sender": "nobody"}, "sender"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"bcc": "x@mail.example.com"}, "bcc"),
        ({"template": "nothing"}, "template"),
        ({"template": "hello"}, "template"),
        ({"variables": {}}, "variables.code"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_field(box: World, fields: dict[str, Any], field: str | None) -> None:
    box.approve(box.create())
    with pytest.raises(MessageError) as caught:
        enqueue(box, spec(**fields))
    assert caught.value.field == field
    assert not str(caught.value).count("@mail.example.com")
    assert queued(box) == []


def test_one_of_many_is_named_by_its_place(box: World) -> None:
    with pytest.raises(MessageError) as caught:
        enqueue(box, spec(), spec(2, variables={}))
    assert caught.value.field == "[1].variables.code"


def test_a_message_keeps_the_version_that_was_the_latest_when_it_was_enqueued(box: World, published: str) -> None:
    [before] = enqueue(box, spec())
    newer = publish(box, subject_txt="The code is {{code}}\n")
    [after, named] = enqueue(box, spec(2), spec(3, template=published))
    assert publish(box) == published, "what was published before is the latest again"
    [again] = enqueue(box, spec(4))
    versions = [look(box, one.message_id).template_version for one in (before, after, named, again)]
    assert versions == [published, newer, published, published]


def test_delayed_messages_wait_for_their_time(box: World) -> None:
    [later, at] = enqueue(box, spec(delay="24h"), spec(2, send_at=NOW + timedelta(days=400), expires_in=60))
    found = look(box, later.message_id)
    assert found.send_at - found.created_at == pytest.approx(timedelta(hours=24), abs=timedelta(seconds=1))
    found = look(box, at.message_id)
    assert found.send_at == NOW + timedelta(days=400)
    assert found.expires_at == found.send_at + timedelta(seconds=60)
    with box.database.connection() as connection:
        assert outbox.depths(connection)["critical"].pending == 0


def test_sql_enqueues_like_the_library(box: World, published: str) -> None:
    statement = (
        "SELECT mailpipe.enqueue('Ana@Mail.example.com', 'code', '{\"code\": 7}', lane => 'high', idempotency_key => 'sql-1',"
        " delay => '1 hour', cancel_key => 'cart-1', expires_in => '10 minutes')"
    )
    [(first,)] = box.execute(statement)
    [(second,)] = box.execute(statement)
    assert first == second
    found = look(box, str(first))
    assert (found.state, found.lane, found.template_version) == ("pending", "high", published)
    assert found.expires_at == found.send_at + timedelta(minutes=10)
    assert UUID(found.message_id).version == 7
    with pytest.raises(psycopg.errors.UniqueViolation):
        box.execute("SELECT mailpipe.enqueue('b@mail.example.com', 'code', idempotency_key => 'sql-1')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="was never published"):
        box.execute("SELECT mailpipe.enqueue('b@mail.example.com', 'nothing')")
    with pytest.raises(psycopg.errors.CheckViolation):
        box.execute("SELECT mailpipe.enqueue('b@mail.example.com', subject => 'Hello')")
    with pytest.raises(psycopg.errors.CheckViolation):
        box.execute("SELECT mailpipe.enqueue('b@mail.example.com', 'code', lane => 'urgent')")
    assert queued(box) == [str(first)]
    assert box.execute("SELECT mailpipe.cancel('cart-1')") == [(1,)]
    assert queued(box) == []


def test_a_reminder_is_called_off_by_its_key_and_by_its_id(box: World) -> None:
    answers = enqueue(
        box, *(spec(number, delay=60, cancel_key="cart-9") for number in (1, 2)), spec(3, delay=60, cancel_key="other")
    )
    with box.database.connection() as connection:
        assert outbox.cancel_by_key(connection, "cart-9") == 2
        assert outbox.cancel_by_key(connection, "cart-9") == 0
        assert outbox.cancel(connection, answers[2].message_id)
        assert not outbox.cancel(connection, answers[2].message_id)
        assert not outbox.cancel(connection, str(uuid4()))
        assert not outbox.cancel(connection, "no id")
    assert queued(box) == []
    assert {look(box, one.message_id).state for one in answers} == {"cancelled"}


def test_a_message_in_a_call_is_not_called_off(box: World) -> None:
    [one] = enqueue(box, spec(cancel_key="k"))
    set_state(box, one.message_id, "sending")
    with box.database.connection() as connection:
        assert not outbox.cancel(connection, one.message_id)
        assert outbox.cancel_by_key(connection, "k") == 0


@pytest.mark.parametrize(("state", "attempt"), [("dead", 1), ("failed", 1), ("skipped", 1), ("unknown", 2)])
def test_what_ended_unsent_is_sent_again_on_a_recorded_order(box: World, state: str, attempt: int) -> None:
    [one] = enqueue(box, spec())
    set_state(box, one.message_id, state)
    with box.database.connection() as connection:
        with pytest.raises(MessageError, match="say why"):
            outbox.requeue(connection, one.message_id, actor="ana", reason=" ")
        again = outbox.requeue(connection, one.message_id, actor="ana", reason="the network is back")
        with pytest.raises(MessageError, match="is pending"):
            outbox.requeue(connection, one.message_id, actor="ana", reason="once more")
    assert (again.state, again.attempt) == ("pending", attempt)
    assert queued(box) == [one.message_id]
    rows = box.execute(
        "SELECT actor, detail ->> 'reason' FROM mailpipe.audit WHERE detail ->> 'message' = %(id)s",
        {"id": one.message_id},
    )
    assert rows == [("ana", "the network is back")]


def test_depths_count_what_is_due_lane_by_lane(box: World) -> None:
    enqueue(box, spec(), spec(2), spec(3, lane="low"), spec(4, lane="low", delay=60))
    with box.database.connection() as connection:
        depths = outbox.depths(connection)
    assert {lane: depth.pending for lane, depth in depths.items()} == {"critical": 2, "high": 0, "normal": 0, "low": 1}
    assert depths["critical"].oldest_age_seconds > 0
    assert depths["high"].oldest_age_seconds == 0


def test_a_flood_is_estimated_and_what_can_be_counted_is_counted(box: World) -> None:
    box.execute(
        "INSERT INTO mailpipe.outbox SELECT CASE WHEN i <= 2000 THEN 'low' ELSE 'normal' END,"
        " now() + CASE WHEN i > 62000 THEN interval '1 hour' ELSE -i * interval '1 s' END, gen_random_uuid()"
        " FROM generate_series(1, 90000) i"
    )
    with box.database.connection() as connection:
        depths = {lane: depth.pending for lane, depth in outbox.depths(connection).items()}
    assert (depths["low"], depths["high"]) == (2_000, 0)
    assert abs(depths["normal"] / 60_000 - 1) < 0.05
    assert depths["normal"] == outbox.two_digits(depths["normal"])
    # Worked off, but not yet vacuumed: no statistics would know.
    box.execute("DELETE FROM mailpipe.outbox WHERE lane = 'normal' AND due_at < now() - interval '3000 s'")
    ((left,),) = box.execute("SELECT count(*) FROM mailpipe.outbox WHERE lane = 'normal' AND due_at < now()")
    with box.database.connection() as connection:
        assert outbox.depths(connection)["normal"].pending == left < 1_001


@pytest.mark.parametrize(
    ("number", "told"), [(0, 0), (7, 7), (42, 42), (149, 150), (1_234_567, 1_200_000), (9_960, 10_000)]
)
def test_two_digits_of_an_estimate(number: int, told: int) -> None:
    assert outbox.two_digits(number) == told


def test_what_is_shown_of_a_message_holds_no_address_and_no_variable(box: World) -> None:
    [one] = enqueue(box, spec(424242, reply_to="desk@mail.example.com"))
    shown = str(look(box, one.message_id).to_json())
    assert "mail.example.com" not in shown and "424242" not in shown


@pytest.mark.parametrize(
    ("state", "attempt", "facts", "after"),
    [
        ("unknown", 1, [("send", 1)], "sent"),
        ("unknown", 2, [("delivery", 1)], "sent"),
        ("pending", 2, [("send", 1)], "sent"),
        ("pending", 1, [("send", 1)], "pending"),
        ("sent", 1, [("delivery", 1), ("open", 1)], "sent"),
        ("sent", 1, [("send", 1), ("rendering_failure", 1)], "failed"),
        ("unknown", 1, [("reject", 1)], "failed"),
        ("sent", 2, [("delivery", 1), ("reject", 2)], "sent"),
        ("unknown", 2, [("reject", 1)], "unknown"),
        ("cancelled", 1, [("send", 1)], "cancelled"),
        ("dead", 1, [("delivery", 1)], "dead"),
        ("sending", 1, [("send", 1)], "sending"),
    ],
)
def test_events_settle_what_they_prove_in_any_order_and_revive_nothing(
    box: World, state: str, attempt: int, facts: list[tuple[str, int]], after: str
) -> None:
    [one] = enqueue(box, spec())
    if state != "pending" or attempt > 1:
        set_state(box, one.message_id, state, attempt=attempt)
    told = [Fact(one.message_id, kind, number, NOW) for kind, number in facts]
    told += [Fact(str(uuid4()), "send", 1, NOW), Fact("not ours", "send", 1, NOW)]
    random.Random(len(facts)).shuffle(told)
    with box.database.connection() as connection:
        for fact in told:
            outbox.settle(connection, [fact])
        before = look(box, one.message_id)
        assert outbox.settle(connection, told + told) == 0
    assert look(box, one.message_id) == before
    assert before.state == after
    assert set(before.events) == {f"{kind}/{number}" for kind, number in facts}
    if after == "sent":
        assert queued(box) == []


def test_in_a_restored_database_what_may_have_been_sent_is_held_and_what_is_new_is_not(box: World) -> None:
    old, later, call = enqueue(box, spec(), spec(2, delay=3600), spec(3))
    set_state(box, call.message_id, "sending")
    box.execute(
        "INSERT INTO mailpipe.outbox_claim (message_id, lane, owner, opened_at)"
        " VALUES (CAST(%(id)s AS uuid), 'critical', gen_random_uuid(), now())",
        {"id": call.message_id},
    )
    [(lost_at,)] = box.execute("SELECT clock_timestamp()")
    [new] = enqueue(box, spec(4))
    with box.database.connection() as connection:
        assert outbox.hold(connection, before=lost_at) == 2
    states = {one.message_id: look(box, one.message_id).state for one in (old, later, call, new)}
    assert list(states.values()) == ["unknown", "pending", "unknown", "pending"]
    assert look(box, old.message_id).reason == "database_restored"
    assert set(queued(box)) == {later.message_id, new.message_id}
