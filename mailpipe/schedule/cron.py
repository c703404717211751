"""Cron expressions: read strictly, explained in words, and turned into instants. Nothing here knows what is sent.

croniter reads the syntax and counts on naive local time; which instant a local time is, only `zones` says. Given a time with a
zone, croniter fires twice in the night that the clocks go back. A fire is a local slot and its instant: slots that the clocks skip
share the first instant after the gap, and that instant fires once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any

from croniter import croniter
from croniter.croniter import CroniterError

from mailpipe.errors import CronError
from mailpipe.schedule import zones

MINIMUM = 3600
"""Seconds that lie between two fires at least, unless the settings say otherwise: a mail an hour is a mistake already."""
_FAR = 12
"""Years in which a fire must come: 29 February skips eight around 2100."""
_LONGEST_GAP = timedelta(hours=26)
"""Samoa skipped a whole day in 2011; nobody has ever skipped more."""
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("January", "February", "March", "April", "May", "June", "July",
           "August", "September", "October", "November", "December")  # fmt: skip
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_WORDS = {name[:3].casefold() for name in (*_MONTHS, *_DAYS)} | {"l"}


@dataclass(frozen=True)
class Fire:
    """`slot`: what the clocks of the cron's zone should show (naive), and the name of the fire; `at`: when that is (UTC)."""

    slot: datetime
    at: datetime


@dataclass(frozen=True)
class Cron:
    """A checked expression of five fields in a zone. `words` explains it."""

    expression: str
    timezone: str
    words: str

    def fires(self, after: datetime) -> Iterator[Fire]:
        """Every fire behind an instant, in order, without an end."""
        # From before a gap that `after` may lie behind: which of its slots gives its name to the fire must not depend on the start.
        naive = zones.wall(self.timezone, after).replace(microsecond=0) - _LONGEST_GAP
        slots = croniter(self.expression, naive, ret_type=datetime, max_years_between_matches=_FAR)
        last = None
        while True:
            slot = slots.get_next()
            at = zones.instant(self.timezone, slot)
            if last is None or at > last:
                last = at
                if at > after:
                    yield Fire(slot, at)

    def next(self, after: datetime, number: int) -> list[Fire]:
        """The next fires behind an instant."""
        return list(islice(self.fires(after), number))


def parse(expression: str, timezone: str, *, minimum: float = MINIMUM) -> Cron:
    """Check an expression. `minimum`: seconds between two fires at least, by the clocks of the zone.

    Raises:
        CronError: it is not five fields that croniter understands, it can never fire, or it fires more often than allowed.
        ZoneError: there is no such zone.
    """
    zone = zones.load(timezone).key
    text = " ".join(expression.split())
    text = _ALIASES.get(text.casefold(), text)
    fields = text.split(" ")
    if len(fields) != 5:
        raise CronError(
            f"cron {expression!r}: expected five fields (minute, hour, day of the month, month, day of the week),"
            f" for example `0 9 * * 1` for Mondays at 09:00"
        )
    for field in fields:
        if not re.fullmatch(r"[0-9A-Za-z*?,/#-]+", field):
            raise CronError(f"cron {expression!r}: {field!r} is not understood")
        for word in re.findall(r"[A-Za-z]+", field):
            if word.casefold() not in _WORDS:
                raise CronError(
                    f"cron {expression!r}: {word!r} is not understood; use numbers, or names such as mon or jan"
                )
    try:
        expanded, nth = croniter.expand(text, strict=True)
        if nth and expanded[2] != ["*"]:
            raise CronError(f"cron {expression!r}: a day of the month and {fields[4]!r} cannot be asked for together")
        shortest = _too_short(text, expanded, minimum)
    except (CroniterError, ValueError) as error:
        raise CronError(f"cron {expression!r}: {error}") from error
    if shortest is not None:
        raise CronError(
            f"cron {expression!r}: fires every {shortest / 60:g} minutes, more often than every {minimum / 60:g} minutes"
            f" (MAILPIPE_MINIMUM_INTERVAL)"
        )
    return Cron(text, zone, _describe(expanded, nth))


def _too_short(text: str, expanded: list[list[Any]], minimum: float) -> float | None:
    """The time between two fires that is shorter than `minimum`, in seconds of the local clock.

    Raises:
        CroniterError: there is no fire at all.
    """
    minutes, hours = (
        [*range(top)] if field == ["*"] else field for field, top in zip(expanded, (60, 24), strict=False)
    )
    times = [hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)]
    shortest = min((60 * (later - earlier) for earlier, later in pairwise(times)), default=None)
    if shortest is not None and shortest < minimum:
        return float(shortest)
    slots = croniter(text, datetime(2026, 1, 1), ret_type=datetime, max_years_between_matches=_FAR)
    earlier = slots.get_next()
    if 60 * (24 * 60 - times[-1] + times[0]) >= minimum:
        return None
    # Neighbouring days may be too near, if the expression has any.
    for _ in range(400):
        later = slots.get_next()
        if (later - earlier).total_seconds() < minimum:
            return float((later - earlier).total_seconds())
        earlier = later
    return None


def _describe(expanded: list[list[Any]], nth: dict[int, set[Any]]) -> str:
    minutes, hours, days, months, weekdays = expanded
    parts = [_times(minutes, hours)]
    dates = [] if days == ["*"] else [_dates(days)]
    if weekdays != ["*"]:
        dates.append(_weekdays(weekdays, nth))
    parts.append(" and ".join(dates) if dates else "every day")
    if months != ["*"]:
        parts.append("in " + _listed([_MONTHS[month - 1] for month in months]))
    return ", ".join(parts)


def _times(minutes: list[Any], hours: list[Any]) -> str:
    if minutes == ["*"]:
        minutes = list(range(60))
    if hours == ["*"]:
        return "every hour at minute " + _listed([str(minute) for minute in minutes])
    if len(minutes) * len(hours) <= 6:
        return "at " + _listed([f"{hour:02d}:{minute:02d}" for hour in sorted(hours) for minute in sorted(minutes)])
    return f"at minute {_listed([str(minute) for minute in minutes])} of the hours {_listed([f'{hour:02d}' for hour in hours])}"


def _dates(days: list[Any]) -> str:
    named = [f"day {day}" for day in days if day != "l"] + (["the last day"] if "l" in days else [])
    return f"on {_listed(named)} of the month"


def _weekdays(weekdays: list[Any], nth: dict[int, set[Any]]) -> str:
    if not nth:
        return "every " + _listed([_DAYS[day % 7] for day in weekdays])
    named = [
        f"the {'last' if which == 'l' else _ORDINALS[which - 1]} {_DAYS[day % 7]}"
        for day in sorted(nth)
        for which in sorted(nth[day], key=str)
    ]
    return f"on {_listed(named)} of the month"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
