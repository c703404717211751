"""The best hour for each person: `python -m benchmarks.sendtime [--data FOLDER]... [--simulate] [--scale] [--plan] [--quick]`.

Fit to activity hours, never uplift: what was known at ten instants chooses an hour for each person, and later sessions tell
how many of them lie in the three hours around it. Nobody was sent anything in these histories, so they cannot tell what a mail at
that hour would have done; `--simulate` asks that where the truth is known, and a campaign's own control group where it is not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import send_histories, send_plan, send_truth
from benchmarks.ground import PeakMemory, emit, say
from benchmarks.send_histories import History
from mailpipe.engagement.rule import HOURS
from mailpipe.sendtime import model
from mailpipe.sendtime.spec import BASE_HOUR

CUTS = 10
DAY = 86_400
HALF_LIFE = 60
"""Days, as in `engagement`; LONGER is what it could be."""
LONGER = 180
CLASSIC_SPAN = 90 * DAY
BANDS = (1, 5, 10, 20, 50)
RULES = ("global", "classic", "classic_all", "ours")
Counts = NDArray[np.float64]
_ALWAYS = np.ones(HOURS, bool)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sendtime", description="The best hour for each person.")
    parser.add_argument(
        "--data", type=Path, action="append", default=[], help="a folder with a real history; repeatable"
    )
    parser.add_argument(
        "--simulate", action="store_true", help="worlds in which the truth is known, instead of histories"
    )
    parser.add_argument(
        "--scale", action="store_true", help="seconds and memory for a million people, instead of histories"
    )
    parser.add_argument("--plan", action="store_true", help="seconds to plan a campaign of a million people by it")
    parser.add_argument("--quick", action="store_true", help="three cuts; small worlds; 100,000 people")
    chosen = parser.parse_args()
    if chosen.simulate:
        people, worlds = (4_000, 4) if chosen.quick else (20_000, 8)
        for own in (1.0, 0.25):
            emit({"simulation": send_truth.simulate(people, worlds, own)})
    if chosen.scale:
        emit(scale(100_000 if chosen.quick else 1_000_000))
    if chosen.plan:
        emit(send_plan.measure(100_000 if chosen.quick else 1_000_000))
    if chosen.simulate or chosen.scale or chosen.plan:
        return
    histories = [send_histories.read(folder) for folder in chosen.data] or [send_histories.invented()]
    for history in histories:
        say(f"{history.name}: {len(history.at):,} sessions of {history.person.max() + 1:,} people")
        cuts = 3 if chosen.quick else CUTS
        longer = fit(history, cuts=cuts, half_life=LONGER)
        told = {key: longer[key] for key in ("half_life_days", "hit_ours", "logloss_ours")}
        emit(fit(history, cuts=cuts) | {"with_longer_memory": told})


@dataclass(frozen=True)
class Held:
    """One row per person and cut: sessions before the cut, sessions after it, and how many of these each rule hits."""

    person: NDArray[np.int64]
    known: Counts
    held: Counts
    hits: Mapping[str, Counts]
    best: Counts
    loss: Mapping[str, Counts]


def fit(history: History, *, cuts: int = CUTS, half_life: int = HALF_LIFE, seed: int = 1) -> dict[str, Any]:
    """How well rules that know the past hit what comes later. Shares are of held-out sessions; everything that is learned, and
    every setting, is learned before the cut."""
    rows = _joined([_at_cut(history, start, end, half_life) for start, end in _spans(history, cuts)])
    bands = {}
    for low, high in zip(BANDS, (*BANDS[1:], np.inf), strict=True):
        chosen = (rows.known >= low) & (rows.known < high)
        if chosen.any():
            name = f"{low}+" if high == np.inf else f"{low}-{int(high) - 1}"
            bands[name] = _summary(rows, chosen) | {"sessions": int(rows.held[chosen].sum())}
    return {
        "history": history.name,
        "measures": "fit to activity hours, not uplift",
        **_summary(rows, np.ones(len(rows.person), bool)),
        "sessions": int(rows.held.sum()),
        "cuts": cuts,
        "half_life_days": half_life,
        "ours_minus_global_95": _interval(rows, "global", seed),
        "ours_minus_classic_95": _interval(rows, "classic", seed),
        "ours_minus_classic_all_95": _interval(rows, "classic_all", seed),
        "by_events_before": bands,
    }


def _spans(history: History, cuts: int) -> list[tuple[int, int]]:
    """From the middle of the sessions on, blocks with equally many of them: each is held out from what lies before it."""
    edges = [int(history.at[int(share * (len(history.at) - 1))]) for share in np.linspace(0.5, 1, cuts + 1)]
    return list(zip(edges[:-1], [*edges[1:-1], edges[-1] + 1], strict=True))


def _counts(history: History, chosen: NDArray[np.bool_], weights: Counts | None = None) -> Counts:
    people = int(history.person.max()) + 1
    index = history.person[chosen] * HOURS + history.hour[chosen]
    return np.bincount(index, weights, people * HOURS).reshape(people, HOURS).astype(float)


def _around(hours: NDArray[np.integer], counts: Counts) -> Counts:
    """How many lie in the three hours of which the chosen one is the middle: kinder to the classic rule, which chooses a peak, than
    three hours that begin there."""
    rows = np.arange(len(counts))
    return np.asarray(sum(counts[rows, (hours + shift) % HOURS] for shift in (-1, 0, 1)))


def _at_cut(history: History, start: int, end: int, half_life: int) -> Held:
    before = history.at < start
    age = (start - history.at[before]).astype(float)
    known = _counts(history, before)
    recent = _counts(history, before & (history.at >= start - CLASSIC_SPAN))
    held = _counts(history, (history.at >= start) & (history.at < end))
    ev = _counts(history, before, 0.5 ** (age / (half_life * DAY))).astype(np.float32)
    segments = _segments(history, before)
    nothing = np.zeros_like(ev, np.float32)
    shape = replace(model.tuned(ev, nothing, segments, heaviest=1), window=3)
    above = model.population(model.totals(ev, nothing, segments), shape)
    scores = model.score(ev, nothing, segments, shape=shape, hours=_ALWAYS, freshness=np.ones(HOURS), above=above)
    likely = model.curves(ev, nothing, segments, above, shape).astype(float)
    likely /= likely.sum(axis=1, keepdims=True)
    # Half a session in each hour: an hour that nobody has used yet is not impossible.
    everybody = (known.sum(axis=0) + 0.5) / (known.sum() + HOURS / 2)
    hours = {
        "global": np.full(len(ev), _busiest(everybody[None])[0]),
        "classic": np.where(recent.any(axis=1), recent.argmax(axis=1), BASE_HOUR),
        "classic_all": np.where(known.any(axis=1), known.argmax(axis=1), BASE_HOUR),
        # The model's hour is the first of its three.
        "ours": (scores.hours + 1) % HOURS,
    }
    kept = np.flatnonzero(known.any(axis=1) & held.any(axis=1))
    return Held(
        kept,
        known[kept].sum(axis=1),
        held[kept].sum(axis=1),
        {rule: _around(hours[rule][kept], held[kept]) for rule in RULES},
        _around(_busiest(held[kept]), held[kept]),
        {
            "global": -(held[kept] * np.log(everybody)).sum(axis=1),
            "ours": -(held[kept] * np.log(likely[kept])).sum(axis=1),
        },
    )


def _busiest(counts: Counts) -> NDArray[np.intp]:
    """The middle of the three hours that hold most."""
    return np.asarray(np.argmax(counts + np.roll(counts, 1, axis=1) + np.roll(counts, -1, axis=1), axis=1))


def _segments(history: History, before: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The region of each person: how far their clock was ahead of UTC when they were last seen before the cut."""
    last = np.zeros(int(history.person.max()) + 1, np.int64)
    last[history.person[before]] = history.offset[before]
    return np.asarray(np.unique(last, return_inverse=True)[1], np.int32)


