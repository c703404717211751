"""A run whose senders have several calls under way: what one of them meets costs the others nothing, and nobody anything."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from mailpipe import campaign, interpreter, ledger, worker
from mailpipe.ledger import Opened
from mailpipe.message import Forms
from mailpipe.send import End
from mailpipe.ses.client import Ses, connect
from tests.db.ledger_table import Table
from tests.support import World, wait_for

Chunks = Callable[..., Table]

SENDERS, TOGETHER = 3, 5
THREADS = SENDERS * TOGETHER


@pytest.fixture
def world(scene: World) -> World:
    """A run with fifteen threads: three senders with five calls each."""
    settings = scene.with_settings(threads=THREADS, read_timeout=15.0)
    return replace(scene, settings=settings, ses=connect(settings, endpoint=scene.stand_in.url, connections=THREADS))


@pytest.fixture
def chunks(scene: World, make: Any) -> Chunks:
    """A campaign of chunks of these sizes, and an account whose rate nobody reaches: a busy machine misses no slots."""

    def of(*sizes: int, rate: float = 2_000_000) -> Table:
        table: Table = make(*sizes)
        scene.stand_in.change(rate=rate)
        return table

    return of


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a second makes no call slow."""
    monkeypatch.setattr(worker, "_STRAGGLING", 10.0)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each opening of a run has opened."""
    sizes: list[int] = []
    after_opening(monkeypatch, lambda _, opened: sizes.append(len(opened or ())))
    return sizes


def after_opening(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[Sequence[Any], tuple[Opened, ...] | None], None]
) -> None:
    """Do something after each opening of calls, which is done as always."""
    open_calls = ledger.open_calls

    def opening(connection: Any, held: Any, calls: Sequence[Any], **named: Any) -> tuple[Opened, ...] | None:
        opened = open_calls(connection, held, calls, **named)
        then(calls, opened)
        return opened

    monkeypatch.setattr(ledger, "open_calls", opening)


def numbers(table: Table) -> list[int]:
    return [row[0] for row in table.calls()]


def before_opening(
    monkeypatch: pytest.MonkeyPatch, *, second: Callable[[], object], done: bool = False
) -> list[Sequence[Any]]:
    """Do something before the second opening of a run, or, when it is `done`, after it. Answers the openings, as they come."""
    open_calls = ledger.open_calls
    openings: list[Sequence[Any]] = []

    def opening(connection: Any, held: Any, calls: Sequence[Any], **named: Any) -> tuple[Opened, ...] | None:
        openings.append(calls)
        strike = len(openings) == 2
        if strike and not done:
            second()
        opened = open_calls(connection, held, calls, **named)
        if strike and done:
            second()
        return opened

    monkeypatch.setattr(ledger, "open_calls", opening)
    return openings


def lose_it() -> None:
    raise psycopg.OperationalError("the connection is lost")


@contextmanager
def slow_call(world: World) -> Iterator[Callable[[], None]]:
    """The provider accepts a call and keeps its answer, until it is told to go on."""
    world.stand_in.add_faults({"kind": "pause", "accept": True, "count": 1})
    try:
        yield world.stand_in.clear_faults
    finally:
        world.stand_in.clear_faults()


def at_the_provider(world: World) -> int:
    """How many calls the provider works on."""
    return int(world.stand_in.state()["in_flight"])


@pytest.mark.usefixtures("patient")
def test_a_chunk_of_ten_calls_takes_two_commits_to_open(world: World, chunks: Chunks, windows: list[int]) -> None:
    table = chunks(500)
    outcome = world.send(table.key)
    assert (outcome.end, outcome.calls) == (End.COMPLETE, 10)
    assert windows == [5, 5]
    assert numbers(table) == list(range(1, 11))
    assert world.keep_promises(table.key) == {"sent": 500}


def test_a_chunk_in_which_nobody_wants_mail_any_more_ends_without_a_call(
    world: World, chunks: Chunks, windows: list[int]
) -> None:
    table = chunks(150)
    table.connection.execute("DELETE FROM users")
    outcome = world.send(table.key)
    assert (outcome.end, outcome.calls, windows) == (End.COMPLETE, 0, [3])
    assert world.keep_promises(table.key) == {"skipped": 150}


def test_where_calls_do_not_follow_closely_each_has_its_own_commit(
    world: World, chunks: Chunks, windows: list[int]
) -> None:
    table = chunks(150, rate=900)
    assert world.send(table.key).end is End.COMPLETE
    assert windows == [1, 1, 1]
    assert world.keep_promises(table.key) == {"sent": 150}


def test_small_chunks_use_all_the_room(world: World, chunks: Chunks) -> None:
    """One call each: fifteen of them are under way at once, from as many senders."""
    table = chunks(*[50] * THREADS)
    world.stand_in.add_faults({"kind": "pause"})
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        try:
            wait_for(lambda: at_the_provider(world) == THREADS, "a call of each chunk")
        finally:
            world.stand_in.clear_faults()
        assert run.result().end is End.COMPLETE
    assert world.keep_promises(table.key) == {"sent": 50 * THREADS}


def test_nobody_waits_for_a_slow_call(world: World, chunks: Chunks, windows: list[int]) -> None:
    """The answers to the others are written, and their room is used for the rest of the chunk."""
    table = chunks(500)
    with slow_call(world) as go_on, ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        wait_for(lambda: world.progress(table.key).sent == 450, "everybody else to have their answer written")
        assert world.progress(table.key).sending == 50
        assert not run.done()
        go_on()
        assert run.result().end is End.COMPLETE
    assert windows[0] == 5 and max(windows[1:]) <= 4
    assert sum(windows) == 10
    assert world.keep_promises(table.key) == {"sent": 500}


def test_a_run_told_to_stop_writes_the_answers_to_all_calls_under_way(world: World, chunks: Chunks) -> None:
    table = chunks(500, 500, 500, 500)
    world.stand_in.change(latency_ms=300)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key, stop=stop)
        wait_for(lambda: len(world.journal(table.key)) >= 250, "some calls")
        stop.set()
        assert run.result().end is End.STOPPED
    states = world.keep_promises(table.key)
    assert set(states) == {"sent", "pending"} and states["sent"] <= 50 * 2 * THREADS
    assert world.progress(table.key).processing_chunks == 0
    world.stand_in.change(latency_ms=0)
    assert world.send(table.key).end is End.COMPLETE
    assert world.keep_promises(table.key) == {"sent": 2000}


def test_a_pause_opens_nothing_more(world: World, chunks: Chunks) -> None:
    table = chunks(500, 500, 500, 500)
    world.stand_in.add_faults({"kind": "pause"})
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        try:
            wait_for(lambda: at_the_provider(world) == THREADS, "all the room to be used")
            campaign.pause(table.connection, table.key, actor="ben", reason="wrong picture")
        finally:
            world.stand_in.clear_faults()
        assert run.result().end is End.NOT_SENDING
    assert world.keep_promises(table.key) == {"sent": 50 * THREADS, "pending": 2000 - 50 * THREADS}


def test_calls_that_have_missed_their_slots_are_made_in_others(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stood still after its first commit: none of these calls may leave, and nobody of them is lost."""
    table = chunks(500, rate=100_000)
    first = threading.Event()

    def stand_still(_calls: Any, _opened: Any) -> None:
        if not first.is_set():
            first.set()
            time.sleep(0.5)

    after_opening(monkeypatch, stand_still)
    assert world.send(table.key).end is End.COMPLETE
    assert world.keep_promises(table.key) == {"sent": 500}
    assert sum(row[3] is not None for row in table.calls()) >= 5, "these calls are recorded as not made"
    assert len(world.journal(table.key)) == 500


