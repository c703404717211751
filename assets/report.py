"""What happened to a campaign's people, in numbers, as of the moment when it is materialised."""

from typing import Any

import dagster as dg

from assets import checks
from assets.deliveries import deliveries
from assets.failure import explained
from assets.metadata import table
from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource, load_settings
from assets.snapshot import GROUP
from mailpipe import breaker, campaign, invariant, report
from mailpipe.db import Connection
from mailpipe.experiment import counts, look
from mailpipe.experiment.look import Effect, Look
from mailpipe.feedback import summary
from mailpipe.sendtime import uplift
from mailpipe.waves import standing
from mailpipe.waves import table as waves


@dg.asset(
    group_name=GROUP,
    kinds={"postgres"},
    owners=OWNERS,
    description="**The result of a campaign**\n\nWho got it, who did not and why, and how fast it went. Materialize it at any"
    " time, also while the campaign is sending; `mailpipe campaign export` writes every single person.",
    partitions_def=CAMPAIGNS,
    deps=[deliveries],
)
def campaign_report(context: dg.AssetExecutionContext, database: DatabaseResource) -> dg.MaterializeResult[Any]:
    with explained(), database.connection() as connection:
        now = report.progress(connection, context.partition_key)
        reasons = report.reasons(connection, context.partition_key)
        rate = report.measured_rate(connection, context.partition_key)
        found = campaign.get(connection, context.partition_key)
        complaints = summary.complaints(connection, context.partition_key)
        gmail = breaker.gmail_share(connection, found.campaign_id)
        spam = breaker.postmaster(connection, found.spec.sender_domain)
        gained = uplift.of(connection, found.key) if found.spec.mode == "optimised" else None
        experiment = look.look(connection, load_settings(), found.key) if found.spec.experiment else None
        held_out = look.held_out(connection, found.campaign_id) if found.spec.holdout else None
        effect = look.effect(connection, load_settings(), found.key) if found.spec.holdout else None
        parts = standing.standings(connection, found.campaign_id) if found.spec.in_waves else []
    context.log.info(f"campaign {now.campaign} is {now.state}: {now.sent} of {now.total} sent")
    metadata: dict[str, Any] = {
        "state": now.state,
        "total": now.total,
        "sent": now.sent,
        "delivered": now.delivered,
        "failed": now.failed,
        "skipped": now.skipped,
        "unknown": now.unknown,
        "pending": now.pending + now.sending,
        "reasons": table(
            [{"state": one.state, "reason": one.reason, "people": one.people} for one in reasons],
            {"state": str, "reason": str, "people": int},
        ),
    }
    if gained is not None:
        metadata |= _uplift(gained)
    for name, groups in complaints.items():
        metadata[f"complaints_by_{name}"] = table(
            [{name: one.value, "sent": one.sent, "complaints": one.complaints} for one in groups],
            {name: str, "sent": int, "complaints": int},
        )
    if parts:
        rows = waves.going(parts, found.spec.days_of)
        metadata["waves"] = table(rows, {**dict.fromkeys(rows[0], str), "people": int, "sent": int, "left": int})
        metadata["waves_gone"] = sum(not one.held for one in parts)
        metadata["waves_to_come"] = sum(one.held for one in parts)
    if now.delivery_p95_seconds is not None:
        metadata["delivery_p95_seconds"] = now.delivery_p95_seconds
    if gmail is not None:
        # Google tells SES of no complaints: so many people are no part of the complaint rate.
        metadata["share_at_gmail"] = round(gmail, 4)
    if spam is not None:
        metadata["postmaster_spam_rate"] = spam[1]
    if rate is not None:
        metadata["measured_rate"] = round(rate, 1)
    if now.eta_minutes is not None:
        metadata["eta_minutes"] = now.eta_minutes
    if experiment is not None:
        metadata |= of_experiment(experiment)
    if held_out is not None:
        metadata["held_out"] = held_out
    if effect is not None:
        metadata |= _of_holdout(effect)
    return dg.MaterializeResult(metadata=metadata)


