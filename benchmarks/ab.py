"""What the rule of experiments is worth: `python -m benchmarks.ab [--quick]`.

The rule that decides real experiments decides these: how often somebody wins although nothing differs (in the worst of
several sizes and rates), and how often a true difference is seen. With two arms that is counted, not drawn: all results
that can happen, each with its probability. Three arms, an audience of people who differ much among themselves and is split
by the hashes that split real ones, and a look every hour are simulated."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mailpipe.experiment import buckets, power, rule
from mailpipe.experiment.rule import Arm

SEED = 20261130
RATE, LIFT = 0.02, 0.1
EQUAL = ((2_500, 0.02), (5_000, 0.2), (10_000, 0.01), (10_000, 0.02), (81_000, 0.02), (200_000, 0.01))
"""People of an arm, and the rate of both."""
THREE = ((10_000, (0.02, 0.02, 0.02)), (10_000, (0.01, 0.02, 0.02)))
"""Of three arms two may be equally good, and the third worse."""
PEOPLE = 20_000
"""Of the audience that is split by hashes."""
_REACH = 7.0
"""Standard deviations around the expected successes within which all results are counted: beyond are less than one in 10^11."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ab", description="False winners and power.")
    parser.add_argument("--quick", action="store_true", help="a tenth of what is simulated")
    chosen = parser.parse_args()
    quick = chosen.quick
    rng = np.random.default_rng(SEED)
    begun = time.perf_counter()
    result: dict[str, Any] = {"rule": rule.RULE, "chance": rule.CHANCE, "seed": SEED}
    rates = {}
    for people, rate in EQUAL:
        say(f"two equal arms of {people:,} people at {rate:.1%}")
        rates[f"{people} x {rate:g}"] = round(sum(exact(people, (rate, rate))), 5)
    result |= {"false_winner_rate": max(rates.values()), "false_winner_rates": rates}
    needed = power.per_arm(RATE, LIFT)
    say(f"a true difference: {needed:,} people an arm, {RATE:.1%} and {LIFT:+.0%}")
    wrong, right = exact(needed, (RATE, RATE * (1 + LIFT)))
    result |= {"power": round(right, 4), "wrong_winner_rate": round(wrong, 6)}
    result |= {"power_rate": RATE, "power_lift": LIFT, "power_per_arm": needed}
    wide = power.per_arm(RATE, 0.2, arms=3)
    experiments = 1_000 if quick else 20_000
    for people, truth in (*THREE, (wide, (RATE, RATE, RATE * 1.2))):
        say(f"three arms of {people:,} people at {', '.join(f'{rate:.1%}' for rate in truth)}")
        name = "power_three_arms" if people == wide else f"false_winner_rate {people} x {'/'.join(map(str, truth))}"
        result[name] = round(simulated(rng, people, truth, experiments), 4)
    result |= {"power_three_arms_lift": 0.2, "power_three_arms_per_arm": wide, "experiments_three_arms": experiments}
    say("people who differ much among themselves, split by hashes")
    splits = 200 if quick else 2_000
    result |= {"false_winner_rate_hashed": round(hashed(rng, splits), 4), "experiments_hashed": splits}
    say("a look every hour")
    looks = 100 if quick else 2_000
    result |= {"false_winner_rate_hourly_looks": round(peeking(rng, looks), 4), "experiments_hourly_looks": looks}
    result["seconds"] = round(time.perf_counter() - begun, 1)
    print(json.dumps(result))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@cache
def winner(people: int, successes: tuple[int, ...]) -> int | None:
    """The arm that wins; None: nobody does."""
    verdict = rule.decide([Arm(str(number), people, people, won) for number, won in enumerate(successes)])
    return int(verdict.winner) if verdict.outcome == "winner" else None


def exact(people: int, truth: tuple[float, float]) -> tuple[float, float]:
    """The probabilities that the first arm wins, and that the second does: of all results that can happen."""
    spans = []
    for rate in truth:
        middle, far = people * rate, _REACH * math.sqrt(people * rate * (1 - rate))
        spans.append((max(0, math.floor(middle - far)), min(people, math.ceil(middle + far))))
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    first, second = (_chances(people, rate, low, high) for rate in truth)
    above = np.append(second[::-1].cumsum()[::-1], 0.0)
    other = np.append(first[::-1].cumsum()[::-1], 0.0)
    firsts = seconds = 0.0
    enough = low
    for successes in range(low, high + 1):
        # Whoever wins with so many successes wins with more, and which of the two equal sizes it is makes no difference.
        enough = _enough(people, successes, high, enough + 1)
        seconds += first[successes - low] * above[enough - low]
        firsts += second[successes - low] * other[enough - low]
    return firsts, seconds


def _enough(people: int, successes: int, high: int, near: int) -> int:
    """The fewest successes that win against these, looked for from a number `near` it; high + 1: as many as that do not."""
    found = max(near, successes + 1)
    while found <= high and winner(people, (successes, found)) != 1:
        found += 1
    while found > successes + 1 and winner(people, (successes, found - 1)) == 1:
        found -= 1
    return min(found, high + 1)


def _chances(people: int, rate: float, low: int, high: int) -> NDArray[np.float64]:
    """Of each number of successes: the binomial distribution."""
    return np.array(
        [
            math.exp(
                math.lgamma(people + 1)
                - math.lgamma(won + 1)
                - math.lgamma(people - won + 1)
                + won * math.log(rate)
                + (people - won) * math.log1p(-rate)
            )
            for won in range(low, high + 1)
        ]
    )


def simulated(rng: np.random.Generator, people: int, truth: Sequence[float], experiments: int) -> float:
    """The share of experiments in which the arm with the highest rate wins; of several such arms any of them."""
    drawn = np.stack([rng.binomial(people, rate, experiments) for rate in truth], axis=1)
    best = {arm for arm, rate in enumerate(truth) if rate == max(truth)}
    return sum(winner(people, tuple(row)) in best for row in drawn.tolist()) / experiments


def hashed(rng: np.random.Generator, experiments: int) -> float:
    """The same with one audience in which old customers (low ids) click ten times as often as new ones: what each would do
    is fixed, only the salt differs. An assignment that follows the ids would find winners all the time."""
    clicks = rng.random(PEOPLE) < np.linspace(0.11, 0.011, PEOPLE)
    ends = buckets.ends(PEOPLE, [0.25, 0.25])
    won = 0
    for number in range(experiments):
        salt = buckets.split_salt(f"benchmark-{number}", None)
        order = np.argsort(np.array([buckets.position(salt, str(person)) for person in range(PEOPLE)]))
        successes = [int(clicks[order[: ends[0]]].sum()), int(clicks[order[ends[0] : ends[1]]].sum())]
        won += winner(ends[0], tuple(sorted(successes))) is not None
    return won / experiments


def peeking(rng: np.random.Generator, experiments: int, people: int = 20_000, hours: int = 24) -> float:
    """The share of experiments without a difference in which some hourly look finds a winner: why there is one decision time."""
    first = rng.binomial(people, 0.03 / hours, (experiments, hours, 2)).cumsum(axis=1)
    return float(
        np.mean([any(winner(people, tuple(sorted(look))) is not None for look in one) for one in first.tolist()])
    )


if __name__ == "__main__":
    main()
