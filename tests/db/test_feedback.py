"""Acting on events: once, in any order, for everybody whom they are about, and before anybody is told that they were taken."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailpipe import outbox, report, suppression
from mailpipe.feedback import archive
from mailpipe.feedback.ingest import Ingested, Received, bind_late, ingest
from tests.ses_events import SHAPES, EventShape, event, notification, shape, wrapped
from tests.support import World

HARD, SOFT = shape("Bounce", "hard"), shape("Bounce", "soft")
SEND, DELIVERY, COMPLAINT = shape("Send"), shape("Delivery"), shape("Complaint")


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def told(of: EventShape, key: str, seq: int, **fields: Any) -> str:
    """An event of today about somebody of a campaign."""
    given = {"accepted": ago(60), "at": ago(50), "to": f"person{seq}@mail.example.com", **fields}
    return json.dumps(event(of, campaign=key, seq=seq, **given))


def take(scene: World, *texts: str) -> Ingested:
    return ingest(scene.database, [Received(text) for text in texts])


def sent(scene: World, people: int = 4, **fields: Any) -> str:
    scene.people(people)
    key = scene.ready(**fields)
    scene.send(key)
    return key


def state(scene: World, key: str) -> list[list[tuple[Any, ...]]]:
    """All that events leave behind."""
    queries = (
        "SELECT chunk_no, kind, attempt, mask FROM mailpipe.event_mask WHERE campaign_id = %(id)s ORDER BY 1, 2",
        "SELECT seq, kind, at, detail FROM mailpipe.feedback WHERE campaign_id = %(id)s ORDER BY 1, 2",
        "SELECT * FROM mailpipe.latency WHERE campaign_id = %(id)s ORDER BY 2",
        "SELECT * FROM mailpipe.soft_bounce WHERE campaign_id = %(id)s ORDER BY 1",
        "SELECT email_key, scope, reason FROM mailpipe.suppression WHERE %(id)s > 0 ORDER BY 1, 2",
        "SELECT at, digest, kind, seq FROM mailpipe.event WHERE campaign_id = %(id)s ORDER BY 1, 2",
    )
    return [scene.execute(query, {"id": scene.campaign(key).campaign_id}) for query in queries]


def suppressed(scene: World, seq: int) -> list[tuple[str, str]]:
    with scene.database.connection() as connection:
        found = suppression.find(connection, f"PERSON{seq}@mail.example.com")
    return [(one.scope, one.reason) for one in found]


def test_eight_times_the_same_and_in_any_order_come_to_the_same(scene: World) -> None:
    key = sent(scene)
    texts = [told(one, key, 1 + number % 4) for number, one in enumerate(SHAPES)]
    first = take(scene, *texts)
    before = state(scene, key)
    assert first.repeated == 0 and all(before), "everything that is compared holds something"
    order = random.Random(7)
    for _ in range(8):
        order.shuffle(texts)
        again = take(scene, *texts)
        assert (again.repeated, again.suppressed) == (len(texts), 0)
    assert state(scene, key) == before


def test_what_is_told_twice_in_one_batch_counts_once(scene: World) -> None:
    key = sent(scene)
    text = told(DELIVERY, key, 1)
    take(scene, text, wrapped(text), text)
    assert [people for _, _, people in state(scene, key)[2]] == [1]


def test_events_in_pieces_and_backwards_come_to_the_same(scene: World) -> None:
    key = sent(scene)
    texts = [told(one, key, 1 + number % 4) for number, one in enumerate(SHAPES)]
    for text in reversed(texts):
        take(scene, text)
    backwards = state(scene, key)
    scene.execute(
        "TRUNCATE mailpipe.event, mailpipe.event_mask, mailpipe.feedback, mailpipe.latency, mailpipe.soft_bounce"
    )
    scene.execute("TRUNCATE mailpipe.suppression")
    take(scene, *texts)
    assert state(scene, key) == backwards


def test_a_hard_bounce_and_a_complaint_suppress_at_once_and_a_soft_one_does_not(scene: World) -> None:
    key = sent(scene)
    done = take(scene, told(HARD, key, 1), told(COMPLAINT, key, 2), told(SOFT, key, 3))
    assert done.suppressed == 2
    assert suppressed(scene, 1) == [("all", "hard_bounce")]
    assert suppressed(scene, 2) == [("marketing", "complaint")]
    assert suppressed(scene, 3) == []


def test_a_bounce_of_several_people_suppresses_each(scene: World) -> None:
    key = sent(scene)
    both = ["person3@mail.example.com", "Person <Person4@Mail.Example.com>"]
    take(scene, told(HARD, key, 3, recipients=both))
    assert suppressed(scene, 3) == suppressed(scene, 4) == [("all", "hard_bounce")]


def test_a_policy_bounce_alarms_and_suppresses_nobody(scene: World, caplog: pytest.LogCaptureFixture) -> None:
    key = sent(scene)
    content = json.loads(told(HARD, key, 1))
    content["bounce"]["bouncedRecipients"][0] |= {
        "status": "5.7.26",
        "diagnosticCode": "smtp; 550-5.7.26 unauthenticated",
    }
    done = take(scene, json.dumps(content))
    assert (done.suppressed, suppressed(scene, 1)) == (0, [])
    assert "we are not welcome" in caplog.text and "person1" not in caplog.text
    with scene.database.connection() as connection:
        assert report.events(connection, scene.campaign(key).campaign_id)["policy_bounce"] == 1


def test_a_redacted_address_is_found_by_its_tags(scene: World) -> None:
    key = sent(scene)
    take(scene, told(COMPLAINT, key, 2, to="redacted", recipients=["redacted"]))
    assert suppressed(scene, 2) == [("marketing", "complaint")]


def test_only_repeated_soft_bounces_over_distinct_campaigns_suppress(scene: World) -> None:
    keys = [sent(scene, 2)]
    for _ in range(2):
        keys.append(scene.ready())
        scene.send(keys[-1])
    for at in range(5):
        take(scene, told(SOFT, keys[0], 1, at=ago(40 - at)))
    take(scene, told(SOFT, keys[1], 1))
    assert suppressed(scene, 1) == []
    assert take(scene, told(SOFT, keys[2], 1)).suppressed == 1
    assert suppressed(scene, 1) == [("marketing", "soft_bounces")]


def test_an_old_fact_does_not_bring_back_what_a_person_has_lifted(scene: World) -> None:
    key = sent(scene)
    take(scene, told(HARD, key, 1))
    with scene.database.connection() as connection:
        suppression.lift(connection, "person1@mail.example.com", None, actor="ana", reason="the mailbox is back")
    take(scene, told(HARD, key, 1), told(HARD, key, 1, at=ago(30)))
    assert suppressed(scene, 1) == []
    take(scene, told(HARD, key, 1, at=ago(-5)))
    assert suppressed(scene, 1) == [("all", "hard_bounce")]


def test_the_worst_fact_wins_with_its_time_whatever_comes_after(scene: World) -> None:
    key = sent(scene)
    bounced = ago(40)
    take(scene, told(DELIVERY, key, 1, at=ago(45)))
    take(scene, told(HARD, key, 1, at=bounced), told(HARD, key, 1, at=ago(20)))
    take(scene, told(SEND, key, 1), told(DELIVERY, key, 1))
    with scene.database.connection() as connection:
        (fate,) = report.who(connection, key, "1")
    assert fate.state == "sent"
    assert fate.worst == "hard_bounce"
    assert [(one["kind"], datetime.fromisoformat(one["at"]), one["detail"]) for one in fate.told] == [
        ("hard_bounce", datetime.fromisoformat(bounced), "General")
    ]


def test_sent_and_delivered_are_two_numbers_with_the_time_between_them(scene: World) -> None:
    key = sent(scene, 20)
    accepted = datetime.now(UTC) - timedelta(seconds=300)
    for seq in range(1, 20):
        seconds = 100 if seq == 19 else 2
        at = (accepted + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
        take(scene, told(DELIVERY, key, seq, accepted=accepted.isoformat(timespec="milliseconds"), at=at))
    shown = scene.progress(key)
    assert (shown.sent, shown.delivered) == (20, 19)
    assert shown.delivery_p95_seconds is not None and 100 <= shown.delivery_p95_seconds <= 110
    take(scene, told(DELIVERY, key, 20, accepted=ago(3), at=ago(1)))
    assert 2 <= (scene.progress(key).delivery_p95_seconds or 0) <= 2.3


def test_many_readers_of_the_same_events_come_to_the_same_and_wait_for_each_other_in_no_circle(scene: World) -> None:
    key = sent(scene, 60)
    texts = [told(of, key, seq) for seq in range(1, 61) for of in (SEND, DELIVERY, (HARD, SOFT, COMPLAINT)[seq % 3])]
    order = random.Random(5)
    batches = []
    for _ in range(6):
        order.shuffle(texts)
        batches += [texts[start : start + 45] for start in range(0, len(texts), 45)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda batch: take(scene, *batch), batches))
    assert sum(one.read - one.repeated for one in done) == len(texts)
    assert sum(people for _, _, people in state(scene, key)[2]) == 60
    with scene.database.connection() as connection:
        found = report.events(connection, scene.campaign(key).campaign_id)
    assert found == {"send": 60, "delivery": 60, "bounce": 40, "hard_bounce": 20, "soft_bounce": 20, "complaint": 20}


def test_a_second_bounce_of_a_suppressed_address_is_recorded_too(scene: World) -> None:
    first, second = sent(scene), scene.ready()
    scene.send(second)
    take(scene, told(HARD, first, 1))
    assert take(scene, told(HARD, second, 1)).suppressed == 0
    for key in (first, second):
        with scene.database.connection() as connection:
            assert report.who(connection, key, "1")[0].worst == "hard_bounce"


def test_events_of_a_message_reach_it_and_a_complaint_about_one_is_about_all_mail(scene: World) -> None:
    spec = outbox.MessageSpec(
        to="person9@mail.example.com", subject="s", text="t", sender="Shop <login@notify.example.com>"
    )
    with scene.database.transaction() as connection:
        accepted = outbox.enqueue(connection, spec)
    tags = {"message": [accepted.message_id], "attempt": ["1"]}
    fields: dict[str, Any] = {"tags": tags, "to": spec.to, "accepted": ago(60), "at": ago(50)}
    done = take(scene, json.dumps(event(DELIVERY, **fields)), json.dumps(event(COMPLAINT, **fields)))
    assert (done.folded, done.foreign) == (2, 0)
    with scene.database.connection() as connection:
        message = outbox.get(connection, accepted.message_id)
    assert message is not None
    assert {name.partition("/")[0] for name in message.events} == {"delivery", "complaint"}
    assert suppressed(scene, 9) == [("all", "complaint")]


class TestWithoutTags:
    def ids(self, scene: World, key: str) -> dict[int, str]:
        return {int(line["seq"]): line["message_id"] for line in scene.journal(key)}

    def test_an_identity_notification_finds_its_person_by_the_message_id(self, scene: World) -> None:
        key = sent(scene, 60)
        ids = self.ids(scene, key)
        fields = {"accepted": ago(1), "at": ago(0)}
        texts = [json.dumps(notification(HARD, ses_id=ids[seq], to="x@mail.example.com", **fields)) for seq in (1, 57)]
        done = take(scene, *texts, json.dumps(notification(HARD, ses_id="0" * 16 + "-unknown", **fields)))
        assert (done.folded, done.foreign) == (2, 1)
        bounced = scene.execute(
            "SELECT seq FROM mailpipe.feedback JOIN mailpipe.campaign USING (campaign_id) WHERE key = %(key)s ORDER BY seq",
            {"key": key},
        )
        assert bounced == [(1,), (57,)]

    def test_an_event_before_our_own_record_is_kept_and_used(self, scene: World) -> None:
        scene.people(3)
        key = scene.ready()
        scene.send(key)
        calls = scene.execute(
            "SELECT * FROM mailpipe.call WHERE campaign_id = (SELECT max(campaign_id) FROM mailpipe.campaign)"
        )
        assert calls
        scene.execute("CREATE TABLE kept AS SELECT * FROM mailpipe.call; DELETE FROM mailpipe.call")
        text = json.dumps(notification(COMPLAINT, ses_id=self.ids(scene, key)[2], accepted=ago(1), at=ago(0)))
        assert take(scene, text).foreign == 1
        with scene.database.connection() as connection:
            assert bind_late(connection) == 0
        scene.execute("INSERT INTO mailpipe.call SELECT * FROM kept; DROP TABLE kept")
        with scene.database.connection() as connection:
            assert bind_late(connection) == 1
            assert bind_late(connection) == 0
            assert report.events(connection, scene.campaign(key).campaign_id) == {"complaint": 1}
        assert take(scene, text).repeated == 1


def test_an_event_that_comes_before_the_answer_is_recorded_settles_an_unknown(scene: World) -> None:
    scene.people(4)
    key = scene.ready()
    scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
    scene.send(key)
    assert scene.keep_promises(key) == {"unknown": 4}
    assert take(scene, told(SEND, key, 2), told(DELIVERY, key, 3)).settled == 2
    assert scene.keep_promises(key) == {"unknown": 2, "sent": 2}


def test_raw_events_lie_in_months_and_go_with_them(scene: World) -> None:
    key = sent(scene)
    old = datetime.now(UTC) - timedelta(days=80)
    take(scene, told(DELIVERY, key, 1), told(DELIVERY, key, 2, at=old.isoformat()))
    take(scene, told(HARD, key, 3, at=(old - timedelta(days=30)).isoformat()))
    partitions = f"event_{old:%Y%m}"
    kept = scene.execute(
        "SELECT seq, e.tableoid::regclass::text FROM mailpipe.event e JOIN mailpipe.campaign USING (campaign_id)"
        " WHERE key = %(key)s ORDER BY 1",
        {"key": key},
    )
    assert [seq for seq, _ in kept] == [1, 2] and kept[-1][1] == f"mailpipe.{partitions}"
    assert suppressed(scene, 3) == [("all", "hard_bounce")], "too old to be kept, and acted upon all the same"
    with scene.database.connection() as connection:
        assert archive.drop(connection, 90) == []
        assert archive.drop(connection, 20) == [partitions]
    assert take(scene, told(DELIVERY, key, 4, at=old.isoformat())).folded == 1


def test_hostile_texts_do_not_stop_the_others(scene: World) -> None:
    key = sent(scene)
    odd = told(HARD, key, 1, recipients=["\ud800@mail.example.com"])
    done = take(
        scene,
        "\0",
        "[" * 50_000,
        odd,
        '{"mail": {"messageId": "\\ud800"}, "eventType": "Send"}',
        told(DELIVERY, key, 2),
    )
    assert (done.malformed, done.folded) == ([1, 2], 2)
