"""Launches `send` for slices whose people are due and that nobody works on: a run was killed, or a later due time has come."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter

from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource
from jobs.sending import send_job
from mailpipe import reconcile
from mailpipe.reconcile import Unattended

EVERY = 60
"""Seconds between two looks."""
STARTING = 120.0
"""Seconds that a run which has started may take until it holds a chunk. Later the ledger alone says who works: a run whose machine
died is called started for ever."""
AFTER_FAILURE = 600.0
"""Seconds from a failed or cancelled run of a campaign to the next launch: a fault that stays must not make a run a minute, and
whoever cancelled a run has the time to pause the campaign."""

CAMPAIGN, CAUSE, LAUNCH = "mailpipe/campaign", "mailpipe/cause", "mailpipe/launch"
RANGE = "dagster/asset_partition_range_"
PRIORITIES = {"normal": 0, "low": -1}
"""Which of the runs that wait in Dagster's queue goes first. `dagster.yaml` keeps places free of the lane `low`."""
_WAITING = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING)
_BAD = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


@dataclass(frozen=True)
class Runs:
    """What Dagster knows of a campaign's runs: whether one is about to work, how long ago the last one ended badly (seconds; None:
    it did not), and how often this sensor has launched one."""

    coming: bool
    ended_badly: float | None
    launches: int


def reason_to_wait(runs: Runs, *, is_partition: bool) -> str | None:
    """Why a campaign that nobody works on gets no run now; None: it gets one."""
    if not is_partition:
        return "not a partition yet; the sensor `campaigns` makes it one"
    if runs.coming:
        return "a run is about to start"
    if runs.ended_badly is not None and runs.ended_badly < AFTER_FAILURE:
        return f"its last run failed or was cancelled {runs.ended_badly:.0f} s ago; tried again after {AFTER_FAILURE:.0f} s"
    return None


def lane_tags(lane: str) -> dict[str, str]:
    """What a campaign's lane says of its runs. Who gets how much of the rate is the pace's to say, whatever the queue does."""
    return {"mailpipe/lane": lane, "dagster/priority": str(PRIORITIES[lane])}


def request(found: Unattended, launches: int) -> dg.RunRequest:
    """One run over the range of what is missing. The key has our own number: a failed run would block its key for ever."""
    number = launches + 1
    return dg.RunRequest(
        run_key=f"resume-{found.key}-{number}",
        tags={
            CAMPAIGN: found.key,
            CAUSE: "resume",
            LAUNCH: str(number),
            **lane_tags(found.lane),
            f"{RANGE}start": f"{found.key}|{found.first_slice:02d}",
            f"{RANGE}end": f"{found.key}|{found.last_slice:02d}",
        },
    )


def runs_of(instance: DagsterInstance, key: str, now: float) -> Runs:
    """Read what Dagster knows. A run says its campaign once it works; before that its range does."""
    waiting = instance.get_runs(RunsFilter(statuses=list(_WAITING)))
    coming = any(_campaign(run.tags) == key for run in waiting)
    last = _newest(instance.get_run_records(RunsFilter(tags={CAMPAIGN: key}), limit=1))
    ended_badly = None
    if last is not None:
        status, began, ended = last.dagster_run.status, last.start_time, last.end_time
        coming = coming or (status is DagsterRunStatus.STARTED and began is not None and now - began < STARTING)
        if status in _BAD and ended is not None:
            ended_badly = now - ended
    ours = _newest(instance.get_run_records(RunsFilter(tags={CAMPAIGN: key, CAUSE: "resume"}), limit=1))
    return Runs(coming, ended_badly, 0 if ours is None else int(ours.dagster_run.tags[LAUNCH]))


def _newest(records: Iterable[RunRecord]) -> RunRecord | None:
    return next(iter(records), None)


def _campaign(tags: Mapping[str, str]) -> str:
    return tags.get(CAMPAIGN) or tags.get(f"{RANGE}start", tags.get("dagster/partition", "")).split("|")[0]


@dg.sensor(
    job=send_job,
    minimum_interval_seconds=EVERY,
    # It launches what sends.
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Launches `send` for a campaign that is sending, has people who are due, and that nobody works on: after a run"
    " was killed, or when a later due time has come. It never starts a campaign and never unpauses one.",
    owners=OWNERS,
)
def resume(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult | dg.SkipReason:
    with database.connection() as connection:
        found = reconcile.unattended(connection)
    if not found:
        return dg.SkipReason("nobody is due, or somebody works on it")
    known: Collection[str] = set(context.instance.get_dynamic_partitions(str(CAMPAIGNS.name)))
    now = datetime.now(UTC).timestamp()
    requests, reasons = [], []
    for one in found:
        runs = runs_of(context.instance, one.key, now)
        why = reason_to_wait(runs, is_partition=one.key in known)
        if why is None:
            requests.append(request(one, runs.launches))
        else:
            reasons.append(f"{one.key}: {why}")
    if not requests:
        return dg.SkipReason("; ".join(reasons))
    return dg.SensorResult(run_requests=requests)
