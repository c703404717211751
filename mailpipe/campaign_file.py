"""The campaign file: its fields, and what must agree among them. Dagster's launch form is made from the same model.

What refers to something else (a segment, a template) is looked for by `campaign`; here a file is read and checked by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from mailpipe import adapters, address, yaml_file
from mailpipe.earlier import Earlier
from mailpipe.errors import CampaignError, of_fields
from mailpipe.experiment.spec import Experiment
from mailpipe.lines import Canary, Lines
from mailpipe.schedule.when import Duration, Moment, When
from mailpipe.sendtime.spec import Optimise, awake
from mailpipe.waves.spec import Gates, Warmup, Wave
from mailpipe.waves.spec import check as check_waves


class Spec(When):
    """A campaign file. The launch form in Dagster is made from this model too."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    key: Annotated[
        str,
        pydantic.Field(pattern=r"^[a-z0-9_-]{1,63}$", description="Name of the campaign, never reused: a-z 0-9 _ -"),
    ]
    segment: Annotated[
        Annotated[str, pydantic.Field(min_length=1)] | None,
        pydantic.Field(description="The segment file, without .sql; or `audience`"),
    ] = None
    audience: Annotated[
        Earlier | None,
        pydantic.Field(
            description="In place of a segment, people of an earlier campaign: {campaign: KEY, delivery: sent}"
        ),
    ] = None
    parameters: Annotated[
        dict[str, Any],
        pydantic.Field(description="Values for the segment's parameters; the rest take their defaults"),
    ] = {}  # noqa: RUF012 - pydantic copies it
    as_of: Annotated[
        Moment | None,
        pydantic.Field(description="The instant that the segment sees as now; empty: when frozen"),
    ] = None
    template: Annotated[str, pydantic.Field(min_length=1, description="The template folder")]
    sender: Annotated[str, pydantic.Field(description="From: `Shop <news@mail.example.com>`, a verified SES identity")]
    reply_to: Annotated[str | None, pydantic.Field(description="Where answers go; empty: the sender")] = None
    topic: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_-]{1,32}$", description="What people unsubscribe from")] = (
        "marketing"
    )
    rate: Annotated[
        Annotated[float, pydantic.Field(gt=0, le=100_000)] | None,
        pydantic.Field(description="Recipients per second; empty: the account's limit"),
    ] = None
    lane: Annotated[
        Literal["normal", "low"], pydantic.Field(description="normal, or low: what can wait for the others")
    ] = "normal"
    adapter: Annotated[
        adapters.Name, pydantic.Field(description="How the mails leave: ses, smtp or webhook (docs/adapters.md)")
    ] = "ses"
    finish_within: Annotated[
        Annotated[Duration, pydantic.Field(gt=0)] | None,
        pydantic.Field(
            description="Wanted length of the send, as 30m or in seconds; a plan that cannot meet it is refused"
        ),
    ] = None
    chunk_size: Annotated[
        int, pydantic.Field(ge=100, le=1000, description="People that a sender thread leases at once")
    ] = 500
    canary: Annotated[
        Canary | None, pydantic.Field(description="Slices that go ahead of the rest; empty: all go at once")
    ] = None
    lines: Annotated[Lines, pydantic.Field(description="Where the breaker stops it; empty: the usual lines")] = Lines()
    mode: Annotated[
        Literal["optimised"] | None,
        pydantic.Field(
            description="optimised: everybody at their own best hour after `due_at`; empty: as the times say"
        ),
    ] = None
    optimise: Annotated[
        Optimise | None, pydantic.Field(description="How hours are chosen in mode optimised; empty: the usual way")
    ] = None
    experiment: Annotated[
        Experiment | None,
        pydantic.Field(
            description="Variants that are tried on a part of the audience before the rest gets the best one"
        ),
    ] = None
    holdout: Annotated[
        Annotated[float, pydantic.Field(gt=0, le=0.5)] | None,
        pydantic.Field(description="Part of the audience that gets no mail, so that its effect can be seen: 0.05"),
    ] = None
    waves: Annotated[
        tuple[Wave, ...] | None,
        pydantic.Field(
            description="Parts that go one after the other: [{tiers: [T1, T2], within: 30m}, {rest: true, spread: 36h}]"
        ),
    ] = None
    warmup: Annotated[
        Warmup | None,
        pydantic.Field(
            description="Mails a day that the sending domain may grow to: {ramp: moderate, at: '10:00', timezone: UTC}"
        ),
    ] = None
    gates: Annotated[
        Gates, pydantic.Field(description="What has to go well before the next wave or day; empty: the usual lines")
    ] = Gates()

    @pydantic.field_validator("as_of")
    @classmethod
    def _needs_offset_too(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs an offset, for example 2026-11-27T09:00:00+01:00")
        return None if value is None else value.astimezone(UTC)

    @pydantic.model_validator(mode="after")
    def _one_audience(self) -> Self:
        if (self.segment is None) == (self.audience is None):
            raise ValueError("give either segment, or audience for people of an earlier campaign")
        if self.audience is not None and self.parameters:
            raise ValueError("parameters belong to a segment; an audience of an earlier campaign has none")
        if self.audience is not None and self.audience.campaign == self.key:
            raise ValueError("audience names the campaign itself; expected an earlier one")
        return self

    @pydantic.model_validator(mode="after")
    def _hours_of_variants(self) -> Self:
        if self.experiment is not None and self.experiment.by_hour:
            if self.send_at is None:
                raise ValueError("experiment: the hour of a variant needs send_at, by whose clock it is meant")
            if self.quiet_hours is not None:
                raise ValueError("experiment: hours of variants and quiet_hours exclude each other")
        return self

    @pydantic.model_validator(mode="after")
    def _mode_agrees(self) -> Self:
        if self.mode is None:
            if self.optimise is not None:
                raise ValueError("optimise belongs to mode: optimised, which is not given")
            return self
        if self.send_at is not None:
            raise ValueError(
                "mode: optimised gives everybody an hour of their own, and send_at one hour to all; give due_at, after which"
                " the hours begin, or leave mode out"
            )
        if self.experiment is not None and self.experiment.by_hour:
            raise ValueError(
                "mode: optimised chooses the hours, and so would the variants of experiment; leave one of them out"
            )
        hours = awake((self.optimise or Optimise()).hours, self.quiet_hours)
        if not any(hours):
            raise ValueError("optimise: no hour of window lies outside of quiet_hours")
        if (self.optimise or Optimise()).control and not hours[(self.optimise or Optimise()).control_hour]:
            raise ValueError("optimise: control_hour lies in quiet_hours")
        return self

    @pydantic.model_validator(mode="after")
    def _waves_agree(self) -> Self:
        check_waves(self.waves, self.warmup)
        if not self.in_waves:
            return self
        name = "waves" if self.waves is not None else "warmup"
        if self.mode == "optimised":
            raise ValueError(
                f"{name} says when people are due, and so does mode: optimised; a new domain needs the order of its warm-up"
                " more than anybody's best hour, so leave mode out until it is warm"
            )
        if self.is_local:
            raise ValueError(
                f"{name} says when people are due, and so does send_at in each recipient's zone; give due_at, or send_at"
                " with one timezone for all"
            )
        if self.quiet_hours is not None:
            raise ValueError(f"{name} says when people are due, and quiet_hours would move some of them; leave it out")
        if self.experiment is not None:
            raise ValueError(
                f"{name} and experiment exclude each other: who reads most would be in the test, and nobody else; try the"
                " variants on a campaign without waves"
            )
        if self.finish_within is not None:
            raise ValueError(f"{name} says how long it takes; leave finish_within out")
        if self.canary is not None:
            raise ValueError(f"{name} has a canary already: its first part; leave canary out")
        return self

    @property
    def days_of(self) -> str:
        """The zone whose days a warm-up counts."""
        return self.warmup.timezone if self.warmup else "UTC"

    @property
    def varies(self) -> bool:
        """Whether zones alone make a difference. In mode optimised people do."""
        return self.mode is None and super().varies

    @property
    def in_waves(self) -> bool:
        """Whether it goes out in parts, each behind a gate."""
        return self.waves is not None or self.warmup is not None

    @property
    def people(self) -> str:
        """Who is mailed, in few words: the segment's name, or which people of which campaign."""
        return self.segment or (self.audience.text if self.audience else "")

    @property
    def sender_domain(self) -> str:
        """The domain that people complain about, in lower case."""
        return self.sender.rpartition("@")[2].rstrip("> ").lower()

    @pydantic.field_validator("sender", "reply_to")
    @classmethod
    def _usable_address(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                address.mailbox(value)
            except address.AddressError as error:
                raise ValueError("expected an address such as Shop <news@mail.example.com>") from error
        return value


_PARTS = ("experiment", "warmup", "waves", "holdout", "mode")


def read_file(path: Path) -> Spec:
    """Read and check a campaign file.

    Raises:
        CampaignError: the file cannot be read or a field is wrong; the text names file and fields.
    """
    content = yaml_file.read(path, CampaignError, example="`key:`, `segment:` and `template:`")
    if begun := unfilled(content):
        raise CampaignError("\n".join(f"{path}: {name}: is empty; fill it in, or leave it out" for name in begun))
    return parse(content, where=str(path))


def unfilled(content: Mapping[str, Any]) -> list[str]:
    """Fields of a file that were begun and not filled in, which is no wish to go without: an empty warm-up would mail everybody at
    once."""
    return [name for name in _PARTS if name in content and content[name] is None]


def parse(content: Mapping[str, Any], *, where: str) -> Spec:
    """Check the fields of a campaign; `where` names their origin in errors.

    Raises:
        CampaignError: every wrong field with its reason, one a line.
    """
    try:
        return Spec.model_validate(dict(content))
    except pydantic.ValidationError as error:
        lines = [f"{where}: {field or 'file'}: {text}" for field, text in of_fields(error.errors())]
        raise CampaignError("\n".join(lines)) from error
