"""A gate between two parts of an audience: what SES tells of the part that was sent, held against the lines. Pure.

Rates count from a sample on that is large enough to mean something. The first days of a ramp are smaller than that: a day then
counts together with the days before it, and below that only what cannot be chance is bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mailpipe.waves.spec import Gates

Level = Literal["too_few", "ok", "bad"]
_Z = 1.645
"""Of a one-sided bound that holds in 95 of 100 cases."""
_CHANCE = 3
"""So many people may be chance in any sample that is too small."""


@dataclass(frozen=True, slots=True)
class Told:
    """People of a part at one provider: `sent` by SES, of whom it has told anything (`told`), and what."""

    sent: int = 0
    told: int = 0
    hard_bounces: int = 0
    complaints: int = 0
    delayed: int = 0

    def __add__(self, other: Told) -> Told:
        return Told(*(own + theirs for own, theirs in zip(asdict(self).values(), asdict(other).values(), strict=True)))


@dataclass(frozen=True)
class Part:
    """A day or wave. `left` are its people who are pending or in a call, `by_provider` those who were sent."""

    number: int
    left: int = 0
    by_provider: dict[str, Told] = field(default_factory=dict)

    @property
    def whole(self) -> Told:
        return sum(self.by_provider.values(), Told())


@dataclass(frozen=True, slots=True)
class Measure:
    """One rate against its line; `provider`: of its people only. `sample` is what the rate is a part of."""

    name: Literal["hard_bounces", "complaints", "delays"]
    provider: str | None
    people: int
    sample: int
    rate: float
    line: float
    level: Level

    @property
    def text(self) -> str:
        where = f" at {self.provider}" if self.provider else ""
        name = self.name.replace("_", " ")
        return f"{name}{where}: {self.people:,} of {self.sample:,} are {self.rate:.2%}, the line is {self.line:.2%}"


@dataclass(frozen=True)
class Judgement:
    """What a gate says: `pass`; `bad`, some rate is beyond its line; `unfinished`, people of the part are not mailed yet; `silent`,
    SES has told too little to say anything. `text` gives the reason."""

    verdict: Literal["pass", "bad", "unfinished", "silent"]
    text: str
    measures: tuple[Measure, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "text": self.text, "measures": [asdict(one) for one in self.measures]}


def judge(part: Part, earlier: Sequence[Part], gates: Gates) -> Judgement:
    """Judge a part. `earlier` are those before it that went well, the latest first: they make up for a sample that is too small."""
    if part.left:
        return Judgement("unfinished", f"{part.left:,} people of it are not mailed yet")
    whole = part.whole
    if whole.sent and whole.told < gates.told * whole.sent:
        return Judgement(
            "silent",
            f"SES has told what became of {whole.told:,} of {whole.sent:,} people; do its events arrive? (docs/feedback.md)",
        )
    measures = [
        _measure(
            "hard_bounces", None, part, earlier, gates.hard_bounces, gates.hard_bounces_after, lambda t: t.hard_bounces
        ),
        _measure("complaints", None, part, earlier, gates.complaints, gates.complaints_after, lambda t: t.complaints),
        *(
            _measure("delays", provider, part, earlier, gates.delays, gates.delays_after, lambda t: t.delayed)
            for provider in sorted(part.by_provider)
        ),
    ]
    if bad := [one for one in measures if one.level == "bad"]:
        return Judgement("bad", "; ".join(one.text for one in bad), tuple(measures))
    few = [one for one in measures if one.level == "too_few"]
    text = (
        "all rates are below their lines"
        if len(few) < len(measures)
        else "nothing speaks against it, and too few were sent to say more"
    )
    return Judgement("pass", text if whole.sent else "nobody of it was sent", tuple(measures))


def _measure(
    name: Literal["hard_bounces", "complaints", "delays"],
    provider: str | None,
    part: Part,
    earlier: Sequence[Part],
    line: float,
    after: int,
    people_of: Callable[[Told], int],
) -> Measure:
    def of(one: Part) -> Told:
        return one.whole if provider is None else one.by_provider.get(provider, Told())

    counted = of(part)
    for one in earlier:
        if counted.sent >= after:
            break
        counted += of(one)
    people = people_of(counted)
    rate = people / counted.sent if counted.sent else 0.0
    level: Level = "ok"
    if counted.sent < after:
        level = "bad" if people >= _CHANCE and lower_bound(people, counted.sent) > line else "too_few"
    elif rate >= line:
        level = "bad"
    return Measure(name, provider, people, counted.sent, rate, line, level)


def lower_bound(people: int, sample: int) -> float:
    """What the true rate is at least, with 95 % (Wilson's interval, one side of it)."""
    if not sample:
        return 0.0
    rate, z2 = people / sample, _Z * _Z
    centre = rate + z2 / (2 * sample)
    width = _Z * math.sqrt(rate * (1 - rate) / sample + z2 / (4 * sample * sample))
    return (centre - width) / (1 + z2 / sample)
