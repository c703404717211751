"""What a campaign file says about waves, warm-up and the gates between their parts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import time
from typing import Annotated, Literal, Self, get_args

import pydantic

from mailpipe.schedule import zones
from mailpipe.schedule.when import Duration
from mailpipe.waves.ramp import Name

Tier = Literal["T1", "T2", "T3", "T4", "T5"]
TIERS: tuple[Tier, ...] = ("T1", "T2", "T3", "T4", "T5")
"""Who read or bought lately (T1) to who never did (T5)."""
DAY = 86_400
_AT = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)$")


class Wave(pydantic.BaseModel):
    """A part of the audience that goes before the next: the people of some tiers, or all the rest."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    tiers: Annotated[tuple[Tier, ...], pydantic.Field(description="T1 to T5, or none with `rest`")] = ()
    rest: Annotated[bool, pydantic.Field(description="Everybody who is in no wave before")] = False
    within: Annotated[
        Annotated[Duration, pydantic.Field(gt=0)] | None,
        pydantic.Field(description="All are due at once, and the next wave so long after, as 30m or in seconds"),
    ] = None
    spread: Annotated[
        Annotated[Duration, pydantic.Field(gt=0, le=30 * DAY)] | None,
        pydantic.Field(description="They are due evenly over so long, as 36h or in seconds"),
    ] = None

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        if bool(self.tiers) == self.rest:
            raise ValueError("give either tiers, or `rest: true` for everybody else")
        if (self.within is None) == (self.spread is None):
            raise ValueError("give either within (all at once) or spread (evenly over that time)")
        return self

    @property
    def length(self) -> int:
        """Seconds from the wave's beginning to the next one's."""
        return self.within or self.spread or 0


class Warmup(pydantic.BaseModel):
    """A day cap for the sending domain that grows from day to day."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    ramp: Annotated[
        Name | tuple[Annotated[int, pydantic.Field(ge=1)], ...],
        pydantic.Field(
            description="conservative, moderate, aggressive, or a list of mails a day, whose last one stays"
        ),
    ] = "moderate"
    start_day: Annotated[
        Annotated[int, pydantic.Field(ge=1, le=365)] | None,
        pydantic.Field(
            description="The day of the ramp to begin with; empty: the first that allows more than the domain sent on"
            " any of the last 30 days"
        ),
    ] = None
    at: Annotated[
        str | None, pydantic.Field(description="When a day begins, as 10:00; empty: when the campaign does")
    ] = None
    timezone: Annotated[str, pydantic.Field(description="The zone of `at`, and of what a day is")] = "UTC"
    spread: Annotated[
        Annotated[Duration, pydantic.Field(gt=0, le=DAY)] | None,
        pydantic.Field(
            description="A day's mails are due evenly over so long; with `waves`, those say it. Empty: at once"
        ),
    ] = None
    exclude: Annotated[
        tuple[Tier, ...], pydantic.Field(description="Tiers that get nothing while the domain is warmed up")
    ] = ("T5",)

    @pydantic.field_validator("ramp", mode="before")
    @classmethod
    def _is_a_ramp(cls, value: object) -> object:
        days = value if isinstance(value, list | tuple) else ()
        if value in get_args(Name) or (days and all(type(one) is int and one > 0 for one in days)):
            return value
        raise ValueError("expected conservative, moderate, aggressive, or mails a day such as [50, 100, 500, 1000]")

    @pydantic.field_validator("at")
    @classmethod
    def _clock(cls, value: str | None) -> str | None:
        if value is not None and not _AT.match(value):
            raise ValueError("expected a time of the day such as 10:00")
        return value

    @pydantic.field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        found = zones.find(value)
        if found is None:
            raise ValueError("expected a zone of the IANA database such as Asia/Ho_Chi_Minh")
        return found

    @property
    def clock(self) -> time | None:
        return None if self.at is None else time.fromisoformat(self.at)


class Gates(pydantic.BaseModel):
    """What lets the next part go. Rates are parts of those sent; beyond a line the next part waits."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    hard_bounces: Annotated[float, pydantic.Field(gt=0, le=1, description="Hard bounces of those sent")] = 0.02
    hard_bounces_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 500
    complaints: Annotated[float, pydantic.Field(gt=0, le=1, description="Complaints of those sent")] = 0.0008
    complaints_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 2_500
    delays: Annotated[
        float, pydantic.Field(gt=0, le=1, description="Delayed deliveries of those sent, at each provider")
    ] = 0.05
    delays_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent to it")] = 200
    told: Annotated[
        float,
        pydantic.Field(
            gt=0, le=1, description="Of whom SES has to have said what became of them, else nothing is known"
        ),
    ] = 0.5


def check(waves: Sequence[Wave] | None, warmup: Warmup | None) -> None:
    """See that waves and warm-up agree.

    Raises:
        ValueError: in words for the author of a campaign file.
    """
    if waves is None:
        return
    if not waves:
        raise ValueError("waves is empty; name at least one, or leave it out")
    named: list[str] = []
    for number, wave in enumerate(waves, start=1):
        if twice := [tier for tier in wave.tiers if tier in named]:
            raise ValueError(f"waves: {twice[0]} is in two waves; a person goes in one")
        named += wave.tiers
        if wave.rest and number < len(waves):
            raise ValueError("waves: nobody is left after `rest`; put it last")
    excluded = () if warmup is None else warmup.exclude
    if not waves[-1].rest and (missing := [tier for tier in TIERS if tier not in named and tier not in excluded]):
        raise ValueError(f"waves: {', '.join(missing)} are in no wave; put them in one, or end with `rest: true`")
    if both := [tier for tier in excluded if tier in named]:
        raise ValueError(
            f"waves name {both[0]}, which warmup excludes; say `exclude: []` there if they shall be mailed"
        )
    if warmup is not None and warmup.spread is not None:
        raise ValueError("warmup.spread: the waves say how a day's mails are spread; leave it out")


def wave_of(tier: Tier, waves: Sequence[Wave]) -> int:
    """The number of a tier's wave, from 0 on."""
    return next((number for number, wave in enumerate(waves) if tier in wave.tiers), len(waves) - 1)
