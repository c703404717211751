"""The ledger's steps one by one, called directly: who may write what, and when nothing may be written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mailpipe import campaign, event, ledger
from mailpipe.db import Connection, Kept
from mailpipe.ledger import Answered, Lease, Opened, Unfit
from mailpipe.message import Recipient
from mailpipe.ses.answer import Answer, Kind, Result
from tests.support import World, opening, wait_for

SENT, FAILED, RETRY, AGAIN, UNKNOWN = Kind.SENT, Kind.FAILED, Kind.RETRY, Kind.AGAIN, Kind.UNKNOWN


def message_id(number: int) -> str:
    return f"{number:016x}-01234567-89ab-4def-8123-456789abcdef-000000"


def answer(*kinds: Kind, first: int = 1) -> Answer:
    """What SES says to as many people; the message ids are numbered from `first` on."""
    results = [
        Result(kind, message_id=message_id(first + i)) if kind is SENT else Result(kind, f"because_{kind}", "text")
        for i, kind in enumerate(kinds)
    ]
    return Answer(tuple(results), seconds=0.1)


class Table:
    """A sending campaign of `people`, cut into chunks of the sizes that a test wants, and the ledger's steps on it."""

    def __init__(self, world: World, connection: Connection, sizes: Sequence[int]) -> None:
        self.world, self.connection = world, connection
        world.clean()
        world.people(sum(sizes))
        self.key = world.ready()
        self.campaign_id = world.campaign(self.key).campaign_id
        first = 1
        connection.execute("DELETE FROM mailpipe.chunk WHERE campaign_id = %s", (self.campaign_id,))
        for number, size in enumerate(sizes):
            connection.execute(
                "INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
                " VALUES (%s, %s, %s, %s, %s, now(), repeat('0', %s)::varbit, repeat('0', %s)::varbit)",
                (self.campaign_id, number, number, first, size, size, size),
            )
            first += size
        campaign.start(connection, self.key, actor="test")

    def lease(
        self, owner: str = "one", *, seconds: float = 60, slices: tuple[int, int] = (0, 99), low: int = 0
    ) -> Lease | None:
        return ledger.lease(self.connection, self.campaign_id, slices, owner=owner, seconds=seconds, low=low)

    def hold(self, owner: str = "one", *, seconds: float = 60) -> Lease:
        held = self.lease(owner, seconds=seconds)
        assert held is not None
        return held

    def people(self, held: Lease) -> list[Recipient]:
        return ledger.people(self.connection, held)

    def open(self, held: Lease, *seqs: int, seconds: float = 60) -> Opened | None:
        """Open a call for these people, or for everybody of the chunk."""
        wanted = seqs or tuple(range(held.first_seq, held.first_seq + held.size))
        people = [Recipient(seq, str(seq), "unread", None, None, ()) for seq in wanted]
        return ledger.open_call(self.connection, held, people, opening=opening(self.campaign_id), seconds=seconds)

    def call(self, held: Lease, *seqs: int) -> Opened:
        opened = self.open(held, *seqs)
        assert opened is not None
        return opened

    def record(self, held: Lease, opened: Opened, said: Answer, tries: dict[int, int] | None = None) -> bool:
        return ledger.record(self.connection, held, Answered(opened, said, tries or {}))

    def expire(self) -> tuple[int, int]:
        """Let every lease of the campaign end now, and sweep."""
        self.connection.execute(
            "UPDATE mailpipe.chunk SET leased_until = now() - interval '1 second' WHERE campaign_id = %s AND state = 'leased'",
            (self.campaign_id,),
        )
        return ledger.expire_leases(self.connection, self.campaign_id)

    def chunk(self, number: int = 0) -> dict[str, Any]:
        names = ("state", "owner", "fence", "calls", "opened", "finished", "sent", "failed", "skipped", "unknown")
        row = self.connection.execute(
            f"SELECT {', '.join(names)} FROM mailpipe.chunk WHERE campaign_id = %s AND chunk_no = %s".encode(),
            (self.campaign_id, number),
        ).fetchone()
        assert row is not None
        return dict(zip(names, row, strict=True))

    def states(self) -> dict[int, str]:
        """State of everybody, after a look at the counters."""
        self.world.balance(self.key)
        return {seq: state for seq, (state, _) in sorted(self.world.states(self.key).items())}

    def row(self) -> str:
        """The states of all people as one letter each; `-` is pending."""
        letters = {"pending": "-", "sending": "o", "sent": "s", "failed": "f", "skipped": "x", "unknown": "u"}
        return "".join(letters[state] for state in self.states().values())

    def calls(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT no, positions, accepted, codes FROM mailpipe.call WHERE campaign_id = %s ORDER BY chunk_no, no",
            (self.campaign_id,),
        ).fetchall()

    def outcomes(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT seq, state, reason, tries FROM mailpipe.outcome WHERE campaign_id = %s ORDER BY seq",
            (self.campaign_id,),
        ).fetchall()


