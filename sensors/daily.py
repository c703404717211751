"""What is done once a day, by the clock alone. It sends nothing, so it starts RUNNING."""

import dagster as dg

from assets.resources import load_settings
from jobs.upkeep import sync_suppression as sync_job
from jobs.upkeep import tidy_events as tidy_job

tidy_events = dg.ScheduleDefinition(
    name="tidy_events",
    job=tidy_job,
    cron_schedule="17 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night: makes the months ahead in which events are kept, drops those that are over for MAILPIPE_EVENT_DAYS.",
)


@dg.schedule(
    job=sync_job,
    cron_schedule="47 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night: learns what the SES account suppresses, and tells it of hard bounces. Nothing where mail goes to a"
    " stand-in.",
)
def sync_suppression() -> dg.RunRequest | dg.SkipReason:
    if load_settings().is_local:
        return dg.SkipReason("mail goes to a stand-in here: there is no account whose list could be read")
    return dg.RunRequest()


SCHEDULES = [tidy_events, sync_suppression]
