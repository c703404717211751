"""What is counted after every scenario notices each kind of breach. That events explain whoever was accepted is counted at the end
of each crash test (`Crash.settle`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import LEAD, World

Line = dict[str, Any]


def _twice(lines: list[Line]) -> list[Line]:
    return [*lines, lines[-1]]


def _again(lines: list[Line]) -> list[Line]:
    return [*lines, {**lines[-1], "attempt": "2"}]


def _never(lines: list[Line]) -> list[Line]:
    return lines[:-1]


JOURNALS: dict[Callable[[list[Line]], list[Line]], str] = {
    _twice: "somebody was mailed twice",
    _again: "somebody was mailed again, and nobody ordered it",
    _never: "somebody is called sent whom the provider never accepted",
}
LEDGERS = {
    # The last of a chunk's people is free again, though SES has accepted them.
    "finished = set_bit(finished, size - 1, 0), sent = sent - 1, state = 'pending'": "whom the ledger does not call sent",
    "sent = sent - 1, failed = failed + 1": "the counter of sent disagrees with the people",
    "sent = sent - 1, unknown = unknown + 1": "somebody is unknown who was in no call without a clear answer",
}


@pytest.fixture
def key(scene: World) -> str:
    """A campaign that was sent as it should be."""
    scene.people(30)
    key = scene.ready()
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 30}
    return key


@pytest.mark.parametrize("forged", JOURNALS)
def test_a_journal_that_says_otherwise(
    scene: World, key: str, forged: Callable[[list[Line]], list[Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = forged(scene.stand_in.journal())
    monkeypatch.setattr(scene.stand_in, "journal", lambda: lines)
    with pytest.raises(AssertionError, match=JOURNALS[forged]):
        scene.keep_promises(key)


@pytest.mark.parametrize("change", LEDGERS)
def test_a_ledger_that_says_otherwise(scene: World, key: str, change: str) -> None:
    scene.execute(
        f"UPDATE mailpipe.chunk SET {change} WHERE campaign_id = %(id)s AND first_seq = 1",
        {"id": scene.campaign(key).campaign_id},
    )
    with pytest.raises(AssertionError, match=LEDGERS[change]):
        scene.keep_promises(key)


@pytest.mark.parametrize("seconds", [LEAD - 1, LEAD + 60])
def test_somebody_who_was_suppressed_before(scene: World, key: str, seconds: float) -> None:
    scene.execute(
        "INSERT INTO mailpipe.suppression (email_key, reason, source, at)"
        " VALUES ('person7@mail.example.com', 'complaint', 'test', clock_timestamp() - make_interval(secs => %(seconds)s))",
        {"seconds": seconds},
    )
    if seconds < LEAD:
        # Their call may have been opened by then.
        scene.keep_promises(key)
        return
    with pytest.raises(AssertionError, match="somebody was mailed who had been suppressed"):
        scene.keep_promises(key)
