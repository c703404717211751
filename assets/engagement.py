"""Who reads, and at which hour: each day of mails and reactions folded into what is known of people."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.failure import explained
from assets.metadata import Metadata
from assets.partitions import FOLDED_DAYS, OWNERS
from assets.resources import DatabaseResource, load_settings
from mailpipe.engagement import days, look

GROUP = "engagement"
NAME = "engagement"
OWN_SHARE = 0.05
ENOUGH_MAILS = 1_000


@dg.asset(
    name=NAME,
    group_name=GROUP,
    kinds={"postgres", "parquet"},
    owners=OWNERS,
    description="**Who reads, and at which hour of their day**\n\nFolds the mails of a day (UTC), and what people did about them"
    " within 24 hours, into one row for each person: reactions and exposure by local hour, fading by half in 60 days, and a tier"
    " from T1 (clicked or bought lately) to T5. Machines' opens weigh nothing. Days that are missing before it are folded too,"
    " in order; a day that is folded changes nothing. Sends nothing.",
    partitions_def=FOLDED_DAYS,
)
def engagement(context: dg.AssetExecutionContext, database: DatabaseResource) -> dg.MaterializeResult[Any]:
    from mailpipe.engagement import fold  # noqa: PLC0415 - pyarrow, which nothing else here needs

    day = context.partition_time_window.start.date()
    with explained(), database.connection() as connection:
        done = fold.through(connection, load_settings(), day)
        now = look.summary(connection, datetime.now(UTC), days=1)
    context.log.info(f"{day}: {done.mails} mails, {done.opens} opened and {done.clicks} clicked by people")
    metadata: Metadata = {
        "people": done.people,
        "sends": done.mails,
        "human_opens": done.opens,
        "human_clicks": done.clicks,
        "machines": done.machines,
        "bought": done.bought,
        **{f"tier_{number}": people for number, people in enumerate(done.tiers, start=1)},
        "known_people": now.people,
        "own_data_share": round(now.own_share, 4),
        "seconds": done.seconds,
        "folded_before": done.already,
    }
    return dg.MaterializeResult(metadata=metadata)


@dg.asset_check(asset=NAME, description="Every day that is old enough is folded, but for the last one.")
def no_day_is_missing(database: DatabaseResource) -> dg.AssetCheckResult:
    with explained(), database.connection() as connection:
        waiting = days.due(connection, datetime.now(UTC))
    return dg.AssetCheckResult(
        passed=len(waiting) <= 1,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{len(waiting)} days wait from {waiting[0]} on" if waiting else None,
        metadata={"waiting_days": len(waiting)},
    )


@dg.asset_check(
    asset=NAME,
    description=f"At least {OWN_SHARE:.0%} of the people have reacted to something: the others get the hours of people like them.",
)
def people_have_own_data(database: DatabaseResource) -> dg.AssetCheckResult:
    with explained(), database.connection() as connection:
        now = look.summary(connection, datetime.now(UTC), days=1)
    return dg.AssetCheckResult(
        passed=now.own_share >= OWN_SHARE or not now.people,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"own_data_share": now.own_share, "people": now.people, "own_data": now.own_data},
    )


@dg.asset_check(
    asset=NAME,
    description=f"Something came back of the last folded day, if it had {ENOUGH_MAILS:,} mails or more: else no events arrive.",
)
def reactions_come_back(database: DatabaseResource) -> dg.AssetCheckResult:
    with explained(), database.connection() as connection:
        folded = look.summary(connection, datetime.now(UTC), days=1).days
    mails = folded[0].mails if folded else 0
    reactions = folded[0].opens + folded[0].clicks + folded[0].machines if folded else 0
    return dg.AssetCheckResult(
        passed=reactions > 0 or mails < ENOUGH_MAILS,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={"mails": mails, "reactions": reactions},
    )


CHECKS = [no_day_is_missing, people_have_own_data, reactions_come_back]
