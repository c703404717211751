"""The threads of one lane: one poller that takes what is due, and hands that grow with the queue and shrink again.

One thread at a time looks for a slot. Where slots are rare, those who come meanwhile share the next call: a slot of bulk costs the
same for one message as for fifty.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

import psycopg

from mailpipe import pace
from mailpipe.db import Connection
from mailpipe.errors import DatabaseUnavailable
from mailpipe.lane import may_leave, more_threads
from mailpipe.lanes import claims
from mailpipe.lanes.claims import Claimed
from mailpipe.lanes.hands import Hands, Item, Job

LOG = logging.getLogger("mailpipe.lanes")

_LAG = timedelta(seconds=2)
"""How far below the last message that was taken a look begins: a caller's transaction may commit a little after a later one's."""
_DEEP = 1.0
"""Seconds between two looks from the beginning, for callers that commit later than that ..."""
_DEEP_SHARE = 20
"""... and at least so many times the length of such a look, which grows while an old snapshot keeps deleted rows."""
_NEAR = 0.1
"""Seconds before a slot from which on the next thread may look for its own."""
_LOOK = 0.25
"""Seconds for which a thread waits for work before it asks itself whether it is needed."""
_RECONNECT = 0.25
_DOUBT = 60.0
"""Seconds after a lost connection in which a claim may come to light whose answer was lost with it."""


@dataclass
class Mark:
    """From where to look. Times of the database are only compared with each other."""

    taken: datetime | None = None
    deep_at: float = 0.0

    def lowest(self, now: float) -> datetime | None:
        """None: from the beginning."""
        return None if self.taken is None or now >= self.deep_at else self.taken - _LAG

    def looked(self, *, deep: bool, now: float, seconds: float, newest: datetime | None) -> None:
        """Note a look that ended at `now` and took `seconds`; `newest` is the due time of the last message that it found."""
        if newest is not None:
            self.taken = newest if self.taken is None else max(self.taken, newest)
        if deep:
            self.deep_at = now + max(_DEEP, _DEEP_SHARE * seconds)


class Crew:
    """The threads of one lane in this process. `owner` tells the id under which to take messages now."""

    def __init__(self, job: Job, owner: Callable[[], UUID]) -> None:
        self._job = job
        self._owner = owner
        self._ready: deque[Item] = deque()
        self._held: set[UUID] = set()
        """Messages in our hands, waiting or in a call. Only the poller adds some."""
        self._doubt_until = float("-inf")
        self._changed = threading.Condition()
        self._pacing = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._busy = 0
        self._made = 0
        self._fault: BaseException | None = None
        self._poller = threading.Thread(target=self._guarded(self._poll), name=f"{job.lane.name}-poller", daemon=True)

    @property
    def size(self) -> int:
        """Threads that work in this lane now."""
        with self._changed:
            return len(self._threads)

    def start(self) -> None:
        with self._changed:
            self._grow()
        self._poller.start()

    def join(self) -> None:
        """After a stop: wait until every answer is recorded and every other message given back."""
        self._poller.join()
        while threads := self._snapshot():
            for thread in threads:
                thread.join(0.1)
        Hands(self._job).release(list(self._ready))

    def check(self) -> None:
        """Raise what a thread could not handle."""
        if self._fault is not None:
            raise self._fault

    def _poll(self) -> None:
        hands, mark = Hands(self._job), Mark()
        while not self._job.stop.is_set():
            try:
                with self._job.database.connection() as connection:
                    self._look_while_connected(connection, hands, mark)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("lane %s: database not available, waiting: %s", self._job.lane.name, type(error).__name__)
                self._doubt_until = time.monotonic() + _DOUBT
                self._job.stop.wait(_RECONNECT)

    def _look_while_connected(self, connection: Connection, hands: Hands, mark: Mark) -> None:
        while not self._job.stop.is_set():
            start = time.monotonic()
            most = min(self._job.lane.batch, self._room())
            taken: list[Claimed] = []
            if most > 0:
                lowest, owner = mark.lowest(start), self._owner()
                if lowest is None and start < self._doubt_until:
                    with self._changed:
                        held = list(self._held)
                    claims.release_unknown(connection, self._job.lane.name, owner, held)
                taken = claims.claim(connection, self._job.lane.name, owner, mark=lowest, most=most)
                now = time.monotonic()
                newest = taken[-1].due_at if taken else None
                mark.looked(deep=lowest is None, now=now, seconds=now - start, newest=newest)
                if taken:
                    items = hands.prepare(owner, taken)
                    with self._changed:
                        self._held.update(item.message_id for item in items)
                    self._give(items)
            if not 0 < most == len(taken):
                self._job.stop.wait(max(0.001, self._job.lane.poll - (time.monotonic() - start)))

    def _room(self) -> int:
        """Messages that may be taken now: no more than the threads that the lane may have could begin to send."""
        with self._changed:
            free = self._job.lane.most - self._busy
            return max(0, free * self._call - len(self._ready))

    @property
    def _call(self) -> int:
        return min(self._job.lane.batch, self._job.adapter.most)

    def _give(self, items: Sequence[Item], *, first: bool = False) -> None:
        """Put messages before the threads; `first`: before all others, in their order."""
        with self._changed:
            if first:
                self._ready.extendleft(reversed(items))
            else:
                self._ready.extend(items)
            self._grow()
            self._changed.notify()

    def _grow(self) -> None:
        threads = len(self._threads)
        waiting = -(-len(self._ready) // self._call)
        for _ in range(more_threads(self._job.lane, threads=threads, idle=threads - self._busy, waiting=waiting)):
            self._made += 1
            name = f"{self._job.lane.name}-{self._made}"
            thread = threading.Thread(target=self._guarded(self._work), name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        hands = Hands(self._job)
        idle_since = time.monotonic()
        try:
            while not self._job.stop.is_set():
                begun = self._begin(hands)
                if begun is None:
                    if self._leaves(time.monotonic() - idle_since):
                        return
                    continue
                items, slot = begun
                try:
                    left = items if slot is None else hands.call(items, slot)
                finally:
                    with self._changed:
                        self._busy -= 1
                    idle_since = time.monotonic()
                self._forget(items, left)
                if left:
                    self._give(left, first=True)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _begin(self, hands: Hands) -> tuple[list[Item], pace.Slot | None] | None:
        """The messages of the next call, and its slot, which is near. None: there was nothing to do for a while."""
        if not self._pacing.acquire(timeout=_LOOK):
            return None
        try:
            items = self._next()
            if not items:
                return None
            try:
                before = list(items)
                slot = hands.slot(items)
                self._forget(before, items)
                if slot is not None:
                    self._give(items[slot.call_size :], first=True)
                    del items[slot.call_size :]
                    self._gather(items, slot)
            except BaseException:
                with self._changed:
                    self._busy -= 1
                raise
            return items, slot
        finally:
            self._pacing.release()

    def _forget(self, items: Sequence[Item], left: Sequence[Item]) -> None:
        """Those of the items that are not left are in our hands no more."""
        with self._changed:
            self._held -= {item.message_id for item in items} - {item.message_id for item in left}

    def _gather(self, items: list[Item], slot: pace.Slot) -> None:
        """Let those who come until the slot is near join its call, if it is for more. Who does not fit looks for another slot."""
        limit = min(self._call, slot.call_size, items[0].most)
        with self._changed:
            while not self._job.stop.is_set():
                items += self._pop(limit - len(items), items[0])
                rest = slot.wait - _NEAR
                if self._ready or rest <= 0 or len(items) >= limit:
                    return
                self._changed.wait(rest)

    def _next(self) -> list[Item]:
        """Messages that may share a call, the first that waits and others like it; whoever gets them is busy."""
        with self._changed:
            if not self._ready and not self._job.stop.is_set():
                self._changed.wait(_LOOK)
            if not self._ready:
                return []
            first = self._ready.popleft()
            self._busy += 1
            return [first, *self._pop(min(self._call, first.most) - 1, first)]

    def _pop(self, most: int, first: Item) -> list[Item]:
        """Take at most so many of those that wait and may share a call with `first`."""
        group = self._job.adapter.shares(first.mail)
        if group is None or most < 1 or first.most == 1:
            return []
        near = islice(self._ready, 4 * self._call)
        alike = [item for item in near if item.owner == first.owner and self._job.adapter.shares(item.mail) == group]
        taken = alike[:most]
        gone = {item.message_id for item in taken}
        if gone:
            self._ready = deque(item for item in self._ready if item.message_id not in gone)
        return taken

    def _leaves(self, idle_for: float) -> bool:
        with self._changed:
            if not self._job.stop.is_set() and not may_leave(
                self._job.lane, threads=len(self._threads), idle_for=idle_for
            ):
                return False
            # Under the same lock as the decision, so that not two leave where one may.
            self._threads.discard(threading.current_thread())
            return True

    def _snapshot(self) -> list[threading.Thread]:
        with self._changed:
            return list(self._threads)

    def _guarded(self, target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except BaseException as fault:
                LOG.exception("lane %s: a thread has failed", self._job.lane.name)
                self._fault = self._fault or fault
                self._job.stop.set()

        return run
