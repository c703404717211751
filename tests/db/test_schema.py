"""The schema: migrations arrive at what is declared, however often and by however many they are run, and its laws hold."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.engine import URL

from mailpipe.db import migrate
from tests.conftest import admin, clone

SCHEMA = Path(migrate.__file__).with_name("schema.sql")

PARTS = {
    "relations": """SELECT relname, relkind, reloptions, pg_get_partkeydef(oid), relpersistence FROM pg_class
        WHERE relnamespace = 'mailpipe'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')""",
    "columns": """SELECT attrelid::regclass::text, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
        pg_get_expr(adbin, adrelid) FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'mailpipe'::regnamespace AND attnum > 0
        AND NOT attisdropped AND relkind IN ('r', 'p', 'v')""",
    "constraints": """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'mailpipe'::regnamespace""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'mailpipe'",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'mailpipe'",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'mailpipe'::regnamespace",
    "triggers": """SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
        WHERE relnamespace = 'mailpipe'::regnamespace AND NOT tgisinternal""",
    "sequences": """SELECT sequencename, data_type::text, start_value, increment_by, max_value, cycle FROM pg_sequences
        WHERE schemaname = 'mailpipe'""",
    "comments": """SELECT objoid::regclass::text, objsubid, description FROM pg_description JOIN pg_class ON pg_class.oid = objoid
        WHERE relnamespace = 'mailpipe'::regnamespace AND classoid = 'pg_class'::regclass""",
    "first rows": "SELECT 'pace', count(*) FROM mailpipe.pace UNION ALL SELECT 'instance', count(*) FROM mailpipe.instance",
}

CHANGES = [
    "ALTER TABLE mailpipe.campaign ADD COLUMN other text",
    "ALTER TABLE mailpipe.chunk ALTER COLUMN calls TYPE bigint",
    "ALTER TABLE mailpipe.chunk ALTER COLUMN owner SET DEFAULT 'me'",
    "ALTER TABLE mailpipe.snapshot ALTER COLUMN excluded DROP NOT NULL",
    "ALTER TABLE mailpipe.chunk DROP CONSTRAINT chunk_is_sound",
    "ALTER TABLE mailpipe.suppression DROP CONSTRAINT suppression_reason_check",
    "ALTER TABLE mailpipe.chunk RESET (fillfactor)",
    "DROP INDEX mailpipe.call_at",
    "DROP INDEX mailpipe.recipient_email",
    "CREATE INDEX ON mailpipe.outcome (state)",
    "CREATE OR REPLACE VIEW mailpipe.delivery AS SELECT campaign_id, seq, 0::smallint AS slice, user_id, email, timezone, locale,"
    " 1::smallint AS attempt, 0 AS chunk_no, now() AS due_at, 'sent' AS state, 'x' AS reason, 'a' AS variant,"
    " '{}'::text[] AS labels FROM mailpipe.recipient",
    "DROP SEQUENCE mailpipe.pace_account",
    "ALTER SEQUENCE mailpipe.pace_account INCREMENT BY 2",
    "COMMENT ON VIEW mailpipe.delivery IS 'something else'",
    "CREATE TABLE mailpipe.extra ()",
    "DELETE FROM mailpipe.pace",
    "DELETE FROM mailpipe.instance",
    "CREATE FUNCTION mailpipe.extra() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER FUNCTION mailpipe.take_slot SET work_mem = '1MB'",
]


def connect(url: URL) -> psycopg.Connection[Any]:
    text = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(text, autocommit=True)


def describe(url: URL) -> dict[str, list[str]]:
    """All that makes up the schema, as the server tells it."""
    with connect(url) as connection:
        return {name: sorted(map(str, connection.execute(query.encode()))) for name, query in PARTS.items()}


@pytest.fixture
def new_url(server_url: URL) -> Iterator[URL]:
    """The address of a database that is not there yet."""
    url = server_url.set(database=f"{server_url.database}_schema_test")
    yield url
    with admin(server_url) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{url.database}" WITH (FORCE)'.encode())


@pytest.fixture
def declared(server_url: URL) -> Iterator[URL]:
    """A database made by the schema file alone."""
    with clone(server_url, "template1") as url:
        with connect(url) as connection:
            connection.execute(SCHEMA.read_bytes())
        yield url


def test_migrations_arrive_at_the_declared_schema(database_url: URL, declared: URL) -> None:
    migrated, wanted = describe(database_url), describe(declared)
    assert all(wanted[part] for part in wanted if part != "triggers"), "a part of the comparison compares nothing"
    assert migrated == wanted


def test_the_comparison_notices_every_kind_of_difference(declared: URL) -> None:
    wanted = describe(declared)
    for change in CHANGES:
        with connect(declared) as connection:
            connection.execute(b"BEGIN")
            connection.execute(change.encode())
            changed = {name: sorted(map(str, connection.execute(query.encode()))) for name, query in PARTS.items()}
            connection.execute(b"ROLLBACK")
        assert changed != wanted, change


def test_upgrading_twice_changes_nothing(new_url: URL) -> None:
    migrate.upgrade(new_url)
    before = describe(new_url)
    assert migrate.is_current(new_url)
    migrate.upgrade(new_url)
    assert describe(new_url) == before


def test_several_may_create_and_upgrade_at_once(new_url: URL, database_url: URL) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(migrate.upgrade, new_url) for _ in range(4)]:
            future.result()
    assert describe(new_url) == describe(database_url)


def test_a_database_that_was_never_migrated_is_not_current(server_url: URL) -> None:
    with clone(server_url, "template1") as url:
        assert not migrate.is_current(url)


def test_a_user_who_may_enter_one_database_alone_can_upgrade_it(server_url: URL) -> None:
    """A team's server: the database was made by somebody else, and nothing but it can be reached."""
    with clone(server_url, "template1") as url, admin(server_url) as connection:
        connection.execute(
            f"CREATE ROLE narrow LOGIN PASSWORD 'narrow'; ALTER DATABASE \"{url.database}\" OWNER TO narrow".encode()
        )
        connection.execute(b"REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
        try:
            own = url.set(username="narrow", password="narrow")
            migrate.upgrade(own)
            assert migrate.is_current(own)
        finally:
            connection.execute(b"GRANT CONNECT ON DATABASE postgres TO PUBLIC")
            with connect(url) as there:
                there.execute(b"REASSIGN OWNED BY narrow TO CURRENT_USER; DROP OWNED BY narrow CASCADE")
            connection.execute(b"DROP ROLE narrow")


GOOD_CHUNK = {"state": "'pending'", "owner": "NULL", "leased_until": "NULL", "opened": "B'000'", "finished": "B'000'",
              "size": "3", "sent": "0", "skipped": "0", "slice": "0", "first_seq": "1"}  # fmt: skip
GOOD_CALL = {"no": "1", "positions": "B'110'", "accepted": "2", "codes": "NULL", "message_ids_text": "NULL",
             "message_ids": "decode(repeat('00', 48), 'hex')"}  # fmt: skip
GOOD_CAMPAIGN = {"key": "'good'", "state": "'draft'", "author": "'ana'", "approver": "NULL", "approved_at": "NULL",
                 "template_version": "NULL", "rate": "NULL"}  # fmt: skip
APPROVED = {"approver": "'ben'", "approved_at": "now()", "template_version": "'t-1'"}


def insert(table: str, values: dict[str, str], **changes: str) -> str:
    fixed = {
        "chunk": "campaign_id, chunk_no, due_at",
        "call": "campaign_id, chunk_no, seconds",
        "campaign": "spec, due_at",
    }
    given = {"chunk": "1, 0, now()", "call": "1, 0, 1", "campaign": "'{}', now()"}
    merged = {**values, **changes}
    names, expressions = ", ".join(merged), ", ".join(merged.values())
    return f"INSERT INTO mailpipe.{table} ({fixed[table]}, {names}) VALUES ({given[table]}, {expressions})"


@pytest.fixture
def laws(database_url: URL) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as connection:
        connection.execute(b"INSERT INTO mailpipe.template_version VALUES ('t-1', 't', '{}')")
        connection.execute(insert("campaign", GOOD_CAMPAIGN, key="'first'").encode())
        yield connection


ACCEPTED = [
    insert("campaign", GOOD_CAMPAIGN),
    insert("campaign", GOOD_CAMPAIGN, state="'sending'", **APPROVED),
    insert("campaign", GOOD_CAMPAIGN, state="'cancelled'"),
    insert("chunk", GOOD_CHUNK),
    insert("chunk", GOOD_CHUNK, state="'leased'", owner="'me'", leased_until="now()", opened="B'101'"),
    insert("chunk", GOOD_CHUNK, state="'done'", finished="B'111'", sent="2", skipped="1"),
    insert("call", GOOD_CALL),
    insert("call", GOOD_CALL, accepted="0", codes="'uf'", message_ids="NULL"),
    insert("call", GOOD_CALL, accepted="1", codes="'su'", message_ids="NULL", message_ids_text="'abc'"),
]
REFUSED = [
    insert("campaign", GOOD_CAMPAIGN, key="'Bad Key'"),
    insert("campaign", GOOD_CAMPAIGN, state="'unknown'"),
    insert("campaign", GOOD_CAMPAIGN, author="''"),
    insert("campaign", GOOD_CAMPAIGN, rate="0"),
    insert("campaign", GOOD_CAMPAIGN, state="'approved'"),
    insert("campaign", GOOD_CAMPAIGN, state="'sending'", approver="'ben'", approved_at="now()"),
    insert("campaign", GOOD_CAMPAIGN, approver="'ben'"),
    insert("campaign", GOOD_CAMPAIGN, **{**APPROVED, "approver": "'ana'"}),
    insert("chunk", GOOD_CHUNK, slice="100"),
    insert("chunk", GOOD_CHUNK, slice="-1"),
    insert("chunk", GOOD_CHUNK, first_seq="0"),
    insert("chunk", GOOD_CHUNK, size="0", opened="B''", finished="B''"),
    insert("chunk", GOOD_CHUNK, size="1001"),
    insert("chunk", GOOD_CHUNK, state="'open'"),
    insert("chunk", GOOD_CHUNK, opened="B'00'"),
    insert("chunk", GOOD_CHUNK, finished="B'0000'"),
    insert("chunk", GOOD_CHUNK, state="'leased'"),
    insert("chunk", GOOD_CHUNK, owner="'me'"),
    insert("chunk", GOOD_CHUNK, leased_until="now()"),
    insert("chunk", GOOD_CHUNK, opened="B'100'"),
    insert("chunk", GOOD_CHUNK, state="'done'"),
    insert("chunk", GOOD_CHUNK, finished="B'100'"),
    insert("chunk", GOOD_CHUNK, sent="1"),
    insert("chunk", GOOD_CHUNK, finished="B'100'", sent="2", skipped="-1"),
    insert("chunk", GOOD_CHUNK, state="'leased'", owner="'me'", leased_until="now()", opened="B'100'", finished="B'100'", sent="1"),
    insert("call", GOOD_CALL, no="0"),
    insert("call", GOOD_CALL, accepted="3"),
    insert("call", GOOD_CALL, accepted="-1", codes="'uu'"),
    insert("call", GOOD_CALL, codes="'ss'"),
    insert("call", GOOD_CALL, accepted="1", message_ids="decode(repeat('00', 24), 'hex')"),
    insert("call", GOOD_CALL, accepted="1", codes="'s'", message_ids="decode(repeat('00', 24), 'hex')"),
    insert("call", GOOD_CALL, message_ids="NULL"),
    insert("call", GOOD_CALL, message_ids="decode(repeat('00', 24), 'hex')"),
    "INSERT INTO mailpipe.outcome VALUES (1, 1, 0, 'sent', 'x')",
    "INSERT INTO mailpipe.outcome VALUES (1, 1, 0, 'failed', 'x', NULL, -1)",
    "INSERT INTO mailpipe.outcome VALUES (1, 1, 0, 'failed', 'x', NULL, 0, 0)",
    "INSERT INTO mailpipe.event_mask VALUES (1, 0, 'nothing', 1, B'1')",
    "INSERT INTO mailpipe.suppression VALUES ('Upper@mail.example.com', 'all', 'manual', 'test')",
    "INSERT INTO mailpipe.suppression VALUES ('a@mail.example.com', 'some', 'manual', 'test')",
    "INSERT INTO mailpipe.suppression VALUES ('a@mail.example.com', 'all', 'boredom', 'test')",
    "INSERT INTO mailpipe.suppression VALUES ('a@mail.example.com', 'topic:', 'manual', 'test')",
    "INSERT INTO mailpipe.opt_out VALUES ('', 'news', 'test')",
    "INSERT INTO mailpipe.opt_out VALUES ('42', 'No Topic', 'test')",
    "INSERT INTO mailpipe.pace VALUES (false)",
    "UPDATE mailpipe.pace SET ceiling = 0",
    "UPDATE mailpipe.pace SET ease = 0",
    "UPDATE mailpipe.pace SET marketing_share = 1.5",
    "UPDATE mailpipe.pace SET call_rate = 1",
    "INSERT INTO mailpipe.pace_claim VALUES ('urgent', 0, now(), now())",
    "UPDATE mailpipe.pace SET account_rate = -1",
    "UPDATE mailpipe.pace SET blocked_until = now()",
    "UPDATE mailpipe.pace SET blocked_reason = 'boredom', blocked_until = now()",
    "INSERT INTO mailpipe.template_version VALUES ('no good name', 't', '{}')",
    "INSERT INTO mailpipe.audit (campaign_id, actor, action) VALUES (1, '', 'x')",
    "INSERT INTO mailpipe.snapshot VALUES (1, now(), 's', 'x', 'x', now(), '{}', '{}', -1, '{}', 0)",
    "INSERT INTO mailpipe.snapshot VALUES (1, now(), 's', 'x', 'x', now(), '{}', '{}', 0, '{}', -1)",
    "CREATE TABLE mailpipe.r1 PARTITION OF mailpipe.recipient FOR VALUES IN (1);"
    " INSERT INTO mailpipe.recipient VALUES (1, 0, 'u', 'e', NULL, NULL, '{}')",
]  # fmt: skip


@pytest.mark.parametrize("statement", ACCEPTED)
def test_the_laws_let_what_is_right_pass(laws: psycopg.Connection[Any], statement: str) -> None:
    laws.execute(statement.encode())


def test_the_laws_refuse_what_is_wrong(laws: psycopg.Connection[Any]) -> None:
    for statement in REFUSED:
        try:
            with laws.transaction():
                laws.execute(statement.encode())
        except errors.CheckViolation:
            continue
        pytest.fail(f"accepted: {statement}")


@pytest.mark.parametrize(
    "second",
    ["(1, 2, 'user', 'other@mail.example.com', NULL, NULL, '{}')", "(1, 2, 'other', 'A@Mail.example.com', NULL, NULL, '{}')",
     "(1, 1, 'other', 'other@mail.example.com', NULL, NULL, '{}')"],
)  # fmt: skip
def test_a_person_cannot_be_twice_in_a_campaign(laws: psycopg.Connection[Any], second: str) -> None:
    laws.execute(b"CREATE TABLE mailpipe.r1 PARTITION OF mailpipe.recipient FOR VALUES IN (1)")
    laws.execute(b"CREATE TABLE mailpipe.r2 PARTITION OF mailpipe.recipient FOR VALUES IN (2)")
    laws.execute(b"INSERT INTO mailpipe.recipient VALUES (1, 1, 'user', 'a@mail.example.com', NULL, NULL, '{}')")
    laws.execute(b"INSERT INTO mailpipe.recipient VALUES (2, 1, 'user', 'a@mail.example.com', NULL, NULL, '{}')")
    with pytest.raises(errors.UniqueViolation):
        laws.execute(f"INSERT INTO mailpipe.recipient VALUES {second}".encode())
