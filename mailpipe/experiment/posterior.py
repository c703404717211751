"""What is known of rates after so many people and successes: the chance to be the best, and what a choice may cost. Pure.

Each rate is believed to follow Beta(1 + successes, 1 + failures). The integrals are sums over a fixed grid: the same counts
give the same answer on every machine, and no random numbers are drawn. With two arms it agrees with the closed form to 0.0001.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

_POINTS = 4001
_REACH = 9.0
"""Standard deviations on both sides of a mean that are looked at."""


class Belief(NamedTuple):
    """Of each arm: the chance that its rate is the highest, and by how much, on average, the highest rate is above its own, as a
    share of that highest rate."""

    best: tuple[float, ...]
    loss: tuple[float, ...]


def believe(people: Sequence[int], successes: Sequence[int]) -> Belief:
    """Compare arms of so many people and successes; the order of the arms is kept."""
    np = _numpy()
    alphas = [1.0 + won for won in successes]
    betas = [1.0 + size - won for size, won in zip(people, successes, strict=True)]
    means = [a / (a + b) for a, b in zip(alphas, betas, strict=True)]
    reach = [_REACH * sqrt(a * b / ((a + b) ** 2 * (a + b + 1))) for a, b in zip(alphas, betas, strict=True)]
    low = max(0.0, min(mean - far for mean, far in zip(means, reach, strict=True)))
    high = min(1.0, max(mean + far for mean, far in zip(means, reach, strict=True)))
    grid = np.linspace(low, high, _POINTS)
    step = grid[1] - grid[0]
    densities = [_density(grid, a, b) for a, b in zip(alphas, betas, strict=True)]
    below = [_cumulated(density, step) for density in densities]
    best = []
    for number, density in enumerate(densities):
        others = np.ones(_POINTS)
        for other, cumulated in enumerate(below):
            if other != number:
                others = others * cumulated
        best.append(float(_area(density * others, step) / _area(density, step)))
    every = np.ones(_POINTS)
    for cumulated in below:
        every = every * cumulated
    highest = float(low + _area(1 - every, step))
    return Belief(
        tuple(chance / sum(best) for chance in best),
        tuple(max(0.0, (highest - mean) / highest) if highest else 0.0 for mean in means),
    )


def _density(grid: NDArray[float64], alpha: float, beta: float) -> NDArray[float64]:
    np = _numpy()
    with np.errstate(divide="ignore"):
        # 0 * log(0) is 0 here.
        left = (alpha - 1) * np.log(grid) if alpha > 1 else np.zeros(_POINTS)
        right = (beta - 1) * np.log1p(-grid) if beta > 1 else np.zeros(_POINTS)
    scale = lgamma(alpha + beta) - lgamma(alpha) - lgamma(beta)
    made: NDArray[float64] = np.exp(left + right + scale)
    return made


def _cumulated(density: NDArray[float64], step: Any) -> NDArray[float64]:
    np = _numpy()
    summed = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2))) * step
    made: NDArray[float64] = summed / summed[-1]
    return made


def _area(values: NDArray[float64], step: Any) -> Any:
    return (values.sum() - (values[0] + values[-1]) / 2) * step


def _numpy() -> Any:
    """Loaded when somebody decides: every command of a campaign would wait a tenth of a second for it."""
    import numpy  # noqa: PLC0415

    return numpy
