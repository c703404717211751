"""What a campaign file says about being stopped: the lines of the breaker, and the canary that goes ahead of the others.

Holding rates against the lines is `breaker`'s duty.
"""

from __future__ import annotations

from typing import Annotated

import pydantic

from mailpipe.schedule.when import Duration


class Lines(pydantic.BaseModel):
    """Where the breaker stops a campaign: a rate, and how many people it must rest on. Warnings come at half a line."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    complaints: Annotated[float, pydantic.Field(gt=0, le=1, description="Complaints of those sent")] = 0.001
    complaints_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 10_000
    hard_bounces: Annotated[float, pydantic.Field(gt=0, le=1, description="Hard bounces of those sent")] = 0.03
    hard_bounces_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were delivered")] = 2_000
    delays: Annotated[float, pydantic.Field(gt=0, le=1, description="Delayed deliveries of those sent")] = 0.25
    delays_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 2_000


class Canary(pydantic.BaseModel):
    """The first slices go out, then everybody else waits, so that bounces and complaints can come in and stop the campaign."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    slices: Annotated[
        int, pydantic.Field(ge=1, le=50, description="Slices that go first, of those that hold somebody")
    ] = 1
    wait: Annotated[Duration, pydantic.Field(gt=0, description="From the start to the rest, as 30m or in seconds")] = (
        1800
    )
