"""The program that dies: a sender process that does to itself, at a named step of the protocol, what a crash would do to it.

It runs `mailpipe.send.run`, `mailpipe.snapshot.take` or `mailpipe.lanes.run` as they are. The steps are wrapped here, in this
process alone; no line of `mailpipe` knows of it. Who starts it and what must hold afterwards is `harness`'s.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psycopg
from sqlalchemy.engine import make_url

from mailpipe import campaign, event, ledger, pace, send, snapshot
from mailpipe.db import STANDSTILL, Database, steps
from mailpipe.errors import DatabaseUnavailable
from mailpipe.lane import LaneName
from mailpipe.lanes import claims
from mailpipe.lanes import run as lanes
from mailpipe.ses import client
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings
from mailpipe.stage import Stage
from mailpipe.worker import Worker
from tests.crash import mutants

When = Literal["before", "after"]
Act = Literal["kill", "stop", "cut", "lose"]

NO_DATABASE = 3
"""Exit code of a run that has waited in vain for its database, at its beginning or when it was told to stop."""

STEPS: dict[str, tuple[Any, str]] = {
    "start": (campaign, "start"),
    "lease": (ledger, "lease"),
    "people": (ledger, "people"),
    "take": (pace.Pace, "take"),
    "open": (Worker, "_open"),
    "opening": (ledger, "open_calls"),
    "call": (Ses, "send"),
    "leave": (Ses, "_leaves"),
    "record": (ledger, "record"),
    "locked": (ledger.steps, "_lock_late"),
    "retract": (ledger, "retract"),
    "release": (ledger, "release"),
    "settle": (event, "settle"),
    "finish": (campaign, "finish"),
    "freeze": (Stage, "run"),
    "claim": (claims, "claim"),
    "open_message": (claims, "open_call"),
    "record_message": (claims, "record"),
}
"""Where the process can be struck. `opening` is the statement that sets the bits: after it they are committed. After `leave` the
request is signed and goes to the socket; after `call` its answer is here and not recorded."""


@dataclass(frozen=True)
class Fault:
    """What happens the `nth` time that this process comes to a step.

    `kill` and `stop` are SIGKILL and SIGSTOP of the whole process. `cut`: the server ends the step's connection (without one:
    every connection of senders). `lose`: the step was done, and its answer is lost on the way. `part` names the part of `freeze`.
    """

    step: str
    when: When = "before"
    act: Act = "kill"
    nth: int = 1
    part: str | None = None


@dataclass(frozen=True)
class Task:
    """What a sender process is to do. `call_size` people are in each call; `horizon` as in `send.run`, `standstill` as in
    `Database`, `stop_patience` as in `mailpipe.db.steps`."""

    settings: Settings
    url: str
    key: str
    log: Path
    faults: tuple[Fault, ...] = ()
    mutant: str | None = None
    call_size: int = 10
    horizon: float = 0.0
    standstill: float = STANDSTILL
    stop_patience: float = steps.STOP_PATIENCE
    snapshot: bool = False
    lanes: tuple[LaneName, ...] = ()


def main(task: Task) -> None:
    """The whole life of a sender process."""
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: a sender waits for its database for ever, also for one that its test has taken away.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1)
    # As the tests do: what was imported is not looked at again for each run.
    gc.freeze()
    # SIGTERM asks for a graceful end, as Dagster does with an interrupt.
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pace.rule.MAX_CALL = task.call_size
    pace.rule.split.cache_clear()
    steps.STOP_PATIENCE = task.stop_patience
    if task.mutant is not None:
        (mutants.ALL | mutants.MESSAGES)[task.mutant]()
    _Striker(task).install()
    config = task.settings
    threads = config.threads or 1
    database = Database(
        make_url(task.url),
        pool_size=threads + 2,
        allow_unsafe_durability=config.allow_unsafe_durability,
        standstill=task.standstill,
    )
    if task.snapshot:
        with database.connection() as connection:
            snapshot.take(connection, config, task.key)
        return
    ses = client.connect(config, endpoint=config.ses_endpoint, connections=threads)
    if task.lanes:
        config = replace(config, database_url=task.url)
        lanes.run(config, ses, endpoint=config.ses_endpoint, lanes=task.lanes, stop=stop, lease=config.lease)
        return
    try:
        outcome = send.run(database, config, ses, task.key, horizon=task.horizon, stop=stop)
    except (psycopg.OperationalError, DatabaseUnavailable):
        traceback.print_exc()
        sys.exit(NO_DATABASE)
    sys.stderr.write(f"{outcome}\n")


class _Striker:
    """Strikes this process when it comes to the steps of its faults."""

    def __init__(self, task: Task) -> None:
        self._url = task.url
        self._faults = task.faults
        self._lock = threading.Lock()
        self._seen: Counter[Fault] = Counter()

    def install(self) -> None:
        for step in {fault.step for fault in self._faults}:
            holder, name = STEPS[step]
            wrapped = self._wrapped(step, getattr(holder, name))
            setattr(holder, name, wrapped)
            if holder is ledger:
                # One of its steps can take another.
                setattr(ledger.steps, name, wrapped)

    def _wrapped(self, step: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._come_to(step, "before", arguments)
            result = real(*arguments, **named)
            self._come_to(step, "after", arguments)
            return result

        return wrapped

    def _come_to(self, step: str, when: When, arguments: tuple[Any, ...]) -> None:
        for fault in self._faults:
            if (fault.step, fault.when) != (step, when) or (fault.part is not None and fault.part not in arguments):
                continue
            with self._lock:
                self._seen[fault] += 1
                struck = self._seen[fault] == fault.nth
            if struck:
                self._strike(fault.act, arguments)

    def _strike(self, act: Act, arguments: tuple[Any, ...]) -> None:
        match act:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                # To this thread, which then stops right here and all others with it; sent to the process, it may still run on.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "cut":
                pids = [one.info.backend_pid for one in arguments if isinstance(one, psycopg.Connection)]
                cut(self._url, pids or None)
            case "lose":
                raise psycopg.OperationalError("the answer was lost on the way")


def cut(url: str, pids: list[int] | None) -> None:
    """Let the server end these connections, or all of the senders, and wait until they are gone."""
    target = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(target, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND CASE WHEN %(pids)s::int[] IS NULL THEN application_name = 'mailpipe'"
            " ELSE pid = ANY(%(pids)s) END",
            {"pids": pids},
        )