def _joined(parts: list[Held]) -> Held:
    return Held(
        np.concatenate([part.person for part in parts]),
        np.concatenate([part.known for part in parts]),
        np.concatenate([part.held for part in parts]),
        {rule: np.concatenate([part.hits[rule] for part in parts]) for rule in RULES},
        np.concatenate([part.best for part in parts]),
        {rule: np.concatenate([part.loss[rule] for part in parts]) for rule in ("global", "ours")},
    )


def _summary(rows: Held, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    held = rows.held[chosen].sum()
    return {
        "people": len(np.unique(rows.person[chosen])),
        "hit_random": round(3 / HOURS, 4),
        **{f"hit_{rule}": round(float(rows.hits[rule][chosen].sum() / held), 4) for rule in RULES},
        "hit_best": round(float(rows.best[chosen].sum() / held), 4),
        **{f"logloss_{rule}": round(float(loss[chosen].sum() / held), 4) for rule, loss in rows.loss.items()},
    }


def _interval(rows: Held, other: str, seed: int, rounds: int = 1000) -> list[float]:
    """By how much ours hits more, as an interval of 95 %: people drawn with replacement, each with all of their sessions."""
    people, index = np.unique(rows.person, return_inverse=True)
    more = np.bincount(index, rows.hits["ours"] - rows.hits[other])
    held = np.bincount(index, rows.held)
    drawn = np.random.default_rng(seed).poisson(1, (rounds, len(people)))
    ends = np.quantile((drawn @ more) / (drawn @ held), [0.025, 0.975])
    return [round(float(end), 4) for end in ends]


def scale(people: int) -> dict[str, Any]:
    """Scoring everybody at once: six in ten have data of their own, all have exposure."""
    rng = np.random.default_rng(1)
    with PeakMemory() as memory:
        ev = np.where(rng.random((people, 1), np.float32) < 0.6, rng.poisson(0.1, (people, HOURS)), 0).astype(
            np.float32
        )
        ex = rng.random((people, HOURS), np.float32)
        segments = rng.integers(0, 40, people)
        begun, cpu = time.perf_counter(), time.process_time()
        shape = model.tuned(ev, ex, segments)
        tuned = time.perf_counter()
        model.score(ev, ex, segments, shape=shape)
        ended = time.perf_counter()
    return {
        "scored": people,
        "tune_seconds": round(tuned - begun, 2),
        "score_seconds": round(ended - tuned, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "rss_mb": round(memory.mb),
    }


if __name__ == "__main__":
    main()
