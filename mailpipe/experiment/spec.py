"""What a campaign file says about its experiment: the variants, their shares, and when and by what one of them wins.

Which mail a variant is belongs to `letters`, who gets it to `assign`, and what it has won to `rule`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pydantic

from mailpipe.schedule.when import Duration

SHARE = 0.1
DECIDE_AFTER = 2 * 3600
MOST_VARIANTS = 8

_WORD = r"^[A-Za-z0-9._~-]{1,64}$"


class Utm(pydantic.BaseModel):
    """What the links of the variants say about where a visitor comes from; campaign and variant are filled in."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, pydantic.Field(pattern=_WORD, description="utm_source of the links")] = "newsletter"
    medium: Annotated[str, pydantic.Field(pattern=_WORD, description="utm_medium of the links")] = "email"


class Variant(pydantic.BaseModel):
    """One mail of an experiment. What is not said is that of the campaign."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    name: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_-]{1,32}$", description="Name of the variant: a-z 0-9 _ -")]
    subject: Annotated[
        Annotated[str, pydantic.Field(min_length=1)] | None,
        pydantic.Field(description="Another subject line; its tags are those of the template"),
    ] = None
    template: Annotated[
        Annotated[str, pydantic.Field(min_length=1)] | None, pydantic.Field(description="Another template folder")
    ] = None
    hour: Annotated[
        Annotated[int, pydantic.Field(ge=0, le=23)] | None,
        pydantic.Field(description="Another hour of the day, by the clock that `send_at` goes by"),
    ] = None
    share: Annotated[float, pydantic.Field(gt=0, le=1, description="Part of the audience that tries it")] = SHARE


class Experiment(pydantic.BaseModel):
    """Variants that are tried on a part of the audience; the rest waits, and gets the one that wins."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    variants: Annotated[
        tuple[Variant, ...],
        pydantic.Field(
            min_length=2, max_length=MOST_VARIANTS, description="The first is the control: it goes out if nothing wins"
        ),
    ]
    decide_after: Annotated[
        Duration,
        pydantic.Field(
            ge=60, le=14 * 86_400, description="From the last mail of the test to the decision, as 2h or in seconds"
        ),
    ] = DECIDE_AFTER
    metric: Annotated[
        Literal["clicks", "orders"],
        pydantic.Field(description="What counts: people who clicked, or who ordered (MAILPIPE_ORDERS)"),
    ] = "clicks"
    series: Annotated[
        Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_-]{1,63}$")] | None,
        pydantic.Field(description="In all campaigns of a series a person stays in one arm; empty: a new shuffle"),
    ] = None
    utm: Annotated[
        bool | Utm, pydantic.Field(description="Links say the campaign and the variant: true, false, or {source: ...}")
    ] = True

    @pydantic.field_validator("utm", mode="before")
    @classmethod
    def _is_utm(cls, value: object) -> object:
        if isinstance(value, bool | Utm) or (isinstance(value, dict) and value.keys() <= Utm.model_fields.keys()):
            return value
        raise ValueError("expected true, false, or {source: newsletter, medium: email}")

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ValueError("two variants have the same name")
        if sum(variant.share for variant in self.variants) > 1 + 1e-9:
            raise ValueError("the shares of the variants are more than the whole audience")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in self.variants)

    @property
    def control(self) -> Variant:
        return self.variants[0]

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(variant.share for variant in self.variants)

    @property
    def links(self) -> Utm | None:
        """What links are marked with, if at all."""
        return self.utm if isinstance(self.utm, Utm) else Utm() if self.utm else None

    @property
    def by_hour(self) -> bool:
        """Whether variants differ in their hour."""
        return any(variant.hour is not None for variant in self.variants)

    def variant(self, name: str) -> Variant:
        """The variant of this name. Raises KeyError."""
        return {one.name: one for one in self.variants}[name]
