"""When a campaign's mails may leave: the fields of its file, and the window that they give to a zone. Pure.

A campaign has one instant (`due_at`), or one wall time (`send_at`) that is an instant of its own in each recipient's zone. A window
opens at its due time and may close: for good when the mail expires, or for a night when quiet hours begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Literal, Self

import pydantic

from mailpipe.schedule import zones

RECIPIENT = "recipient"
"""In place of a zone: that of each recipient."""
PAST_GRACE = timedelta(minutes=15)
"""Somebody whose wall time passed no longer ago than this is mailed at once, whatever is said about those who are past it."""
SNAPSHOT_LEAD = 15 * 60
_DURATION = re.compile(r"^(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?$")
_QUIET = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)\s*-\s*([01]\d|2[0-3]):([0-5]\d)$")


def parse_duration(text: object) -> object:
    """`30m`, `1h30m`, `2d`, `90s` or a number of seconds -> seconds."""
    if isinstance(text, str) and not text.strip().isdigit():
        match = _DURATION.match(text.strip())
        if match is None or not match.group(0):
            raise ValueError("expected a duration such as 30m, 1h30m, 2d or 90s")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return text


def _in_our_time(value: datetime) -> datetime:
    """Rules of zones say nothing about other centuries, and calendars end."""
    if not 2000 <= value.year < 2200:
        raise ValueError("expected a time between the years 2000 and 2200")
    return value


Moment = Annotated[datetime, pydantic.AfterValidator(_in_our_time)]
Duration = Annotated[int, pydantic.BeforeValidator(parse_duration)]


class When(pydantic.BaseModel):
    """The fields of a campaign file that say when."""

    due_at: Annotated[
        Moment | None, pydantic.Field(description="Not before this instant, with offset; empty: at once")
    ] = None
    send_at: Annotated[
        Moment | None,
        pydantic.Field(
            description="Not before this wall time, without offset: 2026-12-24T10:00, in the zone of `timezone`"
        ),
    ] = None
    timezone: Annotated[
        str, pydantic.Field(description="The zone of `send_at`: `recipient` for that of each person, or one for all")
    ] = RECIPIENT
    past_policy: Annotated[
        Literal["next_day", "send_now", "skip"],
        pydantic.Field(description="For people whose `send_at` has passed when the audience is frozen"),
    ] = "next_day"
    default_timezone: Annotated[
        str | None,
        pydantic.Field(description="Zone of people without a known one; empty: MAILPIPE_DEFAULT_TIMEZONE"),
    ] = None
    expires_at: Annotated[
        Moment | None,
        pydantic.Field(description="Not after this instant; beside `send_at` also a wall time: then in the same zone"),
    ] = None
    expires_after: Annotated[
        Annotated[Duration, pydantic.Field(gt=0)] | None,
        pydantic.Field(description="Not later than so long after a person's due time, as 6h or in seconds"),
    ] = None
    quiet_hours: Annotated[
        str | None, pydantic.Field(description="No mail at these hours in the recipient's zone: 22:00-08:00")
    ] = None
    quiet_policy: Annotated[
        Literal["defer", "skip"],
        pydantic.Field(description="People in quiet hours: mailed when they end, or not at all"),
    ] = "defer"
    snapshot_lead: Annotated[
        Duration,
        pydantic.Field(
            ge=0, le=7 * 86_400, description="How long before the first due time the audience is frozen by itself"
        ),
    ] = SNAPSHOT_LEAD

    @pydantic.field_validator("due_at")
    @classmethod
    def _needs_offset(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs an offset, for example 2026-11-27T09:00:00+01:00")
        return None if value is None else value.astimezone(UTC)

    @pydantic.field_validator("send_at")
    @classmethod
    def _needs_no_offset(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is not None:
            raise ValueError("is a wall time and has no offset, for example 2026-12-24T10:00; an instant is `due_at`")
        return value

    @pydantic.field_validator("timezone")
    @classmethod
    def _zone_or_recipient(cls, value: str) -> str:
        if value.casefold() == RECIPIENT:
            return RECIPIENT
        found = zones.find(value)
        if found is None:
            raise ValueError("expected `recipient`, or a zone of the IANA database such as Asia/Ho_Chi_Minh")
        return found

    @pydantic.field_validator("default_timezone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        if value is not None and zones.find(value) is None:
            raise ValueError("not a zone of the IANA database, for example Asia/Ho_Chi_Minh")
        return zones.find(value)

    @pydantic.field_validator("quiet_hours")
    @classmethod
    def _span(cls, value: str | None) -> str | None:
        if value is None or not value.strip():
            return None
        quiet = Quiet.parse(value)
        return f"{quiet.start:%H:%M}-{quiet.end:%H:%M}"

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        if self.due_at is not None and self.send_at is not None:
            raise ValueError("due_at and send_at exclude each other: one is an instant, the other a wall time")
        if self.send_at is None and self.timezone != RECIPIENT:
            raise ValueError("timezone belongs to send_at, which is not given")
        if self.expires_at is not None and self.expires_at.tzinfo is None and self.send_at is None:
            raise ValueError("expires_at needs an offset, as there is no send_at whose zone it could share")
        due = self.due_at or self.send_at
        if (
            due is not None
            and self.expires_at is not None
            and due.tzinfo == self.expires_at.tzinfo
            and due >= self.expires_at
        ):
            raise ValueError("expires_at lies before the mails are due")
        return self

    @property
    def is_local(self) -> bool:
        """Whether each recipient's zone has a due time of its own."""
        return self.send_at is not None and self.timezone == RECIPIENT

    @property
    def is_timed(self) -> bool:
        """Whether the file says when; otherwise a person starts the campaign."""
        return self.due_at is not None or self.send_at is not None

    @property
    def closes(self) -> bool:
        """Whether a window can close before its people are mailed."""
        return self.expires_at is not None or self.expires_after is not None or self.quiet_hours is not None

    @property
    def varies(self) -> bool:
        """Whether zones differ in anything."""
        return self.is_local or self.quiet_hours is not None

    def first_due(self) -> datetime | None:
        """The first instant (UTC) at which anybody anywhere can be due; None: at once."""
        if self.send_at is None:
            return self.due_at
        if self.timezone == RECIPIENT:
            return zones.earliest(self.send_at)
        return zones.instant(self.timezone, self.send_at)


