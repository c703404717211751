"""How many people an experiment takes, asked before it is launched. Pure; rates are shares of people, lifts are relative."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist

ALPHA = 0.05
"""How often an arm wins although all are the same, at the most: two-sided, and divided among the arms that a winner has to
beat."""
POWER = 0.8
"""How often a difference of the wanted size is to be seen."""
_MOST = 100.0
"""Lifts beyond it are no lifts."""


def per_arm(rate: float, lift: float, *, power: float = POWER, arms: int = 2) -> int:
    """People that each arm needs, so that a variant whose rate is `rate * (1 + lift)` wins over a control at `rate` in
    `power` of all experiments (two proportions, normal approximation).

    Raises:
        ValueError: a number is out of range; the text names it.
    """
    _check(rate, power, arms)
    better = rate * (1 + lift)
    if not 0 < better < 1 or lift == 0:
        raise ValueError(
            f"lift: {lift:g} makes {better:.4g} of a rate of {rate:g}; expected another rate between 0 and 1"
        )
    mean = (rate + better) / 2
    normal = NormalDist()
    sure, seen = normal.inv_cdf(1 - ALPHA / 2 / (arms - 1)), normal.inv_cdf(power)
    spread = sure * sqrt(2 * mean * (1 - mean)) + seen * sqrt(rate * (1 - rate) + better * (1 - better))
    return ceil((spread / (better - rate)) ** 2)


def smallest_lift(rate: float, people: int, *, power: float = POWER, arms: int = 2) -> float | None:
    """The smallest lift over `rate` that arms of so many people can show; None: no lift at all.

    Raises:
        ValueError: a number is out of range; the text names it.
    """
    _check(rate, power, arms)
    low, high = 0.0, min(_MOST, (1 - rate) / rate * 0.999)
    if people < 1 or per_arm(rate, high, power=power, arms=arms) > people:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        if middle > 0 and per_arm(rate, middle, power=power, arms=arms) <= people:
            high = middle
        else:
            low = middle
    return high


def _check(rate: float, power: float, arms: int) -> None:
    if not 0 < rate < 1:
        raise ValueError("rate: expected a share of people between 0 and 1, for example 0.02")
    if not 0.5 <= power < 1:
        raise ValueError("power: expected a share of experiments from 0.5 to below 1, for example 0.8")
    if arms < 2:
        raise ValueError("arms: expected at least 2")
