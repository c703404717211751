"""The hour at which each person is best mailed, written anew after each fold of engagement."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from assets import engagement
from assets.failure import explained
from assets.metadata import Metadata, moment, table
from assets.partitions import OWNERS
from assets.resources import DatabaseResource
from mailpipe import bars, campaign
from mailpipe.engagement.rule import HOURS
from mailpipe.schedule import timing
from mailpipe.snapshot import Snapshot

NAME = "send_hours"


@dg.asset(
    name=NAME,
    group_name=engagement.GROUP,
    kinds={"postgres"},
    owners=OWNERS,
    description="**When a mail to each person is best sent**\n\nOne row for each person of `engagement`: the best hour of their own"
    " day, how sure that is, and whose data decided it (their own, those of their zone, or everybody's). Campaigns with"
    " `mode: optimised` are planned by it. A million people take some seconds. Sends nothing.",
    deps=[engagement.NAME],
)
def send_hours(context: dg.AssetExecutionContext, database: DatabaseResource) -> dg.MaterializeResult[Any]:
    from mailpipe.sendtime import hours  # noqa: PLC0415 - numpy, which nothing else here needs

    with explained(), database.connection() as connection:
        done = hours.refresh(connection)
        shares = hours.summary(connection)
    by_hour = {hour: sum(one.people for one in shares if one.hour == hour) for hour in range(HOURS)}
    by_reason = {why: sum(one.people for one in shares if one.why == why) for why in hours.REASONS}
    certain = sum(one.people * one.confidence for one in shares)
    people = max(1, done.people)
    context.log.info(f"{done.people} people have an hour, {by_reason['own']} of them from their own data")
    metadata: Metadata = {
        "people": done.people,
        "own_data_share": round(by_reason["own"] / people, 4),
        "mean_confidence": round(certain / people, 4),
        **{f"from_{why}": number for why, number in by_reason.items()},
        "by_hour": table(
            [
                {"hour": f"{hour:02}:00", "people": number, "share": round(number / people, 4)}
                for hour, number in by_hour.items()
            ],
            {"hour": str, "people": int, "share": float},
        ),
        "plot": dg.MetadataValue.md(_bars(by_hour)),
        "prior": done.prior,
        "seconds": done.seconds,
        "refreshed_at": moment(done.refreshed_at),
    }
    return dg.MaterializeResult(metadata=metadata)


def plan_of(found: campaign.Campaign, taken: Snapshot) -> Metadata:
    """Who of a frozen audience is mailed when and as part of what, if everybody has an hour of their own."""
    own = taken.timing.get("optimised")
    if own is None:
        return {}
    by_hour: dict[str, int] = {}
    for one in taken.timing["due"]:
        hour = f"{datetime.fromisoformat(one['at']):%m-%d %H}"
        by_hour[hour] = by_hour.get(hour, 0) + one["people"]
    lines = timing.told(found.spec, taken.timing, taken.excluded)
    return {
        "send_times": dg.MetadataValue.md("\n\n".join(lines)),
        "people_by_utc_hour": dg.MetadataValue.md(_bars(by_hour)),
        "people_by_own_hour": table(
            [{"hour": f"{hour}:00", "people": number} for hour, number in own["hours"].items()],
            {"hour": str, "people": int},
        ),
        **{f"people_{label}": number for label, number in own["groups"].items()},
        "moved_for_pace": own["moved_for_pace"],
        "without_own_hour": own["without_own_hour"],
    }


def _bars(people: Mapping[Any, int]) -> str:
    """People by hours, as a drawing."""
    rows = [(hour if isinstance(hour, str) else f"{hour:02}", number) for hour, number in people.items() if number]
    return "\n".join(["```", *(bars.plot(rows) or ["nobody yet"]), "```"])


@dg.asset_check(asset=NAME, description="Everybody of whom engagement is known has an hour, made of its last fold.")
def everybody_has_an_hour(database: DatabaseResource) -> dg.AssetCheckResult:
    from mailpipe.sendtime import hours  # noqa: PLC0415

    with explained(), database.connection() as connection:
        missing, behind = hours.without_hour(connection), hours.days_behind(connection)
    return dg.AssetCheckResult(
        passed=missing == 0 and behind == 0,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"people_without": missing, "days_behind": behind},
    )


CHECKS = [everybody_has_an_hour]
