"""The assets of a campaign as jobs, one per partitioning."""

import dagster as dg

from assets.deliveries import deliveries
from assets.partitions import OWNERS
from assets.report import campaign_report
from assets.snapshot import snapshot

snapshot_job = dg.define_asset_job(
    "snapshot",
    [snapshot],
    description="Freeze the audience of a campaign, once. Choose the campaign as partition.",
    owners=OWNERS,
)

send_job = dg.define_asset_job(
    "send",
    [deliveries],
    description="Send slices of one campaign. Choose a campaign and a range of slices; those that are complete cost nothing.",
    owners=OWNERS,
)

report_job = dg.define_asset_job(
    "report",
    [campaign_report],
    description="Say what happened to a campaign's people, by state and reason. Choose the campaign as partition.",
    owners=OWNERS,
)

JOBS = [snapshot_job, send_job, report_job]
