"""Rates against their lines: what pauses, what warns, and what rests on too few people to say anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.breaker import Counts, assess
from mailpipe.lines import Lines


def levels(counts: Counts, lines: Lines = Lines()) -> list[str]:  # noqa: B008 - frozen
    return [one.level for one in assess(counts, lines)]


@pytest.mark.parametrize(
    ("sent", "complaints", "level"),
    [(9_999, 500, "too_few"), (10_000, 11, "pause"), (10_000, 10, "warning"), (10_000, 6, "warning"), (10_000, 5, "ok"),
     (1_000_000, 1_001, "pause"), (1_000_000, 1_000, "warning"), (0, 0, "too_few")],
)  # fmt: skip
def test_complaints_count_once_ten_thousand_were_sent(sent: int, complaints: int, level: str) -> None:
    assert levels(Counts(sent, sent, complaints, 0, 0))[0] == level


@pytest.mark.parametrize(
    ("delivered", "bounced", "level"),
    [(1_999, 900, "too_few"), (2_000, 62, "pause"), (2_000, 61, "warning"), (2_000, 31, "warning"), (2_000, 30, "ok")],
)
def test_hard_bounces_count_once_two_thousand_were_delivered(delivered: int, bounced: int, level: str) -> None:
    assert levels(Counts(delivered + bounced, delivered, 0, bounced, 0))[1] == level


def test_delays_pause_too_and_every_line_can_be_moved() -> None:
    counts = Counts(4_000, 2_000, 4, 40, 1_001)
    assert levels(counts) == ["too_few", "ok", "pause"]
    moved = Lines(complaints=0.0009, complaints_after=100, hard_bounces=0.005, hard_bounces_after=1, delays=0.6)
    assert levels(counts, moved) == ["pause", "pause", "ok"]


@given(*[st.integers(0, 10**6)] * 5)
def test_any_counts_have_a_level_and_a_text(
    sent: int, delivered: int, complaints: int, bounced: int, delayed: int
) -> None:
    for one in assess(Counts(sent, delivered, complaints, bounced, delayed), Lines()):
        assert one.level in ("too_few", "ok", "warning", "pause")
        assert "%" in one.text


def test_what_was_counted_before_the_last_stop_is_taken_off() -> None:
    assert Counts(10, 8, 3, 2, 1).since(Counts(4, 9, 1, 0, 1)) == Counts(6, 0, 2, 2, 0)
