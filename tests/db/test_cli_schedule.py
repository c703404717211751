"""`mailpipe schedule` as a person types it, and the counts that `campaign plan` shows before a local campaign is launched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailpipe.cli import main
from tests.support import World

FILE = """\
key: weekly-news
cron: "0 9 * * mon"
timezone: Europe/Berlin
campaign:
  segment: everybody
  template: hello
  sender: Shop <news@mail.example.com>
"""
Mailpipe = Callable[..., Result]


@pytest.fixture
def mailpipe(scene: World) -> Mailpipe:
    environment = {
        "MAILPIPE_HOME": str(scene.settings.home),
        "MAILPIPE_VAR": str(scene.settings.var),
        "MAILPIPE_DATABASE_URL": scene.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": scene.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_USER": "ana",
    }

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    return run


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_schedule_from_its_file_to_its_end(mailpipe: Mailpipe, tmp_path: Path) -> None:
    file = tmp_path / "weekly_news.yaml"
    file.write_text(FILE)
    seen = mailpipe("schedule", "preview", str(file), "--count", "2").stdout
    assert "at 09:00, every Monday, by the clocks of Europe/Berlin" in seen
    assert seen.count("T09:00+0") == 2
    assert "[]" in mailpipe("schedule", "list", "--json").stdout, "a preview records nothing"
    made = mailpipe("schedule", "create", str(file)).stdout
    assert "next, by somebody else: mailpipe schedule approve weekly-news" in made
    assert made.count("T09:00+0") == 5
    assert "never used again" in mailpipe("schedule", "create", str(file), code=2).stderr
    assert "not approved" in mailpipe("schedule", "list").stdout
    assert "nobody has approved" in mailpipe("schedule", "run-now", "weekly-news", code=2).stderr
    assert "its author cannot" in mailpipe("schedule", "approve", "weekly-news", code=2).stderr
    assert "approved by ben" in mailpipe("schedule", "approve", "weekly-news", "--as", "ben").stdout
    made_now = document(mailpipe("schedule", "run-now", "weekly-news", "--json"))["campaign"]
    assert document(mailpipe("campaign", "show", made_now, "--json"))["state"] == "approved"
    shown = mailpipe("schedule", "show", "weekly-news").stdout
    assert made_now in shown
    assert "every Monday" in shown
    whole = document(mailpipe("schedule", "show", "weekly-news", "--json"))
    assert (whole["state"], len(whole["next"]), whole["occurrences"][0]["campaign"]) == ("active", 5, made_now)
    assert "is paused" in mailpipe("schedule", "pause", "weekly-news").stdout
    assert document(mailpipe("schedule", "list", "--json"))[0]["state"] == "paused"
    assert "fires next at" in mailpipe("schedule", "resume", "weekly-news").stdout
    assert "is deleted" in mailpipe("schedule", "delete", "weekly-news").stdout
    assert "no schedule" in mailpipe("schedule", "show", "weekly-news", code=2).stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('"0 9 * * mon" -> "*/5 * * * *"', "fires every 5 minutes"),
        ('"0 9 * * mon" -> "0 9 31 2 *"', "can never occur"),
        ("Europe/Berlin -> Mars/Base", "timezone: expected a zone"),
        ("everybody -> ", "segment"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(mailpipe: Mailpipe, tmp_path: Path, change: str, words: str) -> None:
    file = tmp_path / "weekly_news.yaml"
    right, wrong = change.split(" -> ")
    file.write_text(FILE.replace(right, wrong))
    assert words in mailpipe("schedule", "preview", str(file), code=2).stderr


def test_a_plan_tells_who_is_due_when_before_it_is_launched(scene: World, mailpipe: Mailpipe) -> None:
    scene.people(90)
    scene.execute("UPDATE users SET timezone = (ARRAY['Asia/Tokyo', 'Europe/Berlin', 'Mars/Base'])[1 + user_id % 3]")
    key = scene.ready(send_at="2020-01-01T10:00", past_policy="next_day")
    told = mailpipe("campaign", "plan", key).stdout
    assert "due at 3 times" in told
    assert "90 recipients had passed their wall time: they are mailed at that time another day" in told
    assert "30 recipients have no known zone and get the default one (Mars/Base)" in told
    whole = document(mailpipe("campaign", "plan", key, "--json"))
    assert whole["timing"]["past"] == 90
    assert [one["people"] for one in whole["timing"]["due"]] == [30, 30, 30]
    fixed = scene.ready(send_at="2030-12-24T10:00", timezone="europe/berlin")
    assert "due at 2030-12-24 09:00 UTC (2030-12-24 10:00 Europe/Berlin)" in mailpipe("campaign", "plan", fixed).stdout
