"""Child processes: starting them so that they can be ended, ending them with all that they started, being told to end
oneself, and the environment in which Dagster's programs find this checkout.

Which children there are is said by who starts them (`dev`, the demo); the embedded PostgreSQL keeps its own process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from mailpipe import db
from mailpipe.db import migrate
from mailpipe.settings import Settings

_POLL = 0.05
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs in the child before its program. A shell's background job ignores SIGINT, its children inherit that, and Dagster
# then ignores SIGTERM too. On Linux the child is also told when its starter dies (PR_SET_PDEATHSIG).
_PRELUDE = f"""
import os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
for number in {tuple(int(number) for number in _ENDINGS)}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if parent and sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})
    if os.getppid() != parent:
        sys.exit(1)
os.execvp(program[0], program)
"""


def dagster_environment(settings: Settings) -> dict[str, str]:
    """The environment of Dagster's programs: this checkout, this `var`, and the storage on the same server, whose
    database is created if it is missing. An SES endpoint is passed on if one is set; a stand-in is found in `var`.

    Raises:
        DatabaseUnavailable: the server cannot be reached or started.
    """
    # dagster-postgres needs psycopg2.
    storage = db.url(settings, driver="psycopg2", database=settings.dagster_database)
    migrate.create_database(storage.set(drivername="postgresql+psycopg"))
    given = {
        "MAILPIPE_DATABASE_URL": settings.database_url,
        "MAILPIPE_SES_ENDPOINT": settings.ses_endpoint,
    }
    return {
        **os.environ,
        **{name: value for name, value in given.items() if value is not None},
        "DAGSTER_HOME": str(settings.home),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "MAILPIPE_HOME": str(settings.home),
        "MAILPIPE_VAR": str(settings.var),
        "MAILPIPE_DAGSTER_VAR": str(settings.var / "dagster"),
        "MAILPIPE_DAGSTER_DATABASE": settings.dagster_database,
        "MAILPIPE_DAGSTER_URL": storage.render_as_string(hide_password=False),
    }


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    outlives_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own with default signal handlers; its output is appended to `log`.

    `keep` are file descriptors that it inherits. Unless it `outlives_us` it gets SIGTERM when this process dies
    (Linux); for that it must be started by a thread that lives as long as the process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    prelude = [sys.executable, "-I", "-S", "-c", _PRELUDE, "0" if outlives_us else str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*prelude, *command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=keep,
        )


def last_lines(log: Path, number: int = 15) -> list[str]:
    """The end of a log; nothing if there is none."""
    try:
        return log.read_text(errors="replace").splitlines()[-number:]
    except FileNotFoundError:
        return []


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set, also where a shell had them ignored. For the main thread."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _ENDINGS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Child:
    """A started program, which leads a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Group:
    """Children that end together. Leaving the context ends them and all that they started.

    `grace` is the time in seconds between being asked to end (SIGTERM) and being killed.
    """

    grace: float = 15.0
    children: list[Child] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a program and hold it. See `spawn`."""
        child = Child(name, spawn(command, log=log, cwd=cwd, env=env), log)
        self.children.append(child)
        return child

    def ended(self) -> Child | None:
        """The first child that has ended by itself, if one has."""
        return next((child for child in self.children if child.process.poll() is not None), None)

    def stop(self) -> None:
        """Ask every process of the group to end, kill what is left after the grace, return when nothing is left."""
        for number, patience in ((signal.SIGTERM, self.grace), (signal.SIGKILL, 5.0)):
            for child in self.children:
                # Also when the child itself is gone: what it started may not be.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.process.pid, number)
            deadline = time.monotonic() + patience
            while self._running() and time.monotonic() < deadline:
                time.sleep(_POLL)
        self.children.clear()

    def _running(self) -> bool:
        alive = [child.process.poll() is None for child in self.children]
        return any(alive) or any(_members(child.process.pid) for child in self.children)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _members(group: int) -> bool:
    """Whether a living process is in the process group. A zombie that nobody has reaped is none."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS says this of a group of zombies.
        return False
    if not Path("/proc/self/stat").exists():
        return True
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state ppid pgrp: the name may hold anything, also parentheses.
            state, _, pgrp = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state not in ("Z", "X"):
                return True
    return False