def somebody_waits_for_a_lock(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    return row is not None and row[0] > 0


@pytest.fixture
def make(scene: World) -> Any:
    with scene.database.connection() as connection:
        yield lambda *sizes: Table(scene, connection, sizes)


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
            ledger.record(writing, held, Answered(opened, answer(SENT, SENT)))
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


@dataclass
class Open:
    """A call that a worker has opened. `said` is what the provider answered, once it was asked; `missed`: it never will be."""

    held: Lease
    opened: Opened
    tries: dict[int, int]
    said: Answer | None = None
    missed: bool = False


@dataclass
class Hands:
    """A worker of the machine below."""

    owner: str
    held: Lease | None = None
    open: Open | None = None


KINDS = st.sampled_from([SENT, SENT, SENT, AGAIN, AGAIN, FAILED, RETRY, UNKNOWN])


class Machine(RuleBasedStateMachine):
    """Two workers and a sweeper do everything that the ledger lets them do, in any order, and the provider keeps count.

    The provider (`accepted`) accepts whom it answers SENT, and some of those whose answer is lost or says UNKNOWN. Dead workers'
    answers are kept and may be written at any later time, more than once; so is it with calls that were never made, which are
    taken back. Somebody may order `unknown` people to be mailed
    again (`ordered`): each attempt may be accepted once.
    """

    make: Any

    @initialize(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def begin(self, sizes: list[int]) -> None:
        self.table: Table = type(self).make(*sizes)
        self.people = range(1, sum(sizes) + 1)
        self.workers = [Hands("one"), Hands("two")]
        self.ghosts: list[Open] = []
        self.accepted: Counter[tuple[int, int]] = Counter()
        self.ordered: Counter[int] = Counter()
        self.believed: set[int] = set()
        self.refused: set[int] = set()
        self.paused = False

    def lease(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is None:
            worker.held = self.table.lease(worker.owner)
            assert worker.held is None or not self.paused

    def open_call(self, who: int, number: int) -> None:
        worker = self.workers[who]
        if worker.held is None or worker.open is not None:
            return
        people = self.table.people(replace(worker.held, finished=self.finished(worker.held)))[:number]
        if not people:
            return
        opened = ledger.open_call(
            self.table.connection, worker.held, people, opening=opening(self.table.campaign_id), seconds=60
        )
        if opened is None:
            worker.held = None
            return
        assert not self.paused
        assert not self.refused & opened.people, "somebody who had said no was opened"
        assert not [seq for seq in opened.seqs if self.has_it(seq)], "somebody who has the mail was opened again"
        if opened.seqs:
            tries = {person.seq: person.tries for person in people if person.seq in opened.people and person.tries}
            worker.open = Open(worker.held, opened, tries)

    def ask_the_provider(self, who: int, data: st.DataObject) -> None:
        call = self.workers[who].open
        if call is None or call.said is not None or call.missed:
            return
        if data.draw(st.integers(0, 3)) == 0:
            call.missed = True
            return
        number = len(call.opened.seqs)
        kinds = data.draw(
            st.one_of(KINDS.map(lambda kind: [kind] * number), st.lists(KINDS, min_size=number, max_size=number))
        )
        call.said = answer(*kinds, first=call.opened.seqs[0])
        taken = data.draw(st.sets(st.sampled_from(call.opened.seqs)))
        for seq, kind in zip(call.opened.seqs, kinds, strict=True):
            if kind is SENT or (kind is UNKNOWN and seq in taken):
                self.accepted[seq, call.opened.attempts.get(seq, 1)] += 1

    @rule(who=st.integers(0, 1), steps=st.integers(1, 9), number=st.integers(1, 8), data=st.data())
    def work(self, who: int, steps: int, number: int, data: st.DataObject) -> None:
        """The next steps of a worker: lease a chunk, open a call, ask the provider, write the answer, and again."""
        for _ in range(steps):
            worker = self.workers[who]
            if worker.open is None and worker.held is None:
                self.lease(who)
            elif worker.open is None:
                self.open_call(who, number)
            elif worker.open.said is None and not worker.open.missed:
                self.ask_the_provider(who, data)
            else:
                self.write_the_answer(who, twice=data.draw(st.booleans()))

    def write_the_answer(self, who: int, twice: bool) -> None:
        worker = self.workers[who]
        if worker.open is None or (worker.open.said is None and not worker.open.missed):
            return
        for _ in range(1 + twice):
            if not self.write(worker.open):
                worker.held = None
        if twice:
            self.ghosts.append(worker.open)
        worker.open = None

    def write(self, call: Open) -> bool:
        """Write an answer, or take back a call that was never made. Answers whether the worker may go on with its chunk."""
        if call.said is not None:
            return self.table.record(call.held, call.opened, call.said, call.tries)
        ledger.retract(self.table.connection, call.held, call.opened)
        return True

    def write_late(self, ghost: Open) -> None:
        """A statement whose connection is gone may come to the server when the same worker has opened the same people again: the
        number of its call is taken then, and it fails."""
        with suppress(psycopg.errors.UniqueViolation):
            self.write(ghost)

    @rule(who=st.integers(0, 1))
    def take_back_a_call_in_doubt(self, who: int) -> None:
        """Its worker gives the chunk away after that."""
        worker = self.workers[who]
        if worker.open is not None and worker.open.said is None:
            ledger.retract(self.table.connection, worker.open.held, replace(worker.open.opened, no=0))
            worker.open = None
            self.give_back(who)

    @rule(who=st.integers(0, 1))
    def give_back(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is not None and worker.open is None:
            ledger.release(self.table.connection, worker.held)
            worker.held = None

    @rule(who=st.integers(0, 1))
    def refuse(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is None or worker.open is not None:
            return
        people = self.table.people(replace(worker.held, finished=self.finished(worker.held)))
        if people:
            ledger.refuse(self.table.connection, worker.held, [Unfit(people[-1].seq, "failed", "missing_variable")])

    @rule(who=st.integers(0, 1))
    def die(self, who: int) -> None:
        worker = self.workers[who]
        if worker.open is not None and (worker.open.said is not None or worker.open.missed):
            self.ghosts.append(worker.open)
        worker.held = worker.open = None

    @rule()
    def sweep(self) -> None:
        self.table.expire()

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def write_an_answer_late(self, data: st.DataObject) -> None:
        self.write_late(data.draw(st.sampled_from(self.ghosts)))

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data(), who=st.integers(0, 1), number=st.integers(1, 8), again=st.booleans())
    def write_an_answer_late_before_and_after_another_call(
        self, data: st.DataObject, who: int, number: int, again: bool
    ) -> None:
        """Those who are freed by it are opened once more, by a worker who dies; then the same answer comes a second time."""
        ghost = self.ghosts[-1]
        self.sweep()
        if again:
            self.decide_about_unknown_people(data, again=True)
        else:
            self.write_late(ghost)
        self.die(who)
        self.work(who, 3, number, data)
        self.die(who)
        self.sweep()
        self.write_late(ghost)

    @rule(who=st.integers(0, 1), data=st.data())
    def pause_for_a_while(self, who: int, data: st.DataObject) -> None:
        campaign.pause(self.table.connection, self.table.key, actor="test", reason="why not")
        self.paused = True
        self.work(who, 3, 5, data)
        campaign.resume(self.table.connection, self.table.key, actor="test")
        self.paused = False

    @rule(data=st.data(), how=st.sampled_from(["suppress", "opt out", "delete"]))
    def say_no(self, data: st.DataObject, how: str) -> None:
        seq = data.draw(st.sampled_from(self.people))
        statement = {
            "suppress": "INSERT INTO mailpipe.suppression VALUES ('person' || %s || '@mail.example.com', 'all', 'manual', 'test')"
            " ON CONFLICT DO NOTHING",
            "opt out": "UPDATE users SET marketing_opt_in = false WHERE user_id = %s",
            "delete": "DELETE FROM users WHERE user_id = %s",
        }[how]
        self.table.connection.execute(statement.encode(), (seq,))
        self.refused.add(seq)

    @precondition(lambda self: any(self.accepted.values()))
    @rule(data=st.data(), kind=st.sampled_from(["send", "delivery", "rendering_failure"]))
    def tell_an_event(self, data: st.DataObject, kind: event.Kind) -> None:
        seq, attempt = data.draw(st.sampled_from(sorted(one for one, times in self.accepted.items() if times)))
        event.fold(self.table.connection, [event.Event(kind, self.table.key, seq, attempt)])
        event.settle(self.table.connection, self.table.campaign_id)

    @rule(data=st.data(), again=st.booleans())
    def decide_about_unknown_people(self, data: st.DataObject, again: bool) -> None:
        seqs = sorted(data.draw(st.sets(st.sampled_from(self.people), min_size=1)))
        with self.table.connection.transaction():
            campaign.lock(self.table.connection, self.table.key)
            order = ledger.send_again if again else ledger.call_sent
            changed = order(self.table.connection, self.table.campaign_id, seqs)
        assert set(changed) <= set(seqs)
        if again:
            self.ordered.update(changed)
        else:
            self.believed.update(changed)

    @invariant()
    def nobody_is_mailed_twice_and_everybody_has_one_state(self) -> None:
        assert max(self.accepted.values(), default=0) <= 1
        states = self.table.states()
        assert len(states) == len(self.people)
        for seq, state in states.items():
            if state == "sent" and seq not in self.believed:
                assert any(self.accepted[seq, i] for i in range(1, self.attempt(seq) + 1)), (
                    "somebody is called sent whom the provider never accepted"
                )
            if state in ("pending", "skipped"):
                assert not self.has_it(seq), "somebody who has the mail may be mailed again"

    def teardown(self) -> None:
        """Whatever has happened, one honest worker can finish the rest."""
        if not hasattr(self, "table"):
            return
        self.table.expire()
        worker = self.workers[0]
        worker.open = worker.held = None
        while (held := self.table.lease("honest")) is not None:
            people = self.table.people(held)
            opened = ledger.open_call(
                self.table.connection, held, people, opening=opening(self.table.campaign_id), seconds=60
            )
            assert opened is not None
            if opened.seqs:
                self.accepted.update((seq, opened.attempts.get(seq, 1)) for seq in opened.seqs)
                self.table.record(held, opened, answer(*[SENT] * len(opened.seqs), first=opened.seqs[0]))
            ledger.release(self.table.connection, held)
        self.nobody_is_mailed_twice_and_everybody_has_one_state()
        assert not {"pending", "sending"} & set(self.table.states().values())
        assert campaign.finish(self.table.connection, self.table.campaign_id)

    def attempt(self, seq: int) -> int:
        """The attempt that somebody is at."""
        return 1 + self.ordered[seq]

    def has_it(self, seq: int) -> bool:
        """Whether the provider has accepted somebody's present attempt."""
        return self.accepted[seq, self.attempt(seq)] > 0

    def finished(self, held: Lease) -> str:
        """Who has a final state by now; a worker knows that from its own calls."""
        return str(self.table.chunk(held.chunk_no)["finished"])


def test_whatever_two_workers_do_nobody_is_mailed_twice_and_nobody_is_lost(make: Any) -> None:
    """Any order of leases, calls, answers (late, twice, lost), deaths, sweeps, pauses, refusals and events."""

    class Run(Machine):
        pass

    Run.make = staticmethod(make)
    run_state_machine_as_test(
        Run,
        settings=hypothesis.settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            database=None,
            # Making a failure smaller takes minutes; the steps as they were found say enough.
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
