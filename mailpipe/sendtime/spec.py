"""The fields of a campaign file that say how send times are optimised: `mode: optimised` and `optimise`. Pure."""

from __future__ import annotations

from datetime import time
from typing import Annotated, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from mailpipe.schedule.when import Duration, Quiet
from mailpipe.sendtime import model
from mailpipe.sendtime.model import BASE_HOUR, HOURS

HORIZON = 24 * 3600


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
    def hours(self) -> NDArray[np.bool_]:
        """The hours of the window, as a mask."""
        span = Quiet.parse(self.window)
        return model.allowed(span.start.hour, (span.end.hour - 1) % HOURS)


def awake(hours: NDArray[np.bool_], quiet_hours: str | None) -> NDArray[np.bool_]:
    """Those of the hours in which no minute is quiet."""
    if quiet_hours is None:
        return hours
    quiet = Quiet.parse(quiet_hours)

    def is_quiet(hour: int, minute: int) -> bool:
        now = time(hour, minute)
        if quiet.start < quiet.end:
            return quiet.start <= now < quiet.end
        return now >= quiet.start or now < quiet.end

    loud = [not any(is_quiet(hour, minute) for minute in range(60)) for hour in range(HOURS)]
    return np.asarray(hours & np.array(loud))
