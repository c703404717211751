"""A world in which the truth is known: who looks into their mailbox when, and so who opens what was sent when.

A few months of campaigns are played in it; then rules that have seen only what a sender sees choose an hour for each person, and
the truth says how many of a next mail would be opened. Nothing of it is shared with the model but the clock. People look at
their mailbox at hours of their own (one or two habits and some chance), and open a mail that they see there with a probability
that falls the further the mail has sunk. Nearly half have a mail program that fetches everything at once, so their opens are a
machine's. Most campaigns went out at ten; some at other hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mailpipe.engagement.rule import CLICK, HOURS, OPEN
from mailpipe.sendtime import model
from mailpipe.sendtime.model import DAYTIME
from mailpipe.sendtime.spec import BASE_HOUR

MAILS = 26
MACHINES = 0.45
CLICKS = 0.15
AT_TEN = 0.7
SINKS = 0.2
"""By how much a mail is less likely to be opened with each hour that it has lain there."""
ZONES = (-8, -5, 0, 1, 7, 9)
Floats = NDArray[np.float64]
Hours = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """`looks`: how likely each person looks into their mailbox in each hour of their clock (people x 24); `likes`: how likely they
    open a fresh mail that they see."""

    looks: Floats
    likes: Floats
    machine: NDArray[np.bool_]
    zone: Hours

    def opened(self, hours: Hours, within: int = HOURS) -> Floats:
        """How likely each person opens a mail that was sent at their hour, within so many hours: exact, nothing is drawn."""
        rows = np.arange(len(self.likes))
        unopened = np.ones(len(rows))
        for age in range(within):
            unopened *= 1 - self.looks[rows, (hours + age) % HOURS] * self.likes * np.exp(-SINKS * age)
        return 1 - unopened


def world(people: int, rng: np.random.Generator, own: float = 1.0) -> World:
    """`own`: from 0 (everybody in a zone is alike) to 1 (everybody has habits of their own)."""
    clock = np.arange(HOURS)
    zone = rng.integers(0, len(ZONES), people)

    def habit(middle: Floats, spread: Floats) -> Floats:
        away = (clock - middle[:, None] + 12) % HOURS - 12
        return np.asarray(np.exp(-0.5 * (away / spread[:, None]) ** 2))

    # Regions differ in when their day begins, people in when theirs does.
    begins = np.array([0, 1, -1, 0, 2, 1])[zone]
    first = habit(rng.normal(9, 2.5, people) + begins, rng.uniform(0.7, 2.5, people))
    second = habit(rng.normal(19, 3, people) + begins, rng.uniform(0.7, 3, people))
    part = rng.beta(1.2, 1.2, people)[:, None]
    awake = 0.06 * ((clock >= 7) & (clock < 23))
    habits = part * first + (1 - part) * second
    alike = np.stack([habits[zone == number].mean(axis=0) for number in range(len(ZONES))])[zone]
    looks = rng.uniform(0.2, 0.9, people)[:, None] * (own * habits + (1 - own) * alike) + awake
    looks = np.clip(looks, 0, 0.95)
    return World(looks, rng.beta(0.6, 3, people), rng.random(people) < MACHINES, zone)


@dataclass(frozen=True)
class Seen:
    """What the sender has of it: human engagements and exposure by hour, and by hour every open there was, machines' among them.
    `freshness`: how a mail's chance falls with its age, as those without such a machine tell."""

    ev: model.Curves
    ex: model.Curves
    opens: Floats
    human_opens: Floats
    freshness: Floats


