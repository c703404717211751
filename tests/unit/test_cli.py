"""The command line without a database: help, mistakes, and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mailpipe.cli import main
from mailpipe.cli.output import minutes, written
from mailpipe.errors import CampaignError, ServiceError


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


EVERY = dict(commands(main))


def test_the_commands_are_those_that_are_documented() -> None:
    assert {" ".join(path) for path, command in EVERY.items() if not isinstance(command, click.Group)} == {
        "demo",
        "dev",
        *(f"db {name}" for name in ("confirm-restore", "start", "stop", "upgrade", "url")),
        *(
            f"schedule {name}"
            for name in ("approve", "create", "delete", "list", "pause", "preview", "resume", "run-now", "show")
        ),
        *(f"segment {name}" for name in ("list", "preview")),
        *(f"template {name}" for name in ("list", "preview", "publish")),
        *(f"campaign {name}" for name in ("create", "list", "show", "plan", "approve", "snapshot", "start", "pause")),
        *(
            f"campaign {name}"
            for name in ("resume", "cancel", "set", "progress", "who", "export", "feedback", "narrow", "postmaster")
        ),
        *(f"campaign {name}" for name in ("experiment", "decide", "gate", "uplift")),
        *(f"experiment {name}" for name in ("size", "preview")),
        *(f"campaign unknown {name}" for name in ("list", "export", "resolve")),
        *(f"engagement {name}" for name in ("import", "fold", "show", "summary", "hours")),
        *(f"events {name}" for name in ("ingest", "poll", "upkeep")),
        *(f"suppression {name}" for name in ("add", "remove", "show", "import", "export", "sync")),
        "lanes",
        *(f"message {name}" for name in ("send", "show", "list", "cancel", "requeue", "depths")),
        "pace",
        "reconcile",
        "ses-simulator",
        "web",
    }


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_says_what_the_command_does_and_gives_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert EVERY[path].help


def test_every_command_that_answers_with_data_can_do_so_in_json() -> None:
    without = {
        " ".join(path)
        for path, command in EVERY.items()
        if not isinstance(command, click.Group) and "as_json" not in [option.name for option in command.params]
    }
    assert without == {"dev", "lanes", "ses-simulator", "web"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["campaign", "create", "no-such-file.yaml"],
        ["campaign", "set", "flash-sale"],
        ["events", "ingest", "no-such-file.jsonl"],
        ["segment", "preview", "no-such-segment"],
        ["template", "preview", "no-such-template"],
        ["nonsense"],
        ["dev", "--port", "3999"],
    ],
)
def test_a_mistake_ends_with_2_and_its_text_on_stderr(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not result.stdout
    assert isinstance(result.exception, SystemExit)


def test_a_broken_segment_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "assets" / "segments"
    folder.mkdir(parents=True)
    (folder / "fine.sql").write_text(
        "-- title: Fine\n-- owner: team:a\n-- description: Is.\nSELECT user_id, email FROM users\n"
    )
    (folder / "broken.sql").write_text("DELETE FROM users\n")
    result = CliRunner().invoke(main, ["segment", "list"], env={"MAILPIPE_HOME": str(tmp_path)})
    assert result.exit_code == 2
    assert "Fine" in result.stdout
    assert "broken.sql" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(CampaignError("change this"), 2), (ServiceError("SES is away"), 1)],
)
def test_errors_raised_on_purpose_show_their_text_alone(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("mailpipe.cli.session.load", fail)
    result = CliRunner().invoke(main, ["campaign", "list"])
    assert result.exit_code == code
    assert result.stderr == f"Error: {error}\n"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mailpipe.cli.session.load", fail)
    assert isinstance(CliRunner().invoke(main, ["campaign", "list"]).exception, ZeroDivisionError)


def test_values_are_written_for_people() -> None:
    assert [written(value) for value in (None, True, 1234567, 12.34, "text")] == [
        "-",
        "yes",
        "1,234,567",
        "12.3",
        "text",
    ]
    assert [minutes(value) for value in (None, 0.0, 1.5, 61.0)] == ["-", "0:00:00", "0:01:30", "1:01:00"]
