"""Jobs that keep order. They send nothing, so launching them is never a risk."""

import dagster as dg
from pydantic import Field

from assets.failure import explained
from assets.partitions import OWNERS
from assets.resources import DatabaseResource, SesResource, load_settings
from mailpipe import reconcile as reconciling
from mailpipe.feedback import upkeep


class ReconcileConfig(dg.Config):
    """Which campaigns are put in order."""

    campaign: str | None = Field(default=None, description="The key of one campaign; empty: all that are not over.")


@dg.op(tags={"kind": "postgres"})
def settle(context: dg.OpExecutionContext, config: ReconcileConfig, database: DatabaseResource) -> None:
    """Free the chunks of silent workers, let events speak, finish campaigns."""
    with explained(), database.connection() as connection:
        done = reconciling.run(connection, config.campaign or None)
    context.log.info(
        f"{done.freed_chunks} chunks freed, {done.became_unknown} people unknown by it, {done.expired} expired,"
        f" {done.settled} people settled by"
        f" events, {done.released} let go by a gate, campaigns done: {', '.join(done.finished) or 'none'}"
    )


@dg.job(
    description="Put the ledger in order: free the chunks of silent workers, let SES's events settle who is unknown, finish"
    " campaigns. Sends nothing.",
    owners=OWNERS,
)
def reconcile() -> None:
    settle()


@dg.op(tags={"kind": "postgres"})
def tidy(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
    """Make the months ahead in which events are kept, drop those that are over."""
    with explained(), database.connection() as connection:
        done = upkeep.daily(connection, load_settings().event_days)
    context.log.info(f"made: {', '.join(done.made) or 'nothing'}; dropped: {', '.join(done.dropped) or 'nothing'}")


@dg.job(
    description="Events are kept in one table for each month: make those of this month and the next ahead, drop those that are over"
    " for MAILPIPE_EVENT_DAYS. What follows from events stays.",
    owners=OWNERS,
)
def tidy_events() -> None:
    tidy()


@dg.op(tags={"kind": "ses"})
def sync(context: dg.OpExecutionContext, database: DatabaseResource, ses: SesResource) -> None:
    """Learn what SES lists, tell it of hard bounces."""
    with explained(), database.connect() as pool:
        done = ses.sync_suppression(pool)
    context.log.info(
        f"{done.listed} addresses listed by SES, {done.learned} of them news; SES was told of {done.told}, {done.left} are left"
    )


@dg.job(
    description="Bring the suppression list and that of the SES account together: what SES lists is suppressed here, and SES learns"
    " of hard bounces and of complaints about all mail.",
    owners=OWNERS,
)
def sync_suppression() -> None:
    sync()


JOBS = [reconcile, tidy_events, sync_suppression]
