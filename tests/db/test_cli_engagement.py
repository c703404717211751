"""`mailpipe engagement` as a person types it: a history comes in, days are folded, people and sums are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailpipe.cli import main
from mailpipe.db import Database
from tests.past_mails import Past

Mailpipe = Callable[..., Result]


@pytest.fixture
def mailpipe(database: Database, tmp_path: Path) -> Mailpipe:
    environment = {
        "MAILPIPE_HOME": str(tmp_path),
        "MAILPIPE_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1",
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
    }

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["engagement", *arguments], env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_history_comes_in_and_people_are_known(mailpipe: Mailpipe, tmp_path: Path) -> None:
    file = tmp_path / "opens.csv"
    file.write_text("\ufeffUser ID;Event;Opened At;Tz\n7;open;2026-01-05 08:30;Asia/Tokyo\n8;click;2026-01-05 09:00;\n")
    told = mailpipe("import", str(file)).stdout
    assert "2 rows of 2 people: 2 reactions counted" in told and "next: mailpipe engagement hours --refresh" in told
    assert "nothing changed" in mailpipe("import", str(file)).stdout
    shown = mailpipe("show", "7").stdout
    assert "Asia/Tokyo" in shown and "17" in shown
    assert json.loads(mailpipe("show", "8", "--json").stdout)["ev"][9] > 0
    assert json.loads(mailpipe("summary", "--json").stdout)["own_share"] == 1.0
    query = "SELECT '9' AS recipient_id, 'open' AS event_type, timestamptz '2026-01-05Z' AS opened_at"
    assert json.loads(mailpipe("import", "--sql", query, "--json").stdout)["people"] == 1


def test_mistakes_are_told_in_words(mailpipe: Mailpipe, tmp_path: Path) -> None:
    file = tmp_path / "opens.csv"
    file.write_text("recipient_id,event_type,opened_at\n7,open,yesterday\n")
    assert "opens.csv: line 2, column opened_at" in mailpipe("import", str(file), code=2).output
    assert "give a FILE, or --sql" in mailpipe("import", code=2).output
    assert "is not a zone" in mailpipe("import", str(file), "--zone", "CEST", code=2).output
    assert "nobody of that id" in mailpipe("show", "7", code=2).output
    told = mailpipe("show", "ana@shop.example.com", code=2).output
    assert "not by addresses" in told and "ana@" not in told
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert "cannot be folded before" in mailpipe("fold", "--day", today, code=2).output


def test_days_that_wait_are_folded_in_order(mailpipe: Mailpipe, database: Database) -> None:
    assert "no day waits" in mailpipe("fold").stdout
    at = datetime.now(UTC) - timedelta(days=4)
    with database.connection() as connection:
        past = Past(connection)
        past.visit(past.mailed(at, ["1", "2"]), 1, at + timedelta(hours=1), "click")
    assert "waiting" in mailpipe("summary").stdout
    done = json.loads(mailpipe("fold", "--json").stdout)
    assert done[0]["mails"] == 2 and 2 <= len(done) <= 3
    assert "was folded before" in mailpipe("fold", "--day", f"{at:%Y-%m-%d}").stdout
    now = json.loads(mailpipe("summary", "--json").stdout)
    assert (now["people"], now["own_data"], now["due"], now["tiers"]) == (2, 1, [], [1, 0, 0, 1, 0])
    assert done[-1]["day"] == now["folded_to"]
    assert "with own data" in mailpipe("summary").stdout and f"{at:%Y-%m-%d}" in mailpipe("summary").stdout
