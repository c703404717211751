"""Makes the campaigns of fire. It launches nothing: what it makes is frozen and sent by `due`, like any other campaign."""

import dagster as dg

from assets.partitions import OWNERS
from assets.resources import DatabaseResource, load_settings
from mailpipe.schedule import fire
from mailpipe.schedule.fire import Ticked

EVERY = 30
"""Seconds between two looks."""


def told(done: Ticked, coming: str) -> str:
    """What a look has done, and what comes next."""
    parts = []
    if done.made:
        parts.append(f"made {', '.join(done.made)}")
    if done.missed:
        parts.append(f"{done.missed} fires were missed; `mailpipe schedule show` says why")
    parts += [f"failed: {one}" for one in done.failed]
    return "; ".join([*parts, coming])


@dg.sensor(
    minimum_interval_seconds=EVERY,
    # What it makes is sent.
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Makes one campaign for each fire of a schedule, shortly before it. Whether it is sent decides its approval.",
    owners=OWNERS,
)
def recurring(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SkipReason:
    with database.connection() as connection:
        done = fire.tick(connection, load_settings())
        next_wake = fire.next_wake(connection)
    coming = (
        "no schedule is active"
        if next_wake is None
        else f"next: {next_wake[0]} at {next_wake[1]:%Y-%m-%d %H:%M:%S} UTC"
    )
    text = told(done, coming)
    for one in done.failed:
        context.log.error(one)
    return dg.SkipReason(text)
