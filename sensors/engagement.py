"""Folds the days that wait, every night. It sends nothing, so it starts RUNNING."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

import dagster as dg

from assets.partitions import FOLDED_DAYS
from assets.resources import DatabaseResource
from jobs.engagement import engagement_job
from mailpipe.engagement import days

MOST = 14
"""Runs of one tick at most. The first of them folds whatever waits before its day; older days stay without a colour until somebody
launches a backfill of them, which costs nothing."""


def chosen(waiting: Sequence[date], known: Sequence[str]) -> list[str]:
    """The partitions to launch, oldest first: days that wait and are partitions, the newest MOST of them."""
    present = set(known)
    return [day.isoformat() for day in waiting if day.isoformat() in present][-MOST:]


@dg.schedule(
    job=engagement_job,
    # A day can be folded two hours after the end of the next one.
    cron_schedule="30 2 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night: folds the days that wait into what is known of people, and refreshes what depends on it. Sends"
    " nothing.",
)
def learn_engagement(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    with database.connection() as connection:
        waiting = days.due(connection, datetime.now(UTC))
    wanted = chosen(waiting, FOLDED_DAYS.get_partition_keys())
    if not wanted:
        yield dg.SkipReason("no day waits to be folded" if not waiting else "the days that wait are no partitions yet")
    for day in wanted:
        # A tick that is repeated launches nothing twice; the next night tries again what failed.
        yield dg.RunRequest(run_key=f"{day}-{context.scheduled_execution_time:%Y-%m-%d}", partition_key=day)
