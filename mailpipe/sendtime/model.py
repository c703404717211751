"""When people engage, hour by hour of their own clocks, and when a mail to them is best sent. Pure arithmetic over 24-vectors.

Opens follow sends: whoever is always mailed at 10:00 opens at 10:00. So engagements (`ev`) are set against exposure (`ex`: hours
in which a mail of ours lay unopened), and what is left is a curve of how likely somebody is to engage in an hour, given that
they were mailed. Hours are a circle: 23 and 0 are neighbours. Most people have hardly any data, so each level is shrunk to the
one above:

    base (10:00) -> everybody -> segment -> person

A person without data has the curve of their segment; that is the whole rule for beginners. Machine opens are not looked at here:
`tally` gives them no weight, and neither does whoever else fills `ev`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mailpipe.engagement.rule import CLICK, DEFAULT_FRESHNESS, HOURS, OPEN
from mailpipe.sendtime.spec import BASE_HOUR, Optimise

FRESHNESS = np.array(DEFAULT_FRESHNESS)
"""How likely a mail is to be engaged with in its first, second, ... hour, where nothing better is known."""
_ROWS = 448
"""Rows of a block. OpenBLAS multiplies matrices of up to 2^18 products in one thread; its threads for larger ones wait for each
other in busy loops: on a loaded machine a million people took 17 s instead of four."""
_OWN = 0.5
_TINY = np.float32(1e-20)

Curves = NDArray[np.float32]
"""People x 24, or 24: index 0 is the hour from midnight to one o'clock of the person's own clock."""


class Why(IntEnum):
    """Whose data decided the hour: `own` from half a recent open on; `default`: nobody has any."""

    default = 0
    everybody = 1
    segment = 2
    own = 3


@dataclass(frozen=True)
class Shape:
    """The numbers of the model. `smoothing`: hours (sigma) by which an engagement also speaks for its neighbours; the priors: how
    many events in each hour of the level above stand against those of a level; `window`: how many hours after sending count.

    Smoothing was chosen on the likelihood of later replies in public mailing lists, where a quarter of an hour more or less
    is as good; `tuned` finds the prior in the data.
    """

    smoothing: float = 1.25
    prior: float = 0.8
    segment_prior: float = 50.0
    global_prior: float = 2.0
    window: int = HOURS


SHAPE = Shape()


@dataclass(frozen=True)
class Scores:
    """One row per person. `hours`: the best allowed hour; `values`: what sending at each hour is worth, 24 of them (engagements per
    mail where exposure is known, else on a scale of its own); `confidence`: from 0 (others decide) to 1 (own data do)."""

    hours: NDArray[np.int8]
    values: Curves
    confidence: NDArray[np.float32]
    why: NDArray[np.int8]
    events: NDArray[np.float32]

    @property
    def value(self) -> NDArray[np.float32]:
        """What sending at the best hour is worth."""
        return self.values[np.arange(len(self.hours)), self.hours]


class Population(NamedTuple):
    """The curves of everybody (24) and of each segment (segments x 24); `shares`: how the opens of people without known sends lie
    over the day; and how many events there were."""

    everybody: Curves
    segments: Curves
    shares: Curves
    events: float
    segment_events: NDArray[np.float32]


def kernel(sigma: float) -> Curves:
    """Circular Gaussian smoothing as a 24 x 24 matrix; rows add up to 1. `sigma` in hours; 0 smooths nothing."""
    hours = np.arange(HOURS)
    away = (hours[:, None] - hours[None, :] + HOURS // 2) % HOURS - HOURS // 2
    weights = np.eye(HOURS) if sigma == 0 else np.exp(-0.5 * (away / sigma) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def kernel_of_value(window: int, freshness: ArrayLike = FRESHNESS) -> Curves:
    """A 24 x 24 matrix: curves times it are the values of sending at each hour, counting the `window` hours from then on."""
    weights = np.zeros(HOURS)
    weights[:window] = np.asarray(freshness, float)[:window]
    return np.asarray(
        [[weights[(later - sent) % HOURS] for sent in range(HOURS)] for later in range(HOURS)], np.float32
    )


def base_curve(best: int = BASE_HOUR, window: int = SHAPE.window) -> Curves:
    """A gentle wave of mean 1 for which `best` is the best hour to send."""
    hours = np.arange(HOURS)
    wave = 1 + 0.1 * np.cos(2 * np.pi * hours / HOURS)
    peak = int(np.argmax(wave.astype(np.float32) @ kernel_of_value(window)))
    return np.asarray(np.roll(wave, best - peak), np.float32)


DAYTIME = np.array(Optimise().hours)
"""The hours among which everybody's best one is kept."""


