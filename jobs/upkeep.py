"""Jobs that put the ledger in order. They send nothing, so launching them is never a risk."""

import dagster as dg
from pydantic import Field

from assets.failure import explained
from assets.partitions import OWNERS
from assets.resources import DatabaseResource
from mailpipe import reconcile as reconciling


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
        f" events, campaigns done: {', '.join(done.finished) or 'none'}"
    )


@dg.job(
    description="Put the ledger in order: free the chunks of silent workers, let SES's events settle who is unknown, finish"
    " campaigns. Sends nothing.",
    owners=OWNERS,
)
def reconcile() -> None:
    settle()


JOBS = [reconcile]
