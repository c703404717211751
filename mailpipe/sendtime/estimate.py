"""How much better hours of their own are, with an interval: groups compared, and random hours weighed by their chance. Pure.

Two questions, asked of two experiments that run in every optimised campaign:

- control: people at their own hour against people at the fixed hour, whom a hash told apart;
- exploration: of the people at random hours, those who by chance got about their best one against those who by chance got
  about the fixed one. Each weighs one by the chance of their hour (self-normalised inverse propensity).

Groups are drawn anew for each campaign, so campaigns are independent, and several are pooled by how much each of them tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

from mailpipe.engagement.rule import HOURS
from mailpipe.experiment.power import per_arm
from mailpipe.sendtime.spec import BASE_HOUR

NEAR = 1
"""Hours by which a random hour may be off and still be about the wanted one."""
ENOUGH = 25
"""People who engaged, in each of two groups that are compared: with fewer, the interval would not be one."""
LIFT = 0.10
_SURE = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Cell:
    """People of a campaign who share group and, if they explored, hours; and those of them who engaged."""

    campaign: str
    label: str
    hour: int
    best_hour: int
    propensity: float
    people: int
    engaged: int


@dataclass(frozen=True)
class Comparison:
    """Two rates and their difference, as shares of people. `low` and `high`: of 95 %; `enough`: whether they are to be believed;
    `needed`: people in each group to see a difference of a tenth of the rate, None without any."""

    of: str
    people: int
    engaged: int
    rate: float | None
    other_people: int
    other_engaged: int
    other_rate: float | None
    difference: float | None
    low: float | None
    high: float | None
    enough: bool
    needed: int | None

    @property
    def text(self) -> str:
        """The result in a sentence that claims no more than the numbers."""
        if not self.enough or self.difference is None or self.low is None or self.high is None or not self.other_rate:
            hint = f"; it takes about {self.needed:,} people in each group to see a tenth more" if self.needed else ""
            return f"not enough data{hint}"
        span = f"{self.difference:+.3%} points ({self.low:+.3%} to {self.high:+.3%}), {self.difference / self.other_rate:+.1%}"
        if self.low <= 0 <= self.high:
            return f"no difference to be seen: {span}"
        return f"{'better' if self.low > 0 else 'worse'}: {span}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text}


@dataclass(frozen=True)
class _Weighed:
    """Of one campaign: difference of two weighted rates, its variance, and what they rest on."""

    rate: float
    other: float
    variance: float
    tells: float


def control(cells: Iterable[Cell]) -> Comparison:
    """Their own hour against the fixed hour."""
    return _compare(
        "own hour against the fixed hour",
        [(cell, float(cell.label == "optimised"), float(cell.label == "control")) for cell in cells],
    )


def exploration(cells: Iterable[Cell], *, fixed: int = BASE_HOUR) -> Comparison:
    """About the best hour against about the fixed one, both by chance."""
    explored = [cell for cell in cells if cell.label == "explore" and cell.hour >= 0]
    return _compare(
        "random hours: about the best one against about the fixed one",
        [
            (cell, _near(cell.hour, cell.best_hour) / cell.propensity, _near(cell.hour, fixed) / cell.propensity)
            for cell in explored
        ],
    )


def _near(hour: int, wanted: int) -> float:
    away = abs(hour - wanted)
    return float(min(away, HOURS - away) <= NEAR)


def _compare(of: str, weighed: Sequence[tuple[Cell, float, float]]) -> Comparison:
    people, engaged = _sums(weighed, 1)
    other_people, other_engaged = _sums(weighed, 2)
    found = [
        one
        for campaign in sorted({cell.campaign for cell, _, _ in weighed})
        if (one := _weigh([item for item in weighed if item[0].campaign == campaign])) is not None
    ]
    total = sum(one.tells for one in found)
    if not total:
        return Comparison(
            of, people, engaged, None, other_people, other_engaged, None, None, None, None, enough=False, needed=None
        )
    rate = sum(one.rate * one.tells for one in found) / total
    other = sum(one.other * one.tells for one in found) / total
    half = _SURE * sqrt(sum(one.variance * one.tells**2 for one in found)) / total
    enough = engaged >= ENOUGH and other_engaged >= ENOUGH
    return Comparison(
        of,
        people,
        engaged,
        rate,
        other_people,
        other_engaged,
        other,
        rate - other,
        rate - other - half,
        rate - other + half,
        enough=enough,
        needed=per_arm(other, LIFT) if 0 < other < 1 / (1 + LIFT) else None,
    )


def _sums(weighed: Sequence[tuple[Cell, float, float]], place: int) -> tuple[int, int]:
    chosen = [cell for cell, *weights in weighed if weights[place - 1] > 0]
    return sum(cell.people for cell in chosen), sum(cell.engaged for cell in chosen)


def _weigh(weighed: Sequence[tuple[Cell, float, float]]) -> _Weighed | None:
    """Each person adds to both rates as much as their weights, so the variance is that of what each adds: some are in both."""
    total = sum(weight * cell.people for cell, weight, _ in weighed)
    other_total = sum(weight * cell.people for cell, _, weight in weighed)
    if not total or not other_total:
        return None
    rate = sum(weight * cell.engaged for cell, weight, _ in weighed) / total
    other = sum(weight * cell.engaged for cell, _, weight in weighed) / other_total
    variance = 0.0
    for cell, weight, other_weight in weighed:
        for engaged, number in ((1.0, cell.engaged), (0.0, cell.people - cell.engaged)):
            added = weight / total * (engaged - rate) - other_weight / other_total * (engaged - other)
            variance += number * added**2
    people, other_people = (_sums(weighed, place)[0] for place in (1, 2))
    return _Weighed(rate, other, variance, people * other_people / (people + other_people))
