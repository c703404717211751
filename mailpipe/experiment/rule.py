"""When a variant has won: the rule by which an experiment is decided, once, from the numbers of its arms. Pure.

Nothing is a legal result: unless a variant is shown to be better, the control goes to the rest. How often the rule is
wrong, and how often it sees a true difference, is measured by `python -m benchmarks.ab`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import erfc, exp, gamma, sqrt
from typing import Any, Literal

from mailpipe.experiment import posterior

RULE = 1
"""The version of this rule. Another rule is another number: what was decided by the old one can be told apart."""
CHANCE = 0.976
"""To win, an arm is the best with at least this chance. Of two equal arms either may be ahead, so 0.975 lets one of them
win in 5 % of all experiments (the usual 0.95 in 10 %); a little more, because counts are whole numbers. A third arm adds
nothing to it: to win is to be ahead of all, so the worst case are two equal ones in front."""
LEAST_DELIVERED = 500
"""Of each arm."""
LEAST_SUCCESSES = 50
"""Of all arms together."""
GUARD_RATIO, GUARD_RATE = 2.0, 0.0005
"""An arm whose complaint rate is so many times that of the others together, and at least this high, cannot win."""
RATIO_ALARM = 0.001
"""Below this probability the sizes of the arms are no accident, and their rates say nothing."""

Outcome = Literal["winner", "inconclusive", "manual"]


@dataclass(frozen=True)
class Arm:
    """What was counted of one variant: people who were given to it, who got the mail, who did what is wanted, who complained."""

    variant: str
    assigned: int
    delivered: int
    successes: int
    complaints: int = 0

    @property
    def rate(self) -> float:
        return self.successes / self.delivered if self.delivered else 0.0

    @property
    def complaint_rate(self) -> float:
        return self.complaints / self.delivered if self.delivered else 0.0


@dataclass(frozen=True)
class Verdict:
    """What the rule says. `chances` and `losses` are of each arm, see `posterior`; `ratio_p` is the probability of arms as
    unequal as these by accident; `barred` are the variants that the guard-rail keeps from winning."""

    outcome: Outcome
    winner: str
    reason: str
    chances: tuple[float, ...]
    losses: tuple[float, ...]
    ratio_p: float
    barred: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decide(arms: Sequence[Arm]) -> Verdict:
    """Decide between at least two arms; the first is the control. The same numbers always give the same answer."""
    control = arms[0].variant
    belief = posterior.believe([arm.delivered for arm in arms], [arm.successes for arm in arms])
    ratio_p = sample_ratio(arms)
    barred = tuple(arm.variant for arm in arms if _is_barred(arm, arms))
    # Of arms with the same numbers the first one leads: the control, if it is among them.
    chances = tuple(round(chance, 9) for chance in belief.best)
    leader = arms[chances.index(max(chances))]

    def end(outcome: Outcome, winner: str, reason: str) -> Verdict:
        losses = tuple(round(loss, 9) for loss in belief.loss)
        return Verdict(outcome, winner, reason, chances, losses, ratio_p, barred)

    if ratio_p < RATIO_ALARM:
        return end(
            "inconclusive",
            control,
            f"the arms did not reach the shares of people that they were given (p = {ratio_p:.1g}): something treats them"
            " differently, and their rates cannot be compared",
        )
    if small := [arm for arm in arms if arm.delivered < LEAST_DELIVERED]:
        return end(
            "inconclusive",
            control,
            f"variant {small[0].variant} was delivered to {small[0].delivered} people; it takes {LEAST_DELIVERED}",
        )
    successes = sum(arm.successes for arm in arms)
    if successes < LEAST_SUCCESSES:
        return end("inconclusive", control, f"{successes} successes in all arms together; it takes {LEAST_SUCCESSES}")
    if max(chances) < CHANCE:
        return end(
            "inconclusive",
            control,
            f"{leader.variant} leads and is the best with {max(chances):.1%}; it takes {CHANCE:.1%}",
        )
    if leader.variant in barred:
        return end(
            "inconclusive",
            control,
            f"{leader.variant} leads, but its complaint rate of {leader.complaint_rate:.3%} is at least"
            f" {GUARD_RATIO:g} times that of the others",
        )
    return end("winner", leader.variant, f"{leader.variant} is the best with {max(chances):.1%}")


def sample_ratio(arms: Sequence[Arm]) -> float:
    """How likely arms that treat their people alike reach them as unequally as these: chi-square of the delivered against the
    assigned. 1.0 while nothing is delivered."""
    delivered, assigned = sum(arm.delivered for arm in arms), sum(arm.assigned for arm in arms)
    if not delivered or not all(arm.assigned for arm in arms):
        return 1.0
    reached = delivered / assigned
    if reached >= 1:
        return 1.0
    # Who was assigned is known, so each arm is a draw of its people: beside those reached, those not reached count too.
    statistic = sum(
        (arm.delivered - arm.assigned * reached) ** 2 / (arm.assigned * reached * (1 - reached)) for arm in arms
    )
    return chi_square_above(statistic, len(arms) - 1)


def chi_square_above(statistic: float, freedom: int) -> float:
    """The probability of a chi-square value above this one, for whole degrees of freedom (Abramowitz and Stegun 26.4.4-5)."""
    half = statistic / 2
    if freedom % 2:
        found, degree = erfc(sqrt(half)), 1
    else:
        found, degree = exp(-half), 2
    while degree < freedom:
        found += half ** (degree / 2) * exp(-half) / gamma(degree / 2 + 1)
        degree += 2
    return min(1.0, found)


def _is_barred(arm: Arm, arms: Sequence[Arm]) -> bool:
    delivered = sum(other.delivered for other in arms if other is not arm)
    complaints = sum(other.complaints for other in arms if other is not arm)
    others = complaints / delivered if delivered else 0.0
    return arm.complaint_rate >= GUARD_RATE and arm.complaint_rate >= GUARD_RATIO * others