class Event(NamedTuple):
    """One message that somebody engaged with: the row of the person, the hour of their clock, and what it was."""

    row: int
    hour: int
    clicked: bool = False
    machine: bool = False


def tally(events: Iterable[Event], people: int) -> Curves:
    """Engagements by hour, one row per person. What a machine opened weighs nothing."""
    counts = np.zeros((people, HOURS), np.float32)
    for event in events:
        if not event.machine:
            counts[event.row, event.hour] += CLICK if event.clicked else OPEN
    return counts


def _refine(parent: Curves, ev: Curves, expected: Curves, smooth: Curves, weight: float) -> Curves:
    """The curve of a level: that of its parent, bent by what was engaged with beside what the parent expects of such exposure. The
    scale is set apart: an eager person is not taken for one with a habit, nor one who never engages for one who shuns the hours
    at which we send."""
    events, exposed = ev.sum(axis=-1, keepdims=True), expected.sum(axis=-1, keepdims=True)
    alike = events / np.maximum(exposed, _TINY)
    bent: Curves = parent * (ev @ smooth + weight) / (alike * (expected @ smooth) + weight)
    scaled: Curves = bent * ((events + 1) / (exposed + 1))
    return scaled


class Totals(NamedTuple):
    """Engagements and exposure by segment (segments x 24): of people whose sends are known, and the engagements of the others."""

    ev: Curves
    ex: Curves
    other_ev: Curves


def totals(ev: Curves, ex: Curves, segments: NDArray[np.integer], *, number: int | None = None) -> Totals:
    """The sums of `number` segments; None: of those that occur."""
    number = int(segments.max(initial=-1)) + 1 if number is None else number
    sums = np.zeros((3, number, HOURS))
    for rows in _blocks(len(ev)):
        # Sorted by segment, a block is a handful of sums instead of a scattered addition of each row.
        order = np.argsort(segments[rows], kind="stable")
        here = segments[rows][order]
        starts = np.flatnonzero(np.diff(here, prepend=-1))
        engaged, exposure = ev[rows][order], ex[rows][order]
        known = exposure.sum(axis=1, keepdims=True) > 0
        for which, counts in enumerate((engaged * known, exposure, engaged * ~known)):
            sums[which, here[starts]] += np.add.reduceat(counts, starts, axis=0)
    return Totals(*sums.astype(np.float32))


def population(sums: Totals, shape: Shape = SHAPE, *, apart: int | None = None) -> Population:
    """The curves above the persons. Where sends are known of anybody, only their engagements tell how likely one is; the opens
    of others then say how *their* opens lie, and with no sends at all that is the curve. `apart`: a segment with other clocks,
    which tells nothing about the others."""
    smooth = kernel(shape.smoothing)
    alike = np.ones(len(sums.ev), bool)
    alike[[] if apart is None else [apart]] = False
    if not sums.ev[alike].any() and not sums.other_ev[alike].any():
        alike[:] = True
    evenly = sums.other_ev.sum(axis=1, keepdims=True) / HOURS
    base = base_curve(window=shape.window)
    opens = _refine(
        base, sums.other_ev[alike].sum(axis=0), evenly[alike].sum(axis=0) * base, smooth, shape.global_prior
    )
    segment_opens = _refine(opens, sums.other_ev, evenly * opens, smooth, shape.segment_prior)
    shares = np.vstack([segment_opens, opens])
    shares = shares / shares.sum(axis=1, keepdims=True)
    everybody, of_segments = opens, segment_opens
    if sums.ex.any():
        exposed = sums.ex[alike].sum(axis=0) * opens
        everybody = _refine(opens, sums.ev[alike].sum(axis=0), exposed, smooth, shape.global_prior)
        of_segments = _refine(everybody, sums.ev, sums.ex * everybody, smooth, shape.segment_prior)
    segment_events = (sums.ev + sums.other_ev).sum(axis=1)
    return Population(everybody, of_segments, shares, float(segment_events.sum()), segment_events)


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _ROWS):
        yield slice(start, min(start + _ROWS, rows))


def curves(ev: Curves, ex: Curves, segments: NDArray[np.integer], above: Population, shape: Shape = SHAPE) -> Curves:
    """Each person's own curve: how likely they are to engage in an hour, given that they were mailed just then."""
    parents = above.segments[segments]
    exposed = ex.sum(axis=1, keepdims=True) > 0
    # Of whom no sends are known: opens are expected where those of others like them lie.
    guessed = ev.sum(axis=1, keepdims=True) * above.shares[segments]
    expected = np.where(exposed, ex * parents, guessed)
    return _refine(parents, ev, expected, kernel(shape.smoothing), shape.prior)


