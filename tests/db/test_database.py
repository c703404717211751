"""The database's own conditions: durable or refused, waited for or given up in time, tried again only where that is safe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import URL

from mailpipe import send
from mailpipe.db import Database, Kept, steps
from mailpipe.db.steps import Steps
from mailpipe.errors import DatabaseUnavailable, UnsafeDatabase
from mailpipe.send import End
from tests.support import World, wait_for


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_forget_a_commit_is_refused(database_url: URL, setting: str) -> None:
    with psycopg.connect(_target(database_url)) as connection:
        (value,) = connection.execute(f"SHOW {setting}".encode()).fetchone() or ("on",)
    if value != "off":
        pytest.skip(f"this server has {setting} = {value}")
    unsafe = Database(database_url)
    with pytest.raises(UnsafeDatabase, match="could make mailpipe send twice"), unsafe.connection():
        pass
    unsafe.close()


def test_no_run_begins_on_a_server_that_may_forget_a_commit(world: World, database_url: URL) -> None:
    world.people(3)
    key = world.ready()
    unsafe = replace(world, database=Database(database_url))
    with pytest.raises(UnsafeDatabase):
        unsafe.send(key)
    unsafe.database.close()
    assert world.journal(key) == []


def test_a_run_without_a_database_ends_after_a_while_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "BEGIN_PATIENCE", 0.3)
    nowhere = Database(world.database.url.set(host="127.0.0.1", port=1, query={}), allow_unsafe_durability=True)
    with pytest.raises(DatabaseUnavailable, match=r"the database was away for \d s: .*127\.0\.0\.1"):
        replace(world, database=nowhere).send("any")
    nowhere.close()


def test_more_threads_than_connections_wait_for_each_other(scene: World, caplog: pytest.LogCaptureFixture) -> None:
    scene.people(1_000)
    key = scene.ready(chunk_size=100)
    narrow = Database(scene.database.url, pool_size=2, allow_unsafe_durability=True)
    outcome = replace(scene.with_threads(8), database=narrow).send(key)
    narrow.close()
    assert outcome.end is End.COMPLETE
    assert scene.keep_promises(key) == {"sent": 1_000}
    assert caplog.text == "", "waiting for a connection is no trouble"


@pytest.mark.parametrize("fails", [False, True])
def test_a_connection_that_was_kept_plans_for_others_as_before(scene: World, *, fails: bool) -> None:
    database = Database(scene.database.url, pool_size=1, allow_unsafe_durability=True)

    def planning() -> list[tuple[Any, ...]]:
        with database.connection() as connection:
            return connection.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()

    before = planning()
    kept = Kept(database)
    with suppress(ZeroDivisionError), kept.use() as connection:
        assert connection.execute("SELECT current_setting('enable_seqscan')").fetchone() == ("off",)
        if fails:
            raise ZeroDivisionError
    kept.give_back()
    assert planning() == before
    database.close()


def test_a_connection_that_is_lost_while_nobody_uses_it_is_given_back_without_a_word(scene: World) -> None:
    database = Database(scene.database.url, pool_size=1, allow_unsafe_durability=True)
    kept = Kept(database)
    with kept.use() as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
    scene.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": row and row[0]})
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %(pid)s"
    wait_for(lambda: scene.execute(gone, {"pid": row and row[0]}) == [(0,)], "its end")
    kept.give_back()
    with kept.use() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    kept.give_back()
    database.close()


CONFLICTS = {"40001": psycopg.errors.SerializationFailure, "40P01": psycopg.errors.DeadlockDetected}
FAULTS = {"23514": psycopg.errors.CheckViolation, "XX000": psycopg.errors.InternalError_}


@pytest.fixture
def trouble(scene: World) -> Iterator[World]:
    """A scene where the server refuses every fourth change of a chunk with the error code in `trouble.code`, while it is set."""
    scene.execute(
        "CREATE SCHEMA trouble; CREATE SEQUENCE trouble.times; CREATE TABLE trouble.code (code text);"
        "CREATE FUNCTION trouble.strike() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE found text;"
        " BEGIN SELECT code INTO found FROM trouble.code;"
        " IF found IS NOT NULL AND nextval('trouble.times') % 4 = 0 THEN RAISE EXCEPTION 'no' USING ERRCODE = found; END IF;"
        " RETURN NEW; END $$;"
        "CREATE TRIGGER strike BEFORE UPDATE ON mailpipe.chunk FOR EACH ROW EXECUTE FUNCTION trouble.strike()"
    )
    yield scene
    scene.execute("DROP SCHEMA trouble CASCADE")


@pytest.mark.parametrize("code", CONFLICTS)
def test_deadlocks_and_serialization_failures_are_tried_again(
    trouble: World, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any statement: leases, openings, answers, chunks given back. An opening that is refused is no call."""
    monkeypatch.setattr(steps, "PAUSE", 0.01)
    trouble.people(400)
    key = trouble.ready(chunk_size=100)
    trouble.execute("INSERT INTO trouble.code VALUES (%(code)s)", {"code": code})
    outcome = trouble.send(key, horizon=20.0)
    assert outcome.end is End.COMPLETE
    assert trouble.keep_promises(key) == {"sent": 400}
    assert trouble.execute("SELECT last_value >= 8 FROM trouble.times") == [(True,)], "several were refused"