@dataclass(frozen=True)
class Quiet:
    """Hours without mail, by the clocks of the recipient; the end is not part of them."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> Quiet:
        match = _QUIET.match(text.strip())
        if match is None:
            raise ValueError("expected hours such as 22:00-08:00")
        first, last = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
        if first == last:
            raise ValueError("begin and end at the same time; leave them out if there are none")
        return cls(first, last)

    def holds(self, zone: str, at: datetime) -> bool:
        now = zones.wall(zone, at).time()
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def begins(self, zone: str, after: datetime) -> datetime:
        return _next(zone, self.start, after)

    def ends(self, zone: str, after: datetime) -> datetime:
        return _next(zone, self.end, after)


def _next(zone: str, clock: time, after: datetime) -> datetime:
    """When the clocks of a zone next show a time of the day."""
    day = zones.wall(zone, after).date()
    while True:
        at = zones.instant(zone, datetime.combine(day, clock))
        if at > after:
            return at
        day += timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """When a mail may leave (UTC): from `due_at` on, until it expires for good, or until quiet hours begin."""

    due_at: datetime
    expires_at: datetime | None = None
    quiet_at: datetime | None = None


@dataclass(frozen=True)
class Verdict:
    """What a zone gets: a window, or the reason why its people get no mail. `past`: their wall time had passed; `deferred`: it
    fell into quiet hours."""

    window: Window | None
    reason: str | None = None
    past: bool = False
    deferred: bool = False


def decide(when: When, zone: str, due_at: datetime, now: datetime) -> Verdict:
    """The window of a zone. `due_at` is the campaign's, where there is no wall time; `now` is when the audience is frozen."""
    past = False
    if when.send_at is not None:
        own = zone if when.is_local else when.timezone
        due_at = zones.instant(own, when.send_at)
        past = when.is_local and due_at < now - PAST_GRACE
        if past and when.past_policy == "skip":
            return Verdict(None, "past_local_time", past=True)
        if past and when.past_policy == "send_now":
            due_at = now
        elif past:
            due_at = _another_day(zone, when.send_at, now)
    window = Window(due_at, _expiry(when, zone, due_at))
    deferred = False
    if when.quiet_hours is not None:
        quiet = Quiet.parse(when.quiet_hours)
        start = max(window.due_at, now)
        deferred = quiet.holds(zone, start)
        if deferred and when.quiet_policy == "skip":
            return Verdict(None, "quiet_hours", past=past)
        window = _awake(window, quiet, zone, start, deferred=deferred, policy=when.quiet_policy)
    if window.expires_at is not None and window.expires_at <= max(window.due_at, now):
        return Verdict(None, "expired", past=past, deferred=deferred)
    return Verdict(window, past=past, deferred=deferred)


