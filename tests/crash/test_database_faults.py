"""The database goes away at each step: cut off, its answer lost, killed and restarted, its disk full. Everybody gets one mail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import URL

from tests.crash.conftest import PEOPLE, mortal, staged
from tests.crash.harness import CALL, THREADS, Crash
from tests.crash.program import NO_DATABASE, Fault
from tests.support import wait_for

HORIZON = 60.0
"""Seconds. What a lost answer leaves in nobody's hands comes back when its lease has run out; the run waits for it."""

LONG_LEASE = 30.0
"""Seconds, where the database is away longer than a short lease: whose slot has passed by its end would stay `unknown`."""


@pytest.mark.parametrize("step", ["lease", "people", "take", "opening", "record", "release", "retract"])
def test_a_run_survives_losing_its_connection_or_the_answer_at_any_step(crash: Crash, step: str) -> None:
    """The connection is cut before the statement, after it, and the answer is lost when the server has done it."""
    key = crash.world.ready()
    faults = [Fault(step, "before", "cut"), Fault(step, "after", "cut", nth=2), Fault(step, "after", "lose", nth=3)]
    if step == "retract":
        # Nobody takes back a call unless its opening has failed.
        faults = [Fault("opening", "before", "cut"), *faults]
    if step == "release":
        crash.refuse_last_calls(key)
    sender = crash.start(key, *faults, horizon=HORIZON)
    sender.wait_done()
    states = crash.world.keep_promises(key)
    assert states["sent"] + states.get("skipped", 0) == PEOPLE
    assert ("skipped" in states) == (step == "release")


def test_a_commit_in_doubt_is_no_call(crash: Crash) -> None:
    """The server has committed an opening and the sender does not know: the call is not made, and taken back."""
    key = crash.world.ready()
    crash.start(
        key, Fault("opening", "after", "lose"), Fault("opening", "after", "lose", nth=3), horizon=HORIZON
    ).wait_done()
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_connections_cut_while_calls_are_open_lose_no_answer(crash: Crash) -> None:
    key = crash.world.ready()
    crash.start(key, *(Fault("call", "after", "cut", nth=nth) for nth in (2, 7, 12)), horizon=HORIZON).wait_done()
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_a_run_outlives_a_server_that_was_killed(crash: Crash) -> None:
    """Answers that came while it was away are written afterwards."""
    key = crash.world.ready()
    crash.world.stand_in.change(latency_ms=50)
    sender = crash.start(key, horizon=HORIZON, lease=LONG_LEASE)
    for accepted in (PEOPLE // 4, PEOPLE // 2):
        wait_for(lambda least=accepted: crash.accepted(key).total() >= least, "some to be accepted")  # type: ignore[misc]
        crash.server.kill()
        said = len(sender.said())
        wait_for(lambda before=said: "not available" in sender.said()[before:], "the sender to notice")  # type: ignore[misc]
        crash.server.start()
    sender.wait_done()
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_a_run_without_a_database_at_its_beginning_waits_for_it(crash: Crash) -> None:
    key = crash.world.ready()
    crash.server.kill()
    sender = crash.start(key)
    wait_for(lambda: "not available" in sender.said(), "the sender to notice")
    crash.server.start()
    sender.wait_done()
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_a_run_without_a_database_at_its_end_waits_for_it(crash: Crash) -> None:
    key = crash.world.ready()
    sender = crash.start(key, Fault("settle", "before", "stop"))
    sender.wait_stopped()
    crash.server.kill()
    sender.signal(signal.SIGCONT)
    wait_for(lambda: "not available" in sender.said(), "the sender to notice")
    crash.server.start()
    sender.wait_done()
    assert crash.world.campaign(key).state == "done"
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_a_run_that_is_told_to_stop_without_a_database_ends_and_says_what_is_lost(crash: Crash) -> None:
    """It holds answers that nobody takes. They are as unknown as if it had been killed, and events settle them."""
    key = crash.world.ready()
    crash.world.stand_in.add_faults({"kind": "pause", "accept": True})
    sender = crash.start(key, stop_patience=1.0)
    wait_for(lambda: len(crash.accepted(key)) == THREADS * CALL, "every thread to be in a call")
    crash.server.kill()
    crash.world.stand_in.clear_faults()
    wait_for(lambda: sender.said().count("not available") >= THREADS, "every thread to notice")
    sender.signal(signal.SIGTERM)
    assert sender.wait() == NO_DATABASE
    assert f"The answers for {THREADS * CALL} people could not be written" in sender.said()
    crash.server.start()
    assert crash.in_flight(key) == crash.accepted(key).keys()
    assert crash.complete(key, crash.in_flight(key)) == {"sent": PEOPLE - 1, "skipped": 1}


def test_server_and_sender_killed_at_the_same_moment(crash: Crash) -> None:
    key = crash.world.ready()
    sender = crash.start(key, Fault("call", "after", "stop", nth=5))
    sender.wait_stopped()
    crash.server.kill()
    sender.process.kill()
    sender.wait_killed()
    crash.server.start()
    in_flight = crash.in_flight(key)
    assert CALL <= len(in_flight) <= THREADS * CALL
    crash.complete(key, in_flight)


def test_a_server_without_a_free_connection_is_waited_for(crash: Crash) -> None:
    """Others take every connection, also those that the sender has lost. Its answer is kept until one is free."""
    key = crash.world.ready()
    sender = crash.start(key, Fault("call", "after", "stop", nth=5), horizon=HORIZON, lease=LONG_LEASE)
    sender.wait_stopped()
    with ExitStack() as intruders:
        admin = intruders.enter_context(psycopg.connect(_target(crash.world.database.url), autocommit=True))
        _take_all(intruders, crash.world.database.url)
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'mailpipe'"
        )
        _take_all(intruders, crash.world.database.url)
        sender.signal(signal.SIGCONT)
        wait_for(lambda: "not available" in sender.said(), "the sender to notice")
    sender.wait_done()
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def _take_all(intruders: ExitStack, url: URL) -> None:
    with suppress(psycopg.OperationalError):
        while True:
            intruders.enter_context(psycopg.connect(_target(url)))


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk that is easily filled."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a disk")
    folder = Path(tempfile.mkdtemp(prefix="mailpipe-disk-"))
    folder.chmod(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200m,mode=755", "mailpipe-test", folder], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


def test_nothing_is_sent_while_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    """An opening that cannot be committed is no call. When there is room again, the run goes on by itself."""
    filler = small_disk / "filler"
    with mortal(small_disk) as server, staged(server, tmp_path) as crash:
        crash.world.people(PEOPLE)
        key = crash.world.ready()
        sender = crash.start(
            key, Fault("opening", "before", "stop", nth=6), threads=1, horizon=HORIZON, lease=LONG_LEASE
        )
        sender.wait_stopped()
        accepted = crash.accepted(key).total()
        _fill(filler)
        _use_up(crash.world.database.url)
        sender.signal(signal.SIGCONT)
        wait_for(lambda: "database" in sender.said(), "the sender to notice")
        assert crash.accepted(key).total() == accepted
        filler.unlink()
        server.start()
        sender.wait_done()
        assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def _fill(filler: Path) -> None:
    with filler.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


def _use_up(url: URL) -> None:
    """Let the server use up the room for its log that it has reserved ahead. Without any it goes down, and cannot come back."""
    with suppress(psycopg.OperationalError), psycopg.connect(_target(url), autocommit=True) as connection:
        while True:
            connection.execute("SELECT pg_logical_emit_message(true, 'filler', 'a log record'), pg_switch_wal()")


def _target(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
