"""Every named query is prepared by the server: a wrong name, column or type in a `.sql` file fails here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import URL

import mailpipe
from mailpipe.db.queries import Queries, to_psycopg
from mailpipe.settings import DEFAULT_CONSENT
from tests.conftest import clone
from tests.support import USERS

FOLDER = Path(mailpipe.__file__).parent
# These work on tables that they make themselves, step by step; the tests of their modules run every one of them.
OWN_TABLES = {"demo/users", "engagement/fold", "engagement/intake", "sendtime/hours", "sendtime/plan"}
FILES = [
    path
    for path in sorted(FOLDER.rglob("*.sql"))
    if "-- name: " in path.read_text(encoding="utf-8")
    and path.relative_to(FOLDER).with_suffix("").as_posix() not in OWN_TABLES
]
ALL = [(path, name) for path in FILES for name in Queries(path).texts]

FRAGMENTS = {
    "campaign_id": "1",
    "campaigns": "1, 2",
    "table": "mailpipe.recipient_1",
    "recipients": "mailpipe.recipient_1",
    "name": "recipient_2",
    "staged": "mailpipe.staged_1",
    "kind": "UNLOGGED",
    "plain": "email LIKE '%@%'",
    "hash": "hashtextextended(user_id, 0)",
    "known": "true",
    "consent": DEFAULT_CONSENT,
    "segment": "SELECT user_id, email, timezone, locale, city FROM users",
    "timezone": "segment.timezone",
    "locale": "segment.locale",
    "variables": "segment.city",
    "order": "rank, ",
    "join": "JOIN due_rank ON zone = person.timezone",
    "joins": "JOIN due_rank ON zone = person.timezone",
    "group": "rank",
    "columns": "person.locale AS arm",
    "names": "arm",
    "orders": "SELECT 'a' AS user_id, now() AS ordered_at, 'b' AS campaign, 'c' AS variant",
    "position": "CAST(length(CAST(:salt AS text) || person.user_id) AS bigint)",
    "family": "4",
    "condition": "d.state = 'sent'",
}
# What some queries find when they run: the table that an earlier one has made.
BEFORE = """
CREATE TABLE mailpipe.recipient_1 (campaign_id int, seq int, user_id text, email text, timezone text, locale text,
    variables text[]);
CREATE TABLE mailpipe.staged_1 (campaign_id int, seq int, user_id text, email text, timezone text, locale text,
    variables text[], place int, refusal text);
CREATE TABLE mailpipe.noted (place int, seq int, refusal text, tid tid, email text, spaced boolean, unusual boolean);
CREATE TABLE mailpipe.changed (place int, email text, tid tid);
CREATE TABLE mailpipe.refused (place int, reason text);
CREATE TABLE mailpipe.due_rank (zone text, rank int);
CREATE TABLE mailpipe.kept (user_id text);
CREATE TABLE mailpipe.person_key (place int, zone_group int, arm text);
CREATE TABLE mailpipe.cell_key (number int, cell_rank int, zone_group int, arm text);
CREATE TABLE mailpipe.placed (place int, cell_rank int);
CREATE TABLE mailpipe.experiment_rank (place int, value bigint);
CREATE TABLE mailpipe.wave_person (place int, lot int, line bigint);
SET search_path = public, mailpipe"""
# Not to be prepared: definitions. Each is one statement, or run by a test of its own module.
DEFINITION = re.compile(r"^(CREATE|ALTER|DROP|COMMENT|GRANT|ANALYZE|TRUNCATE|LOCK|SET|COPY)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def server(server_url: URL, template_database: str) -> Iterator[psycopg.Connection[Any]]:
    with clone(server_url, template_database) as url:
        text = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(text, autocommit=True) as connection:
            connection.execute(USERS)
            connection.execute(BEFORE.encode())
            yield connection


def statement(path: Path, name: str) -> str:
    """The query as the server reads it, parameters as $1, $2, ..."""
    text = Queries(path).texts[name]
    for key, fragment in FRAGMENTS.items():
        text = text.replace("{{" + key + "}}", fragment)
    text = to_psycopg(text).decode()
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    return re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")


@pytest.mark.parametrize(("path", "name"), ALL, ids=[f"{path.stem}.{name}" for path, name in ALL])
def test_the_server_understands(server: psycopg.Connection[Any], path: Path, name: str) -> None:
    text = statement(path, name)
    assert "{{" not in text, "a fragment that this test does not know"
    body = re.sub(r"^(\s*--[^\n]*\n)+", "", text).strip().rstrip(";")
    made = re.match(r"CREATE (?:(?:TEMP(?:ORARY)?|UNLOGGED) )?TABLE \S+ (?:ON COMMIT DROP )?AS\s+", body)
    if made:
        body = body[made.end() :]
    elif DEFINITION.match(body) or ";" in re.sub(r"'[^']*'|--[^\n]*", "", body):
        pytest.skip("a definition, run by the tests of its module")
    server.execute(f"PREPARE checked AS {body}".encode())
    server.execute(b"DEALLOCATE checked")


def test_there_are_files_with_queries() -> None:
    assert {"steps", "snapshot", "campaign", "event", "pace", "report"} <= {path.stem for path in FILES}
    assert len(ALL) > 40
    assert all((FOLDER / f"{name}.sql").is_file() for name in OWN_TABLES)


def test_a_typo_is_noticed(server: psycopg.Connection[Any]) -> None:
    text = statement(FOLDER / "ledger" / "sums.sql", "counts").replace("opened", "opend")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        server.execute(f"PREPARE checked AS {text.rstrip().rstrip(';')}".encode())
