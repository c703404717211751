"""Experiments, decided from numbers alone: who wins, when nobody does, and how many people it takes."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ab
from mailpipe.experiment import buckets, posterior, power, rule
from mailpipe.experiment.rule import Arm, Verdict


def arm(name: str, successes: int, people: int = 10_000, complaints: int = 0, assigned: int | None = None) -> Arm:
    return Arm(name, people if assigned is None else assigned, people, successes, complaints)


def decided(*arms: Arm) -> Verdict:
    return rule.decide(arms)


@pytest.mark.parametrize(
    ("rate", "lift", "thousands"),
    [
        (0.01, 0.1, 163),
        (0.01, 0.2, 43),
        (0.02, 0.1, 81),
        (0.02, 0.2, 21),
        (0.02, 0.3, 9.8),
        (0.03, 0.1, 53),
        (0.2, 0.1, 6.5),
    ],
)
def test_sizes_are_those_of_the_textbook(rate: float, lift: float, thousands: float) -> None:
    assert power.per_arm(rate, lift) / 1000 == pytest.approx(thousands, rel=0.01)


@given(rate=st.floats(0.001, 0.4), people=st.integers(100, 1_000_000))
def test_the_smallest_lift_is_just_seen(rate: float, people: int) -> None:
    lift = power.smallest_lift(rate, people)
    if lift is not None:
        assert power.per_arm(rate, lift) <= people < power.per_arm(rate, lift * 0.98)


def test_more_arms_need_more_people() -> None:
    assert power.per_arm(0.02, 0.1) < power.per_arm(0.02, 0.1, arms=3) < power.per_arm(0.02, 0.1, arms=5)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"rate": 0.0}, "rate"), ({"lift": 0.0}, "lift"), ({"power": 1.0}, "power"), ({"arms": 1}, "arms")],
)
def test_a_number_that_makes_no_size_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        power.per_arm(**{"rate": 0.02, "lift": 0.1, **wrong})


def _closed_form(people: tuple[int, int], won: tuple[int, int]) -> float:
    """The chance that the second of two Beta posteriors is the higher one, as a finite sum."""

    def log_beta(x: int, y: int) -> float:
        return lgamma(x) + lgamma(y) - lgamma(x + y)

    a, b = 1 + won[0], 1 + people[0] - won[0]
    c, d = 1 + won[1], 1 + people[1] - won[1]
    return sum(exp(log_beta(a + i, b + d) - log(d + i) - log_beta(1 + i, d) - log_beta(a, b)) for i in range(c))


@given(people=st.tuples(st.integers(500, 50_000), st.integers(500, 50_000)), rates=st.tuples(*[st.floats(0, 0.05)] * 2))
def test_the_chance_to_be_the_best_is_that_of_the_closed_form(
    people: tuple[int, int], rates: tuple[float, float]
) -> None:
    won = (int(people[0] * rates[0]), int(people[1] * rates[1]))
    found = posterior.believe(people, won)
    assert found.best[1] == pytest.approx(_closed_form(people, won), abs=1e-4)
    assert sum(found.best) == pytest.approx(1)
    assert all(0 <= loss <= 1 for loss in found.loss)


def test_a_clearly_better_variant_wins() -> None:
    verdict = decided(arm("a", 200), arm("b", 260))
    assert (verdict.outcome, verdict.winner) == ("winner", "b")
    assert verdict.losses[1] < 0.001 < verdict.losses[0]


def test_a_clearly_better_control_wins_too() -> None:
    verdict = decided(arm("a", 260), arm("b", 200))
    assert (verdict.outcome, verdict.winner) == ("winner", "a")


def test_what_is_not_shown_to_be_better_leaves_the_rest_to_the_control() -> None:
    verdict = decided(arm("a", 200), arm("b", 215))
    assert (verdict.outcome, verdict.winner) == ("inconclusive", "a")
    assert "b leads" in verdict.reason


def test_of_equals_the_first_leads_whatever_their_order() -> None:
    assert "a leads" in decided(arm("a", 200), arm("b", 200), arm("c", 100)).reason
    assert "b leads" in decided(arm("a", 100), arm("b", 200), arm("c", 200)).reason


def test_of_three_the_one_ahead_of_both_wins() -> None:
    verdict = decided(arm("a", 200), arm("b", 210), arm("c", 280))
    assert (verdict.outcome, verdict.winner) == ("winner", "c")
    assert decided(arm("a", 100), arm("b", 280), arm("c", 285)).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ((arm("a", 10, 499), arm("b", 100, 499)), "takes 500"),
        ((arm("a", 5), arm("b", 44)), "takes 50"),
    ],
)
def test_few_people_or_few_successes_show_nothing(arms: tuple[Arm, ...], words: str) -> None:
    verdict = decided(*arms)
    assert (verdict.outcome, verdict.winner) == ("inconclusive", "a")
    assert words in verdict.reason


def test_who_makes_twice_as_many_complain_cannot_win() -> None:
    verdict = decided(arm("a", 200, complaints=4), arm("b", 300, complaints=8))
    assert (verdict.outcome, verdict.winner, verdict.barred) == ("inconclusive", "a", ("b",))
    assert "complaint" in verdict.reason


@pytest.mark.parametrize("complaints", [(4, 7), (1, 4), (0, 4)])
def test_fewer_complaints_than_that_bar_nobody(complaints: tuple[int, int]) -> None:
    verdict = decided(arm("a", 200, complaints=complaints[0]), arm("b", 300, complaints=complaints[1]))
    assert (verdict.winner, verdict.barred) == ("b", ())


@given(st.lists(st.integers(0, 60), min_size=2, max_size=6))
def test_somebody_may_always_win(complaints: list[int]) -> None:
    verdict = rule.decide([arm(str(number), 100, complaints=count) for number, count in enumerate(complaints)])
    assert len(verdict.barred) < len(complaints)


@given(
    st.lists(
        st.tuples(st.integers(0, 200_000), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.01)), min_size=2, max_size=5
    )
)
def test_whatever_is_counted_there_is_an_answer(counted: list[tuple[int, float, float, float]]) -> None:
    arms = []
    for number, (people, reached, successes, complaints) in enumerate(counted):
        delivered = int(people * reached)
        arms.append(Arm(str(number), people, delivered, int(delivered * successes), int(delivered * complaints)))
    verdict = rule.decide(arms)
    assert sum(verdict.chances) == pytest.approx(1, abs=1e-6)
    assert 0 <= verdict.ratio_p <= 1
    assert verdict.outcome == "winner" or verdict.winner == "0"
    assert rule.decide(arms) == verdict


def test_arms_that_lost_their_people_unequally_are_not_compared() -> None:
    verdict = decided(arm("a", 200, 9_990, assigned=10_000), arm("b", 300, 9_800, assigned=10_000))
    assert (verdict.outcome, verdict.winner) == ("inconclusive", "a")
    assert verdict.ratio_p < 0.001
    assert decided(arm("a", 200, 9_990, assigned=10_000), arm("b", 300, 9_985, assigned=10_000)).ratio_p > 0.3


@pytest.mark.parametrize(
    ("statistic", "freedom", "above"),
    [(3.841, 1, 0.05), (10.828, 1, 0.001), (5.991, 2, 0.05), (7.815, 3, 0.05), (18.467, 4, 0.001), (15.086, 5, 0.01)],
)
def test_chi_square_is_that_of_the_tables(statistic: float, freedom: int, above: float) -> None:
    assert rule.chi_square_above(statistic, freedom) == pytest.approx(above, rel=0.001)


def test_without_a_difference_somebody_wins_in_less_than_one_of_twenty() -> None:
    assert 0.03 < sum(ab.exact(10_000, (0.02, 0.02))) <= 0.05


def test_a_difference_of_the_planned_size_is_seen_as_often_as_planned() -> None:
    wrong, right = ab.exact(power.per_arm(0.02, 0.3), (0.02, 0.026))
    assert right == pytest.approx(power.POWER, abs=0.02)
    assert wrong < 0.001


@given(people=st.integers(0, 10_000), shares=st.lists(st.floats(0, 0.3), min_size=1, max_size=3))
def test_shares_are_exact_to_one_person(people: int, shares: list[float]) -> None:
    ends = [0, *buckets.ends(people, shares)]
    assert ends == sorted(ends)
    assert ends[-1] <= people
    assert all(
        abs(end - start - people * share) <= 1 for start, end, share in zip(ends, ends[1:], shares, strict=False)
    )


def test_positions_are_even_and_those_of_two_salts_have_nothing_in_common() -> None:
    bounds = buckets.bounds([0.1, 0.1])
    arms = {
        salt: [sum(buckets.position(salt, str(person)) >= bound for bound in bounds) for person in range(20_000)]
        for salt in ("one", "two")
    }
    for found in arms.values():
        assert abs(found.count(0) - 2000) < 4 * 42
        assert abs(found.count(1) - 2000) < 4 * 42
    both = sum(one == two == 0 for one, two in zip(arms["one"], arms["two"], strict=True))
    assert abs(both - 200) < 4 * 14


def test_all_people_fit_into_shares_of_a_whole() -> None:
    assert buckets.bounds([0.5, 0.5]) == [buckets.POSITIONS // 2, buckets.POSITIONS]
