"""Decides experiments when their time has come. It launches nothing: who is freed by it is launched by `resume` or `due`."""

import dagster as dg

from assets.partitions import OWNERS
from assets.resources import DatabaseResource, load_settings
from mailpipe.experiment import decision
from mailpipe.experiment.decision import Ticked

EVERY = 30
"""Seconds between two looks. A look that comes late decides the same: clicks count up to the fixed time."""


def told(done: Ticked) -> str:
    """What a look has done, and what comes next."""
    parts = [f"decided {', '.join(done.decided)}"] if done.decided else []
    parts += [f"failed: {one}" for one in done.failed]
    if done.coming is None:
        return "; ".join(parts) or "no experiment waits for its time"
    return "; ".join([*parts, f"next: {done.coming[0]} at {done.coming[1]:%Y-%m-%d %H:%M:%S} UTC"])


@dg.sensor(
    minimum_interval_seconds=EVERY,
    # The campaign is approved, and its decision with it; whether a run is launched for the rest is another sensor's.
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Decides the experiment of a campaign at its fixed time, once, and frees who waits for it. Launches no run.",
    owners=OWNERS,
)
def experiments(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SkipReason:
    with database.connection() as connection:
        done = decision.tick(connection, load_settings())
    for one in done.failed:
        context.log.error(one)
    return dg.SkipReason(told(done))
