"""Zones and due instants: which instant a wall time is in a zone. Nothing here knows of campaigns or of the present.

One rule holds everywhere, and no other engine is asked, because each has another one: a wall time that the clocks skip is the first
instant after the gap; one that comes twice is its first occurrence. The data is that of the `tzdata` package, never that of
the host: two machines agree, also where the system has lost its old names.
"""

from __future__ import annotations

import importlib.resources
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import tzdata

from mailpipe.errors import ZoneError

RULES = tzdata.IANA_VERSION
"""The release of the zone rules in use, for example 2026a."""


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Every zone by its name in lower case. `Factory` is a placeholder for a host whose zone nobody has set."""
    text = importlib.resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return {name.casefold(): name for name in text.split() if name != "Factory"}


@lru_cache(maxsize=4096)
def find(text: str | None) -> str | None:
    """The zone that a text means, as the IANA database spells it; None for one that nobody knows.

    Case and spaces are forgiven (`asia/ho chi minh`). Offsets and abbreviations are not zones: they do not know summer time.
    """
    if text is None:
        return None
    return _names().get("_".join(text.split()).casefold())


@lru_cache(maxsize=1024)
def load(name: str) -> ZoneInfo:
    """The rules of a zone.

    Raises:
        ZoneError: there is no such zone.
    """
    known = find(name)
    if known is None:
        raise ZoneError(f"{name!r} is not a zone of the IANA database, for example Asia/Ho_Chi_Minh")
    with importlib.resources.files("tzdata").joinpath("zoneinfo", *known.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=known)


def every() -> list[str]:
    """The names of all zones."""
    return sorted(_names().values())


def instant(name: str, wall: datetime) -> datetime:
    """The instant (UTC) at which the clocks of a zone show `wall` (naive): after a gap if they skip it, the first one if they
    show it twice.

    Raises:
        ZoneError: there is no such zone.
    """
    zone = load(name)
    before = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) == wall:
        return before
    # Skipped. `before` is counted with the old offset and so lies behind the gap, this one with the new offset and so before it.
    low, high = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), before
    new = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (low, middle) if middle.astimezone(zone).utcoffset() == new else (middle, high)
    return high.replace(microsecond=0)


def wall(name: str, at: datetime) -> datetime:
    """What the clocks of a zone show at an instant, naive."""
    return at.astimezone(load(name)).replace(tzinfo=None)


def earliest(wall_time: datetime) -> datetime:
    """The first instant (UTC) at which the clocks of any zone show `wall_time`."""
    return min(instant(name, wall_time) for name in every())


def latest(wall_time: datetime) -> datetime:
    """The last instant (UTC) at which the clocks of any zone first show `wall_time`."""
    return max(instant(name, wall_time) for name in every())


@dataclass(frozen=True)
class Assigned:
    """Each text as it was given with the zone it stands for, and the people whose text means no zone, by text (None: they have
    none). Those have the default zone."""

    zones: dict[str | None, str]
    unknown: dict[str | None, int]


def assign(people: Mapping[str | None, int] | Iterable[str | None], default: str) -> Assigned:
    """Give every text a zone. `people`: how many have each text, or one text per person.

    Raises:
        ZoneError: the default is no zone.
    """
    known_default = load(default).key
    counts = Counter(people)
    zones = {text: find(text) or known_default for text in counts}
    return Assigned(zones, {text: number for text, number in counts.items() if find(text) is None})
