"""Room for calls that senders share, and the threads that make them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from mailpipe.flight import Flight, Landing
from tests.support import wait_for


def flight(calls: int, together: int, stop: threading.Event | None = None) -> Flight:
    return Flight(calls, together, stop or threading.Event())


def not_waiting() -> None:
    raise AssertionError("there was room")


@pytest.mark.parametrize(("calls", "together", "senders"), [(16, 5, 3), (15, 5, 3), (4, 1, 4)])
def test_senders_get_whole_parts_and_never_more_than_there_are(calls: int, together: int, senders: int) -> None:
    room = flight(calls, together)
    for _ in range(senders):
        assert room.take(0, waiting=not_waiting) == together
    with pytest.raises(AssertionError, match="there was room"):
        room.take(0, waiting=not_waiting)


def test_a_sender_with_all_it_may_have_keeps_it() -> None:
    room = flight(10, 5)
    assert room.take(0, waiting=not_waiting) == 5
    assert room.keep(5, 10) == 5
    assert room.take(5, waiting=not_waiting) == 5
    assert room.take(0, waiting=not_waiting) == 5, "its own five were not given away"


def only_small_chunks(room: Flight) -> None:
    """One after the other, until room for one call is usual."""
    for _ in range(2):
        assert room.take(0, waiting=not_waiting) == 5
        room.give_back(room.keep(5, 1))


def test_small_chunks_use_all_the_room() -> None:
    room = flight(15, 5)
    only_small_chunks(room)
    for _ in range(15):
        assert room.take(0, waiting=not_waiting) == 1
    with pytest.raises(AssertionError, match="there was room"):
        room.take(0, waiting=not_waiting)


def test_a_small_chunk_among_large_ones_leaves_the_next_one_all_its_room() -> None:
    room = flight(15, 5)
    for calls in (10, 1, 10, 1, 2):
        assert room.take(0, waiting=not_waiting) == 5
        room.give_back(room.keep(5, calls))
    assert room.take(0, waiting=not_waiting) == 2, "two small ones, of which this is the larger"


def test_after_small_chunks_senders_come_to_their_full_room_again() -> None:
    """Who finds the first large chunk works it with what it has; then they wait for a whole part, and have it of those who end."""
    room = flight(15, 5)
    only_small_chunks(room)
    for _ in range(15):
        assert room.take(0, waiting=not_waiting) == 1
    assert room.keep(1, 10) == 1
    waits = [threading.Event() for _ in range(15)]
    with ThreadPoolExecutor(15) as pool:
        senders = [pool.submit(room.take, 1, waiting=one.set) for one in waits]
        wait_for(lambda: sum(sender.done() for sender in senders) == 3, "three of them to have their room")
        assert {sender.result() for sender in senders if sender.done()} == {5}
        # The others follow as those end.
        while not all(sender.done() for sender in senders):
            done = sum(sender.done() for sender in senders)
            room.give_back(5)
            wait_for(lambda done=done: sum(sender.done() for sender in senders) == done + 1, "another one")  # type: ignore[misc]
    assert {sender.result() for sender in senders} == {5}


def test_whoever_waits_for_room_ends_when_the_run_is_told_to_stop() -> None:
    stop, waits = threading.Event(), threading.Event()
    room = flight(5, 5, stop)
    room.take(0, waiting=not_waiting)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(room.take, 0, waiting=waits.set)
        assert waits.wait(10)
        stop.set()
        assert other.result(10) == 0


def test_as_many_calls_are_made_at_once_as_there_is_room_for() -> None:
    room = flight(6, 3)
    together, made = threading.Barrier(6), SimpleQueue[str]()

    def call() -> None:
        together.wait(10)
        made.put(threading.current_thread().name)

    room.open()
    for _ in range(6):
        room.make(call)
    wait_for(lambda: made.qsize() == 6, "all six")
    assert len({made.get() for _ in range(6)}) == 6
    room.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("call-")]


def test_whoever_waits_for_calls_is_woken_once_for_all_of_them() -> None:
    landing = Landing[int]()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(landing.take, 3)
        for number in (1, 2):
            landing.put(number)
            assert not waiting.done()
        landing.put(3)
        assert waiting.result(10) == [1, 2, 3]
    assert landing.take(1, seconds=0) == []


def test_calls_that_are_back_are_not_kept_from_whoever_has_waited_long_enough() -> None:
    landing = Landing[int]()
    landing.put(1)
    assert landing.take(2, seconds=0.01) == [1]
    landing.put(2)
    assert landing.take(1) == [2]
