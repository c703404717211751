"""Lays an audience out in stages: the days of a warm-up, or the waves one after the other. Pure arithmetic on numbers of people.

People stand in one queue for each family of mail providers, in the order of their waves, tiers, and a hash. A day takes from the
head of each queue the family's share of what the ramp allows, so nobody is left over, and who is deferred is first on the next day.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from mailpipe.errors import CampaignError
from mailpipe.waves.ramp import Ramp
from mailpipe.waves.spec import DAY, Tier, Wave

MOST_DAYS = 366
"""A warm-up that lasts longer is a mistake."""
GROWTH = 2.0
"""So many times the volume of the day before is what a provider may get, or more where the ramp itself is steeper."""
FLOOR = 50
"""Mails that each provider may get whatever it had the day before: the first day of every named ramp."""
_SHORTEST_STEP = 300
_STEPS = 48
"""Due times of a spread at the most: each is a launch."""

Times = Callable[[int], datetime]
"""When a day begins, by its number from 1 on."""


@dataclass(frozen=True, slots=True)
class Run:
    """People of one family who stand one behind the other and have wave (from 0 on) and tier in common."""

    wave: int
    tier: Tier
    people: int


Queues = Mapping[str, Sequence[Run]]
"""Of each family of providers."""


@dataclass(frozen=True, slots=True)
class Piece:
    """People of one stage who are due together and have wave, tier and family in common: the next `people` of their queue."""

    due_at: datetime
    wave: int
    tier: Tier
    family: str
    people: int


@dataclass(frozen=True)
class Stage:
    """A day of the warm-up (`number` counts days from the first one, `rung` those of the ramp), or a wave. `cap` is what the domain
    may send on that day, `others` what of it other campaigns need; None where there is no ramp."""

    number: int
    at: datetime
    pieces: tuple[Piece, ...]
    rung: int | None = None
    cap: int | None = None
    others: int = 0

    @property
    def people(self) -> int:
        return sum(piece.people for piece in self.pieces)

    @property
    def label(self) -> str:
        return f"wave:{self.number}" if self.rung is None else f"day:{self.number}"


@dataclass(frozen=True)
class Before:
    """The day before: the ramp's cap, and what each family got."""

    cap: int
    volumes: Mapping[str, float] = field(default_factory=dict)


def by_waves(queues: Queues, waves: Sequence[Wave], begins: datetime, *, chunk: int = 500) -> list[Stage]:
    """One stage for each wave that holds somebody, the next when the one before is over."""
    stages = []
    offset = 0
    for number, wave in enumerate(waves):
        mine = {family: [run for run in runs if run.wave == number and run.people] for family, runs in queues.items()}
        if not any(mine.values()):
            continue
        length = wave.length if wave.spread else 0
        pieces = _spread(mine, begins + timedelta(seconds=offset), length, chunk)
        stages.append(Stage(number + 1, begins + timedelta(seconds=offset), tuple(pieces)))
        offset += wave.length
    return stages


def by_days(
    queues: Queues,
    waves: Sequence[Wave],
    ramp: Ramp,
    begins: Times,
    *,
    zone: str = "UTC",
    day: int = 1,
    rung: int = 1,
    others: Mapping[date, int] | None = None,
    before: Before | None = None,
    chunk: int = 500,
    most: int = MOST_DAYS,
) -> list[Stage]:
    """One stage for each day that mails somebody. `others` is what other campaigns of the domain send by date (in `zone`).

    Raises:
        CampaignError: it would take longer than `most` days.
    """
    left = {family: [run for run in runs if run.people] for family, runs in queues.items()}
    total = sum(_count(runs) for runs in left.values())
    shares = {family: _count(runs) / total for family, runs in left.items() if runs}
    sizes = [sum(run.people for runs in left.values() for run in runs if run.wave == no) for no in range(len(waves))]
    stages = []
    first = day
    while any(left.values()):
        if day - first >= most:
            raise CampaignError(
                f"warmup: {total:,} people take longer than a year by the ramp `{ramp.name}`; take a steeper one, a later"
                " start_day, or fewer people"
            )
        at = begins(day)
        cap = ramp.cap(rung)
        used = (others or {}).get(at.astimezone(ZoneInfo(zone)).date(), 0)
        quotas = _bounded(_wanted(left, waves, sizes, max(0, cap - used)), shares, cap, before)
        taken = {family: _take(left, family, quota) for family, quota in quotas.items()}
        pieces = tuple(_of_day(taken, left, waves, sizes, at, chunk))
        if pieces:
            stages.append(Stage(day, at, pieces, rung, cap, used))
        before = Before(cap, {family: quotas.get(family, 0) + used * share for family, share in shares.items()})
        day, rung = day + 1, rung + 1
    return stages


