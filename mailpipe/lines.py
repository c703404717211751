"""The lines of the breaker as a campaign file says them. Holding rates against them is `breaker`'s duty."""

from __future__ import annotations

from typing import Annotated

import pydantic


class Lines(pydantic.BaseModel):
    """Where the breaker stops a campaign: a rate, and how many people it must rest on. Warnings come at half a line."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    complaints: Annotated[float, pydantic.Field(gt=0, le=1, description="Complaints of those sent")] = 0.001
    complaints_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 10_000
    hard_bounces: Annotated[float, pydantic.Field(gt=0, le=1, description="Hard bounces of those sent")] = 0.03
    hard_bounces_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were delivered")] = 2_000
    delays: Annotated[float, pydantic.Field(gt=0, le=1, description="Delayed deliveries of those sent")] = 0.25
    delays_after: Annotated[int, pydantic.Field(ge=1, description="Not before so many were sent")] = 2_000
