"""The process of `mailpipe lanes`: registers itself, holds the crews, keeps its lease and the account's limits fresh, and sweeps up
after processes that died. Safe to run as often as wanted, on as many machines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from uuid import UUID, uuid4

import psycopg

from mailpipe import db, identity, interpreter, pace, send
from mailpipe.adapters import MOST
from mailpipe.adapters import connect as adapters
from mailpipe.adapters.protocol import Adapter
from mailpipe.db import Connection, Database
from mailpipe.errors import DatabaseUnavailable
from mailpipe.lane import NAMES, Lane, LaneName
from mailpipe.lanes import claims, separate
from mailpipe.lanes.crew import Crew
from mailpipe.lanes.hands import Job
from mailpipe.ses import client
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

LOG = logging.getLogger("mailpipe.lanes")

LEASE = 10.0
"""Seconds of silence after which a process counts as dead. Shorter than a campaign's: a login code waits for it."""
_BEAT = 1.0
_CONNECTIONS = 8
"""Of one lane to the database. A thread needs one for milliseconds; a lane of its own has to wait for nobody else's."""


def run(
    config: Settings,
    ses: Ses,
    *,
    endpoint: str | None,
    lanes: Sequence[LaneName] = NAMES,
    stop: threading.Event,
    ready: Callable[[], None] = lambda: None,
    lease: float = LEASE,
) -> int:
    """Work these lanes until `stop` is set, then end gracefully: no call is opened any more, answers in flight are recorded, all
    other messages are given back. `ready` is called once work begins. Answers how many messages the dead had left behind.

    `endpoint` is where SES answers; `ses` is used for the account's limits.

    Raises:
        SettingsError: messages would share a domain with a campaign.
        RestoredDatabase: the database is not what this machine has sent with.
        DatabaseUnavailable: at the start; later it is waited for.
    """
    # Where no lane leaves through SES, nobody asks for an account there.
    account = ses if any(config.lanes[name].adapter == "ses" for name in lanes) else None
    with ExitStack() as stack:
        own = stack.enter_context(closing(db.connect(config, pool_size=2)))
        with own.connection() as connection:
            sender, taken = separate.check(connection, config)
            guard = identity.admit(connection, config, account)
            send.read_account(connection, config, account)
        heart = _Heart(own, lease, [name for name in NAMES if config.lanes[name].unknown == "resend"])
        heart.begin()
        crews = {}
        paces = [pace.Pace(name, apart=MOST.get(config.lanes[name].adapter)) for name in lanes]
        for name, shared in zip(lanes, paces, strict=True):
            lane = config.lanes[name]
            adapter = _adapter(config, endpoint, lane)
            stack.callback(adapter.close)
            job = Job(
                lane=lane,
                database=stack.enter_context(closing(db.connect(config, pool_size=min(_CONNECTIONS, lane.most + 1)))),
                adapter=adapter,
                pace=shared,
                sender=sender,
                marketing=taken,
                configuration_set=config.transactional_configuration_set,
                templates={},
                stop=stop,
            )
            crews[name] = Crew(job, lambda: heart.owner)
        heart.crews = crews
        stack.enter_context(interpreter.collector_at_rest())
        beating = threading.Thread(target=heart.beat_on, name="heartbeat", daemon=True)
        beating.start()
        for crew in crews.values():
            crew.start()
        ready()
        account_read = time.monotonic()
        try:
            while not stop.wait(1.0):
                try:
                    with own.connection() as connection:
                        guard.advance(connection)
                        for shared in paces:
                            shared.keep(connection)
                        if time.monotonic() - account_read > send.ACCOUNT_EVERY:
                            account_read = time.monotonic()
                            send.read_account(connection, config, account)
                except (psycopg.OperationalError, DatabaseUnavailable) as error:
                    LOG.warning("database not available, waiting: %s", type(error).__name__)
        finally:
            stop.set()
            for crew in crews.values():
                crew.join()
            heart.end(beating)
        for crew in crews.values():
            crew.check()
        return heart.swept


class _Heart:
    """The lease of this process, and the sweeping up after others whose lease has run out."""

    def __init__(self, database: Database, lease: float, resend: Sequence[str]) -> None:
        self._database = database
        self._lease = lease
        self._resend = resend
        self._done = threading.Event()
        self._beaten = time.monotonic()
        self._sweeps_from = 0.0
        self.owner: UUID = uuid4()
        self.crews: dict[LaneName, Crew] = {}
        self.swept = 0

    def begin(self) -> None:
        with self._database.connection() as connection:
            claims.register(connection, self.owner, seconds=self._lease)

    def beat_on(self) -> None:
        while not self._done.wait(min(_BEAT, self._lease / 4)):
            try:
                with self._database.connection() as connection:
                    self._beat(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("heartbeat missed: %s", type(error).__name__)

    def end(self, beating: threading.Thread) -> None:
        """Every thread has ended."""
        self._done.set()
        beating.join()
        try:
            with self._database.connection() as connection:
                claims.leave(connection, self.owner)
        except (psycopg.OperationalError, DatabaseUnavailable):
            LOG.warning("the database is away; the lease of this process runs out by itself")

    def _beat(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - self._beaten > self._lease / 2:
            # The database was away, for the others too: they get the time of a lease to come back before they count as dead.
            self._sweeps_from = now + self._lease
        sizes = {str(name): crew.size for name, crew in self.crews.items()}
        if not claims.beat(connection, self.owner, seconds=self._lease, threads=sizes):
            LOG.warning("this process was silent for longer than its lease; it goes on under a fresh id")
            fresh = uuid4()
            claims.register(connection, fresh, seconds=self._lease)
            self.owner = fresh
        self._beaten = time.monotonic()
        if now >= self._sweeps_from:
            left = claims.sweep(connection, resend=self._resend)
            if left:
                LOG.warning("%d messages were left behind by a process that is gone", left)
                self.swept += left


def _adapter(config: Settings, endpoint: str | None, lane: Lane) -> Adapter:
    patient = replace(config, read_timeout=min(config.read_timeout, lane.answer))
    return adapters.connect(
        patient, lane.adapter, ses=lambda: client.connect(patient, endpoint=endpoint, connections=lane.most)
    )
