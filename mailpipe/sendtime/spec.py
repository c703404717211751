"""The fields of a campaign file that say how send times are optimised: `mode: optimised` and `optimise`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Annotated, Self

import pydantic

from mailpipe.engagement.rule import HOURS
from mailpipe.schedule.when import Duration, Quiet

BASE_HOUR = 10
"""Of the recipient's clock: when a mail is sent to somebody of whom, and of whose like, nothing is known."""
HORIZON = 24 * 3600
STEP = 300
"""Seconds by which due times differ within an hour. A hash gives each person theirs: nobody likes everything at the full hour."""
LABELS = ("optimised", "control", "explore")
"""What people of such a campaign are part of, as their chunks are labelled."""


class Optimise(pydantic.BaseModel):
    """How each person's hour is chosen."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    window: Annotated[
        str,
        pydantic.Field(
            description="Hours of the recipient's clock in which mail may be sent, from full hour to full hour"
        ),
    ] = "08:00-21:00"
    horizon: Annotated[
        Duration,
        pydantic.Field(
            ge=3600, le=48 * 3600, description="Within so long after `due_at` everybody is mailed: 24h; 48h at the most"
        ),
    ] = HORIZON
    explore: Annotated[
        float, pydantic.Field(ge=0, le=0.5, description="Part of the audience that gets a random hour, to learn from")
    ] = 0.05
    control: Annotated[
        float, pydantic.Field(ge=0, le=0.5, description="Part that gets `control_hour`, to compare with")
    ] = 0.10
    control_hour: Annotated[
        int, pydantic.Field(ge=0, lt=HOURS, description="The fixed hour of the control group, by the recipient's clock")
    ] = BASE_HOUR

    @pydantic.field_validator("window")
    @classmethod
    def _full_hours(cls, value: str) -> str:
        span = Quiet.parse(value)
        if span.start.minute or span.end.minute:
            raise ValueError("expected full hours such as 08:00-21:00")
        return f"{span.start:%H:%M}-{span.end:%H:%M}"

    @pydantic.model_validator(mode="after")
    def _control_within(self) -> Self:
        if self.control and not self.hours[self.control_hour]:
            raise ValueError(f"control_hour {self.control_hour} lies outside of the window {self.window}")
        return self

    @property
    def hours(self) -> tuple[bool, ...]:
        """Which of the 24 hours lie in the window; it may hold midnight."""
        span = Quiet.parse(self.window)
        length = (span.end.hour - span.start.hour) % HOURS
        return tuple((hour - span.start.hour) % HOURS < length for hour in range(HOURS))


def awake(hours: tuple[bool, ...], quiet_hours: str | None) -> tuple[bool, ...]:
    """Those of the hours in which no minute is quiet."""
    if quiet_hours is None:
        return hours
    quiet = Quiet.parse(quiet_hours)

    def is_quiet(now: time) -> bool:
        if quiet.start < quiet.end:
            return quiet.start <= now < quiet.end
        return now >= quiet.start or now < quiet.end

    return tuple(
        open_ and not any(is_quiet(time(hour, minute)) for minute in range(60)) for hour, open_ in enumerate(hours)
    )


def launches(dues: Sequence[datetime | None]) -> list[datetime | None]:
    """For when runs are launched, in place of each due time: a run waits for those who are due five minutes later, so one is enough
    for an hour without a gap."""
    made: dict[datetime, datetime] = {}
    begun = before = None
    for due_at in sorted({due_at for due_at in dues if due_at is not None}):
        if (
            begun is None
            or before is None
            or due_at - before > timedelta(seconds=STEP)
            or due_at - begun >= timedelta(hours=1)
        ):
            begun = due_at
        made[due_at] = begun
        before = due_at
    return [None if due_at is None else made[due_at] for due_at in dues]
