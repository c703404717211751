"""Segments on a real server: refusals with file and line, nothing is written, no address leaves."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import URL

from mailpipe import preview, segment
from mailpipe.db import Connection, Database
from mailpipe.demo import audience
from mailpipe.errors import SegmentError
from mailpipe.segment import Column
from tests.conftest import clone

AS_OF = datetime(2026, 3, 29, tzinfo=UTC)
HEADER = "-- title: A title\n-- owner: team:growth\n-- description: A description\n"
SEGMENTS = Path(__file__).parents[2] / "assets" / "segments"


@pytest.fixture(scope="module")
def template_database(server_url: URL, template_database: str) -> Iterator[str]:
    """A database with an audience, that each test gets a copy of."""
    with clone(server_url, template_database) as url:
        database = Database(url, pool_size=1, allow_unsafe_durability=True)
        with database.connection() as connection:
            audience.build(connection, 400, as_of=AS_OF)
        database.close()
        assert url.database is not None
        yield url.database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connection() as connection:
        yield connection


def write(folder: Path, body: str, *, params: str = "") -> segment.Segment:
    """A segment whose SQL starts in line 5 (6 with one parameter)."""
    path = folder / "people.sql"
    path.write_text(f"{HEADER}{params}\n{body}", encoding="utf-8")
    return segment.load(path)


def checked(connection: Connection, found: segment.Segment) -> list[Column]:
    return segment.check(connection, found, segment.bind(found, {}, AS_OF))


def run(connection: Connection, found: segment.Segment, **parameters: object) -> list[tuple[Any, ...]]:
    query = b"SELECT * FROM (\n" + segment.statement(found) + b"\n) AS segment"
    return connection.execute(query, segment.bind(found, parameters, AS_OF)).fetchall()


def refusal(connection: Connection, found: segment.Segment) -> str:
    with pytest.raises(SegmentError) as caught:
        checked(connection, found)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


def test_the_columns_of_a_segment_come_with_their_types(connection: Connection, tmp_path: Path) -> None:
    found = write(tmp_path, "SELECT user_id, email, timezone, created_at, 1.5 AS price FROM users -- no line end")
    assert checked(connection, found) == [
        Column("user_id", "bigint"),
        Column("email", "text"),
        Column("timezone", "text"),
        Column("created_at", "timestamp with time zone"),
        Column("price", "numeric"),
    ]


REFUSED = [
    ("SELECT user_id, email\nFORM users", 6, 'syntax error at or near "users"'),
    (
        "SELECT user_id,\n email,\n is_actve\nFROM users",
        7,
        'column "is_actve" does not exist. Perhaps you meant',
    ),
    ("SELECT user_id, email\nFROM customers", 6, 'relation "customers" does not exist'),
    ("SELECT user_id, email\nFROM users\nWHERE", 7, "syntax error"),
    (
        "SELECT user_id, email FROM users\nWHERE nofunction(1)",
        6,
        "function nofunction(integer) does not exist",
    ),
    ("SELECT user_id, email FROM users\nWHERE city = 5", 6, "operator does not exist: text = integer"),
    (
        "SELECT user_id, '%' AS p, '%%' AS q,\n email FROM users\nWHERE :as_of > email",
        7,
        "operator does not exist",
    ),
    ("SELECT user_id, 'đặng 100%' AS ü,\n email FROM users, nowhere", 6, 'relation "nowhere"'),
    ("SELECT 1 AS user_id,\n 'x'::text AS email,\n 'abc'::int AS n", 7, "invalid input syntax"),
    (
        "WITH gone AS (\nDELETE FROM users RETURNING *)\nSELECT user_id, email FROM gone",
        5,
        "at the top level",
    ),
    ("SELECT user_id, email INTO copy FROM users", 5, "INTO is not allowed here"),
    ("SELECT city,\n user_id FROM users", 5, "no column email. Select it, with AS email"),
    ("SELECT email FROM users", 5, "no column user_id"),
    ("SELECT user_id, lower(email) FROM users", 5, "now it returns: user_id, lower"),
    ("SELECT u.*, 'x' AS city FROM users AS u", 5, "column city comes twice"),
    ("SELECT user_id, email, 1 FROM users", 5, "column ?column? cannot be used in a template"),
    ('SELECT user_id, email, city AS "my city" FROM users', 5, "column my city cannot be used"),
    (
        "SELECT created_at AS user_id, email FROM users",
        5,
        "column user_id is of type timestamp with time zone",
    ),
    ("SELECT user_id, user_id AS email FROM users", 5, "column email is of type bigint. Cast it"),
    ("SELECT user_id, email, 7 AS timezone FROM users", 5, "column timezone is of type integer"),
    ("SELECT user_id, email, ARRAY['x'] AS locale FROM users", 5, "column locale is of type text[]"),
]


def test_what_the_server_refuses_is_told_with_its_line(connection: Connection, tmp_path: Path) -> None:
    for body, line, words in REFUSED:
        found = write(tmp_path, body)
        text = refusal(connection, found)
        assert words in text
        assert text.startswith(f"{found.path}:{line}: "), (body, text)


def test_a_mistake_that_the_closing_parenthesis_reveals_is_put_on_the_last_line(
    connection: Connection, tmp_path: Path
) -> None:
    found = write(tmp_path, "SELECT user_id, email\nFROM users\nORDER BY ;\n")
    assert refusal(connection, found).startswith(f"{found.path}:7: syntax error")


def test_every_type_of_parameter_reaches_the_server(connection: Connection, tmp_path: Path) -> None:
    found = write(
        tmp_path,
        "SELECT 1 AS user_id, 'x' AS email, :n AS n, :x AS x, :t AS t, :d AS d, :b AS b, :z AS z, :as_of,\n"
        ":t || ':n 5%' AS u, 7 % 4 AS r, '12:30'::time::text AS c, :n::text AS v",
        params="-- param n int = 30\n-- param x float = 0.5\n-- param t text = 'it''s 5%'\n"
        "-- param d date = 2026-01-31\n-- param b bool = true\n-- param z text = null\n",
    )
    types = [column.type for column in checked(connection, found)][2:9]
    assert types == [
        "integer",
        "double precision",
        "text",
        "date",
        "boolean",
        "text",
        "timestamp with time zone",
    ]
    row = run(connection, found)[0]
    assert row[2:5] == (30, 0.5, "it's 5%") and row[6:9] == (True, None, AS_OF)
    assert row[9:] == ("it's 5%:n 5%", 3, "12:30:00", "30")


def test_a_parameter_may_stand_anywhere_a_value_may(connection: Connection, tmp_path: Path) -> None:
    found = write(
        tmp_path,
        "SELECT user_id, email FROM users WHERE created_at <= :as_of - make_interval(days => :days)\n"
        "AND user_id = ANY(ARRAY[:days, -:days]) IS NOT NULL ORDER BY 1 LIMIT :days",
        params="-- param days int = 30: days\n",
    )
    assert len(run(connection, found)) == 30
    assert len(run(connection, found, days="5")) == 5


def test_nothing_can_be_written_by_a_function(connection: Connection, tmp_path: Path) -> None:
    connection.execute(
        "CREATE FUNCTION wipe() RETURNS text LANGUAGE plpgsql AS $$ BEGIN DELETE FROM public.users; RETURN 'x'; END $$"
    )
    # Marked as if it had no effect, so that the planner runs it already while the segment is being checked.
    connection.execute(
        "CREATE FUNCTION wipe_early() RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM setval('mailpipe.pace_account', 1); RETURN 'x'; END $$"
    )
    text = refusal(connection, write(tmp_path, "SELECT user_id, email, wipe_early() AS x FROM users"))
    assert "in a read-only transaction. A segment only reads" in text
    assert connection.execute("SELECT count(*) FROM users").fetchall() == [(400,)]


def test_a_preview_cannot_write_either(database: Database, connection: Connection, tmp_path: Path) -> None:
    connection.execute(
        "CREATE FUNCTION wipe() RETURNS text LANGUAGE plpgsql AS $$ BEGIN DELETE FROM public.users; RETURN 'x'; END $$"
    )
    found = write(tmp_path, "SELECT user_id, email, wipe() AS x FROM users")
    with pytest.raises(SegmentError, match="calls wipe, which may change something"):
        preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=10)
    switch = write(
        tmp_path,
        "SELECT user_id, email, set_config('transaction_read_only', 'off', true), wipe() AS x FROM users",
    )
    with pytest.raises(SegmentError, match="calls set_config, wipe, which may change something"):
        preview.preview(database, switch, segment.bind(switch, {}, AS_OF), timeout=10)
    assert connection.execute("SELECT count(*) FROM users").fetchall() == [(400,)]


def test_a_check_leaves_the_connection_as_it_was(connection: Connection, tmp_path: Path) -> None:
    before = connection.execute("SHOW statement_timeout").fetchall()
    checked(connection, write(tmp_path, "SELECT user_id, email FROM users"))
    refusal(connection, write(tmp_path, "SELECT user_id FROM users"))
    assert connection.execute("SHOW statement_timeout").fetchall() == before
    with connection.transaction():
        checked(connection, write(tmp_path, "SELECT user_id, email FROM users"))
        refusal(connection, write(tmp_path, "SELECT nothing"))
        connection.execute("DELETE FROM users WHERE user_id = 1")
    assert connection.execute("SELECT count(*) FROM users").fetchall() == [(399,)]


def test_a_segment_that_takes_too_long_is_stopped(database: Database, connection: Connection, tmp_path: Path) -> None:
    found = write(tmp_path, "SELECT user_id, email FROM users WHERE pg_sleep(20) IS NOT NULL")
    assert len(checked(connection, found)) == 2
    with pytest.raises(SegmentError, match=r"people\.sql: stopped by the time limit.*MAILPIPE_SEGMENT_TIMEOUT"):
        preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=0.2)
    with database.connection() as again:
        assert again.execute("SHOW statement_timeout").fetchall() == [("0",)]


def test_an_error_in_the_data_does_not_quote_them(database: Database, connection: Connection, tmp_path: Path) -> None:
    found = write(tmp_path, "SELECT user_id, email,\n email::int AS number\nFROM users")
    with pytest.raises(SegmentError) as caught:
        preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=10)
    assert str(caught.value) == f'{found.path}:5: invalid input syntax for type integer: "..."'
    assert caught.value.__suppress_context__


def test_a_lost_connection_is_not_the_segments_fault(database: Database, tmp_path: Path) -> None:
    found = write(tmp_path, "SELECT user_id, email FROM users")
    with (
        pytest.raises(psycopg.errors.AdminShutdown),
        database.connection() as connection,
        segment.explained(found),
    ):
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("name", ["active_opted_in", "engaged_30d", "win_back"])
def test_the_projects_segments_keep_the_contract(connection: Connection, name: str) -> None:
    found = segment.find(SEGMENTS, name)
    names = [column.name for column in checked(connection, found)]
    assert names == ["user_id", "email", "timezone", "locale", "first_name", "city", "country", "tier"]
    assert len(run(connection, found)) > 10


def test_the_active_come_in_sending_order(connection: Connection) -> None:
    rows = run(connection, segment.find(SEGMENTS, "active_opted_in"))
    made = audience.counts(400)
    assert len(rows) == 400 - made.inactive - made.opted_out
    seen: dict[int, datetime | None] = dict(connection.execute("SELECT user_id, last_login_at FROM users").fetchall())
    logins = [seen[row[0]] for row in rows]
    known = [at for at in logins if at is not None]
    assert known == sorted(known, reverse=True)
    assert logins[len(known) :] == [None] * (len(logins) - len(known))


def test_parameters_move_the_bounds_of_the_segments(connection: Connection) -> None:
    engaged, lost = (segment.find(SEGMENTS, name) for name in ("engaged_30d", "win_back"))
    assert (
        len(run(connection, engaged, days=5)) < len(run(connection, engaged)) < len(run(connection, engaged, days=90))
    )
    assert {row[6] for row in run(connection, lost, country="us", quiet_days=30)} == {"US"}
    both = {row[0] for row in run(connection, engaged)} & {row[0] for row in run(connection, lost)}
    assert both == set()


def test_a_preview_counts_everything_and_shows_no_address(database: Database, connection: Connection) -> None:
    found = segment.find(SEGMENTS, "active_opted_in")
    connection.execute("UPDATE users SET city = email WHERE user_id % 2 = 0")
    seen = preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=10)
    made = audience.counts(400)
    assert seen.rows == seen.people == 400 - made.inactive - made.opted_out
    assert list(seen.breakdowns) == ["provider", "locale", "timezone"]
    for table in seen.breakdowns.values():
        assert list(table.columns) == ["value", "people", "share"]
        assert table["people"].sum() == seen.rows and len(table) <= preview.TOP + 1
        assert abs(table["share"].sum() - 1) < 0.01
    assert seen.breakdowns["provider"]["value"].iloc[0] == "Gmail"
    assert seen.breakdowns["timezone"]["value"].iloc[-1] == preview.OTHER
    assert seen.nulls["email"] == 0 and seen.nulls["first_name"] >= 1
    assert len(seen.sample) == 5
    text = json.dumps(seen.to_json(), ensure_ascii=False)
    assert "@" not in text
    emails = [row[0] for row in connection.execute("SELECT email FROM users").fetchall()]
    assert not [email for email in emails if email in text]
    assert all(re.fullmatch(r".\*\*\*", value) for value in seen.sample["email"])


def test_a_preview_counts_a_person_once_who_comes_twice(
    database: Database, connection: Connection, tmp_path: Path
) -> None:
    found = write(tmp_path, "SELECT user_id, email FROM users UNION ALL SELECT user_id, email FROM users;")
    seen = preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=10)
    assert (seen.rows, seen.people, list(seen.breakdowns)) == (800, 400, ["provider"])


def test_a_preview_of_nobody_is_a_preview(database: Database, connection: Connection, tmp_path: Path) -> None:
    found = write(tmp_path, "SELECT user_id, email, locale FROM users WHERE false")
    seen = preview.preview(database, found, segment.bind(found, {}, AS_OF), timeout=10)
    assert (seen.rows, seen.people, len(seen.sample)) == (0, 0, 0)
    assert seen.nulls == {"user_id": 0, "email": 0, "locale": 0}
    assert json.loads(json.dumps(seen.to_json()))["breakdowns"] == {"provider": [], "locale": []}


def test_a_check_does_not_wait_for_a_locked_table_for_ever(
    database: Database, connection: Connection, tmp_path: Path
) -> None:
    found = write(tmp_path, "SELECT user_id, email FROM users")
    with database.transaction() as other:
        other.execute("LOCK TABLE users")
        with pytest.raises(SegmentError, match="stopped by the time limit"):
            segment.check(connection, found, segment.bind(found, {}, AS_OF), timeout=0.2)
