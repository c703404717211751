"""`mailpipe message`: what programs and people read of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailpipe.cli import main
from tests.messages import clean, publish
from tests.support import World


@pytest.fixture
def run(scene: World) -> Any:
    """Runs a command on this world's database."""
    clean(scene)
    publish(scene)
    environment = {
        "MAILPIPE_DATABASE_URL": scene.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": scene.stand_in.url,
        "MAILPIPE_HOME": str(scene.settings.home),
        "MAILPIPE_VAR": str(scene.settings.var),
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
    }

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env=environment)

    return command


def test_a_message_is_sent_off_looked_at_and_called_off(run: Any) -> None:
    options = [
        "--to",
        "ana@mail.example.com",
        "--template",
        "code",
        "--var",
        "code=1=2",
        "--key",
        "k",
        "--delay",
        "1h",
        "--json",
    ]
    first = json.loads(run("message", "send", *options).output)
    again = json.loads(run("message", "send", *options).output)
    assert first["created"] and not again["created"]
    shown = run("message", "show", first["message_id"])
    assert "pending" in shown.output and "ana@" not in shown.output
    assert json.loads(run("message", "show", first["message_id"], "--json").output)["state"] == "pending"
    assert json.loads(run("message", "depths", "--json").output)[2] == {
        "lane": "normal",
        "pending": 0,
        "processing": 0,
        "oldest_age_seconds": 0.0,
    }
    assert run("message", "cancel", first["message_id"]).exit_code == 0
    assert run("message", "cancel", first["message_id"]).exit_code == 2
    assert [one["state"] for one in json.loads(run("message", "list", "--state", "cancelled", "--json").output)] == [
        "cancelled"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["message", "send", "--to", "nobody", "--template", "code"],
        ["message", "send", "--to", "a@mail.example.com", "--template", "nothing"],
        ["message", "show", "nothing"],
        ["message", "cancel"],
        ["message", "requeue", "nothing", "--reason", "x", "--as", "ana"],
        ["lanes", "--lanes", "urgent"],
    ],
)
def test_a_mistake_is_a_sentence_and_code_two(run: Any, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
