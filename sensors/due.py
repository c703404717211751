"""Launches what is near: audiences are frozen ahead of time, and sends begin two minutes before their people are due."""

import dagster as dg
from dagster import DagsterInstance

from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource, load_settings
from jobs.sending import send_job, snapshot_job
from mailpipe.schedule import launch
from mailpipe.schedule.launch import Freeze, Launch, Wanted
from sensors.resume import CAMPAIGN, CAUSE, RANGE, lane_tags

EVERY = 15
"""Seconds between two looks."""
PARTITION = "dagster/partition"
MOST = 100
"""Runs that one tick asks for, each of which costs a look-up; the rest follows in the next."""


def freeze_request(found: Freeze) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=found.name,
        job_name=snapshot_job.name,
        # As a tag: the partition may be made by this very tick.
        tags={CAMPAIGN: found.key, CAUSE: "due", PARTITION: found.key},
    )


def send_requests(found: Launch, shares: int) -> list[dg.RunRequest]:
    """One run for each worker share, over its range of slices."""
    return [
        dg.RunRequest(
            run_key=name,
            job_name=send_job.name,
            tags={
                CAMPAIGN: found.key,
                CAUSE: "due",
                **lane_tags(found.lane),
                f"{RANGE}start": f"{found.key}|{first:02d}",
                f"{RANGE}end": f"{found.key}|{last:02d}",
            },
        )
        for name, first, last in found.shares(shares)
    ]


def requests(found: Wanted, shares: int) -> list[dg.RunRequest]:
    """What is due first comes first."""
    freezes = [freeze_request(one) for one in found.freezes]
    sends = [request for one in found.launches for request in send_requests(one, shares)]
    return [*freezes, *sends][:MOST]


def nothing(found: Wanted, coming: str) -> str:
    """Why nothing is launched."""
    missed = ", ".join(f"{one.key} (due {one.due_at:%Y-%m-%d %H:%M} UTC)" for one in found.missed[:5])
    return coming + (f"; missed, and a person has to start them with `late`: {missed}" if missed else "")


def new_partitions(instance: DagsterInstance, asked: list[dg.RunRequest]) -> list[str]:
    keys = dict.fromkeys(request.tags[CAMPAIGN] for request in asked)
    return [key for key in keys if not instance.has_dynamic_partition(str(CAMPAIGNS.name), key)]


@dg.sensor(
    jobs=[snapshot_job, send_job],
    minimum_interval_seconds=EVERY,
    # It launches what sends.
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Freezes the audience of approved campaigns before they are due, and launches `send` two minutes ahead of each due"
    " time: one run for each worker share. Only campaigns whose file says when; others are started by a person.",
    owners=OWNERS,
)
def due(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult | dg.SkipReason:
    config = load_settings()
    with database.connection() as connection:
        found = launch.wanted(connection, grace=config.misfire_grace)
        soonest = launch.soonest(connection)
    asked = requests(found, config.shares)
    if not asked:
        coming = "nothing is due" if soonest is None else f"next: {soonest[0]} at {soonest[1]:%Y-%m-%d %H:%M:%S} UTC"
        return dg.SkipReason(nothing(found, coming))
    new = new_partitions(context.instance, asked)
    return dg.SensorResult(
        run_requests=asked, dynamic_partitions_requests=[CAMPAIGNS.build_add_request(new)] if new else []
    )