def score(
    ev: ArrayLike,
    ex: ArrayLike,
    segments: ArrayLike,
    *,
    shape: Shape = SHAPE,
    hours: NDArray[np.bool_] = DAYTIME,
    freshness: ArrayLike = FRESHNESS,
    above: Population | None = None,
) -> Scores:
    """The best hour of each person, among `hours`, and what every other one is worth.

    `ev` and `ex`: people x 24, decayed; `segments`: the number of each person's segment. `above`: curves found before, else
    they are found in the same people. A million people take some seconds and a few hundred MB.
    """
    ev, ex = np.asarray(ev, np.float32), np.asarray(ex, np.float32)
    segments = np.asarray(segments, np.int32)
    above = population(totals(ev, ex, segments), shape) if above is None else above
    worth = kernel_of_value(shape.window, freshness)
    people = len(ev)
    values = np.empty((people, HOURS), np.float32)
    best = np.empty(people, np.int8)
    for rows in _blocks(people):
        values[rows] = curves(ev[rows], ex[rows], segments[rows], above, shape) @ worth
        best[rows] = best_hours(values[rows], hours)
    events = ev.sum(axis=1)
    return Scores(best, values, events / (events + HOURS * shape.prior), _why(events, segments, above, shape), events)


def best_hours(values: Curves, hours: NDArray[np.bool_]) -> NDArray[np.int8]:
    """The best of the allowed hours; of equal ones the first."""
    chosen: NDArray[np.int8] = np.argmax(np.where(hours, values, -np.inf), axis=1).astype(np.int8)
    return chosen


def _why(events: NDArray[np.float32], segments: NDArray[np.int32], above: Population, shape: Shape) -> NDArray[np.int8]:
    others = Why.everybody if above.events >= HOURS * shape.global_prior else Why.default
    of_segment = np.where(above.segment_events >= shape.segment_prior, int(Why.segment), int(others))
    return np.where(events >= _OWN, int(Why.own), of_segment[segments] if len(segments) else 0).astype(np.int8)


PRIORS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_SAMPLE = 5_000
_LEAST = 1_000.0


def tuned(
    ev: ArrayLike, ex: ArrayLike, segments: ArrayLike, *, heaviest: float = CLICK, above: Population | None = None
) -> Shape:
    """The shape with the prior under which people's engagements are most likely, each predicted from the others of the same person:
    where people are much alike, their own few data must not lead them away. Looks at some thousand people with several
    events; with too few of them, the usual shape.

    `heaviest`: what a fresh event weighs at most. So much is taken away for one: of a click taken for an open, half would stay
    and predict the other half.
    """
    ev, ex = np.asarray(ev, np.float32), np.asarray(ex, np.float32)
    segments = np.asarray(segments, np.int32)
    rich = np.flatnonzero(ev.sum(axis=1) > heaviest)
    rich = rich[:: max(1, len(rich) // _SAMPLE)][:_SAMPLE]
    if ev[rich].sum() < _LEAST:
        return SHAPE
    above = population(totals(ev, ex, segments)) if above is None else above
    own, exposure, of = ev[rich], ex[rich], segments[rich]
    shapes = [replace(SHAPE, prior=prior) for prior in PRIORS]
    return max(shapes, key=lambda shape: _left_out(own, exposure, of, above, shape, heaviest))


def _left_out(
    own: Curves, ex: Curves, segments: NDArray[np.int32], above: Population, shape: Shape, heaviest: float
) -> float:
    """The log-likelihood of the hours of single events, the others of the same person being known."""
    total = 0.0
    for rows in _blocks(len(own)):
        engaged, exposed, of = own[rows], ex[rows], segments[rows]
        at_risk = np.where(exposed.sum(axis=1, keepdims=True) > 0, exposed, 1 / HOURS)
        for hour in range(HOURS):
            taken = np.minimum(engaged[:, hour], heaviest)
            some = taken > 0
            rest = engaged[some].copy()
            rest[:, hour] -= taken[some]
            likely = curves(rest, exposed[some], of[some], above, shape) * at_risk[some]
            likely /= likely.sum(axis=1, keepdims=True)
            total += float((engaged[some, hour] * np.log(np.maximum(likely[:, hour], 1e-9))).sum())
    return total
