"""Open connections that nobody uses at the moment. As many threads send at once, so many connections there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

IDLE = 30.0
"""Seconds after which an unused connection is closed by us; many servers close it after a minute or more."""


class Connection(Protocol):
    """What can be kept: `used` is when it was used last (monotonic clock, seconds)."""

    @property
    def is_open(self) -> bool: ...

    @property
    def used(self) -> float: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Pool(Generic[C]):
    """Hands each connection to one thread at a time, the one that was used last first."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: list[C] = []
        self._lock = threading.Lock()

    def take(self) -> C:
        """A connection for this thread alone, perhaps one that is not open yet."""
        oldest = time.monotonic() - IDLE
        with self._lock:
            old = [one for one in self._idle if one.used < oldest]
            self._idle = [one for one in self._idle if one.used >= oldest]
            taken = self._idle.pop() if self._idle else None
        for one in old:
            one.close()
        return taken if taken is not None else self._make()

    def give(self, connection: C) -> None:
        """Put one back; a closed one is forgotten."""
        if connection.is_open:
            with self._lock:
                self._idle.append(connection)

    def close(self) -> None:
        """Close those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()
