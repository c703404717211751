"""The ledger's steps one by one, called directly: who may write what, and when nothing may be written."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from mailpipe import campaign, ledger
from mailpipe.db import Kept
from mailpipe.ledger import Lease, Opened, Unfit
from tests.db.ledger_table import (
    AGAIN,
    FAILED,
    RETRY,
    SENT,
    UNKNOWN,
    Table,
    answer,
    message_id,
    somebody_waits_for_a_lock,
)
from tests.support import wait_for


class TestLease:
    def test_two_workers_get_two_chunks_and_the_third_gets_none(self, make: Any) -> None:
        table: Table = make(3, 3)
        first, second = table.hold("one"), table.hold("two")
        assert (first.chunk_no, second.chunk_no) == (0, 1)
        assert (first.first_seq, second.first_seq, first.size, first.fence) == (1, 4, 3, 1)
        assert table.lease("three") is None
        assert table.chunk(0)["owner"] == "one"
        assert table.row() == "------"

    def test_many_at_once_never_get_the_same_chunk(self, make: Any) -> None:
        table: Table = make(*[1] * 40)
        world = table.world

        def take_all(owner: str) -> list[int]:
            taken: list[int] = []
            with world.database.connection() as connection:
                together.wait()
                while (
                    held := ledger.lease(connection, table.campaign_id, (0, 99), owner=owner, seconds=60)
                ) is not None:
                    taken.append(held.chunk_no)
            return taken

        together = threading.Barrier(6)
        with ThreadPoolExecutor(6) as pool:
            taken = [future.result() for future in [pool.submit(take_all, f"w{i}") for i in range(6)]]
        assert sorted(number for numbers in taken for number in numbers) == list(range(40))

    @pytest.mark.parametrize("state", ["approved", "paused", "cancelled", "done"])
    def test_nothing_is_leased_unless_the_campaign_is_sending(self, make: Any, state: str) -> None:
        table: Table = make(3)
        table.connection.execute(
            "UPDATE mailpipe.campaign SET state = %s WHERE campaign_id = %s", (state, table.campaign_id)
        )
        assert table.lease() is None

    def test_a_chunk_that_is_not_due_is_not_leased(self, make: Any) -> None:
        table: Table = make(3)
        table.connection.execute("UPDATE mailpipe.chunk SET due_at = now() + interval '1 hour'")
        assert table.lease() is None
        due = ledger.next_due(table.connection, table.campaign_id, (0, 99))
        assert due.pending == pytest.approx(3600, abs=5)
        assert due.freed is None

    def test_what_others_hold_can_be_had_when_their_lease_ends(self, make: Any) -> None:
        table: Table = make(3, 3)
        table.hold("one", seconds=40)
        table.hold("two", seconds=20)
        due = ledger.next_due(table.connection, table.campaign_id, (0, 99))
        assert due.pending is None
        assert due.freed == due.soonest == pytest.approx(20, abs=2)

    def test_only_the_slices_asked_for_are_leased(self, make: Any) -> None:
        table: Table = make(1, 1, 1, 1)
        assert table.lease(slices=(2, 2)) is not None
        assert table.lease(slices=(2, 2)) is None
        assert table.lease(slices=(4, 99)) is None

    def test_the_low_water_mark_only_hides_what_lies_below(self, make: Any) -> None:
        table: Table = make(1, 1, 1)
        held = table.lease(low=1)
        assert held is not None and held.chunk_no == 1
        assert table.hold().chunk_no == 0

    def test_each_lease_has_a_new_fence(self, make: Any) -> None:
        table: Table = make(2)
        first = table.hold()
        ledger.release(table.connection, first)
        second = table.hold()
        assert second.fence > first.fence

    def test_a_chunk_far_along_in_a_large_campaign_can_be_read(self, make: Any) -> None:
        table: Table = make(1)
        far = Lease(table.campaign_id, 9, 99, 2_000_000, 500, 1, "0" * 500, "one", "any")
        assert table.people(far) == []

    def read(self, connection: Any) -> int:
        """Rows of chunks that the server has read for this session and not told elsewhere yet."""
        [(rows,)] = connection.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'mailpipe.chunk'::regclass"
        )
        return int(rows)

    def test_however_many_are_left_one_is_read(self, make: Any) -> None:
        """As a sender leases: else the server reads and sorts all of them, for each lease."""
        table: Table = make(1)
        table.connection.execute(
            "INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
            " SELECT %s, n, 0, 1 + n, 1, now(), B'0', B'0' FROM generate_series(1, 2000) AS n",
            (table.campaign_id,),
        )
        table.connection.execute("ANALYZE mailpipe.chunk")
        kept = Kept(table.world.database)
        with kept.use() as connection, connection.transaction():
            before = self.read(connection)
            assert ledger.lease(connection, table.campaign_id, (0, 99), owner="one", seconds=60) is not None
            read = self.read(connection) - before
        kept.give_back()
        assert read < 10


class TestPeople:
    def test_everybody_without_a_final_state_is_told_with_variables(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        table.record(held, table.call(held, 1, 2, 3), answer(SENT, FAILED, RETRY))
        ledger.release(table.connection, held)
        again = table.hold()
        people = table.people(again)
        assert [(person.seq, person.tries) for person in people] == [(3, 1), (4, 0)]
        assert people[0].user_id == "3"
        assert people[0].email == "person3@mail.example.com"
        assert list(people[0].values) == ["Name3", "Hanoi"]

    def test_they_are_found_however_the_server_reads_the_table(self, make: Any) -> None:
        """A prepared plan that scans a small table looked at bits of people outside of the chunk, and failed."""
        table: Table = make(1, 7, 2)
        held = table.hold()
        table.connection.execute(
            "SET enable_indexscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan"
        )
        try:
            for _ in range(8):
                assert [person.seq for person in table.people(held)] == [1]
        finally:
            table.connection.execute("RESET ALL; SET synchronous_commit = on")


class TestOpen:
    def test_people_of_an_open_call_are_sending(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        assert table.open(held, 2, 3) == Opened(1, (2, 3))
        assert table.row() == "-oo-"
        assert table.chunk()["calls"] == 1

    @pytest.mark.parametrize("scope", ["all", "marketing"])
    def test_somebody_suppressed_since_the_snapshot_is_skipped(self, make: Any, scope: str) -> None:
        table: Table = make(3)
        table.connection.execute("UPDATE mailpipe.recipient SET email = 'PERSON2@Mail.Example.com' WHERE seq = 2")
        table.connection.execute(
            "INSERT INTO mailpipe.suppression VALUES ('person2@mail.example.com', %s, 'unsubscribe', 'test')", (scope,)
        )
        held = table.hold()
        assert table.call(held).seqs == (1, 3)
        assert table.row() == "oxo"
        assert table.outcomes() == [(2, "skipped", "suppressed", 0)]

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE users SET marketing_opt_in = false WHERE user_id = 2",
            "UPDATE users SET marketing_opt_in = NULL WHERE user_id = 2",
            "UPDATE users SET is_active = false WHERE user_id = 2",
            "DELETE FROM users WHERE user_id = 2",
        ],
    )
    def test_somebody_who_opted_out_or_left_since_the_snapshot_is_skipped(self, make: Any, change: str) -> None:
        table: Table = make(3)
        table.connection.execute(change.encode())
        held = table.hold()
        assert table.call(held).seqs == (1, 3)
        assert table.outcomes() == [(2, "skipped", "opted_out", 0)]
        assert table.row() == "oxo"

    def test_when_nobody_may_be_mailed_no_call_is_counted(self, make: Any) -> None:
        table: Table = make(2)
        table.connection.execute("TRUNCATE users")
        held = table.hold()
        assert table.open(held) == Opened(0, ())
        assert table.row() == "xx"
        ledger.release(table.connection, held)
        assert table.chunk()["state"] == "done"

    def test_somebody_who_waited_for_another_try_and_opts_out_is_skipped(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.record(held, table.call(held, 1), answer(RETRY))
        table.connection.execute("DELETE FROM users WHERE user_id = 1")
        assert table.call(held, 1, 2).seqs == (2,)
        assert table.outcomes() == [(1, "skipped", "opted_out", 1)]
        assert table.row() == "xo"

    @pytest.mark.parametrize("state", ["paused", "cancelled", "approved", "done"])
    def test_nothing_is_opened_once_the_campaign_has_stopped(self, make: Any, state: str) -> None:
        table: Table = make(2)
        held = table.hold()
        table.connection.execute(
            "UPDATE mailpipe.campaign SET state = %s WHERE campaign_id = %s", (state, table.campaign_id)
        )
        assert table.open(held) is None
        assert table.row() == "--"

    def test_nothing_is_opened_after_the_lease_has_ended(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold(seconds=-1)
        assert table.open(held) is None

    @pytest.mark.parametrize("change", [{"fence": 7}, {"owner": "two"}, {"chunk_no": 1}])
    def test_nothing_is_opened_for_anybody_but_the_holder(self, make: Any, change: dict[str, Any]) -> None:
        table: Table = make(2)
        assert table.open(replace(table.hold(), **change)) is None
        assert table.row() == "--"

    def test_nobody_is_opened_twice(self, make: Any) -> None:
        table: Table = make(3)
        held = table.hold()
        table.call(held, 1, 2)
        assert table.open(held, 2, 3) is None
        assert table.row() == "oo-"

    def test_nobody_with_a_final_state_is_opened(self, make: Any) -> None:
        table: Table = make(3)
        held = table.hold()
        table.record(held, table.call(held, 1), answer(SENT))
        assert table.open(held, 1, 2) is None
        assert table.row() == "s--"

    def test_opening_prolongs_the_lease(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold(seconds=5)
        table.call(held, 1)
        left = table.connection.execute(
            "SELECT extract(epoch FROM leased_until - clock_timestamp()) FROM mailpipe.chunk WHERE campaign_id = %s",
            (table.campaign_id,),
        ).fetchone()
        assert left is not None and float(left[0]) > 50

    def test_a_template_that_was_changed_since_the_lease_is_not_sent(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.connection.execute(
            "INSERT INTO mailpipe.template_version VALUES ('other', 'hello', '{}') ON CONFLICT DO NOTHING"
        )
        table.connection.execute(
            "UPDATE mailpipe.campaign SET template_version = 'other' WHERE campaign_id = %s", (table.campaign_id,)
        )
        assert table.open(held) is None
        ledger.release(table.connection, held)
        again = table.hold()
        assert again.template_version == "other"
        assert table.open(again) is not None

    def test_its_commit_is_synchronous_whatever_the_session_says(self, make: Any) -> None:
        """A commit that is lost after its call was made is a mail sent twice."""
        table: Table = make(2)
        held = table.hold()
        table.connection.execute("SET synchronous_commit = off")
        try:
            with table.connection.transaction():
                table.call(held, 1)
                assert table.connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        finally:
            table.connection.execute("SET synchronous_commit = on")

    def test_an_outage_of_days_does_not_exhaust_the_numbers_of_calls(self, make: Any) -> None:
        table: Table = make(1)
        table.connection.execute("UPDATE mailpipe.chunk SET calls = 32767 WHERE campaign_id = %s", (table.campaign_id,))
        held = table.hold()
        opened = table.call(held)
        assert opened.no == 32768
        table.record(held, opened, answer(AGAIN))
        assert table.row() == "-"


class TestRecord:
    def test_each_kind_of_answer_leads_to_its_state(self, make: Any) -> None:
        table: Table = make(6)
        held = table.hold()
        assert table.record(held, table.call(held, 1, 2, 3, 4, 5), answer(SENT, FAILED, RETRY, AGAIN, UNKNOWN))
        assert table.row() == "sf--u-"
        assert table.outcomes() == [
            (2, "failed", "because_failed", 0),
            (3, "retry", "because_retry", 1),
            (5, "unknown", "because_unknown", 0),
        ]
        assert table.calls() == [(1, "111110", 1, "sfrau")]
        chunk = table.chunk()
        assert (chunk["state"], chunk["opened"], chunk["finished"]) == ("leased", "000000", "110010")

    def test_an_ordinary_call_leaves_one_row_and_no_codes(self, make: Any) -> None:
        table: Table = make(3)
        held = table.hold()
        assert not table.record(held, table.call(held), answer(SENT, SENT, SENT))
        assert table.calls() == [(1, "111", 3, None)]
        assert table.outcomes() == []
        chunk = table.chunk()
        assert (chunk["state"], chunk["owner"]) == ("done", None)
        assert table.row() == "sss"

    def test_writing_an_answer_twice_changes_nothing(self, make: Any) -> None:
        table: Table = make(5)
        held = table.hold()
        opened, said = table.call(held), answer(SENT, FAILED, RETRY, AGAIN, UNKNOWN)
        table.record(held, opened, said)
        before = (table.states(), table.chunk(), table.calls(), table.outcomes())
        table.record(held, opened, said)
        table.record(held, opened, answer(SENT, SENT, SENT, SENT, SENT))
        assert (table.states(), table.chunk(), table.calls(), table.outcomes()) == before

    def test_somebody_accepted_at_another_try_is_sent_and_nothing_else(self, make: Any) -> None:
        table: Table = make(1)
        held = table.hold()
        table.record(held, table.call(held), answer(RETRY))
        table.record(held, table.call(held), answer(SENT), {1: 1})
        assert table.row() == "s"
        assert table.outcomes() == []

    def test_counted_refusals_end_as_failed(self, make: Any) -> None:
        table: Table = make(1)
        held = table.hold()
        for tries in range(ledger.MAX_TRIES):
            assert table.row() == "-"
            table.record(held, table.call(held), answer(RETRY), {1: tries})
        assert table.outcomes() == [(1, "failed", "because_retry", ledger.MAX_TRIES - 1)]
        assert table.row() == "f"
        assert table.chunk()["state"] == "done"

    def test_refusals_that_are_not_counted_never_end(self, make: Any) -> None:
        table: Table = make(1)
        held = table.hold()
        for _ in range(2 * ledger.MAX_TRIES):
            table.record(held, table.call(held), answer(AGAIN))
        assert table.row() == "-"
        assert table.outcomes() == []

    @pytest.mark.parametrize("state", ["paused", "cancelled"])
    def test_an_answer_is_written_although_the_campaign_has_stopped(self, make: Any, state: str) -> None:
        table: Table = make(3)
        held = table.hold()
        opened = table.call(held, 1, 2)
        if state == "paused":
            campaign.pause(table.connection, table.key, actor="test", reason="why not")
        else:
            campaign.cancel(table.connection, table.key, actor="test", reason="why not")
        table.record(held, opened, answer(SENT, SENT))
        assert table.row() == "ss-"
        ledger.release(table.connection, held)
        assert table.row() == ("ss-" if state == "paused" else "ssx")

    def test_an_answer_is_written_although_the_lease_has_ended_unnoticed(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        opened = table.call(held)
        table.connection.execute(
            "UPDATE mailpipe.chunk SET leased_until = now() - interval '1 hour' WHERE state = 'leased'"
        )
        table.record(held, opened, answer(SENT, SENT))
        assert table.row() == "ss"

    def test_a_stale_fence_writes_nothing_over_another_holder(self, make: Any) -> None:
        table: Table = make(4)
        old = table.hold("one")
        ledger.release(table.connection, old)
        new = table.hold("one")
        opened = table.call(new, 1, 2)
        table.record(old, opened, answer(SENT, SENT))
        ledger.retract(table.connection, old, opened)
        ledger.refuse(table.connection, old, [Unfit(3, "failed", "too_late")])
        ledger.release(table.connection, old)
        assert table.row() == "oo--"
        assert table.chunk()["owner"] == "one"


class TestRetractRefuseRelease:
    def test_a_call_that_was_not_made_frees_its_people(self, make: Any) -> None:
        table: Table = make(3)
        held = table.hold()
        opened = table.call(held, 1, 2)
        ledger.retract(table.connection, held, opened)
        assert table.row() == "---"
        assert table.call(held, 1, 2).no == 2
        assert table.calls() == [(1, "110", 0, "aa")]

    @pytest.mark.parametrize("in_other_hands", [False, True])
    def test_after_the_lease_it_frees_them_too_for_nobody_else_knows_better(
        self, make: Any, in_other_hands: bool
    ) -> None:
        table: Table = make(3)
        slow = table.hold("slow")
        opened = table.call(slow, 1, 2)
        table.expire()
        assert table.row() == "uu-"
        if in_other_hands:
            table.hold("quick")
        ledger.retract(table.connection, slow, opened)
        assert table.row() == "---"
        assert table.chunk()["owner"] == ("quick" if in_other_hands else None)

    def test_counted_refusals_of_the_freed_stay_counted(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.record(held, table.call(held, 1, 2), answer(RETRY, SENT))
        opened = table.call(held, 1)
        table.expire()
        assert table.row() == "us"
        ledger.retract(table.connection, held, opened)
        assert table.row() == "-s"
        assert table.outcomes() == [(1, "retry", "transient_failure", 1)]
        last = table.hold()
        (person,) = table.people(last)
        table.record(last, table.call(last, 1), answer(SENT), {1: person.tries})
        assert (table.row(), table.outcomes()) == ("ss", [])

    @pytest.mark.parametrize("late", [False, True])
    def test_a_second_time_it_frees_nobody_of_another_call(self, make: Any, late: bool) -> None:
        """The answer of the first time was lost on its way, so it is done again."""
        table: Table = make(2)
        slow = table.hold("slow")
        opened = table.call(slow)
        if late:
            table.expire()
        ledger.retract(table.connection, slow, opened)
        assert table.row() == "--"
        table.expire()
        table.call(table.hold("second"))
        table.expire()
        ledger.retract(table.connection, slow, opened)
        assert table.row() == "uu"

    def test_nobody_is_freed_whom_an_event_or_an_order_has_settled(self, make: Any) -> None:
        table: Table = make(3)
        slow = table.hold("slow")
        opened = table.call(slow)
        table.expire()
        ledger.settle_unknown(table.connection, table.campaign_id, 0, [(1, "failed", "reject", 1)])
        with table.connection.transaction():
            campaign.lock(table.connection, table.key)
            ledger.send_again(table.connection, table.campaign_id, [2])
        table.call(table.hold("second"), 2)
        table.expire()
        ledger.retract(table.connection, slow, opened)
        assert table.row() == "fu-"

    def test_in_doubt_it_frees_people_only_while_its_holder_has_the_chunk(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold("slow")
        ledger.retract(table.connection, held, replace(table.call(held), no=0))
        assert table.row() == "--"
        opened = table.call(held)
        table.expire()
        ledger.retract(table.connection, held, replace(opened, no=0))
        assert table.row() == "uu"
        assert table.calls() == []

    def test_people_refused_before_the_call_are_final(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        unfit = [Unfit(2, "failed", "missing_variable", "city"), Unfit(4, "skipped", "unusable_address", "email")]
        ledger.refuse(table.connection, held, unfit)
        assert table.row() == "-f-x"
        ledger.refuse(table.connection, held, unfit)
        assert table.row() == "-f-x"
        assert table.open(held, 2) is None

    def test_a_chunk_of_refused_people_is_done_when_it_is_given_back(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        ledger.refuse(table.connection, held, [Unfit(1, "failed", "x"), Unfit(2, "failed", "x")])
        ledger.release(table.connection, held)
        assert table.chunk()["state"] == "done"

    def test_nobody_is_refused_who_is_in_a_call(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.call(held, 1)
        ledger.refuse(table.connection, held, [Unfit(1, "failed", "x")])
        assert table.row() == "o-"
        assert table.outcomes() == []

    def test_a_chunk_that_is_given_back_is_free_at_once_or_after_a_delay(self, make: Any) -> None:
        table: Table = make(2)
        ledger.release(table.connection, table.hold())
        held = table.hold()
        ledger.release(table.connection, held, delay=30)
        assert table.lease() is None
        assert ledger.next_due(table.connection, table.campaign_id, (0, 99)).pending == pytest.approx(30, abs=2)

    def test_a_chunk_with_people_in_a_call_is_not_given_back(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        table.call(held, 1)
        ledger.release(table.connection, held)
        assert table.chunk()["state"] == "leased"

    def test_cancelling_ends_free_chunks_at_once_and_leased_ones_when_they_come_back(self, make: Any) -> None:
        table: Table = make(2, 2)
        held = table.hold()
        campaign.cancel(table.connection, table.key, actor="test", reason="why not")
        assert table.row() == "--xx"
        ledger.release(table.connection, held)
        assert table.row() == "xxxx"

    def test_a_chunk_given_back_during_a_cancel_does_not_stay_pending(self, make: Any) -> None:
        table: Table = make(2)
        held = table.hold()
        world = table.world

        def give_back() -> None:
            with world.database.connection() as connection:
                ledger.release(connection, held)

        with world.database.connection() as cancelling, ThreadPoolExecutor(1) as pool:
            with cancelling.transaction():
                campaign.cancel(cancelling, table.key, actor="test", reason="why not")
                waiting = pool.submit(give_back)
                wait_for(lambda: somebody_waits_for_a_lock(table.connection), "the release to meet the cancel")
            waiting.result()
        assert table.row() == "xx"


class TestMessageIds:
    def test_they_are_kept_in_the_order_of_the_accepted_people(self, make: Any) -> None:
        table: Table = make(4)
        held = table.hold()
        table.record(held, table.call(held), answer(SENT, FAILED, SENT, SENT))
        row = table.connection.execute(
            "SELECT message_ids, message_ids_text FROM mailpipe.call WHERE campaign_id = %s", (table.campaign_id,)
        ).fetchone()
        assert row is not None
        assert ledger.unpack_message_ids(*row) == [message_id(1), message_id(3), message_id(4)]
