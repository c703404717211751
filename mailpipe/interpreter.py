"""What a process that sends asks of Python and of its machine: when garbage is looked for, and on which processor threads work."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_GARBAGE = (50_000, 20, 20)
"""When the collector looks for cycles: a call leaves none behind, and looking after every 700 objects took a tenth of the time."""


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


def choose_processor() -> int | None:
    """One of the processors that this process may use, by chance, because others choose too; None where nothing can be chosen.

    Only one thread at a time can run Python. Spread over several processors, threads hand it on from one to the other some twenty
    times a call, and find their data in the other's cache: that took a fifth more processor time for each call, and a fourth of
    what a run can do. Other processes make way, as the kernel can choose where they work.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return random.choice(allowed) if len(allowed) > 1 else None  # noqa: S311 - no secret


def stay_on(processor: int | None) -> None:
    """Keep the calling thread there, and no other one. A processor that was taken from us meanwhile is no reason to fail."""
    if processor is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, {processor})
