"""The frozen audience of a campaign, one partition each. It runs the segment itself; the segments' assets are its lineage."""

from datetime import datetime
from typing import Any

import dagster as dg

from assets import checks, segments, send_hours
from assets.failure import explained
from assets.metadata import moment, table
from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource, load_settings
from mailpipe import bars, campaign, invariant, ledger
from mailpipe import snapshot as snapshots
from mailpipe.errors import TemplateError
from mailpipe.experiment import letters as writing
from mailpipe.experiment import look
from mailpipe.waves import table as plans

GROUP = "campaigns"
OPENING = 160
"""Characters of a mail that are shown beside its subject."""
_COLUMNS: dict[str, type] = {"people": int, "so_far": int}


# Its op has a name of its own: the job is called as the asset is.
@dg.multi_asset(
    name="freeze",
    specs=[
        dg.AssetSpec(
            "snapshot",
            group_name=GROUP,
            kinds={"postgres"},
            owners=OWNERS,
            description="**The frozen audience of a campaign**\n\nThe people of its segment, without those who are suppressed,"
            " opted out or there twice, numbered in sending order. It is taken once and never changed; a second one is"
            " refused.",
            deps=[dg.AssetDep(asset.key, partition_mapping=dg.LastPartitionMapping()) for asset in segments.ASSETS],
        )
    ],
    partitions_def=CAMPAIGNS,
)
def snapshot(context: dg.AssetExecutionContext, database: DatabaseResource) -> dg.MaterializeResult[Any]:
    with explained(), database.connection() as connection:
        taken = snapshots.take(connection, load_settings(), context.partition_key)
        counts = ledger.counts(connection, taken.campaign_id)
        found = campaign.get(connection, context.partition_key)
    context.log.info(f"campaign {found.key}: {taken.recipients} recipients of {taken.returned} rows")
    variants = letters(found)
    waves = plans.planned(taken.timing)
    plan: dict[str, Any] = {}
    if waves:
        drawn = bars.plot([(row["part"], row["people"]) for row in waves])
        plan = {
            "waves": table(waves, {name: _COLUMNS.get(name, str) for name in waves[0]}),
            "waves_plot": dg.MetadataValue.md("\n".join([*plans.told(taken.timing), "", "```", *drawn, "```"])),
            "waves_parts": len(waves),
            "done_at": moment(datetime.fromisoformat(taken.timing["waves"]["stages"][-1]["at"])),
            **{f"people_{row['part'].replace(':', '_')}": row["people"] for row in waves},
        }
    excluded = [{"reason": reason, "people": people} for reason, people in sorted(taken.excluded.items())]
    return dg.MaterializeResult(
        metadata={
            "recipients": taken.recipients,
            "returned": taken.returned,
            "excluded": sum(taken.excluded.values()),
            "skipped": counts.skipped,
            "chunks": counts.chunks,
            "excluded_by_reason": table(excluded, {"reason": str, "people": int}),
            "segment": taken.segment,
            "segment_sha256": taken.segment_sha256,
            "as_of": moment(taken.as_of),
            "parameters": taken.parameters,
            "variables": ", ".join(taken.variables),
            "timing": taken.timing,
            "template": found.template_version or found.spec.template,
            "state": found.state,
            **plan_of_experiment(found, taken),
            **send_hours.plan_of(found, taken),
            **({"variants": table(variants, {"variant": str, "subject": str, "opening": str})} if variants else {}),
            **plan,
        }
    )


def plan_of_experiment(found: campaign.Campaign, taken: snapshots.Snapshot) -> dict[str, Any]:
    """Arms, times and what can be seen, in words; and the smallest lift as a number, which Dagster plots."""
    lines = look.planned(found.spec, taken.timing, taken.excluded)
    lift = look.smallest_lift(found.spec, taken.timing)
    return {
        **({"experiment": dg.MetadataValue.md("\n\n".join(lines))} if lines else {}),
        **({"smallest_lift": lift} if lift is not None else {}),
    }


def letters(found: campaign.Campaign) -> list[dict[str, str]]:
    """The mail of every variant of an experiment as its people will see it, with sample values: subject and first words."""
    spec = found.spec
    if spec.experiment is None:
        return []
    try:
        made = writing.of(load_settings().templates, spec.experiment, campaign=spec.key, base=spec.template)
    except TemplateError:
        # The audience is frozen: whoever broke a folder meanwhile is told by the approval, or has changed nothing any more.
        return []
    mails = {name: letter.sample() for name, letter in made.items()}
    return [
        {"variant": name, "subject": mail.subject, "opening": " ".join(mail.text.split())[:OPENING]}
        for name, mail in mails.items()
    ]


CHECKS = [
    checks.build(
        "snapshot",
        "rows_add_up",
        invariant.unaccounted_rows,
        "Every row of the segment is a recipient or left out for a counted reason.",
    ),
    checks.build(
        "snapshot",
        "everybody_in_one_chunk",
        invariant.missing_people,
        "Recipients are numbered 1 to N without holes, and each is in exactly one chunk.",
    ),
]