def _count(runs: Sequence[Run]) -> int:
    return sum(run.people for run in runs)


def _wanted(left: Queues, waves: Sequence[Wave], sizes: Sequence[int], free: int) -> dict[str, int]:
    """How many of each family may go on a day that has room for `free`, wave by wave. One that is spread over more than the day
    gives its part of it, and the next one begins when it is over."""
    wanted: Counter[str] = Counter()
    offset = 0
    for number, wave in enumerate(waves):
        mine = {
            family: _count([run for run in runs if run.wave == number])
            for family, runs in left.items()
            if any(run.wave == number for run in runs)
        }
        people = sum(mine.values())
        if not people:
            continue
        seconds = max(0, DAY - offset)
        part = people if seconds else 0
        if wave.spread is not None and wave.spread > seconds and seconds:
            part = min(people, max(1, sizes[number] * seconds // wave.spread))
        part = min(part, free - wanted.total())
        wanted.update(shared(part, mine))
        if part < people:
            break
        offset += _length(wave, people, sizes[number])
    return dict(wanted)


def _length(wave: Wave, people: int, size: int) -> int:
    """Seconds that the last `people` of a wave of that size take: of one that goes over more than a day, their part of it."""
    if wave.spread is not None and wave.spread > DAY:
        return -(-wave.spread * people // size)
    return wave.length


def _bounded(wanted: Mapping[str, int], shares: Mapping[str, float], cap: int, before: Before | None) -> dict[str, int]:
    """At most its share of the ramp's total for each family, and not much more than on the day before."""
    growth = GROWTH if before is None else max(GROWTH, cap / before.cap)
    quotas = {}
    for family, people in wanted.items():
        most = math.ceil(shares[family] * cap)
        if before is not None:
            most = min(most, int(growth * before.volumes.get(family, 0.0)))
        quotas[family] = min(people, max(FLOOR, most))
    return quotas


def shared(total: int, people: Mapping[str, int]) -> dict[str, int]:
    """Divide `total`, at most all people, by shares: whole numbers that add up, to the largest remainders first."""
    everybody = sum(people.values())
    if not everybody:
        return {}
    parts = {name: total * number // everybody for name, number in people.items()}
    rests = sorted(people, key=lambda name: (-(total * people[name] % everybody), name))
    for name in rests[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def _take(left: dict[str, list[Run]], family: str, number: int) -> list[Run]:
    taken = []
    runs = left[family]
    while number and runs:
        head = runs[0]
        size = min(number, head.people)
        taken.append(Run(head.wave, head.tier, size))
        number -= size
        if size == head.people:
            runs.pop(0)
        else:
            runs[0] = Run(head.wave, head.tier, head.people - size)
    return taken


def _of_day(
    taken: Queues, left: Queues, waves: Sequence[Wave], sizes: Sequence[int], at: datetime, chunk: int
) -> Iterator[Piece]:
    """When on its day everybody is due. A wave that is not over with it takes the rest of the day."""
    offset = 0
    for number, wave in enumerate(waves):
        mine = {family: [run for run in runs if run.wave == number] for family, runs in taken.items()}
        if not any(mine.values()):
            continue
        offset = min(offset, DAY - _SHORTEST_STEP)
        over = not any(run.wave == number for runs in left.values() for run in runs)
        people = sum(map(_count, mine.values()))
        length = min(DAY - offset, _length(wave, people, sizes[number]) if over else wave.spread or DAY)
        yield from _spread(mine, at + timedelta(seconds=offset), length if wave.spread else 0, chunk)
        offset += length


def _spread(runs: Queues, at: datetime, length: int, chunk: int) -> Iterator[Piece]:
    """These people from `at` on over `length` seconds, in steps that are worth a launch each."""
    people = sum(map(_count, runs.values()))
    step = max(_SHORTEST_STEP, -(-length // _STEPS // 60) * 60)
    steps = max(1, min(-(-length // step), people // chunk))
    left = {family: list(some) for family, some in runs.items()}
    sizes = {family: _count(some) for family, some in runs.items()}
    for number in range(steps):
        due_at = at + timedelta(seconds=length * number // steps)
        for family in sorted(left):
            size = sizes[family] * (number + 1) // steps - sizes[family] * number // steps
            for run in _take(left, family, size):
                yield Piece(due_at, run.wave, run.tier, family, run.people)
