"""A processor for the threads of one run, while all others go where the kernel wants."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mailpipe import interpreter
from mailpipe.flight import Flight
from mailpipe.interpreter import Processor
from tests.support import wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)


Taker = Callable[[], Processor]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taker]:
    """Takes processors on a machine on which no other run has one; they are released in the end."""
    monkeypatch.setattr(interpreter, "_NAME", f"\0mailpipe-test-{os.getpid()}-")
    taken: list[Processor] = []

    def one() -> Processor:
        taken.append(Processor())
        taken[-1].take()
        return taken[-1]

    yield one
    for processor in taken:
        processor.release()


def where_a_thread_stays(processor: Processor) -> set[int]:
    def stay() -> set[int]:
        processor.stay()
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(stay).result(10)


def test_a_thread_stays_and_the_one_that_started_it_does_not(take: Taker) -> None:
    before = os.sched_getaffinity(0)
    processor = take()
    assert processor.number in before
    assert where_a_thread_stays(processor) == {processor.number}
    assert os.sched_getaffinity(0) == before


def test_no_two_runs_have_the_same_one_and_who_finds_none_goes_anywhere(
    take: Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    first, second = sorted(before)[:2]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first, second})
    processors = [take(), take()]
    assert {one.number for one in processors} == {first, second}
    late = take()
    assert late.number is None
    monkeypatch.undo()
    assert where_a_thread_stays(late) == before


def test_a_processor_that_is_released_can_be_had_again(take: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first, second})
    held, other = take(), take()
    number = held.number
    held.release()
    assert take().number == number != other.number


def test_a_processor_that_was_taken_from_us_is_no_reason_to_fail(take: Taker) -> None:
    processor = take()
    processor.number = 100_000
    assert where_a_thread_stays(processor) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        (os, "sched_getaffinity", lambda _: {3}),
        (sys, "platform", "darwin"),
        (sys, "_is_gil_enabled", lambda: False),
    ],
)
def test_where_it_brings_nothing_or_cannot_be_said_there_is_none(
    take: Taker, monkeypatch: pytest.MonkeyPatch, of: object, name: str, value: object
) -> None:
    monkeypatch.setattr(of, name, value, raising=False)
    assert take().number is None


def test_calls_are_made_on_the_processor_of_their_flight_and_it_is_free_afterwards(take: Taker) -> None:
    seen: list[set[int]] = []
    processor = Processor()
    flight = Flight(4, 2, threading.Event(), processor=processor)
    flight.open()
    number = processor.number
    for _ in range(4):
        flight.make(lambda: seen.append(os.sched_getaffinity(0)))
    wait_for(lambda: len(seen) == 4, "all four")
    flight.close()
    assert number is not None and seen == [{number}] * 4
    assert number in {take().number for _ in os.sched_getaffinity(0)}
