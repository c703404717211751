"""A schedule file: a cron expression, and the campaign that each of its fires makes. Checked here; what happens at a fire is told
in `recurring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from mailpipe import campaign_file, yaml_file
from mailpipe.campaign_file import Spec
from mailpipe.errors import ScheduleError, of_fields
from mailpipe.schedule import cron, zones
from mailpipe.schedule.cron import Cron, Fire
from mailpipe.schedule.when import RECIPIENT, SNAPSHOT_LEAD, Duration, Moment

FIRST = "Pacific/Kiritimati"
"""Where every wall time comes first. A schedule in the recipients' zones counts by its clocks."""
_OF_THE_FIRE = ("key", "due_at", "send_at", "timezone", "snapshot_lead", "expires_at", "as_of")
"""Fields of a campaign that each fire decides."""


class ScheduleSpec(pydantic.BaseModel):
    """A schedule file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    key: Annotated[
        str,
        pydantic.Field(
            pattern=r"^[a-z0-9_-]{1,45}$", description="Name of the schedule; its campaigns are KEY-DATE-TIME"
        ),
    ]
    cron: Annotated[
        str, pydantic.Field(description="Five fields: minute, hour, day of the month, month, day of the week")
    ]
    timezone: Annotated[
        str, pydantic.Field(description="The zone of the cron; `recipient`: the wall time of each recipient")
    ]
    missed: Annotated[
        Literal["skip", "latest", "all"],
        pydantic.Field(
            description="Fires that nobody was there for: none is made up, the newest within `grace`, or all"
        ),
    ] = "latest"
    grace: Annotated[
        Duration, pydantic.Field(ge=0, description="How late the newest missed fire may still be made")
    ] = 6 * 3600
    approval: Annotated[
        Literal["series", "each"],
        pydantic.Field(description="Somebody approves the whole series once, or every campaign of it"),
    ] = "series"
    starts_at: Annotated[Moment | None, pydantic.Field(description="No fire before this instant")] = None
    ends_at: Annotated[Moment | None, pydantic.Field(description="No fire after this instant")] = None
    snapshot_lead: Annotated[
        Duration, pydantic.Field(ge=0, le=7 * 86_400, description="How long before a fire its audience is frozen")
    ] = SNAPSHOT_LEAD
    campaign: Annotated[dict[str, Any], pydantic.Field(description="The fields of each campaign, without key and time")]

    @pydantic.field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        if value.casefold() == RECIPIENT:
            return RECIPIENT
        found = zones.find(value)
        if found is None:
            raise ValueError("expected a zone of the IANA database such as Asia/Ho_Chi_Minh, or `recipient`")
        return found

    @pydantic.field_validator("starts_at", "ends_at")
    @classmethod
    def _needs_offset(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs an offset, for example 2026-11-27T09:00:00+01:00")
        return None if value is None else value.astimezone(UTC)

    @pydantic.field_validator("campaign")
    @classmethod
    def _campaign(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in _OF_THE_FIRE:
            if value.get(name) is not None:
                raise ValueError(f"{name} is decided by each fire; leave it out")
        if value.get("experiment") is not None:
            raise ValueError(
                "experiment: a schedule has none, as its mails are frozen for the series; create a campaign"
            )
        try:
            checked = Spec.model_validate({**value, "key": "sample"})
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(f"{field}: {text}" for field, text in of_fields(error.errors()))) from error
        return checked.model_dump(mode="json", exclude=set(_OF_THE_FIRE), exclude_defaults=True)

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("ends_at lies before starts_at")
        return self

    def compiled(self, *, minimum: float) -> Cron:
        """The cron, checked.

        Raises:
            CronError: it cannot be used.
        """
        return cron.parse(self.cron, FIRST if self.timezone == RECIPIENT else self.timezone, minimum=minimum)

    def first_after(self, after: datetime, *, minimum: float) -> Fire | None:
        """The next fire behind an instant that lies between start and end; None: there is none any more."""
        # A fire right at the start counts.
        after = max(after, (self.starts_at or after) - timedelta(microseconds=1))
        fire = next(self.compiled(minimum=minimum).fires(after))
        return fire if self.ends_at is None or fire.at <= self.ends_at else None

    def coming(self, after: datetime, *, minimum: float, count: int = 5) -> list[dict[str, str]]:
        """The next fires behind an instant, for people: the wall time, the instant with the zone's offset, and the same in UTC.

        Raises:
            CronError: the cron cannot be used.
        """
        told: list[dict[str, str]] = []
        zone = zones.load(self.compiled(minimum=minimum).timezone)
        while len(told) < count and (fire := self.first_after(after, minimum=minimum)) is not None:
            local = fire.at.astimezone(zone).isoformat(timespec="minutes")
            told.append({"slot": f"{fire.slot:%a %Y-%m-%d %H:%M}", "local": local, "utc": f"{fire.at:%Y-%m-%dT%H:%MZ}"})
            after = fire.at
        return told

    def campaign_of(self, fire: Fire, now: datetime) -> Spec:
        """The campaign of a fire. A fire that is late is due now, and ends when it would have ended in time."""
        fields: dict[str, Any] = {**self.campaign, "key": name(self.key, fire), "snapshot_lead": self.snapshot_lead}
        if self.timezone == RECIPIENT:
            fields |= {"send_at": fire.slot, "timezone": RECIPIENT}
        else:
            fields["due_at"] = max(fire.at, now)
            after = self.campaign.get("expires_after")
            if fire.at < now and after is not None:
                fields |= {"expires_after": None, "expires_at": fire.at + timedelta(seconds=after)}
        return campaign_file.parse(fields, where=f"schedule {self.key}")


def name(key: str, fire: Fire) -> str:
    """The key of a fire's campaign: the schedule and the local slot, whatever the cron is or was."""
    return f"{key}-{fire.slot:%Y%m%d-%H%M}"


def read_file(path: Path) -> ScheduleSpec:
    """Read and check a schedule file.

    Raises:
        ScheduleError: the file cannot be read or a field is wrong; the text names file and fields.
    """
    content = yaml_file.read(path, ScheduleError, example="`key:`, `cron:` and `campaign:`")
    about = content.get("campaign")
    if begun := campaign_file.unfilled(about) if isinstance(about, dict) else []:
        raise ScheduleError(
            "\n".join(f"{path}: campaign.{name}: is empty; fill it in, or leave it out" for name in begun)
        )
    return parse(content, where=str(path))


def parse(content: Mapping[str, Any], *, where: str) -> ScheduleSpec:
    """Check the fields of a schedule; `where` names their origin in errors.

    Raises:
        ScheduleError: every wrong field with its reason, one a line.
    """
    try:
        return ScheduleSpec.model_validate(dict(content))
    except pydantic.ValidationError as error:
        lines = [f"{where}: {field or 'file'}: {text}" for field, text in of_fields(error.errors())]
        raise ScheduleError("\n".join(lines)) from error
