"""Registers campaigns that were created outside Dagster (command line, API) as partitions."""

from collections.abc import Collection, Iterable

import dagster as dg

from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource
from mailpipe import campaign

BATCH = 200
"""New keys in one tick, each of which costs a look-up; the rest follows in the next."""


def missing(keys: Iterable[str], known: Collection[str]) -> list[str]:
    """The keys that are no partitions yet, in the order of their creation."""
    return [key for key in keys if key not in known]


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Makes every campaign a partition, also one that was created on the command line. Sends nothing.",
    owners=OWNERS,
)
def campaigns(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult | dg.SkipReason:
    with database.connection() as connection:
        keys = [found.key for found in reversed(campaign.get_all(connection))]
    new = missing(keys, set(context.instance.get_dynamic_partitions(str(CAMPAIGNS.name))))
    if not new:
        return dg.SkipReason(f"all {len(keys)} campaigns are partitions")
    return dg.SensorResult(dynamic_partitions_requests=[CAMPAIGNS.build_add_request(new[:BATCH])])
