"""The door: everything that Dagster knows of mailpipe. What is in it is told in `assets`, `jobs` and `sensors`."""

import dagster as dg

from assets import report, resources, segments, snapshot
from assets.deliveries import deliveries
from jobs import campaign, sending, upkeep
from sensors.breaker import breaker
from sensors.campaigns import campaigns
from sensors.daily import SCHEDULES
from sensors.due import due
from sensors.experiments import experiments
from sensors.reconcile import reconcile
from sensors.recurring import recurring
from sensors.resume import resume

defs = dg.Definitions(
    assets=[*segments.ASSETS, snapshot.snapshot, deliveries, report.campaign_report],
    asset_checks=[*snapshot.CHECKS, *report.CHECKS],
    jobs=[*campaign.JOBS, *sending.JOBS, *upkeep.JOBS],
    sensors=[breaker, campaigns, due, experiments, recurring, reconcile, resume],
    schedules=SCHEDULES,
    resources=resources.build(),
    # One process per run: imports are paid once, and an interrupt reaches the send itself.
    executor=dg.in_process_executor,
)
