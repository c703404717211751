"""Launches `reconcile` while somebody's outcome may be open. It sends nothing."""

from collections.abc import Iterable
from datetime import UTC, datetime

import dagster as dg

from assets.partitions import OWNERS
from assets.resources import DatabaseResource
from jobs.upkeep import reconcile as reconcile_job
from mailpipe import campaign
from mailpipe.campaign import Campaign

EVERY = 180
"""Seconds between two launches: a little more than a lease, so that what a dead worker held is free soon."""


def open_campaigns(found: Iterable[Campaign]) -> list[str]:
    """Campaigns with chunks that a worker may have left: those that are sending, or paused in the middle of it."""
    return [one.key for one in found if one.state in ("sending", "paused")]


@dg.sensor(
    job=reconcile_job,
    minimum_interval_seconds=EVERY,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Puts the ledger in order every few minutes while a campaign is sending or paused. Sends nothing.",
    owners=OWNERS,
)
def reconcile(database: DatabaseResource) -> dg.RunRequest | dg.SkipReason:
    with database.connection() as connection:
        found = open_campaigns(campaign.get_all(connection))
    if not found:
        return dg.SkipReason("no campaign is sending or paused")
    # A tick that is repeated within its interval launches nothing twice.
    return dg.RunRequest(run_key=f"reconcile-{int(datetime.now(UTC).timestamp()) // EVERY}")
