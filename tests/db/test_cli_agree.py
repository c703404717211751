"""The demo's proof must fail when it should: a journal that was tampered with is told from the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailpipe.demo.agree import compare
from mailpipe.feedback.ingest import ingest_lines
from tests.support import World

Line = dict[str, Any]


@pytest.fixture(scope="module")
def sent(_scene: World) -> str:
    """A campaign to 60 people: one failed, one skipped, the others sent."""
    _scene.clean()
    _scene.people(60)
    _scene.execute("UPDATE users SET city = NULL WHERE user_id = 7")
    _scene.execute("UPDATE users SET email = 'nobody' WHERE user_id = 8")
    key = _scene.ready()
    _scene.send(key)
    return key


def written(folder: Path, lines: list[Line]) -> Path:
    """A journal of these lines."""
    journal = folder / "journal.jsonl"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return journal


def test_an_honest_journal_agrees(scene: World, sent: str, tmp_path: Path) -> None:
    result = compare(scene.database, sent, written(tmp_path, scene.journal(sent)))
    assert result.agree
    assert result.lines() == []
    assert (result.recipients, result.accepted) == (60, 58)
    assert result.states == {"sent": 58, "failed": 1, "skipped": 1}


def _doubled(lines: list[Line]) -> list[Line]:
    return [*lines, lines[3]]


def _missing(lines: list[Line]) -> list[Line]:
    return lines[:3] + lines[4:]


def _of_another_campaign(lines: list[Line]) -> list[Line]:
    return [*lines, {**lines[3], "campaign": "another"}]


def _beyond_the_last(lines: list[Line]) -> list[Line]:
    return [*lines, {**lines[3], "seq": 61}]


def _without_tags(lines: list[Line]) -> list[Line]:
    return [*lines, {**lines[3], "campaign": None, "seq": None}]


def _to_a_skipped_person(lines: list[Line]) -> list[Line]:
    return [*lines, {**lines[3], "seq": 8}]


def _to_another_address(lines: list[Line]) -> list[Line]:
    return [*lines[:3], {**lines[3], "to": "stranger@mail.example.com"}, *lines[4:]]


@pytest.mark.parametrize(
    ("tamper", "kinds"),
    [
        (_doubled, {"doubled": 1}),
        (_missing, {"missing": 1}),
        (_of_another_campaign, {"foreign": 1}),
        (_beyond_the_last, {"foreign": 1}),
        (_without_tags, {"foreign": 1}),
        (_to_a_skipped_person, {"not_sent": 1, "wrong_address": 1}),
        (_to_another_address, {"wrong_address": 1}),
    ],
)
def test_every_lie_is_found(
    scene: World, sent: str, tmp_path: Path, tamper: Callable[[list[Line]], list[Line]], kinds: dict[str, int]
) -> None:
    result = compare(scene.database, sent, written(tmp_path, tamper(scene.journal(sent))))
    assert not result.agree
    assert dict(result.faults) == kinds
    assert "@" not in "".join(result.lines())


def test_a_torn_line_is_nobodys(scene: World, sent: str, tmp_path: Path) -> None:
    journal = written(tmp_path, scene.journal(sent))
    journal.write_bytes(journal.read_bytes() + b'{"message_id": "01')
    assert dict(compare(scene.database, sent, journal).faults) == {"foreign": 1}


def test_people_who_still_wait_are_told(scene: World, tmp_path: Path) -> None:
    scene.people(5)
    journal = tmp_path / "journal.jsonl"
    journal.touch()
    assert dict(compare(scene.database, scene.ready(), journal).faults) == {"unfinished": 5}


def test_a_mail_that_could_not_be_rendered_was_accepted_and_is_failed(scene: World, tmp_path: Path) -> None:
    """SES accepts it and says so in an event only."""
    scene.people(5)
    key = scene.ready()
    scene.send(key)
    told = next(json.loads(line) for line in scene.stand_in.events_file.read_text().splitlines() if key in line)
    told["eventType"] = "Rendering Failure"
    ingest_lines(scene.database, [json.dumps(told)])
    assert scene.progress(key).failed == 1
    assert compare(scene.database, key, written(tmp_path, scene.journal(key))).agree
