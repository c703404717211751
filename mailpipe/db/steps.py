"""Steps against a database that can be away: it is waited for, and how long depends on who waits.

Only for steps that may be repeated, because nobody knows whether a step was done whose answer was lost. Only operational errors are
tried again (a lost connection, a server that starts or has no room, a deadlock, a serialization failure); every other error is a
fault of ours, and a second time would be the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import psycopg

from mailpipe.db import Connection, Database
from mailpipe.errors import DatabaseUnavailable

LOG = logging.getLogger("mailpipe.db")
T = TypeVar("T")
Use = Callable[[], AbstractContextManager[Connection]]

PAUSE = 0.5
"""Seconds between two attempts."""
STOP_PATIENCE = 15.0
"""Seconds for which somebody who was told to stop still waits for the database. An attempt to connect may take ten more, and
containers are killed after 30."""


class Steps:
    """Runs steps for the threads of a process. `asked` is set when the process is told to stop."""

    def __init__(self, database: Database, asked: threading.Event) -> None:
        self._database = database
        self._asked = asked
        # Shared: a process that has given up at one step does not begin to wait anew at the next.
        self._stop_at: float | None = None

    def run(self, step: Callable[[Connection], T], *, seconds: float | None = None, use: Use | None = None) -> T:
        """Run a step until it is done; while the database is away for `seconds` at the most (None: however long that takes). `use`
        gives the connection; None: one of the pool.

        Raises:
            DatabaseUnavailable: it was away for so long, or for `STOP_PATIENCE` while somebody had asked to stop.
        """
        since = time.monotonic()
        while True:
            try:
                with (use or self._database.connection)() as connection:
                    done = step(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                self._give_up(since, seconds, error)
                LOG.warning("database not available, waiting: %s", type(error).__name__)
                time.sleep(PAUSE)
            else:
                self._stop_at = None
                return done

    def _give_up(self, since: float, seconds: float | None, error: Exception) -> None:
        now = time.monotonic()
        if seconds is not None and now - since > seconds:
            raise DatabaseUnavailable(f"the database was away for {now - since:.0f} s: {error}") from error
        if not self._asked.is_set():
            return
        if self._stop_at is None:
            self._stop_at = now + STOP_PATIENCE
        if now >= self._stop_at:
            raise DatabaseUnavailable(
                f"told to stop, and the database was still away after {STOP_PATIENCE:g} s"
            ) from error
