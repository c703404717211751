"""Ramps: how many mails a sending domain may send on each day of its warm-up. Pure arithmetic.

The named ones are the schedules that Braze publishes for warming up (`ip_warming.md`): on SES the addresses are AWS's to warm, the
domain, its list and their order are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["conservative", "moderate", "aggressive"]


@dataclass(frozen=True)
class Ramp:
    """Mails a day: `caps` for the first days, then `growth` times as many every `every` days."""

    name: str
    caps: tuple[int, ...]
    growth: float = 1.0
    every: int = 1

    def cap(self, day: int) -> int:
        """Mails that the domain may send on this day of its warm-up, from 1 on."""
        if day <= len(self.caps):
            return self.caps[max(day, 1) - 1]
        steps = -(-(day - len(self.caps)) // self.every)
        return int(self.caps[-1] * self.growth**steps)

    def day_after(self, volume: int) -> int:
        """The day of the ramp on which a domain is that has sent so many mails on one day: the first one that allows more, or the
        last one where the ramp ends."""
        day = 1
        while self.cap(day) <= volume and (self.growth > 1 or day < len(self.caps)):
            day += 1
        return day


_NAMED: dict[Name, Ramp] = {
    "conservative": Ramp(
        "conservative",
        tuple(cap for cap in (50, 100, 500, 1_000, 2_000, 4_000, 8_000) for _ in range(3)),
        growth=2.0,
        every=3,
    ),
    # Between the published days 18 and 21, and beyond, it grows by a quarter a day.
    "moderate": Ramp(
        "moderate",
        (50, 100, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 25_000, 35_000, 50_000, 75_000, 100_000, 150_000, 200_000, 275_000,
         375_000, 500_000, 625_000, 780_000, 1_000_000),
        growth=1.25,
    ),
    "aggressive": Ramp(
        "aggressive",
        (50, 100, 500, 1_000, 5_000, 10_000, 20_000, 40_000, 70_000, 100_000, 150_000, 250_000, 400_000, 600_000, 1_000_000,
         2_000_000, 4_000_000),
        growth=2.0,
    ),
}  # fmt: skip


def of(given: Name | tuple[int, ...]) -> Ramp:
    """The ramp of this name, or of a list of one's own, whose last number stays."""
    return _NAMED[given] if isinstance(given, str) else Ramp("own list", given)
