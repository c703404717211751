"""Threads that stay on one processor, while the others go where the kernel wants."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mailpipe import interpreter
from mailpipe.flight import Flight
from tests.support import wait_for

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)


def in_a_thread(processor: int | None) -> set[int]:
    def stay() -> set[int]:
        interpreter.stay_on(processor)
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(stay).result(10)


def test_a_thread_stays_and_the_one_that_started_it_does_not() -> None:
    before = os.sched_getaffinity(0)
    chosen = interpreter.choose_processor()
    assert chosen in before
    assert in_a_thread(chosen) == {chosen}
    assert os.sched_getaffinity(0) == before


def test_nobody_is_kept_where_nothing_was_chosen_or_what_was_chosen_is_gone() -> None:
    before = os.sched_getaffinity(0)
    assert in_a_thread(None) == before
    assert in_a_thread(100_000) == before


def test_every_processor_that_we_may_use_can_be_chosen() -> None:
    assert {interpreter.choose_processor() for _ in range(1000)} == os.sched_getaffinity(0)


def test_where_there_is_one_or_nobody_says_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert interpreter.choose_processor() is None
    monkeypatch.delattr(os, "sched_setaffinity")
    assert interpreter.choose_processor() is None


def test_calls_are_made_on_the_processor_of_their_flight() -> None:
    seen: list[set[int]] = []
    chosen = interpreter.choose_processor()
    flight = Flight(4, 2, threading.Event(), processor=chosen)
    flight.open()
    for _ in range(4):
        flight.make(lambda: seen.append(os.sched_getaffinity(0)))
    wait_for(lambda: len(seen) == 4, "all four")
    flight.close()
    assert seen == [{chosen}] * 4
