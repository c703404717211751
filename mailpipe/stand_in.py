"""The local SES stand-in of this `var`: where it answers, starting it, ending it. Its own code is `simulator/`.

One runs per `var`, started by whoever needs it first and found by everybody else; it outlives its starter. Whether it
runs is asked of the kernel: it holds the lock of a file for as long as it lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import mailpipe
from mailpipe import children
from mailpipe.errors import ServiceError, SettingsError
from mailpipe.settings import Settings

PORT = 4579
"""Where it listens unless somebody else does; a later one takes the port of the one before."""
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
_POLL = 0.02


@dataclass(frozen=True)
class Running:
    """A stand-in that answers at `url`. It appends a line per accepted message to `journal`, per event to `events`."""

    url: str
    pid: int
    journal: Path
    events: Path


def endpoint(settings: Settings) -> str | None:
    """Where SES answers under these settings; None is AWS.

    Raises:
        SettingsError: it would be the local stand-in, and none is running.
    """
    if settings.ses_endpoint is not None:
        return settings.ses_endpoint
    if settings.database_url is not None:
        return None
    running = find(settings)
    if running is None:
        raise SettingsError(
            "no SES to talk to: the local stand-in is not running. Start it with `mailpipe dev`,"
            " or set MAILPIPE_SES_ENDPOINT to the address that `mailpipe ses-simulator` prints"
        )
    return running.url


def is_wanted(settings: Settings) -> bool:
    """Whether these settings send to the local stand-in, rather than to a named endpoint or to AWS."""
    return settings.ses_endpoint is None and settings.database_url is None


def find(settings: Settings) -> Running | None:
    """The stand-in of this `var`, if it runs."""
    folder = _folder(settings)
    if not _is_alive(folder):
        return None
    try:
        record = json.loads((folder / "running.json").read_text())
        url = (folder / "url").read_text().strip()
    except (FileNotFoundError, ValueError):
        return None
    return Running(url, record["pid"], Path(record["journal"]), Path(record["events"]))


def ensure_running(settings: Settings, *, run: str | None = None, **options: object) -> Running:
    """Start the stand-in, or find the one that runs already (which keeps its options).

    `options` are fields of `simulator.options.Options` (`rate=500`). Journal and events lie in `var/ses-simulator/`,
    or in a folder `run` below it. Published templates are kept there over a restart.

    Raises:
        ServiceError: it does not start; the text ends with what it printed.
    """
    folder = _folder(settings)
    with _locked(folder):
        if running := find(settings):
            return running
        own = folder / run if run else folder
        # The same address as before, so that who remembers it finds the new one.
        for port in (_free_port(folder), 0):
            if running := _start(folder, own, {**options, "port": port}):
                return running
    lines = "\n".join(children.last_lines(folder / "simulator.log"))
    raise ServiceError(f"the SES stand-in did not start; the end of {folder / 'simulator.log'}:\n{lines}")


def stop(settings: Settings) -> bool:
    """End the stand-in of this `var` and wait until it is gone. False when none was running."""
    folder = _folder(settings)
    if not folder.exists():
        return False
    with _locked(folder):
        running = find(settings)
        if running is None:
            return False
        os.kill(running.pid, signal.SIGTERM)
        if not _wait_for_end(folder, _STOP_SECONDS):
            os.kill(running.pid, signal.SIGKILL)
            _wait_for_end(folder, _STOP_SECONDS)
        return True


def _folder(settings: Settings) -> Path:
    return settings.var / "ses-simulator"


def _start(folder: Path, own: Path, options: dict[str, object]) -> Running | None:
    ready = folder / "url"
    before = ready.read_text() if ready.exists() else None
    ready.unlink(missing_ok=True)
    own.mkdir(parents=True, exist_ok=True)
    journal, events = own / "journal.jsonl", own / "events.jsonl"
    files = {"journal": journal, "events": events, "state": folder / "state.jsonl", "ready_file": ready}
    command = [sys.executable, "-m", "mailpipe.simulator"]
    for name, value in {**files, **options}.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command.append(f"{flag}={value}")
    alive = os.open(folder / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX)
        process = children.spawn(
            command,
            log=folder / "simulator.log",
            # The folder that holds the package, so that a checkout need not be installed.
            cwd=Path(mailpipe.__file__).parents[1],
            keep=[alive],
            outlives_us=True,
        )
        record = {"pid": process.pid, "journal": str(journal), "events": str(events)}
        (folder / "running.json").write_text(json.dumps(record) + "\n")
    finally:
        # The lock is the child's now: it belongs to the open file, which only the child still holds.
        os.close(alive)
    if _wait_until_ready(process, ready):
        _children.append(process)
        return Running(ready.read_text().strip(), process.pid, journal, events)
    process.kill()
    process.wait()
    if before is not None:
        ready.write_text(before)
    return None


# Those that this process started: polled, so that a dead one does not stay its zombie.
_children: list[subprocess.Popen[bytes]] = []


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _wait_for_end(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _is_alive(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    for process in _children:
        process.poll()
    return True


def _is_alive(folder: Path) -> bool:
    try:
        handle = os.open(folder / "alive", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _free_port(folder: Path) -> int:
    """The port of the last stand-in of this `var`, else PORT; 0, any free one, when somebody else listens there."""
    try:
        port = urlsplit((folder / "url").read_text().strip()).port or PORT
    except (FileNotFoundError, ValueError):
        port = PORT
    try:
        with socket.create_server(("127.0.0.1", port)):
            return port
    except OSError:
        return 0