def plain(when: When, due_at: datetime) -> Window:
    """The window of everybody, where zones make no difference."""
    return Window(due_at, _expiry(when, "UTC", due_at))


def after_quiet(window: Window, quiet: Quiet, zone: str, now: datetime) -> Window:
    """The window of people whom quiet hours have caught while they waited."""
    return _awake(window, quiet, zone, now, deferred=quiet.holds(zone, now), policy="defer")


def _awake(window: Window, quiet: Quiet, zone: str, start: datetime, *, deferred: bool, policy: str) -> Window:
    due_at = quiet.ends(zone, start) if deferred else window.due_at
    begins = quiet.begins(zone, max(due_at, start))
    if policy == "defer":
        return Window(due_at, window.expires_at, begins)
    return Window(due_at, min(begins, window.expires_at or begins))


def _another_day(zone: str, wall: datetime, now: datetime) -> datetime:
    days = max(1, (zones.wall(zone, now).date() - wall.date()).days)
    while (at := zones.instant(zone, wall + timedelta(days=days))) < now:
        days += 1
    return at


def _expiry(when: When, zone: str, due_at: datetime) -> datetime | None:
    ends = []
    if when.expires_after is not None:
        ends.append(due_at + timedelta(seconds=when.expires_after))
    if when.expires_at is not None:
        naive = when.expires_at.tzinfo is None
        own = zone if when.is_local else when.timezone
        ends.append(zones.instant(own, when.expires_at) if naive else when.expires_at.astimezone(UTC))
    return min(ends, default=None)


@dataclass(frozen=True)
class Group:
    """People who share a window, by the texts of their zones. `zone` is one of theirs: quiet hours are counted by its clocks."""

    window: Window
    zone: str
    texts: tuple[str | None, ...]


@dataclass(frozen=True)
class Arrangement:
    """Every text in one group, those that are due first in front, or `refused` for a reason. `unknown`, `past` and `deferred` are
    the texts of people without a known zone, whose wall time had passed, and whom quiet hours put off."""

    groups: tuple[Group, ...]
    refused: dict[str | None, str]
    unknown: frozenset[str | None]
    past: frozenset[str | None]
    deferred: frozenset[str | None]


def arrange(
    when: When, texts: Iterable[str | None], *, default_zone: str, due_at: datetime, now: datetime
) -> Arrangement:
    """Give every zone, as people have written it, its window.

    Raises:
        ZoneError: the default is no zone.
    """
    assigned = zones.assign(texts, default_zone)
    verdicts = {zone: decide(when, zone, due_at, now) for zone in sorted(set(assigned.zones.values()))}
    groups: dict[Window, Group] = {}
    refused, past, deferred = {}, set(), set()
    for text, zone in sorted(assigned.zones.items(), key=lambda item: (item[1], item[0] or "")):
        verdict = verdicts[zone]
        past |= {text} if verdict.past else set()
        deferred |= {text} if verdict.deferred else set()
        if verdict.window is None:
            refused[text] = verdict.reason or ""
        elif verdict.window in groups:
            known = groups[verdict.window]
            groups[verdict.window] = replace(known, texts=(*known.texts, text))
        else:
            groups[verdict.window] = Group(verdict.window, zone, (text,))
    return Arrangement(
        tuple(groups[window] for window in sorted(groups, key=_order)),
        refused,
        frozenset(assigned.unknown),
        frozenset(past),
        frozenset(deferred),
    )


def _order(window: Window) -> tuple[datetime, datetime, datetime]:
    """Open ends come last."""
    never = datetime.max.replace(tzinfo=UTC)
    return window.due_at, window.expires_at or never, window.quiet_at or never
