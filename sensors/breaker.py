"""The breaker's second line, and events that came before their calls. Pauses campaigns; resumes and sends nothing."""

import dagster as dg

from assets.partitions import OWNERS
from assets.resources import DatabaseResource
from mailpipe.feedback import upkeep
from mailpipe.feedback.upkeep import Kept

EVERY = 30


def told(kept: Kept) -> str:
    """What a tick did, for people."""
    if kept.paused:
        return f"paused by the breaker, until a person resumes: {', '.join(kept.paused)}"
    if kept.bound:
        return f"{kept.bound} events found their person late"
    return "no campaign is beyond its lines"


@dg.sensor(
    minimum_interval_seconds=EVERY,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks again at complaints, hard bounces and delays of campaigns that are sending, and pauses those beyond a line."
    " The first look is taken when events come in. Ties late events to their people. Sends nothing.",
    owners=OWNERS,
)
def breaker(database: DatabaseResource) -> dg.SkipReason:
    with database.connection() as connection:
        return dg.SkipReason(told(upkeep.run(connection)))
