"""Real histories of activity, read from a folder, and a small invented one; as sessions, so that a burst of acts counts once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

GAP = 30 * 60
"""Seconds without an act that end a session."""


@dataclass(frozen=True)
class History:
    """One element per session, in the order of time. `hour`: by the person's own clock then; `offset`: minutes by which that clock
    was ahead of UTC, which stands for a region."""

    name: str
    person: NDArray[np.int64]
    at: NDArray[np.int64]
    hour: NDArray[np.int64]
    offset: NDArray[np.int64]


def read(folder: Path) -> History:
    """The history in a folder: `reactions.parquet` (user, reacted_utc_epoch_s, utc_offset_min), or else `events.csv` (user,
    created_at; one clock for all).

    Raises:
        SystemExit: there is neither.
    """
    if (folder / "reactions.parquet").is_file():
        rows = pd.read_parquet(folder / "reactions.parquet")
        at, offset = rows["reacted_utc_epoch_s"].to_numpy(np.int64), rows["utc_offset_min"].to_numpy(np.int64)
    elif (folder / "events.csv").is_file():
        rows = pd.read_csv(folder / "events.csv", parse_dates=["created_at"])
        at = rows["created_at"].to_numpy().astype("datetime64[s]").astype(np.int64)
        offset = np.zeros(len(at), np.int64)
    else:
        raise SystemExit(f"{folder}: expected reactions.parquet or events.csv there")
    return sessions(folder.name, rows["user"].to_numpy(np.int64), at, offset)


def sessions(name: str, person: NDArray[np.int64], at: NDArray[np.int64], offset: NDArray[np.int64]) -> History:
    """Acts collapsed to the first one of each session."""
    order = np.lexsort((at, person))
    person, at, offset = person[order], at[order], offset[order]
    first = np.ones(len(at), bool)
    first[1:] = (np.diff(person) != 0) | (np.diff(at) > GAP)
    person, at, offset = person[first], at[first], offset[first]
    order = np.argsort(at, kind="stable")
    person, at, offset = np.unique(person, return_inverse=True)[1][order], at[order], offset[order]
    return History(name, person, at, (at + offset * 60) // 3600 % 24, offset)


def invented(people: int = 400, days: int = 200, seed: int = 1) -> History:
    """People with one or two habits and some chance, from a few acts each to hundreds."""
    rng = np.random.default_rng(seed)
    day_rate = np.clip(rng.lognormal(-2.5, 1.2, people), 0.01, 2)
    acts = rng.poisson(day_rate * days)
    person = np.repeat(np.arange(people), acts)
    habits = np.stack([rng.normal(13, 4, people), rng.normal(20, 2, people)])
    second = rng.random(len(person)) < 0.3
    hour = np.where(second, habits[1, person], habits[0, person]) + rng.normal(0, 1.5, len(person))
    hour = np.where(rng.random(len(person)) < 0.25, rng.uniform(0, 24, len(person)), hour) % 24
    offset = rng.choice([0, 60, 420, -300], people)[person]
    at = rng.integers(0, days, len(person)) * 86_400 + (hour * 3600).astype(np.int64) - offset * 60 + 1_700_006_400
    return sessions("invented", person, at, offset)
