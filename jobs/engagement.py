"""What is learned of people, and all that follows from it."""

import dagster as dg

from assets.engagement import NAME
from assets.partitions import OWNERS

engagement_job = dg.define_asset_job(
    "learn_engagement",
    dg.AssetSelection.assets(NAME).downstream(),
    description="Fold a day of mails and reactions into what is known of people, and refresh what depends on it. Sends nothing.",
    owners=OWNERS,
)

JOBS = [engagement_job]