@pytest.mark.parametrize("code", FAULTS)
def test_any_other_error_of_the_server_is_never_tried_again(trouble: World, code: str) -> None:
    trouble.people(400)
    key = trouble.ready(chunk_size=100)
    trouble.execute("INSERT INTO trouble.code VALUES (%(code)s)", {"code": code})
    with pytest.raises(FAULTS[code]):
        trouble.with_threads(1).send(key)
    assert trouble.execute("SELECT last_value < 8 FROM trouble.times") == [(True,)], "it went on"
    trouble.execute("DELETE FROM trouble.code")
    trouble.keep_promises(key)


class TestSteps:
    """How long a step waits. The server refuses every one of them."""

    def waiting(self, database: Database, asked: threading.Event) -> tuple[threading.Thread, list[Exception]]:
        ended: list[Exception] = []

        def wait() -> None:
            try:
                Steps(database, asked).run(
                    lambda connection: connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                )
            except DatabaseUnavailable as error:
                ended.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread, ended

    def test_nobody_waits_for_ever_who_was_told_to_stop(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(steps, "PAUSE", 0.01)
        monkeypatch.setattr(steps, "STOP_PATIENCE", 0.2)
        asked = threading.Event()
        thread, ended = self.waiting(database, asked)
        thread.join(0.5)
        assert thread.is_alive(), "nobody told it to stop"
        asked.set()
        thread.join(10)
        assert "told to stop, and the database was still away after 0.2 s" in str(ended[0])

    def test_who_has_given_up_once_does_not_begin_to_wait_anew(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(steps, "PAUSE", 0.01)
        monkeypatch.setattr(steps, "STOP_PATIENCE", 0.2)
        asked = threading.Event()
        asked.set()
        shared = Steps(database, asked)
        tried: list[int] = []

        def step(_connection: object) -> None:
            tried.append(1)
            raise psycopg.OperationalError

        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                shared.run(step)
        first = len(tried) - 1
        assert first > 2, "the first was patient, the second tried once"
        assert shared.run(lambda _: 7) == 7


def _target(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_a_run_that_meets_a_standby_waits_for_the_primary(scene: World) -> None:
    """As after a failover behind a pooler: connections are alive, and writes are refused for a while."""
    scene.people(60)
    key = scene.ready()
    name = scene.database.url.database
    scene.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    scene.database.close()

    def recover() -> None:
        with psycopg.connect(_target(scene.database.url), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())

    primary = threading.Timer(1.0, recover)
    primary.start()
    assert scene.send(key).end is End.COMPLETE
    primary.join()
    assert scene.keep_promises(key) == {"sent": 60}