def of_experiment(found: Look) -> dict[str, Any]:
    """An experiment as metadata: a table of its arms, and the numbers that Dagster plots."""
    rows = [
        {
            "variant": one.variant,
            "people": one.assigned,
            "delivered": one.delivered,
            found.metric: one.successes,
            "rate": one.rate,
            "best": one.chance,
            "complaints": one.complaints,
        }
        for one in found.arms
    ]
    columns: dict[str, type] = {"variant": str, "people": int, "delivered": int, found.metric: int}
    made: dict[str, Any] = {
        "experiment": table(rows, {**columns, "rate": float, "best": float, "complaints": int}),
        "experiment_sample_ratio_p": found.ratio_p,
        "experiment_waiting": found.waiting,
    }
    for one in found.arms:
        made |= {f"rate_{one.variant}": one.rate, f"chance_{one.variant}": one.chance}
    if found.decision is not None:
        made |= {
            "experiment_winner": found.decision.winner,
            "experiment_outcome": found.decision.outcome,
            "experiment_reason": found.decision.reason,
        }
    return made


def _of_holdout(effect: Effect) -> dict[str, Any]:
    """What the campaign has done, by those whom it left out: shares of buyers, their difference and its interval of 95 %."""
    made: dict[str, Any] = {"buyers_mailed": effect.mailed_buyers, "buyers_held_out": effect.held_out_buyers}
    if effect.difference is not None:
        made |= dict(zip(("effect", "effect_low", "effect_high"), effect.difference, strict=True))
    return made


def _uplift(gained: uplift.Uplift) -> dict[str, Any]:
    """What people's own hours have brought: in words, and as numbers to plot where there are enough."""
    metadata: dict[str, Any] = {
        "send_time_uplift": dg.MetadataValue.md(
            "\n".join(f"- {one.of}, {name}: {one.text}" for name, one in gained.comparisons.items())
        )
    }
    for name, one in gained.comparisons.items():
        if one.enough and one.difference is not None and one.low is not None and one.high is not None:
            metadata |= {
                f"uplift_{name}": round(one.difference, 6),
                f"uplift_{name}_low": round(one.low, 6),
                f"uplift_{name}_high": round(one.high, 6),
            }
    return metadata


def _unknown(connection: Connection, key: str) -> int:
    return report.progress(connection, key).unknown


def _policy_bounces(connection: Connection, key: str) -> int:
    return report.events(connection, campaign.get(connection, key).campaign_id).get("policy_bounce", 0)


CHECKS = [
    checks.build(
        "campaign_report",
        "nobody_lost",
        invariant.stateless_people,
        "Every recipient is in exactly one state; the states add up to the snapshot.",
    ),
    checks.build(
        "campaign_report",
        "nobody_mailed_twice",
        invariant.accepted_twice,
        "SES accepted nobody of this campaign more than once.",
    ),
    checks.build(
        "campaign_report",
        "nobody_suppressed_was_mailed",
        invariant.mailed_while_suppressed,
        "Nobody was mailed who was on the suppression list when their call was opened.",
    ),
    checks.build(
        "campaign_report",
        "nobody_unknown",
        _unknown,
        "Everybody's outcome is known. Unknown people are never mailed again by machine; events may settle them.",
        dg.AssetCheckSeverity.WARN,
    ),
    checks.build(
        "campaign_report",
        "gate_open",
        standing.held_back,
        "Nobody waits for a gate between waves or days longer than planned: rates are below their lines, and SES tells of mails.",
        dg.AssetCheckSeverity.WARN,
    ),
    checks.build_rate(
        "campaign_report",
        "complaint_rate",
        "complaints",
        "Complaints of those sent. Gmail tells SES of none.",
    ),
    checks.build_rate(
        "campaign_report", "hard_bounce_rate", "hard_bounces", "Addresses where nobody is, of those sent."
    ),
    checks.build_rate(
        "campaign_report", "delay_rate", "delays", "Mails that SES could not deliver at once, of those sent."
    ),
    checks.build(
        "campaign_report",
        "arms_are_comparable",
        counts.unequal,
        "The arms of an experiment reached the same part of their people (chi-square, p of at least 0.001); otherwise something"
        " treats them differently, and their rates say nothing.",
    ),
    checks.build(
        "campaign_report",
        "no_policy_bounces",
        _policy_bounces,
        "No host refuses us for our reputation or authentication. Such bounces suppress nobody: they are about us.",
        dg.AssetCheckSeverity.WARN,
    ),
]
