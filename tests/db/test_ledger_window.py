"""The ledger's steps with several calls that are opened by one commit, and whose answers are written together."""

from __future__ import annotations

from typing import Any

import pytest

from mailpipe import campaign, ledger
from mailpipe.ledger import Answered, Opened
from mailpipe.ses.answer import Answer, Result
from tests.db.ledger_table import AGAIN, FAILED, RETRY, SENT, UNKNOWN, Table, answer, message_id


class TestWindow:
    """Several calls that are opened by one commit."""

    def test_calls_get_their_numbers_in_turn(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        assert table.open_window(held, (1, 2), (3, 4)) == (Opened(1, (1, 2)), Opened(2, (3, 4)))
        assert table.open_window(held, (6,), (5,)) == (Opened(3, (6,)), Opened(4, (5,)))
        assert table.row() == "oooooo"
        assert table.chunk()["calls"] == 4

    def test_somebody_who_may_not_be_mailed_is_left_out_of_their_call_alone(self, make: Any) -> None:
        table: Table = make(4)
        table.connection.execute("UPDATE users SET marketing_opt_in = false WHERE user_id = 2")
        assert table.open_window(table.hold(), (1, 2), (3, 4)) == (Opened(1, (1,)), Opened(2, (3, 4)))
        assert table.row() == "oxoo"

    def test_a_call_in_which_nobody_is_left_is_none(self, make: Any) -> None:
        table: Table = make(4)
        table.connection.execute("DELETE FROM users WHERE user_id IN (1, 2)")
        held = table.hold()
        empty, other = table.open_window(held, (1, 2), (3, 4)) or ()
        assert empty == Opened(0, ())
        assert other.seqs == (3, 4) and other.no > 0
        assert table.row() == "xxoo"
        assert table.record(held, other, answer(SENT, SENT)) is False, "the chunk is done"
        assert table.chunk()["state"] == "done"

    def test_with_somebody_who_is_in_a_call_already_none_is_opened(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        table.call(held, 3)
        assert table.open_window(held, (1, 2), (3, 4)) is None
        assert table.row() == "--o-"

    def test_nobody_is_in_two_of_them(self, make: Any) -> None:
        table: Table = make(4)
        with pytest.raises(AssertionError, match="in two calls"):
            table.open_window(table.hold(), (1, 2), (2, 3))
        assert table.row() == "----"

    def test_answers_are_recorded_with_the_next_opening(self, make: Any) -> None:
        table: Table = make(8)
        held = table.hold()
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        said = [Answered(first, answer(SENT, FAILED)), Answered(second, answer(UNKNOWN, SENT, first=3))]
        assert table.open_window(held, (5, 6), (7, 8), answered=said) == (Opened(3, (5, 6)), Opened(4, (7, 8)))
        assert table.row() == "sfusoooo"
        assert [(no, accepted, codes) for no, _, accepted, codes in table.calls()] == [(1, 1, "sf"), (2, 1, "us")]
        assert table.outcomes() == [(2, "failed", "because_failed", 0), (3, "unknown", "because_unknown", 0)]
        assert {name: table.chunk()[name] for name in ("sent", "failed", "unknown")} == {
            "sent": 2, "failed": 1, "unknown": 1
        }  # fmt: skip

    def test_whom_an_answer_gives_back_can_be_opened_with_it(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        said = [Answered(first, answer(AGAIN, SENT)), Answered(second, answer(SENT, RETRY, first=3))]
        assert table.open_window(held, (1, 4), answered=said) == (Opened(3, (1, 4)),)
        assert table.row() == "osso"
        assert table.outcomes() == [(4, "retry", "because_retry", 1)]

    def test_answers_are_not_written_when_the_next_calls_may_not_be_opened(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        campaign.pause(table.connection, table.key, actor="ana", reason="wrong picture")
        said = [Answered(first, answer(SENT, SENT)), Answered(second, answer(SENT, SENT, first=3))]
        assert table.open_window(held, (5, 6), answered=said) is None
        assert table.row() == "oooo--"
        assert ledger.record(table.connection, held, said)
        assert table.row() == "ssss--"

    def test_message_ids_of_any_form_are_kept_with_their_own_call(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        window = table.open_window(held, (1, 2), (3, 4), (5, 6)) or ()
        strange = Answer((Result(SENT, message_id="a,b}"), Result(SENT, message_id='"NULL"')), seconds=0.25)
        refused = answer(FAILED, FAILED)
        said = [Answered(one, told) for one, told in zip(window, (answer(SENT, SENT), strange, refused), strict=True)]
        ledger.record(table.connection, held, said)
        rows = table.connection.execute(
            "SELECT no, seconds, message_ids, message_ids_text FROM mailpipe.call WHERE campaign_id = %s ORDER BY no",
            (table.campaign_id,),
        ).fetchall()
        assert [(no, seconds, ledger.unpack_message_ids(packed, text)) for no, seconds, packed, text in rows] == [
            (1, pytest.approx(0.1), [message_id(1), message_id(2)]),
            (2, 0.25, ["a,b}", '"NULL"']),
            (3, pytest.approx(0.1), []),
        ]

    def test_an_answer_that_is_written_already_keeps_none_of_the_others_out(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        table.record(held, first, answer(SENT, SENT))
        ledger.record(
            table.connection,
            held,
            [Answered(first, answer(SENT, SENT)), Answered(second, answer(SENT, FAILED, first=3))],
        )
        assert table.row() == "sssf"
        assert len(table.calls()) == 2

    def test_answers_that_come_after_the_sweeper_win_over_unknown(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        assert table.expire() == (1, 4)
        assert table.row() == "uuuu--"
        said = [Answered(first, answer(SENT, AGAIN)), Answered(second, answer(FAILED, UNKNOWN, first=3))]
        assert not ledger.record(table.connection, held, said)
        assert table.row() == "s-fu--"
        assert not ledger.record(table.connection, held, said)
        assert table.row() == "s-fu--"

    def test_calls_in_doubt_are_taken_back_together(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        table.call(held, 6)
        table.open_window(held, (1, 2), (3, 4))
        ledger.retract(table.connection, held, Opened(0, (1, 2, 3, 4, 5)))
        assert table.row() == "-----o"

    def test_the_earlier_refusals_of_people_in_several_calls_are_tidied_up(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        table.record(held, table.call(held), answer(RETRY, RETRY, RETRY, RETRY))
        first, second = table.open_window(held, (1, 2), (3, 4)) or ()
        ledger.record(
            table.connection,
            held,
            [
                Answered(first, answer(SENT, RETRY), {1: 1, 2: 1}),
                Answered(second, answer(SENT, SENT, first=3), {3: 1, 4: 4}),
            ],
        )
        assert table.row() == "s-ss"
        assert table.outcomes() == [(2, "retry", "because_retry", 2)]
