"""A statement that goes straight through libpq: it says what `Connection.execute` says, and its faults are the same."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from mailpipe.db import Connection
from mailpipe.db.prepared import Prepared, Value
from mailpipe.db.queries import to_psycopg
from tests.support import World

ALL = to_psycopg(
    "SELECT :number + 1, :real * 2, CAST(:text AS text), encode(:bytes, 'hex'), :number % 2, CAST(:bits AS bit varying)"
)
TYPES: dict[str, type] = {"number": int, "real": float, "bytes": bytes}


@pytest.fixture
def connection(scene: World) -> Iterator[Connection]:
    with scene.database.connection() as connection:
        yield connection


def test_every_kind_of_parameter_arrives_and_a_repeated_one_is_the_same(connection: Connection) -> None:
    statement = Prepared(ALL, TYPES)
    parameters: dict[str, Value] = {
        "number": 70_000, "real": 0.25, "text": "Ánh's \\ \"%\" {1}", "bytes": b"\x00\xff'", "bits": "0101", "unused": 1,
    }  # fmt: skip
    for _ in range(2):
        assert statement.first(connection, parameters) == (
            b"70001", b"0.5", "Ánh's \\ \"%\" {1}".encode(), b"00ff27", b"0", b"0101",
        )  # fmt: skip
    assert statement.first(connection, dict.fromkeys(parameters)) == (None,) * 6


def test_without_a_row_there_is_none(connection: Connection) -> None:
    assert Prepared(b"SELECT 1 WHERE %(x)s > 5", {"x": int}).first(connection, {"x": 5}) is None
    assert Prepared(b"CREATE TEMP TABLE made (x integer)", {}).first(connection, {}) is None
    assert connection.execute("SELECT count(*) FROM made").fetchone() == (0,)


def test_each_connection_has_its_own_and_equal_statements_share_it(scene: World, connection: Connection) -> None:
    with scene.database.connection() as other:
        for one in (connection, other, connection):
            assert Prepared(b"SELECT %(x)s + 1", {"x": int}).first(one, {"x": 1}) == (b"2",)
    named = connection.execute(
        "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT $1 + 1'"
    ).fetchone()
    assert named == (1,)


def test_what_the_server_has_forgotten_is_prepared_again(connection: Connection) -> None:
    statement = Prepared(b"SELECT %(x)s + 1", {"x": int})
    assert statement.first(connection, {"x": 1}) == (b"2",)
    connection.execute("DEALLOCATE ALL")
    assert statement.first(connection, {"x": 2}) == (b"3",)


def test_an_error_of_the_server_is_that_of_psycopg(connection: Connection) -> None:
    statement = Prepared(b"SELECT 1 / %(x)s", {"x": int})
    with pytest.raises(psycopg.errors.DivisionByZero):
        statement.first(connection, {"x": 0})
    assert statement.first(connection, {"x": 1}) == (b"1",)
    with pytest.raises(psycopg.errors.UndefinedTable):
        Prepared(b"SELECT * FROM nowhere", {}).first(connection, {})


def test_a_lost_connection_is_an_operational_error(scene: World) -> None:
    """That alone is waited for, and leaves it open whether the statement was done."""
    statement = Prepared(b"SELECT %(x)s + 1", {"x": int})
    with pytest.raises(psycopg.OperationalError), scene.database.connection() as connection:  # noqa: PT012
        assert statement.first(connection, {"x": 1}) == (b"2",)
        with scene.database.connection() as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
        statement.first(connection, {"x": 1})
    with pytest.raises(psycopg.OperationalError), scene.database.connection() as connection:  # noqa: PT012
        connection.close()
        statement.first(connection, {"x": 1})
