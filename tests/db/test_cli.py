"""The command line against a real database and a stand-in: the way of a campaign, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy.engine import URL

from mailpipe import db
from mailpipe.cli import main
from tests.conftest import admin
from tests.support import World, wait_for

ROOT = Path(__file__).parents[2]
FILE = """\
key: flash-sale
segment: everybody
template: hello
sender: Shop <news@mail.example.com>
rate: 5000
"""

Mailpipe = Callable[..., Result]


@pytest.fixture
def environment(world: World) -> dict[str, str]:
    return {
        "MAILPIPE_HOME": str(world.settings.home),
        "MAILPIPE_VAR": str(world.settings.var),
        "MAILPIPE_DATABASE_URL": world.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": world.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_THREADS": "4",
        "MAILPIPE_USER": "ana",
    }


@pytest.fixture
def mailpipe(environment: dict[str, str]) -> Mailpipe:
    """Run a command; it must end with the exit code that is expected, and never by a traceback."""

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    return run


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_campaign_from_its_file_to_each_persons_fate(world: World, mailpipe: Mailpipe, tmp_path: Path) -> None:
    world.people(120)
    world.execute("UPDATE users SET city = NULL WHERE user_id = 7")
    world.execute("UPDATE users SET email = 'nobody' WHERE user_id = 8")
    file = tmp_path / "flash_sale.yaml"
    file.write_text(FILE)

    assert "draft of ana" in mailpipe("campaign", "create", str(file)).stdout
    assert "never used again" in mailpipe("campaign", "create", str(file), code=2).stderr
    assert "take it first" in mailpipe("campaign", "plan", "flash-sale", code=2).stderr
    assert document(mailpipe("campaign", "snapshot", "flash-sale", "--json"))["recipients"] == 120
    planned = document(mailpipe("campaign", "plan", "flash-sale", "--json"))
    assert (planned["recipients"], planned["calls"], planned["binding"]) == (120, 3, "campaign rate")
    assert "only an approved campaign" in mailpipe("campaign", "start", "flash-sale", code=2).stderr
    assert "author cannot approve" in mailpipe("campaign", "approve", "flash-sale", code=2).stderr
    assert document(mailpipe("campaign", "approve", "flash-sale", "--as", "ben", "--json"))["approver"] == "ben"

    assert "118 sent, 1 failed, 1 skipped" in mailpipe("campaign", "start", "flash-sale").stdout
    mailpipe("events", "ingest", str(world.stand_in.events_file))
    now = document(mailpipe("campaign", "progress", "flash-sale", "--json"))
    assert {"rate_per_second", "eta_minutes", "queued_chunks", "processing_chunks", "delivered"} <= now.keys()
    assert {name: now[name] for name in ("total", "pending", "sending", "sent", "failed", "skipped", "unknown")} == {
        "total": 120, "pending": 0, "sending": 0, "sent": 118, "failed": 1, "skipped": 1, "unknown": 0,
    }  # fmt: skip
    assert now["state"] == "done"
    assert now["delivered"] == 118
    assert mailpipe("campaign", "progress", "flash-sale", "--watch", "--json").stdout.count("\n") == 1
    assert world.keep_promises("flash-sale") == {"sent": 118, "failed": 1, "skipped": 1}

    (fate,) = document(mailpipe("campaign", "who", "flash-sale", "PERSON9@mail.example.com", "--json"))
    assert (fate["user_id"], fate["state"], sorted(fate["events"])) == ("9", "sent", ["delivery", "send"])
    (fate,) = document(mailpipe("campaign", "who", "flash-sale", "7", "--json"))
    assert (fate["state"], fate["reason"], fate["detail"]) == ("failed", "missing_variable", "city")
    assert "has nobody of that user id" in mailpipe("campaign", "who", "flash-sale", "99999", code=2).stderr
    shown = document(mailpipe("campaign", "show", "flash-sale", "--json"))
    assert [step["action"] for step in shown["history"]] == ["create", "approve", "start"]
    assert {(one["state"], one["reason"]) for one in shown["reasons"]} == {
        ("failed", "missing_variable"),
        ("skipped", "unusable_address"),
    }
    assert "missing_variable" in mailpipe("campaign", "show", "flash-sale").stdout
    assert [one["campaign"] for one in document(mailpipe("campaign", "list", "--json"))] == ["flash-sale"]
    exported = tmp_path / "failed.csv"
    assert "1 recipients" in mailpipe("campaign", "export", "flash-sale", str(exported), "--state", "failed").stdout
    assert exported.read_text().splitlines()[1].startswith("7,7,")
    assert "done" in mailpipe("campaign", "pause", "flash-sale", code=2).stderr
    assert document(mailpipe("reconcile", "flash-sale", "--json"))["freed_chunks"] == 0


def test_a_plan_that_cannot_be_met_is_refused_until_somebody_accepts_it(world: World, mailpipe: Mailpipe) -> None:
    world.people(500)
    key = world.create(rate=10, finish_within="5s")
    world.freeze(key)
    assert "needs 100/s" in mailpipe("campaign", "plan", key, code=2).stderr
    mailpipe("campaign", "plan", key, "--accept")
    assert "--accept-plan" in mailpipe("campaign", "approve", key, "--as", "ben", code=2).stderr
    mailpipe("campaign", "approve", key, "--as", "ben", "--accept-plan")
    assert "--accept-plan" in mailpipe("campaign", "start", key, "--no-send", code=2).stderr
    assert "open for senders" in mailpipe("campaign", "start", key, "--no-send", "--accept-plan").stdout
    assert world.campaign(key).state == "sending"


def test_rate_and_template_change_while_it_is_paused(world: World, mailpipe: Mailpipe) -> None:
    world.people(50)
    key = world.ready()
    mailpipe("campaign", "start", key, "--no-send")
    assert "pause it" in mailpipe("campaign", "set", key, "--template", "hello", code=2).stderr
    paused = document(mailpipe("campaign", "pause", key, "--reason", "wrong price", "--json"))
    assert (paused["state"], paused["state_reason"]) == ("paused", "wrong price")
    assert "resume it" in mailpipe("campaign", "start", key, code=2).stderr
    before = paused["template_version"]
    folder = world.settings.templates / "hello"
    (folder / "subject.txt").write_text("Half price, {{first_name}}\n")
    changed = document(mailpipe("campaign", "set", key, "--rate", "123", "--template", "hello", "--json"))
    assert changed["rate"] == 123
    assert changed["template_version"] != before
    assert f"`mailpipe campaign start {key}`" in mailpipe("campaign", "resume", key).stdout
    mailpipe("campaign", "start", key)
    assert {line["template"] for line in world.journal(key)} == {changed["template_version"]}
    assert "cancelled" not in mailpipe("campaign", "cancel", key, code=2).stdout


def test_told_to_stop_it_records_its_answers_and_gives_its_chunks_back(
    world: World, mailpipe: Mailpipe, environment: dict[str, str]
) -> None:
    world.people(2_000)
    key = world.ready(rate=200)
    process = subprocess.Popen(
        [sys.executable, "-m", "mailpipe", "campaign", "start", key],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: world.progress(key).sent > 100, "100 sent", seconds=30)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "stopped" in output
    now = world.progress(key)
    assert (now.state, now.sending, now.unknown, now.processing_chunks) == ("sending", 0, 0, 0)
    assert 100 < now.sent < 2_000
    mailpipe("campaign", "set", key, "--rate", "10000")
    mailpipe("campaign", "start", key)
    assert world.keep_promises(key) == {"sent": 2_000}


def test_a_database_of_ones_own_is_upgraded_only_on_request(
    server_url: URL, mailpipe: Mailpipe, environment: dict[str, str]
) -> None:
    name = f"mailpipe_own_{os.getpid()}"
    with admin(server_url) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    own = server_url.set(database=name).render_as_string(hide_password=False)
    environment["MAILPIPE_DATABASE_URL"] = own.replace("+psycopg", "")
    try:
        assert "mailpipe db upgrade" in mailpipe("campaign", "list", code=2).stderr
        mailpipe("db", "upgrade")
        assert document(mailpipe("campaign", "list", "--json")) == []
        assert db.parse_url(mailpipe("db", "url").stdout.strip()).database == name
        assert mailpipe("db", "url", "--dagster").stdout.startswith("postgresql+psycopg2://")
        assert "of your own" in mailpipe("db", "stop").stdout
    finally:
        with admin(server_url) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def test_a_server_that_does_not_answer_is_one_clear_line(mailpipe: Mailpipe, environment: dict[str, str]) -> None:
    environment["MAILPIPE_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/mailpipe"
    errors = mailpipe("campaign", "list", code=1).stderr
    assert errors.startswith("Error: PostgreSQL: ")
    assert errors.count("\n") == 1


def test_events_that_are_none_are_named_and_the_others_taken_in(
    world: World, mailpipe: Mailpipe, tmp_path: Path
) -> None:
    world.people(3)
    key = world.ready()
    world.send(key)
    file = tmp_path / "events.jsonl"
    file.write_text("not json\n" + world.stand_in.events_file.read_text())
    assert "line 1;" in mailpipe("events", "ingest", str(file), code=2).stderr
    assert world.progress(key).delivered == 3


def test_a_preview_counts_and_shows_no_address(world: World, mailpipe: Mailpipe) -> None:
    world.people(20)
    result = mailpipe("segment", "preview", "everybody")
    assert "20" in result.stdout
    assert "person1@" not in result.stdout
    assert document(mailpipe("segment", "preview", "everybody", "--json"))["people"] == 20
    mailpipe("segment", "preview", "everybody", "--as-of", "2010-01-01", code=2)
    past = mailpipe("segment", "preview", "everybody", "--as-of", "2010-01-01T00:00:00Z", "--json")
    assert document(past)["people"] == 0
    assert "no parameter" in mailpipe("segment", "preview", "everybody", "--param", "days=3", code=2).stderr