@pytest.mark.usefixtures("patient")
def test_a_connection_lost_with_the_answer_to_an_opening_loses_and_doubles_nobody(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second window is opened and the answers to the first are written by that commit, and the sender does not know."""
    table = chunks(500)
    openings = before_opening(monkeypatch, second=lose_it, done=True)
    assert world.send(table.key).end is End.COMPLETE
    assert [len(calls) for calls in openings] == [5, 5, 5]
    assert world.keep_promises(table.key) == {"sent": 500}


@pytest.mark.parametrize("done", [False, True], ids=["before-its-commit", "after-its-commit"])
def test_an_opening_lost_while_a_slow_call_is_under_way_costs_nobody_anything(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    table = chunks(500)
    lost = threading.Event()

    def lose() -> None:
        lost.set()
        lose_it()

    before_opening(monkeypatch, second=lose, done=done)
    with slow_call(world) as go_on, ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        wait_for(lost.is_set, "the opening that is lost")
        wait_for(lambda: world.progress(table.key).sending == 50, "the slow call to be all that is open")
        go_on()
        assert run.result().end is End.COMPLETE
    assert world.keep_promises(table.key) == {"sent": 500}


def test_a_lease_lost_while_a_slow_call_is_under_way_costs_nobody_anything(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper calls its people unknown; the answer wins over that, and a new lease goes on with the chunk."""
    table = chunks(500)
    before_opening(monkeypatch, second=table.expire)
    with slow_call(world) as go_on, ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        wait_for(lambda: world.progress(table.key).unknown == 50, "the sweeper")
        go_on()
        assert run.result().end is End.COMPLETE
    assert world.keep_promises(table.key) == {"sent": 500}


def test_a_refused_call_is_halved_although_the_opening_of_its_first_half_is_lost(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody of it was sent, and nobody of it becomes unknown: its answer is written before a half of it is opened."""
    table = chunks(100)
    refusal = {"kind": "http_status", "status": 400, "type": "BadRequestException", "message": "Header is wrong."}
    world.stand_in.add_faults({**refusal, "count": 1})
    openings = before_opening(monkeypatch, second=lose_it, done=False)
    assert world.with_threads(1).send(table.key).end is End.COMPLETE
    assert len(openings) > 2
    assert world.keep_promises(table.key) == {"sent": 100}


def test_answers_are_written_as_they_come_when_the_run_was_told_to_stop(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever told it may soon kill it: what is known does not wait for the slowest call."""
    table = chunks(250)
    send, gates, number = Ses.send, [threading.Event() for _ in range(5)], itertools.count()

    def slow(*given: Any, **named: Any) -> Any:
        gate = gates[next(number)]
        answer = send(*given, **named)
        assert gate.wait(30)
        return answer

    monkeypatch.setattr(Ses, "send", slow)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key, stop=stop)
        try:
            wait_for(lambda: len(world.journal(table.key)) == 250, "five calls")
            stop.set()
            for number_back, gate in enumerate(gates, 1):
                gate.set()
                wait_for(lambda n=number_back: world.progress(table.key).sent == 50 * n, "its answer")  # type: ignore[misc]
        finally:
            for gate in gates:
                gate.set()
        assert run.result().end is End.COMPLETE, "nobody is left"
    assert world.keep_promises(table.key) == {"sent": 250}


def test_a_fault_in_one_call_takes_nothing_from_the_others(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with it. What is known of the others is written; its own people are in an open call, and become unknown."""
    table = chunks(250)
    send, count, lock = Ses.send, 0, threading.Lock()

    def fail_once(*given: Any, **named: Any) -> Any:
        nonlocal count
        with lock:
            count += 1
            if count == 2:
                raise ZeroDivisionError
        return send(*given, **named)

    monkeypatch.setattr(Ses, "send", fail_once)
    with pytest.raises(ZeroDivisionError):
        world.send(table.key)
    assert table.row().count("s") == 200 and table.row().count("o") == 50
    assert table.expire() == (1, 50)
    assert world.send(table.key).calls == 0
    assert world.keep_promises(table.key) == {"sent": 200, "unknown": 50}


def test_after_a_fault_the_known_answers_do_not_wait_for_a_slow_call(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = chunks(250)
    send, number, go_on, failed = Ses.send, itertools.count(), threading.Event(), threading.Event()
    good = threading.Semaphore(0)

    def fail_or_wait(*given: Any, **named: Any) -> Any:
        which = next(number)
        answer = send(*given, **named)
        if which == 0:
            assert go_on.wait(30)
        elif which == 1:
            # Behind the good ones.
            assert all(good.acquire(timeout=30) for _ in range(3))
            failed.set()
            raise ZeroDivisionError
        else:
            good.release()
        return answer

    monkeypatch.setattr(Ses, "send", fail_or_wait)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.send, table.key)
        try:
            wait_for(failed.is_set, "the fault")
            wait_for(lambda: world.progress(table.key).sent == 150, "the three known answers")
            assert not run.done()
        finally:
            go_on.set()
        assert isinstance(run.exception(), ZeroDivisionError)
    assert table.row().count("s") == 200 and table.row().count("o") == 50


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)
@pytest.mark.parametrize(("one", "threads"), [(True, THREADS), (False, THREADS), (True, 3)])
def test_whoever_opens_and_makes_calls_stays_on_one_processor_unless_that_is_switched_off_or_they_are_few(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch, one: bool, threads: int
) -> None:
    monkeypatch.setattr(interpreter, "_NAME", f"\0mailpipe-test-{os.getpid()}-")  # no other run has taken it
    world = replace(world, settings=replace(world.settings, one_processor=one, threads=threads))
    table, seen, ours = chunks(250, 250), set[frozenset[int]](), os.sched_getaffinity(0)
    send = Ses.send

    def note(*_: Any) -> None:
        seen.add(frozenset(os.sched_getaffinity(0)))

    def noted(*given: Any, **named: Any) -> Any:
        note()
        return send(*given, **named)

    monkeypatch.setattr(Ses, "send", noted)
    after_opening(monkeypatch, note)
    assert world.send(table.key).end is End.COMPLETE
    if one and threads == THREADS:
        (used,) = seen
        assert len(used) == 1 and used < ours
    else:
        assert seen == {frozenset(ours)}
    assert os.sched_getaffinity(0) == ours, "that of the caller is left alone"


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads are interrupted all the time, also between the writing of a request and its building."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_everybody_gets_their_own_mail_though_calls_write_on_forms_of_others(
    world: World, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, sets = chunks(500, 500, 500, 500), set[Forms]()
    take = Forms.take

    def noted(forms: Forms, people: int) -> Any:
        sets.add(forms)
        return take(forms, people)

    monkeypatch.setattr(Forms, "take", noted)
    assert world.send(table.key).end is End.COMPLETE
    addresses = dict(
        world.execute(
            "SELECT r.seq, r.email FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s",
            {"key": table.key},
        )
    )
    assert {line["seq"]: line["to"] for line in world.journal(table.key)} == addresses
    [shared] = sets
    assert 1 <= len(shared._free) <= THREADS, "all came back"
    assert world.keep_promises(table.key) == {"sent": 2000}
