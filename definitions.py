"""The door: everything that Dagster knows of mailpipe. What is in it is told in `assets`, `jobs` and `sensors`."""

import dagster as dg

from assets import engagement, report, resources, segments, send_hours, snapshot
from assets.deliveries import deliveries
from jobs import campaign, sending, upkeep
from jobs import engagement as engagement_jobs
from sensors.breaker import breaker
from sensors.campaigns import campaigns
from sensors.daily import SCHEDULES
from sensors.due import due
from sensors.engagement import learn_engagement
from sensors.experiments import experiments
from sensors.reconcile import reconcile
from sensors.recurring import recurring
from sensors.resume import resume

defs = dg.Definitions(
    assets=[
        *segments.ASSETS,
        snapshot.snapshot,
        deliveries,
        report.campaign_report,
        engagement.engagement,
        send_hours.send_hours,
    ],
    asset_checks=[*snapshot.CHECKS, *report.CHECKS, *engagement.CHECKS, *send_hours.CHECKS],
    jobs=[*campaign.JOBS, *sending.JOBS, *upkeep.JOBS, *engagement_jobs.JOBS],
    sensors=[breaker, campaigns, due, experiments, recurring, reconcile, resume],
    schedules=[*SCHEDULES, learn_engagement],
    resources=resources.build(),
    # One process per run: imports are paid once, and an interrupt reaches the send itself.
    executor=dg.in_process_executor,
)
