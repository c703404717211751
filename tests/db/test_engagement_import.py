"""Histories that others kept become people that are known: once, without machines, and beside what is folded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mailpipe import settings as reading
from mailpipe.db import Connection, Database
from mailpipe.engagement import fold, intake, rule
from mailpipe.errors import EngagementError
from tests.past_mails import APPLE, BROWSER, Past

HEAD = "recipient_id,event_type,opened_at,sent_at,timezone,user_agent\n"
RATE = rule.PRIOR_REACTIONS / rule.PRIOR_MAILS


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connection() as connection:
        yield connection


def bring(connection: Connection, path: Path, *lines: str, head: str = HEAD) -> intake.Imported:
    path.write_text(head + "\n".join(lines) + "\n")
    return intake.from_file(connection, path)


def row(connection: Connection, person: str) -> dict[str, Any]:
    cursor = connection.execute("SELECT * FROM mailpipe.engagement WHERE person_id = %s", (person,))
    found = cursor.fetchone()
    assert found is not None and cursor.description is not None
    return dict(zip([column.name for column in cursor.description], found, strict=True))


def hours(values: list[float]) -> dict[int, Any]:
    return {hour: pytest.approx(value) for hour, value in enumerate(values) if value}


def test_reactions_count_by_local_hour_and_fade_with_age(connection: Connection, tmp_path: Path) -> None:
    done = bring(
        connection, tmp_path / "a.csv",
        "1,open,2026-01-05T03:00:00Z,2026-01-05T01:00:00Z,Asia/Ho_Chi_Minh,",
        "1,click,2026-01-05T05:00:00Z,2026-01-05T01:00:00Z,Asia/Ho_Chi_Minh,",
        "1,open,2025-11-06T20:10:00Z,2025-11-06T20:00:00Z,Asia/Ho_Chi_Minh,",
        f"2,open,2026-01-05T03:00:00Z,,,{APPLE}",
        f"3,open,2026-01-05T03:00:00Z,,,{BROWSER}",
        "3,click,2026-01-05T03:20:00Z,,,curl/8.5",
    )  # fmt: skip
    assert (done.rows, done.events, done.machines, done.people) == (6, 3, 2, 3)
    one = row(connection, "1")
    # One event for each mail, the click if there is one; the other is sixty days older.
    assert hours(one["ev"]) == {12: 2.0, 3: 0.5} and one["events"] == pytest.approx(1.5)
    assert one["mails"] == pytest.approx(1.5 / RATE) == pytest.approx(sum(one["ex"]), rel=0.15)
    assert max(range(24), key=one["ex"].__getitem__) == 8
    assert (one["zone"], str(one["as_of"])) == ("Asia/Ho_Chi_Minh", "2026-01-05")
    assert one["last_clicked_at"] == datetime(2026, 1, 5, 5, tzinfo=UTC)
    proxied, plain = row(connection, "2"), row(connection, "3")
    assert proxied["machine"] and sum(proxied["ev"]) == 0 and proxied["last_engaged_at"] is None
    assert not plain["machine"] and hours(plain["ev"]) == {3: 1.0} and plain["last_clicked_at"] is None


def test_without_a_send_log_people_are_compared_with_others_of_their_offset(
    connection: Connection, tmp_path: Path
) -> None:
    lines = [f"early{n},open,2026-01-05T0{6 + n % 2}:00:00Z,,UTC," for n in range(40)]
    lines += ["late,open,2026-01-05T21:00:00Z,,UTC,", "tokyo,open,2026-01-05T00:00:00Z,,Asia/Tokyo,"]
    bring(connection, tmp_path / "a.csv", *lines)
    late, early = row(connection, "late"), row(connection, "early0")
    assert late["ex"] == pytest.approx(early["ex"])
    assert late["ex"][6] == pytest.approx(20 / 42 / RATE, rel=0.05) and sum(late["ex"]) == pytest.approx(1 / RATE)
    tokyo = row(connection, "tokyo")
    assert hours(tokyo["ev"]) == {9: 1.0} and tokyo["ex"][9] > late["ex"][9]


def test_a_zone_of_a_later_history_moves_what_was_counted_by_utc(connection: Connection, tmp_path: Path) -> None:
    bring(connection, tmp_path / "a.csv", "1,open,2026-01-05T03:00:00Z,,,")
    bring(connection, tmp_path / "b.csv", "1,open,2026-01-05T05:00:00Z,,Asia/Tokyo,")
    bring(connection, tmp_path / "c.csv", "1,open,2026-01-05T07:00:00Z,,Europe/Berlin,")
    assert row(connection, "1")["zone"] == "Asia/Tokyo"
    assert hours(row(connection, "1")["ev"]) == {12: 1.0, 14: 1.0, 16: 1.0}


def test_the_same_content_changes_nothing_and_a_wrong_file_leaves_nothing(
    connection: Connection, tmp_path: Path
) -> None:
    line = "1,open,2026-01-05T03:00:00Z,,,"
    with pytest.raises(EngagementError, match="line 3, column opened_at"):
        bring(connection, tmp_path / "a.csv", line, "1,open,never,,,")
    assert connection.execute("SELECT count(*) FROM mailpipe.engagement").fetchone() == (0,)
    first = bring(connection, tmp_path / "a.csv", line)
    before = row(connection, "1")
    again = bring(connection, tmp_path / "renamed.csv", line)
    assert first.already is None and again.already is not None and again.rows == 1
    assert row(connection, "1") == before
    with pytest.raises(EngagementError, match="holds neither an open nor a click"):
        bring(connection, tmp_path / "b.csv", "1,bounce,2026-01-05T03:00:00Z,,,")


def test_what_is_imported_and_what_is_folded_add_up_in_either_order(connection: Connection, tmp_path: Path) -> None:
    at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    config = reading.load({"MAILPIPE_HOME": str(tmp_path), "MAILPIPE_VAR": str(tmp_path)})
    lines = ("1,open,2026-01-01T03:00:00Z,,UTC,", "1,click,2026-03-20T04:00:00Z,,UTC,")
    past = Past(connection)
    sent = past.mailed(at, ["1"])
    past.visit(sent, 1, at + timedelta(hours=1))
    results = []
    for order in ("fi", "if"):
        connection.execute(
            "TRUNCATE mailpipe.engagement, mailpipe.engagement_state, mailpipe.engagement_fold, mailpipe.engagement_import"
        )
        for step in order:
            if step == "f":
                fold.fold(connection, config, at.date(), now=at + timedelta(days=90))
            else:
                bring(connection, tmp_path / "a.csv", *lines)
        results.append(row(connection, "1"))
    assert results[0]["as_of"] == results[1]["as_of"] == date(2026, 3, 20)
    assert results[0]["ev"] == pytest.approx(results[1]["ev"]) and len(hours(results[0]["ev"])) == 3
    assert results[0]["last_clicked_at"] == results[1]["last_clicked_at"]


class TestQuery:
    def test_a_query_brings_in_a_table_of_this_server(self, connection: Connection) -> None:
        connection.execute(
            "CREATE TABLE opens (recipient_id bigint, event_type text, opened_at timestamptz);"
            "INSERT INTO opens VALUES (1, 'Opened', '2026-01-05 03:00Z'), (1, 'sent', '2026-01-05Z'), (2, 'CLICK', '2026-01-05Z')"
        )
        done = intake.from_query(connection, "SELECT * FROM opens ORDER BY 1;")
        assert (done.rows, done.events, done.people, done.source) == (2, 2, 2, "sql")
        assert hours(row(connection, "1")["ev"]) == {3: 1.0}
        assert intake.from_query(connection, "SELECT * FROM opens ORDER BY 1 DESC -- 5 %").already is not None

    @pytest.mark.parametrize(
        ("query", "told"),
        [("SELECT 1 AS recipient_id", "query: has no column event_type and no opened_at"),
         ("SELECT * FROM nowhere", 'query: relation "nowhere" does not exist'),
         ("SELECT 1 AS recipient_id, 'open' AS event_type, localtimestamp AS opened_at", "opened_at is no timestamptz"),
         ("SELECT 1 AS recipient_id, 'opn' AS event_type, now() AS opened_at", "column event_type: 1 rows are neither"),
         ("SELECT 'a@b' AS recipient_id, 'open' AS event_type, now() AS opened_at", "in 1 rows recipient_id is an address"),
         ("SELECT NULL AS recipient_id, 'open' AS event_type, now() AS opened_at", "person_id is NULL in some rows")],
    )  # fmt: skip
    def test_a_query_that_cannot_be_used_is_told_why(self, connection: Connection, query: str, told: str) -> None:
        with pytest.raises(EngagementError, match=told):
            intake.from_query(connection, query)
        assert connection.execute("SELECT count(*) FROM mailpipe.engagement").fetchone() == (0,)
