"""A segment only reads: functions that may write are refused before anything runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mailpipe import segment
from mailpipe.db import Database
from mailpipe.errors import SegmentError

HEADER = "-- title: T\n-- owner: team:growth\n-- description: D\n"


def check(database: Database, folder: Path, sql: str) -> list[segment.Column]:
    path = folder / "tried.sql"
    path.write_text(HEADER + sql)
    loaded = segment.load(path)
    with database.connection() as connection:
        return segment.check(connection, loaded, segment.bind(loaded, {}, datetime(2026, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("nextval('mailpipe.pace_account')", "nextval"),
        ("setval('mailpipe.pace_account', 1)", "setval"),
        ("pg_terminate_backend(1)", "pg_terminate_backend"),
        ("set_config('search_path', 'x', false)", "set_config"),
        ("writes()", "writes"),
    ],
)
def test_a_function_that_may_write_is_refused_by_name(
    database: Database, tmp_path: Path, call: str, named: str
) -> None:
    with database.connection() as connection:
        connection.execute("CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    with pytest.raises(SegmentError, match=rf"tried\.sql:4: calls {named}, which may change something"):
        check(database, tmp_path, f"SELECT '1' AS user_id, 'x' AS email, {call} AS extra WHERE :as_of IS NOT NULL")


def test_functions_that_only_read_are_welcome(database: Database, tmp_path: Path) -> None:
    """Also a text that merely looks like a call."""
    with database.connection() as connection:
        connection.execute("CREATE FUNCTION reads() RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'")
    columns = check(
        database,
        tmp_path,
        "SELECT '1' AS user_id, lower('x') AS email, reads() AS a, random() AS b, 'nextval(1)' AS c, 10 % 3 AS d\n"
        "WHERE now() > :as_of",
    )
    assert [column.name for column in columns] == ["user_id", "email", "a", "b", "c", "d"]


def test_a_function_that_calls_itself_stable_cannot_write_either(database: Database, tmp_path: Path) -> None:
    """The rule that the check rests on is PostgreSQL's own."""
    with database.connection() as connection:
        connection.execute("CREATE TABLE touched (x int)")
        connection.execute(
            "CREATE FUNCTION liar() RETURNS int LANGUAGE plpgsql STABLE AS"
            " 'BEGIN INSERT INTO touched VALUES (1); RETURN 1; END'"
        )
        with pytest.raises(Exception, match="not allowed in a non-volatile function"):
            connection.execute("SELECT liar()")
