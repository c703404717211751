"""`mailpipe suppression`: files with bad lines, removal with a reason, and the list of the SES account."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailpipe import suppression, suppression_sync
from mailpipe.cli import main
from mailpipe.suppression import Entry
from tests.support import World

Run = Callable[..., Result]


@pytest.fixture
def run(scene: World, tmp_path: Path) -> Run:
    url = scene.database.url.render_as_string(hide_password=False)
    environ = {"MAILPIPE_DATABASE_URL": url, "MAILPIPE_SES_ENDPOINT": scene.stand_in.url, "MAILPIPE_VAR": str(tmp_path),
               "MAILPIPE_HOME": str(scene.settings.home), "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1", "MAILPIPE_USER": "ana",
               "PATH": os.environ["PATH"]}  # fmt: skip
    return lambda *arguments, **more: CliRunner().invoke(main, ["suppression", *arguments], env=environ, **more)


def test_a_file_with_bad_lines_is_taken_in_all_the_same_and_each_is_named(
    scene: World, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "list.csv"
    file.write_text(
        "\ufeffemail,scope,reason,comment\n"
        "Ana@Shop.Example.com,,,first\n"
        "not an address,,,\n"
        "ben@shop.example.com,topic:news,unsubscribe,\n"
        "cy@shop.example.com,letters,,\n"
        "di@shop.example.com,,boredom,\n"
        '"ed@shop.example.com\n'
        ' ",marketing,complaint,a quoted line end\n'
        "ANA@shop.example.com,,,again\n"
    )
    done = run("import", str(file), "--reason", "hard_bounce")
    assert done.exit_code == 2
    assert "8 lines read, 3 new" not in done.output and "7 lines read, 3 new" in done.output
    for number, text in ((3, "cannot be used"), (5, "scope 'letters'"), (6, "reason: expected one of")):
        assert f"line {number}: " in done.output and text in done.output
    assert "not an address" not in done.output
    with scene.database.connection() as connection:
        found = [(one.email_key, one.scope, one.reason, one.source) for name in ("ana", "ben", "ed")
                 for one in suppression.find(connection, f"{name}@shop.example.com")]  # fmt: skip
    assert found == [
        ("ana@shop.example.com", "all", "hard_bounce", "list.csv"),
        ("ben@shop.example.com", "topic:news", "unsubscribe", "list.csv"),
        ("ed@shop.example.com", "marketing", "complaint", "list.csv"),
    ]


def test_what_is_exported_can_be_imported(scene: World, run: Run, tmp_path: Path) -> None:
    for number in range(5):
        assert run("add", f"p{number}@shop.example.com", "--scope", "marketing").exit_code == 0
    file = tmp_path / "out.csv"
    assert json.loads(run("export", str(file), "--json").output)["rows"] == 5
    before = file.read_text()
    scene.execute("TRUNCATE mailpipe.suppression")
    assert json.loads(run("import", str(file), "--json").output) == {"read": 5, "new": 5, "wrong": []}
    run("export", str(file))
    cut = [line.rsplit(",", 1)[0] for line in before.splitlines()]
    assert [line.rsplit(",", 1)[0] for line in file.read_text().splitlines()] == cut
    assert run("import", "-", input="name\nx\n").exit_code == 2
    assert run("export", str(tmp_path / "no" / "where.csv")).exit_code == 2


def test_removal_needs_a_reason_and_warns_when_ses_suppresses_too(scene: World, run: Run) -> None:
    run("add", "ana@shop.example.com")
    scene.ses.suppress("ana@shop.example.com", "BOUNCE")
    assert run("remove", "ana@shop.example.com").exit_code == 2
    assert "SES's own list" in run("show", "Ana@shop.example.com").output
    removed = json.loads(run("remove", "ANA@shop.example.com", "--because", "by phone", "--json").output)
    assert (removed["removed"], removed["left"]) == (["all"], [])
    assert "BOUNCE" in removed["warning"]
    assert "not suppressed here" in run("show", "ana@shop.example.com").output
    assert run("show", "nobody").exit_code == 2


def test_both_lists_learn_from_each_other_and_a_second_time_is_quiet(scene: World) -> None:
    scene.ses.suppress("Listed@Shop.example.com", "COMPLAINT")
    with scene.database.connection() as connection:
        suppression.suppress(
            connection,
            [
                Entry("gone@shop.example.com", "all", "hard_bounce", "test"),
                Entry("left@shop.example.com", "marketing", "unsubscribe", "test"),
                Entry("asked@shop.example.com", "all", "manual", "test"),
            ],
        )
    first = suppression_sync.sync(scene.database, scene.ses)
    assert (first.learned >= 1, first.told, first.left) == (True, 1, 0)
    assert scene.ses.suppressed("gone@shop.example.com") == "BOUNCE"
    assert scene.ses.suppressed("left@shop.example.com") is None
    with scene.database.connection() as connection:
        found = suppression.find(connection, "listed@shop.example.com")
    assert [(one.scope, one.reason) for one in found] == [("all", "provider_list")]
    second = suppression_sync.sync(scene.database, scene.ses)
    assert (second.learned, second.told) == (0, 0)


def test_what_a_person_has_lifted_does_not_come_back_with_an_old_entry_of_ses(scene: World) -> None:
    scene.ses.suppress("back@shop.example.com", "BOUNCE")
    suppression_sync.sync(scene.database, scene.ses)
    with scene.database.connection() as connection:
        suppression.lift(connection, "back@shop.example.com", None, actor="ana", reason="works again")
        assert connection.execute(
            "SELECT removed_at <= %s FROM mailpipe.suppression_removed", (datetime.now(UTC),)
        ).fetchall()
    suppression_sync.sync(scene.database, scene.ses)
    with scene.database.connection() as connection:
        assert suppression.find(connection, "back@shop.example.com") == []
