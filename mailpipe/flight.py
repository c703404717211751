"""The calls of one run that are under way: room for so many, which its senders share, and the threads that make them.

Whom a call is for, when it is made and what becomes of its answer is `worker`'s duty; how much room there is, `plan`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from mailpipe.interpreter import Processor

T = TypeVar("T")

_LOOK = 0.5
"""Seconds between two looks whether the run was told to stop."""


class Landing(Generic[T]):
    """Where one sender's calls come back. It is woken once for all that it waits for, not for each of them."""

    def __init__(self) -> None:
        self._back: list[T] = []
        self._wanted = 1
        self._landed = threading.Condition()

    def put(self, call: T) -> None:
        with self._landed:
            self._back.append(call)
            if len(self._back) >= self._wanted:
                self._landed.notify()

    def take(self, wanted: int, *, seconds: float | None = None) -> list[T]:
        """Those that are back, as soon as so many are, or after so many seconds (None: however long that takes)."""
        with self._landed:
            self._wanted = wanted
            self._landed.wait_for(lambda: len(self._back) >= wanted, seconds)
            back, self._back = self._back, []
            return back


class Flight:
    """Room for `calls` at once, or a few less; a sender has up to `together` of them under way. Safe to share between threads.

    Room is taken before a chunk is leased, when nobody knows how many calls that one has: as much as the larger one of the two
    before needed. So senders of large chunks have room for a window each, and those of small ones use all the room there is. Of
    two, because a single small chunk is only the rest of a slice: after it, all who waited took room for one call.
    """

    def __init__(self, calls: int, together: int, stop: threading.Event, *, processor: Processor | None = None) -> None:
        """`processor` is where threads stay that open and make calls; None: wherever the kernel wants."""
        self._processor = processor
        self._together = self._usual = self._needed = together
        self._stop = stop
        self._free = calls - calls % together
        self._freed = threading.Condition()
        # A thread pool and its futures took twice the processor time of this to hand a call over.
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"call-{number}", daemon=True)
            for number in range(self._free if together > 1 else 0)
        ]

    def stay(self) -> None:
        """Keep the calling thread where those are that make the calls."""
        if self._processor is not None:
            self._processor.stay()

    def open(self) -> None:
        """Start the threads. Senders with one call at a time need none."""
        if self._processor is not None:
            self._processor.take()
        for thread in self._threads:
            thread.start()

    def take(self, have: int, *, waiting: Callable[[], None]) -> int:
        """Room for the calls of another chunk, for a sender that has room for `have`; 0: the run was told to stop. `waiting` is
        called if it has to be waited for."""
        with self._freed:
            if have == self._usual:
                return have
            self._change(have)
            if self._free >= self._usual:
                return self._grant()
        waiting()
        with self._freed:
            while self._free < self._usual:
                if self._stop.is_set():
                    return 0
                self._freed.wait(_LOOK)
            return self._grant()

    def keep(self, have: int, calls: int) -> int:
        """The room of a sender with room for `have` for a chunk of so many calls: what it needs of it, and more if that is free."""
        with self._freed:
            needed = max(1, min(calls, self._together))
            self._usual, self._needed = max(needed, self._needed), needed
            kept = min(needed, have + self._free)
            self._change(have - kept)
            return kept

    def give_back(self, have: int) -> None:
        """Leave all of it to others."""
        with self._freed:
            self._change(have)

    def make(self, call: Callable[[], None]) -> None:
        """Let a call be made by a thread of its own. It raises nothing."""
        self._calls.put(call)

    def close(self) -> None:
        """Wait for the end of what is under way."""
        started = [thread for thread in self._threads if thread.ident is not None]
        for _ in started:
            self._calls.put(None)
        for thread in started:
            thread.join()
        if self._processor is not None:
            self._processor.release()

    def _grant(self) -> int:
        self._free -= self._usual
        return self._usual

    def _change(self, freed: int) -> None:
        self._free += freed
        if self._free >= self._usual:
            self._freed.notify(self._free // self._usual)

    def _work(self) -> None:
        self.stay()
        while (call := self._calls.get()) is not None:
            call()
