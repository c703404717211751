"""What becomes of people later: the sweeper, late answers, events, cancelled campaigns."""

from __future__ import annotations

from typing import Any

import pytest

from mailpipe import campaign, ledger
from mailpipe.ledger import Answered
from mailpipe.ses.answer import Kind
from tests.db.ledger_table import (
    AGAIN,
    FAILED,
    RETRY,
    SENT,
    UNKNOWN,
    Table,
    answer,
)


class TestSweep:
    def test_people_of_an_open_call_become_unknown_and_are_never_opened_again(self, make: Any) -> None:
        table: Table = make(5)
        held = table.hold("dead")
        table.record(held, table.call(held, 1), answer(SENT))
        table.call(held, 2, 3)
        assert table.expire() == (1, 2)
        assert table.row() == "suu--"
        assert table.outcomes() == [(2, "unknown", "no_answer", 0), (3, "unknown", "no_answer", 0)]
        again = table.hold("alive")
        assert [person.seq for person in table.people(again)] == [4, 5]
        assert table.open(again, 3, 4) is None
        table.record(again, table.call(again, 4, 5), answer(SENT, SENT))
        assert table.row() == "suuss"
        assert table.chunk()["state"] == "done"

    def test_a_live_lease_is_left_alone(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.call(held)
        assert ledger.expire_leases(table.connection, table.campaign_id) == (0, 0)
        assert table.row() == "oo"

    @pytest.mark.parametrize("state", ["paused", "cancelled"])
    def test_chunks_of_the_dead_are_freed_in_a_campaign_that_has_stopped(self, make: Any, state: str) -> None:
        table: Table = make(3)
        table.call(table.hold(), 1)
        move = campaign.pause if state == "paused" else campaign.cancel
        move(table.connection, table.key, actor="test", reason="why not")
        assert table.expire() == (1, 1)
        assert table.row() == ("u--" if state == "paused" else "uxx")

    def test_a_chunk_in_which_all_were_open_is_done(self, make: Any) -> None:
        table: Table = make(2)
        table.call(table.hold())
        table.expire()
        assert table.chunk()["state"] == "done"
        assert campaign.finish(table.connection, table.campaign_id)

    def test_somebody_who_waited_for_another_try_is_unknown_when_that_call_is_lost(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.record(held, table.call(held, 1), answer(RETRY))
        table.call(held, 1)
        table.expire()
        assert table.outcomes() == [(1, "unknown", "no_answer", 1)]

    def test_a_sweep_while_the_holder_writes_waits_for_nobody(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        opened = table.call(held)
        table.connection.execute(
            "UPDATE mailpipe.chunk SET leased_until = now() - interval '1 s' WHERE state = 'leased'"
        )
        with table.world.database.transaction() as writing:
            ledger.record(writing, held, [Answered(opened, answer(SENT, SENT))])
            assert ledger.expire_leases(table.connection, table.campaign_id) == (0, 0)
        assert table.row() == "ss"


class TestLateAnswer:
    @pytest.mark.parametrize(
        ("kind", "letter", "outcomes"),
        [
            (SENT, "s", []),
            (FAILED, "f", [(1, "failed", "because_failed", 0)]),
            (AGAIN, "-", []),
            (RETRY, "-", [(1, "retry", "because_retry", 1)]),
            (UNKNOWN, "u", [(1, "unknown", "no_answer", 0)]),
        ],
    )
    @pytest.mark.parametrize("size", [1, 3])
    def test_it_wins_over_unknown(self, make: Any, kind: Kind, letter: str, outcomes: list[Any], size: int) -> None:
        table: Table = make(size)
        held = table.hold("slow")
        opened = table.call(held, 1)
        table.expire()
        assert table.row()[0] == "u"
        assert not table.record(held, opened, answer(kind))
        assert table.row() == letter + "-" * (size - 1)
        assert table.outcomes() == outcomes
        assert table.chunk()["state"] == ("done" if size == 1 and letter != "-" else "pending")
        assert table.calls() == [
            (1, "1" + "0" * (size - 1), int(kind is SENT), None if kind is SENT else kind.value[0])
        ]

    def test_it_wins_while_another_holds_the_chunk(self, make: Any) -> None:
        table: Table = make(5)
        slow = table.hold("slow")
        opened = table.call(slow, 1, 2, 3)
        table.expire()
        quick = table.hold("quick")
        table.record(slow, opened, answer(SENT, AGAIN, FAILED))
        assert table.row() == "s-f--"
        table.record(quick, table.call(quick, 4, 5), answer(SENT, SENT))
        assert table.row() == "s-fss"
        ledger.release(table.connection, quick)
        last = table.hold("quick")
        assert [person.seq for person in table.people(last)] == [2]

    def test_a_second_time_it_cannot_free_people_of_another_call(self, make: Any) -> None:
        """The first writing frees them; somebody else opens them and dies; the same answer once more must not free them."""
        table: Table = make(2)
        slow = table.hold("slow")
        opened, said = table.call(slow), answer(AGAIN, AGAIN)
        table.expire()
        table.record(slow, opened, said)
        assert table.row() == "--"
        table.call(table.hold("second"))
        table.expire()
        assert table.row() == "uu"
        table.record(slow, opened, said)
        assert table.row() == "uu"
        assert table.lease("third") is None

    def test_what_an_event_has_settled_stays(self, make: Any) -> None:
        table: Table = make(2)
        slow = table.hold("slow")
        opened = table.call(slow)
        table.expire()
        ledger.settle_unknown(
            table.connection, table.campaign_id, 0, [(1, "sent", "delivery", 1), (2, "failed", "reject", 1)]
        )
        assert table.row() == "sf"
        table.record(slow, opened, answer(AGAIN, SENT))
        assert table.row() == "sf"

    def test_people_freed_in_a_campaign_that_is_over_come_back_to_life(self, make: Any) -> None:
        table: Table = make(1)
        slow = table.hold("slow")
        opened = table.call(slow)
        table.expire()
        assert campaign.finish(table.connection, table.campaign_id)
        table.record(slow, opened, answer(AGAIN))
        assert campaign.reopen(table.connection, table.campaign_id)
        assert table.world.campaign(table.key).state == "sending"
        assert table.lease() is not None

    def test_people_freed_in_a_cancelled_campaign_are_skipped(self, make: Any) -> None:
        table: Table = make(1)
        slow = table.hold("slow")
        opened = table.call(slow)
        table.expire()
        campaign.cancel(table.connection, table.key, actor="test", reason="why not")
        table.record(slow, opened, answer(AGAIN))
        assert table.row() == "x"
        assert not campaign.reopen(table.connection, table.campaign_id)


class TestSettle:
    def test_an_event_settles_unknown_people_and_nobody_else(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        table.record(held, table.call(held, 1, 2, 3, 4), answer(UNKNOWN, UNKNOWN, SENT, FAILED))
        told = [(seq, "sent", "delivery", 1) for seq in range(1, 7)]
        assert ledger.settle_unknown(table.connection, table.campaign_id, 0, told) == 2
        assert table.row() == "sssf--"
        assert ledger.settle_unknown(table.connection, table.campaign_id, 0, told) == 0

    def test_a_mail_that_was_accepted_and_could_not_be_made_is_failed(self, make: Any) -> None:
        table: Table = make(5)
        held = table.hold()
        table.record(held, table.call(held, 1, 2, 3), answer(UNKNOWN, SENT, FAILED))
        told = [(seq, "failed", "rendering_failure", 1) for seq in range(1, 6)]
        assert ledger.settle_unknown(table.connection, table.campaign_id, 0, told) == 2
        assert table.row() == "fff--"
        assert [reason for _, _, reason, _ in table.outcomes()] == [
            "rendering_failure",
            "rendering_failure",
            "because_failed",
        ]
        assert ledger.settle_unknown(table.connection, table.campaign_id, 0, told) == 0


class TestCancelledPeople:
    def test_somebody_who_waited_for_another_try_is_skipped_because_of_the_cancel(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.record(held, table.call(held, 1), answer(RETRY))
        ledger.release(table.connection, held)
        assert table.world.states(table.key)[1] == ("pending", "because_retry")
        campaign.cancel(table.connection, table.key, actor="test", reason="why not")
        assert set(table.world.states(table.key).values()) == {("skipped", "cancelled")}
