"""What a gate says of a part: lines, samples that are too small, and silence."""

from __future__ import annotations

import pytest

from mailpipe.waves.gate import Part, Told, judge, lower_bound
from mailpipe.waves.spec import Gates


def part(number: int = 1, left: int = 0, **providers: Told) -> Part:
    return Part(number, left, providers)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (Told(10_000, 10_000, hard_bounces=199), "pass"),
        (Told(10_000, 10_000, hard_bounces=200), "bad"),
        (Told(10_000, 10_000, complaints=7), "pass"),
        (Told(10_000, 10_000, complaints=8), "bad"),
        (Told(10_000, 10_000, delayed=499), "pass"),
        (Told(10_000, 10_000, delayed=500), "bad"),
        (Told(10_000, 4_999), "silent"),
        (Told(0, 0), "pass"),
        # Too few for a rate: what can be chance is no verdict, what cannot is one.
        (Told(50, 50, hard_bounces=2), "pass"),
        (Told(50, 50, hard_bounces=10), "bad"),
        (Told(50, 50, complaints=1), "pass"),
        (Told(50, 50, complaints=3), "bad"),
    ],
)
def test_a_line_is_held_at_a_sample_that_means_something(told: Told, verdict: str) -> None:
    assert judge(part(gmail=told), [], Gates()).verdict == verdict


def test_delays_are_counted_at_each_provider() -> None:
    good, slow = Told(10_000, 10_000), Told(300, 300, delayed=20)
    told = judge(part(gmail=good, yahoo=slow), [], Gates())
    assert told.verdict == "bad"
    assert told.text == "delays at yahoo: 20 of 300 are 6.67%, the line is 5.00%"


def test_a_small_day_counts_together_with_the_good_days_before_it() -> None:
    day = part(3, gmail=Told(200, 200, hard_bounces=5))
    assert judge(day, [part(2, gmail=Told(400, 400, hard_bounces=0))], Gates()).verdict == "pass"
    assert judge(day, [part(2, gmail=Told(400, 400, hard_bounces=7))], Gates()).verdict == "bad"
    enough = part(3, gmail=Told(600, 600, hard_bounces=5))
    assert judge(enough, [part(2, gmail=Told(400, 400, hard_bounces=99))], Gates()).verdict == "pass"


def test_a_part_that_is_not_mailed_yet_is_not_judged() -> None:
    told = judge(part(left=7, gmail=Told(100, 100)), [], Gates())
    assert (told.verdict, told.text) == ("unfinished", "7 people of it are not mailed yet")


def test_the_bound_is_wilson_s() -> None:
    assert lower_bound(0, 0) == lower_bound(0, 100) == 0.0
    assert lower_bound(10, 100) == pytest.approx(0.0605, abs=1e-3)
    assert lower_bound(1_000, 10_000) == pytest.approx(0.0952, abs=1e-3)
