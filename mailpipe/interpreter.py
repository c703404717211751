"""What a process that sends asks of Python and of its machine: when garbage is looked for, and on which processor threads work."""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_GARBAGE = (50_000, 20, 20)
"""When the collector looks for cycles: a call leaves none behind, and looking after every 700 objects took a tenth of the time."""

_NAME = "\0mailpipe-processor-"


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep Python's garbage collector away from all that was imported and made before the run.

    A full collection stops every thread; with boto3 loaded it took 60 to 190 ms every ten seconds, longer than a slot may
    be late, and each one cost a slot or two. Where somebody has done so before, in the same process, it is left at that.
    """
    thresholds = gc.get_threshold()
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.collect()
        gc.freeze()
    gc.set_threshold(*_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if ours:
            gc.unfreeze()


class Processor:
    """A processor of this machine for the threads of one run, which no other run has. It is none (`number` is None) until one is
    taken, and where others have all of them, where there is only one, and where nobody can say which one a thread works on.

    Only one thread at a time can run Python. Spread over several processors, threads hand it on from one to the other some twenty
    times a call, and find their data in the other's cache: that took a fifth more processor time for each call, and a fourth of
    what a run can do. What need not stay makes way, as the kernel can choose where it works.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._taken: socket.socket | None = None

    def take(self) -> None:
        """Have one, if there is one."""
        if sys.platform == "linux" and getattr(sys, "_is_gil_enabled", lambda: True)():
            allowed = list(os.sched_getaffinity(0))
            random.shuffle(allowed)
            if len(allowed) > 1:
                self.number = next(filter(self._claim, allowed), None)

    def stay(self) -> None:
        """Keep the calling thread there. A processor that was taken from us meanwhile is no reason to fail."""
        if sys.platform == "linux" and self.number is not None:
            with suppress(OSError):
                os.sched_setaffinity(0, {self.number})

    def release(self) -> None:
        """Leave it to other runs."""
        if self._taken is not None:
            self._taken.close()
        self.number = self._taken = None

    def _claim(self, number: int) -> bool:
        # A name that one process can have, and that the kernel takes back however that process ends; no file is left behind.
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"{_NAME}{number}")
        except OSError:
            taken.close()
            return False
        self._taken = taken
        return True
