"""Who is mailed at which instant: groups by hash, hours by worth, minutes by hash, and crowded hours relieved. Pure arithmetic.

Every person is a row; every possible time is a column: an hour of their clock today, or, behind these, tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

import numpy as np
from numpy.typing import NDArray

from mailpipe.engagement.rule import HOURS
from mailpipe.schedule import zones
from mailpipe.sendtime.spec import LABELS, STEP

STEPS = 3600 // STEP
PASSES = 24
HEADROOM = 0.8
"""The part of what the pace lets through in an hour that is planned for it."""

Ints = NDArray[np.int64]


OPTIMISED, CONTROL, EXPLORE = range(len(LABELS))
"""Groups, by the places of their labels."""


@dataclass(frozen=True)
class Slots:
    """The times that each zone has, one row per zone: when each begins (seconds since 1970), how many steps of five minutes it
    has, and which may be used. Columns 0 to 23 are the next time that the clocks show this hour, the others the time after it."""

    starts: Ints
    steps: Ints
    open: NDArray[np.bool_]


def slots(
    names: list[str], hours: Sequence[bool], base: datetime, horizon: timedelta, until: datetime | None = None
) -> Slots:
    """What the zones offer of the allowed hours of the day: all that begin from `base` on and before the horizon ends, and are over
    by `until`. Of the hour that has begun already, what is left of it."""
    columns = HOURS * (1 if horizon <= timedelta(days=1) else 2)
    starts, steps = np.zeros((2, len(names), columns), np.int64)
    usable = np.zeros((len(names), columns), bool)
    hour = timedelta(hours=1)
    first = -(-int(base.timestamp()) // STEP) * STEP
    for row, name in enumerate(names):
        day = zones.wall(name, base).date()
        for of_day in range(HOURS):
            column = of_day
            for later in range(3):
                at = zones.instant(name, datetime.combine(day + timedelta(days=later), time(of_day)))
                left = (int(at.timestamp()) + 3600 - first) // STEP
                if left < 1:
                    continue
                if column >= columns or at >= base + horizon:
                    break
                starts[row, column] = max(int(at.timestamp()), first)
                steps[row, column] = min(STEPS, left)
                usable[row, column] = hours[of_day] and (until is None or at + hour <= until)
                column += HOURS
    return Slots(starts, steps, usable)


def draw(digests: NDArray[np.uint32], explore: float, control: float) -> NDArray[np.int8]:
    """The group of each person; `digests` are four independent numbers of a salted hash for each."""
    place = digests[:, 0] / 2**32
    groups = np.full(len(digests), OPTIMISED, np.int8)
    groups[place < control + explore] = EXPLORE
    groups[place < control] = CONTROL
    return groups


@dataclass(frozen=True)
class Choice:
    """For each person the column that was chosen, the best one, and the due time (seconds since 1970). `propensity`: with
    which chance those who explore got their hour. `moved`: how many were moved out of crowded hours."""

    columns: Ints
    best: Ints
    due: Ints
    propensity: NDArray[np.float64]
    moved: int
    passes: int


def choose(
    worth: NDArray[np.uint8],
    zone: Ints,
    digests: NDArray[np.uint32],
    groups: NDArray[np.int8],
    of_zone: Slots,
    *,
    control_hour: int,
    capacity: float | None,
) -> Choice:
    """Give everybody a time. `worth`: people x 24; `zone`: their row of `of_zone`, of which each has an open time; `capacity`:
    people that an hour takes, None: any number."""
    width = of_zone.starts.shape[1]
    usable = of_zone.open[zone]
    # One more than the worth: 0 is a time that is not open. Of equal ones the first is taken, so today's before tomorrow's.
    values = np.where(usable, np.tile(worth, width // HOURS).astype(np.int16) + 1, 0)
    best = np.argmax(values, axis=1)
    columns = best.copy()
    controls = groups == CONTROL
    columns[controls] = _fixed(of_zone.open, control_hour)[zone[controls]]
    drawn = groups == EXPLORE
    today = of_zone.open[:, :HOURS]
    nth = (digests[drawn, 1] % np.maximum(today.sum(axis=1), 1)[zone[drawn]]).astype(np.int64)
    columns[drawn] = np.argmax(np.cumsum(today[zone[drawn]], axis=1) > nth[:, None], axis=1)
    propensity = 1 / np.maximum(today.sum(axis=1), 1)[zone]

    def due(rows: Ints, chosen: Ints) -> Ints:
        steps = np.maximum(of_zone.steps[zone[rows], chosen], 1)
        after: Ints = of_zone.starts[zone[rows], chosen] + STEP * (digests[rows, 2] % steps).astype(np.int64)
        return after

    everybody = np.arange(len(zone))
    moved = passes = 0
    if capacity is not None:
        movable = groups == OPTIMISED
        passes, moved = _relieve(values, columns, movable, due, capacity)
    return Choice(columns, best, due(everybody, columns), propensity, moved, passes)


def _fixed(usable: NDArray[np.bool_], hour: int) -> Ints:
    """In each zone the open time nearest to an hour of the day: it may lie behind the campaign's end."""
    columns = np.arange(usable.shape[1])
    away = np.minimum((columns - hour) % HOURS, (hour - columns) % HOURS)
    return np.asarray(np.argmin(np.where(usable, away, HOURS), axis=1), np.int64)


def _relieve(
    values: NDArray[np.int16],
    columns: Ints,
    movable: NDArray[np.bool_],
    due: Callable[[Ints, Ints], Ints],
    capacity: float,
) -> tuple[int, int]:
    """Move people out of hours that hold more than `capacity`: those who lose least by their next best hour with room. Changes
    `columns` and `values`; answers passes and moves."""
    everybody = np.arange(len(columns))
    # Nobody is due more than two days before or after anybody else.
    origin = int(due(everybody, columns).min()) // 3600 - 3 * HOURS if len(columns) else 0
    moved = 0
    for number in range(PASSES):
        hour = due(everybody, columns) // 3600 - origin
        load = np.bincount(hour, minlength=6 * HOURS)
        crowded = load > capacity
        if not crowded.any():
            return number, moved
        rows = np.flatnonzero(crowded[hour] & movable)
        if not len(rows):
            return number, moved
        choices = values[rows].copy()
        current = choices[np.arange(len(rows)), columns[rows]].copy()
        choices[np.arange(len(rows)), columns[rows]] = 0
        full = load >= capacity
        for column in range(values.shape[1]):
            there = due(rows, np.full(len(rows), column)) // 3600 - origin
            # Times that are not open begin at 0 and are out of reach anyway.
            choices[full[np.clip(there, 0, len(full) - 1)], column] = 0
        others = np.argmax(choices, axis=1)
        worth = choices[np.arange(len(rows)), others]
        able = worth > 0
        if not able.any():
            return number, moved
        rows, others, regret = rows[able], others[able], (current - worth)[able]
        order = np.lexsort((regret, hour[rows]))
        rows, others = rows[order], others[order]
        # The first of each hour, as many as it holds too many.
        begins = np.flatnonzero(np.diff(hour[rows], prepend=-1))
        rank = np.arange(len(rows)) - np.repeat(begins, np.diff([*begins, len(rows)]))
        leaves = rank < np.ceil(load[hour[rows]] - capacity)
        rows, others = rows[leaves], others[leaves]
        values[rows, columns[rows]] = 0
        columns[rows] = others
        moved += len(rows)
    return PASSES, moved