def play(truth: World, rng: np.random.Generator) -> Seen:
    people = len(truth.likes)
    rows = np.arange(people)
    ev = np.zeros((people, HOURS), np.float32)
    opens, human_opens = np.zeros((people, HOURS)), np.zeros((people, HOURS))
    sends, ends, ages, mails = [], [], np.zeros(HOURS), 0
    for _ in range(MAILS):
        sent = BASE_HOUR if rng.random() < AT_TEN else int(rng.integers(8, 21))
        waits = np.ones(people, bool)
        end = np.full(people, HOURS - 1)
        for age in range(HOURS):
            hour = (sent + age) % HOURS
            now = waits & (rng.random(people) < truth.looks[:, hour] * truth.likes * np.exp(-SINKS * age))
            clicked = now & (rng.random(people) < CLICKS)
            # Nobody can tell an open of these people from their machine's.
            seen = clicked | (now & ~truth.machine)
            ev[seen, hour] += np.where(clicked[seen], CLICK, OPEN)
            human_opens[now & ~truth.machine, hour] += 1
            ages[age] += (now & ~truth.machine).sum()
            end[seen] = age
            waits &= ~now
        sends.append(sent)
        ends.append(end)
        mails += int((~truth.machine).sum())
        fetched = (sent + rng.integers(0, 3, people)) % HOURS
        opens[rows[truth.machine], fetched[truth.machine]] += 1
    freshness = _freshness(ages, mails)
    ex = np.zeros((people, HOURS), np.float32)
    for sent, end in zip(sends, ends, strict=True):
        for age in range(HOURS):
            ex[end >= age, (sent + age) % HOURS] += freshness[age]
    return Seen(ev, ex, opens + human_opens, human_opens, freshness)


def _freshness(ages: Floats, mails: float) -> Floats:
    unread = mails - np.concatenate([[0.0], np.cumsum(ages)[:-1]])
    return np.asarray(ages / unread / (ages / unread).sum())


def rules(truth: World, seen: Seen) -> dict[str, Hours]:
    """The hour that each rule gives everybody."""

    def mode(counts: Floats) -> Hours:
        return np.where(counts.any(axis=1), counts.argmax(axis=1), BASE_HOUR).astype(np.int64)

    shape = model.tuned(seen.ev, seen.ex, truth.zone)
    ours = model.score(seen.ev, seen.ex, truth.zone, shape=shape, freshness=seen.freshness)
    best = np.stack([truth.opened(np.full(len(truth.likes), hour)) for hour in range(HOURS)], axis=1)
    return {
        "fixed": np.full(len(truth.likes), BASE_HOUR),
        "classic": mode(seen.opens),
        "classic_human": mode(seen.human_opens),
        "ours": ours.hours.astype(np.int64),
        "oracle": np.argmax(np.where(DAYTIME, best, -1), axis=1),
    }


def one(people: int, seed: int, own: float) -> dict[str, dict[str, float]]:
    """The share of mails that is opened under each rule within a day, and within two hours, in one world."""
    rng = np.random.default_rng(seed)
    truth = world(people, rng, own)
    chosen = rules(truth, play(truth, rng))
    return {
        name: {"day": float(truth.opened(hours).mean()), "two_hours": float(truth.opened(hours, 2).mean())}
        for name, hours in chosen.items()
    }


_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t at 97.5 % for so many worlds."""


def simulate(people: int, seeds: int, own: float = 1.0) -> dict[str, Any]:
    """Every rule beside the fixed hour, in several worlds: the mean of the relative differences, and its interval of 95 %."""
    worlds = [one(people, seed, own) for seed in range(1, seeds + 1)]
    result: dict[str, Any] = {
        "people": people,
        "worlds": seeds,
        "mails_each": MAILS,
        "own_habits": own,
        "compared_with": "fixed 10:00",
    }
    for measure in ("day", "two_hours"):
        for rule in ("classic", "classic_human", "ours", "oracle"):
            result[f"{rule}_{measure}"] = _interval(worlds, rule, "fixed", measure)
        result[f"ours_over_classic_{measure}"] = _interval(worlds, "ours", "classic_human", measure)
    return result


def _interval(worlds: list[dict[str, dict[str, float]]], rule: str, other: str, measure: str) -> list[float]:
    """Low end, mean and high end of how much more is opened."""
    more = np.array([one[rule][measure] / one[other][measure] - 1 for one in worlds])
    half = _STUDENT[min(len(worlds), 10)] * more.std(ddof=1) / np.sqrt(len(worlds))
    return [round(float(end), 4) for end in (more.mean() - half, more.mean(), more.mean() + half)]
