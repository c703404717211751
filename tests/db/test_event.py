"""Events folded into the ledger: any order, any number of times, the same end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mailpipe import event, report
from mailpipe.event import Event
from mailpipe.feedback.ingest import ingest_lines
from tests.support import World, wait_for


def line(key: str, seq: int, name: str, attempt: int = 1) -> str:
    mail = {"messageId": f"id-{seq}", "tags": {"campaign": [key], "seq": [str(seq)], "attempt": [str(attempt)]}}
    return json.dumps({"eventType": name, "mail": mail})


def masks(scene: World, key: str) -> list[tuple[Any, ...]]:
    return scene.execute(
        "SELECT chunk_no, kind, attempt, mask FROM mailpipe.event_mask JOIN mailpipe.campaign USING (campaign_id)"
        " WHERE key = %(key)s ORDER BY 1, 2, 3",
        {"key": key},
    )


def kinds(scene: World, key: str) -> dict[str, int]:
    with scene.database.connection() as connection:
        return report.events(connection, scene.campaign(key).campaign_id)


def sent(scene: World, people: int = 3, **fields: Any) -> str:
    scene.people(people)
    key = scene.ready(**fields)
    scene.send(key)
    return key


def test_events_set_a_bit_for_each_person_and_kind(scene: World) -> None:
    key = sent(scene, 60)
    lines = [line(key, 1, "Delivery"), line(key, 50, "Delivery"), line(key, 51, "Delivery"), line(key, 51, "Bounce")]
    found = ingest_lines(scene.database, lines)
    assert (found.read, found.folded, found.foreign, found.malformed, found.settled) == (4, 4, 0, [], 0)
    assert kinds(scene, key) == {"delivery": 3, "bounce": 1, "soft_bounce": 1}
    assert masks(scene, key)[0] == (0, "delivery", 1, "1" + "0" * 48 + "1")
    assert scene.keep_promises(key) == {"sent": 60}


def test_the_same_events_again_change_nothing(scene: World) -> None:
    key = sent(scene)
    lines = [line(key, seq, name) for seq in (1, 2, 3) for name in ("Send", "Delivery", "Open")]
    ingest_lines(scene.database, lines)
    before = masks(scene, key)
    for _ in range(3):
        ingest_lines(scene.database, lines)
    assert masks(scene, key) == before


def test_events_in_any_order_and_in_pieces_come_to_the_same(scene: World) -> None:
    key, other = sent(scene, 120), None
    other = scene.ready()
    scene.send(other)
    told = [(seq, name) for seq in range(1, 121) for name in ("Send", "Delivery", "Complaint") if (seq * len(name)) % 7]
    ingest_lines(scene.database, [line(key, *one) for one in told])
    order = random.Random(3)
    shuffled = [*told, *told[::5]]
    order.shuffle(shuffled)
    for start in range(0, len(shuffled), 17):
        ingest_lines(scene.database, [line(other, *one) for one in shuffled[start : start + 17]])
    assert masks(scene, other) == masks(scene, key)


def test_foreign_and_malformed_lines_are_counted_and_stop_nothing(scene: World) -> None:
    key = sent(scene)
    lines = [
        "no json",
        line(key, 1, "Delivery"),
        "",
        line("somebody-else", 1, "Delivery"),
        line("somebody-else", 2, "Delivery"),
        json.dumps({"eventType": "Send", "mail": {}}),
        line(key, 2, "Subscription"),
        "[1, 2]",
        line(key, 4_000, "Delivery"),
    ]
    found = ingest_lines(scene.database, lines)
    assert (found.read, found.folded, found.foreign, found.malformed) == (8, 3, 3, [1, 8])
    assert kinds(scene, key) == {"delivery": 1}


def test_an_event_of_a_person_who_waits_does_not_send_them(scene: World) -> None:
    scene.people(3)
    key = scene.ready()
    assert ingest_lines(scene.database, [line(key, 1, "Delivery"), line(key, 2, "Rendering Failure")]).settled == 0
    assert scene.keep_promises(key) == {"pending": 3}


class TestSettling:
    def lost(self, scene: World, people: int = 4) -> str:
        scene.people(people)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
        scene.send(key)
        assert scene.keep_promises(key) == {"unknown": people}
        return key

    @pytest.mark.parametrize("name", ["Send", "Delivery", "Bounce", "Complaint", "DeliveryDelay", "Open", "Click"])
    def test_whatever_shows_that_ses_took_the_mail_settles_an_unknown(self, scene: World, name: str) -> None:
        key = self.lost(scene)
        assert ingest_lines(scene.database, [line(key, 2, name)]).settled == 1
        assert scene.keep_promises(key) == {"unknown": 3, "sent": 1}
        assert scene.states(key)[2] == ("sent", None)

    @pytest.mark.parametrize(("name", "reason"), [("Rendering Failure", "rendering_failure"), ("Reject", "reject")])
    def test_whatever_shows_that_ses_dropped_it_fails_an_unknown(self, scene: World, name: str, reason: str) -> None:
        key = self.lost(scene)
        assert ingest_lines(scene.database, [line(key, 2, "Send"), line(key, 2, name)]).settled == 1
        assert scene.states(key)[2] == ("failed", reason)
        assert scene.balance(key) == {"unknown": 3, "failed": 1}

    def test_settling_again_settles_nobody(self, scene: World) -> None:
        key = self.lost(scene)
        lines = [line(key, 1, "Delivery"), line(key, 2, "Reject")]
        assert ingest_lines(scene.database, lines).settled == 2
        assert ingest_lines(scene.database, lines).settled == 0
        assert scene.balance(key) == {"unknown": 2, "sent": 1, "failed": 1}

    def test_a_mail_that_bounced_was_sent(self, scene: World) -> None:
        key = sent(scene)
        assert ingest_lines(scene.database, [line(key, 1, "Bounce")]).settled == 0
        assert scene.balance(key) == {"sent": 3}

    def test_people_who_failed_or_were_skipped_before_stay_so(self, scene: World) -> None:
        scene.people(3)
        scene.execute("UPDATE users SET city = NULL WHERE user_id = 1")
        key = scene.ready()
        scene.execute("DELETE FROM users WHERE user_id = 2")
        scene.send(key)
        lines = [line(key, seq, name) for seq in (1, 2) for name in ("Delivery", "Rendering Failure")]
        assert ingest_lines(scene.database, lines).settled == 0
        assert [scene.states(key)[seq] for seq in (1, 2)] == [("failed", "missing_variable"), ("skipped", "opted_out")]

    def test_a_cancelled_campaign_is_settled_too(self, scene: World) -> None:
        key = self.lost(scene)
        scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE key = %(key)s", {"key": key})
        assert ingest_lines(scene.database, [line(key, 1, "Delivery")]).settled == 1


def test_the_stand_in_s_own_events_are_understood(scene: World) -> None:
    scene.people(6)
    addresses = {
        1: "bounce@simulator.amazonses.com",
        2: "complaint@simulator.amazonses.com",
        3: "person3@delay.example.com",
        4: "person4@softbounce.example.com",
    }
    for user, address in addresses.items():
        scene.execute(
            "UPDATE users SET email = %(address)s WHERE user_id = %(user)s", {"address": address, "user": user}
        )
    key = scene.ready()
    scene.send(key)

    def lines() -> list[str]:
        return [text for text in scene.stand_in.events_file.read_text().splitlines() if f'"{key}"' in text]

    wait_for(lambda: len(lines()) >= 14, "the events")
    found = ingest_lines(scene.database, lines())
    assert found.malformed == [] and found.foreign == 0
    assert kinds(scene, key) == {
        "send": 6,
        "delivery": 4,
        "bounce": 2,
        "hard_bounce": 1,
        "soft_bounce": 1,
        "complaint": 1,
        "delivery_delay": 1,
    }
    assert scene.progress(key).delivered == 4
    assert scene.keep_promises(key) == {"sent": 6}


KINDS = st.sampled_from(["send", "delivery", "bounce", "rendering_failure", "open"])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=st.lists(st.tuples(KINDS, st.integers(1, 12)), max_size=30), order=st.randoms())
def test_the_end_does_not_depend_on_order_or_repetition(
    scene: World, events: list[tuple[Any, int]], order: random.Random
) -> None:
    scene.clean()
    scene.people(12)
    ends = []
    for shuffle in (False, True):
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
        scene.send(key)
        told = [Event(kind, key, seq) for kind, seq in events]
        if shuffle:
            told = told + told[::2]
            order.shuffle(told)
        with scene.database.connection() as connection:
            campaign_id = scene.campaign(key).campaign_id
            for start in range(0, len(told), 7 if shuffle else 100):
                event.fold(connection, told[start : start + (7 if shuffle else 100)])
                if shuffle:
                    # Settling in between can call somebody sent whose mail is only later known to have been dropped.
                    event.settle(connection, campaign_id)
            event.settle(connection, campaign_id)
        scene.balance(key)
        ends.append((masks(scene, key), {seq: state for seq, (state, _) in scene.states(key).items()}))
    assert ends[0] == ends[1]
