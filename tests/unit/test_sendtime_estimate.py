"""What is said about an uplift: the right difference, an interval that keeps its word, and silence where there is too little."""

from __future__ import annotations

import numpy as np
import pytest

from mailpipe.sendtime.estimate import Cell, control, exploration

HOURS = range(8, 21)


def groups(own: tuple[int, int], fixed: tuple[int, int], campaign: str = "c") -> list[Cell]:
    return [Cell(campaign, "optimised", -1, -1, 1, *own), Cell(campaign, "control", -1, -1, 1, *fixed)]


def explored(rng: np.random.Generator, people: int, near: float, far: float, best: int = 18) -> list[Cell]:
    """People whose hour was drawn evenly: they engage with chance `near` about their best hour, and with `far` else."""
    cells = []
    for hour, number in zip(HOURS, rng.multinomial(people, [1 / len(HOURS)] * len(HOURS)), strict=True):
        chance = near if abs(hour - best) <= 1 else far
        cells.append(Cell("c", "explore", hour, best, 1 / len(HOURS), int(number), int(rng.binomial(number, chance))))
    return cells


def test_the_difference_of_two_groups_has_the_interval_of_two_proportions() -> None:
    found = control(groups((8_500, 340), (1_000, 30)))
    assert found.difference == pytest.approx(0.01)
    half = 1.96 * (0.04 * 0.96 / 8_500 + 0.03 * 0.97 / 1_000) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.01 - half, 0.01 + half), rel=1e-3)
    assert found.enough and found.text.startswith("no difference to be seen")


def test_better_and_worse_are_said_when_the_interval_says_so() -> None:
    assert control(groups((85_000, 3_400), (10_000, 300))).text.startswith("better: +1.000% points")
    assert control(groups((85_000, 1_700), (10_000, 300))).text.startswith("worse")


@pytest.mark.parametrize(
    "cells", [[], groups((85, 3), (10, 0)), groups((8_500, 200), (1_000, 20)), groups((0, 0), (5, 5))]
)
def test_too_little_is_called_too_little(cells: list[Cell]) -> None:
    found = control(cells)
    assert not found.enough and found.text.startswith("not enough data")


def test_it_says_how_many_people_it_would_take() -> None:
    assert "about 80,6" in control(groups((850, 17), (100, 2))).text


def test_campaigns_are_pooled_and_a_campaign_with_other_rates_brings_no_difference_of_its_own() -> None:
    """A lively campaign with few in control beside a dull one with many: added up, control would look dull."""
    lively = groups((9_000, 900), (1_000, 100), "lively")
    dull = groups((1_000, 10), (9_000, 90), "dull")
    found = control([*lively, *dull])
    assert found.difference == pytest.approx(0, abs=1e-12) and found.people == 10_000
    alone = control(groups((9_000, 990), (1_000, 100), "a"))
    twice = control([*groups((9_000, 990), (1_000, 100), "a"), *groups((9_000, 990), (1_000, 100), "b")])
    assert alone.difference == pytest.approx(twice.difference)
    assert alone.low is not None and twice.low is not None and alone.low < twice.low


def test_exploration_compares_random_hours_near_the_best_with_those_near_the_fixed_one() -> None:
    found = exploration(explored(np.random.default_rng(1), 200_000, 0.06, 0.03))
    assert found.difference == pytest.approx(0.03, abs=0.004)
    assert found.low is not None and found.low > 0.02


def test_people_whose_best_hour_is_the_fixed_one_are_on_both_sides_and_tell_nothing() -> None:
    found = exploration(explored(np.random.default_rng(1), 50_000, 0.06, 0.03, best=10))
    assert found.difference == pytest.approx(0, abs=1e-12) == found.low


def test_an_unlikely_hour_weighs_more() -> None:
    """Half of the people had two hours to draw from, the others four; in all four, the latter engage less."""
    cells = [
        *(Cell("c", "explore", hour, 18, 1 / 2, 1_000, 100) for hour in (10, 18)),
        *(Cell("c", "explore", hour, 18, 1 / 4, 500, 25) for hour in (10, 14, 18, 6)),
    ]
    assert exploration(cells).rate == pytest.approx((100 * 2 + 25 * 4) / (1_000 * 2 + 500 * 4))


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        found = exploration(explored(rng, 20_000, 0.05, 0.03))
        assert found.low is not None and found.high is not None
        held += found.low <= 0.02 <= found.high
    assert 0.91 <= held / 400 <= 0.985
