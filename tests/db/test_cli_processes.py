"""The processes behind the command line: one stand-in per `var`, and children that leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mailpipe import children, stand_in
from mailpipe.errors import ServiceError, SettingsError
from mailpipe.settings import Settings
from tests.support import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    made = Settings(home=ROOT, var=tmp_path / "var")
    yield made
    stand_in.stop(made)


def test_the_endpoint_is_the_one_that_is_set_then_aws_then_the_stand_in(settings: Settings) -> None:
    assert stand_in.endpoint(replace(settings, ses_endpoint="http://here")) == "http://here"
    assert stand_in.endpoint(replace(settings, database_url="postgresql://db/x")) is None
    with pytest.raises(SettingsError, match="mailpipe dev"):
        stand_in.endpoint(settings)
    running = stand_in.ensure_running(settings)
    assert stand_in.endpoint(settings) == running.url


def test_there_is_one_however_many_ask_and_it_outlives_its_starter(settings: Settings) -> None:
    code = (
        "import sys; from pathlib import Path; from mailpipe import stand_in; from mailpipe.settings import Settings;"
        "print(stand_in.ensure_running(Settings(home=Path('.'), var=Path(sys.argv[1]))).pid)"
    )

    def ask(_: int) -> str:
        command = [sys.executable, "-c", code, str(settings.var)]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(ask, range(4)))
    found = stand_in.find(settings)
    assert found is not None
    assert answers == {str(found.pid)}
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{found.url}/_control/state") as answer:
        assert answer.status == 200


def test_the_next_one_has_the_same_address_and_a_journal_of_its_own(settings: Settings) -> None:
    first = stand_in.ensure_running(settings)
    assert stand_in.stop(settings)
    assert not stand_in.stop(settings)
    second = stand_in.ensure_running(settings, run="a-run", rate=500)
    assert second.url == first.url
    assert second.journal != first.journal
    assert stand_in.ensure_running(settings).journal == second.journal


def test_one_that_was_killed_is_not_found(settings: Settings) -> None:
    running = stand_in.ensure_running(settings)
    os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: stand_in.find(settings) is None, "the end of the stand-in")
    assert stand_in.ensure_running(settings).pid != running.pid


def test_one_that_cannot_start_says_why(settings: Settings) -> None:
    with pytest.raises(ServiceError, match="nonsense"):
        stand_in.ensure_running(settings, nonsense=1)
    assert stand_in.find(settings) is None


def test_a_group_ends_what_its_children_started_and_what_does_not_listen(tmp_path: Path) -> None:
    """The child ends by itself on SIGTERM; its own child ignores it and is killed."""
    pids = tmp_path / "pids"
    script = f"(trap '' TERM; exec sleep 300) & echo $! > {pids}; wait"
    with children.Group(grace=0.5) as group:
        child = group.start("stubborn", ["sh", "-c", script], log=tmp_path / "log", cwd=tmp_path)
        wait_for(lambda: pids.exists() and pids.read_text().strip() != "", "the processes")
        assert group.ended() is None
        assert is_alive(int(pids.read_text()))
    assert child.process.returncode is not None
    assert not is_alive(int(pids.read_text()))


def test_children_have_default_signal_handlers_and_a_session_of_their_own(tmp_path: Path) -> None:
    """Also where a shell started us in the background, with SIGINT ignored."""
    log = tmp_path / "log"
    code = "import os, signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, os.getsid(0) == os.getpid())"
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = children.spawn([sys.executable, "-c", code], log=log, cwd=tmp_path)
        assert process.wait(30) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert children.last_lines(log) == ["True True"]


def test_being_told_to_stop_sets_the_event_and_leaves_the_handlers_as_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with children.told_to_stop() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
    assert signal.getsignal(signal.SIGTERM) == before


def is_alive(pid: int) -> bool:
    """A zombie is not: in a container nobody may reap it."""
    text = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True).stdout
    return text.strip() not in ("",) and not text.strip().startswith("Z")
