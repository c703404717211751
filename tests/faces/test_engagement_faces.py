"""Engagement in Dagster: a partition for each folded day, launched in any order, checks that can fail, a schedule for the night."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster import AssetKey

import definitions
from assets import engagement as asset
from assets.partitions import FOLDED_DAYS
from assets.resources import DatabaseResource
from sensors.engagement import MOST, chosen, learn_engagement
from tests.faces.conftest import Faces
from tests.past_mails import Past

TODAY = datetime.now(UTC).date()
NEWEST = TODAY - timedelta(days=3)
"""Old enough at any hour; the day after it may still be within its grace."""
JOB = "learn_engagement"


@pytest.fixture
def mailed(faces: Faces) -> Faces:
    """Two people were mailed on each of the last three days that can be folded; one of them clicked, once."""
    with faces.world.database.connection() as connection:
        connection.execute(
            "TRUNCATE mailpipe.engagement, mailpipe.engagement_state, mailpipe.engagement_fold, mailpipe.call, mailpipe.event"
        )
        past = Past(connection)
        for number in range(3):
            at = datetime.combine(NEWEST - timedelta(days=number), datetime.min.time(), UTC) + timedelta(hours=9)
            sent = past.mailed(at, ["1", "2"])
            if number == 0:
                past.visit(sent, 1, at + timedelta(hours=1), "click")
    return faces


def numbers(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [one for one in result.get_asset_materialization_events() if one.asset_key == AssetKey(asset.NAME)]
    return {name: entry.value for name, entry in event.materialization.metadata.items()}


def checked(check: Any) -> dg.AssetCheckResult:
    result = check(DatabaseResource())
    assert isinstance(result, dg.AssetCheckResult)
    return result


def test_days_are_partitions_and_may_be_launched_in_any_order(mailed: Faces) -> None:
    assert FOLDED_DAYS.get_last_partition_key() == (NEWEST + timedelta(days=1)).isoformat()
    assert not checked(asset.no_day_is_missing).passed
    last = mailed.run(JOB, partition_key=NEWEST.isoformat())
    told = numbers(last)
    assert (told["people"], told["sends"], told["human_clicks"], told["human_opens"]) == (2, 2, 1, 0)
    assert (told["tier_1"], told["tier_4"], told["known_people"], told["folded_before"]) == (1, 1, 2, False)
    assert told["seconds"] > 0 and told["own_data_share"] == 0.5
    for number in (2, 1):
        again = numbers(mailed.run(JOB, partition_key=(NEWEST - timedelta(days=number)).isoformat()))
        assert (again["sends"], again["folded_before"]) == (2, True)
    assert checked(asset.no_day_is_missing).passed
    assert checked(asset.people_have_own_data).passed
    assert "@" not in mailed.everything_written()
    assert mailed.instance.get_materialized_partitions(AssetKey("engagement")) == {
        (NEWEST - timedelta(days=number)).isoformat() for number in range(3)
    }


def test_checks_fail_when_nobody_reacts(mailed: Faces) -> None:
    assert checked(asset.reactions_come_back).passed, "nothing is folded yet"
    mailed.run(JOB, partition_key=(NEWEST - timedelta(days=2)).isoformat())
    few = checked(asset.people_have_own_data)
    assert not few.passed and few.severity is dg.AssetCheckSeverity.WARN
    assert checked(asset.reactions_come_back).passed, "two mails say nothing"
    mailed.world.execute("UPDATE mailpipe.engagement_fold SET mails = 1000")
    assert not checked(asset.reactions_come_back).passed


def test_a_day_that_is_no_partition_yet_is_refused_in_words(mailed: Faces) -> None:
    tomorrow = (TODAY + timedelta(days=1)).isoformat()
    with pytest.raises(dg.DagsterUnknownPartitionError):
        mailed.run(JOB, partition_key=tomorrow)


def test_the_newest_days_that_wait_are_launched() -> None:
    waiting = [NEWEST - timedelta(days=number) for number in range(40, -1, -1)]
    known = [day.isoformat() for day in waiting[:-1]]
    found = chosen(waiting, known)
    assert len(found) == MOST and found[-1] == known[-1] and found == sorted(found)
    assert chosen([], known) == []


def test_the_night_folds_what_waits_and_then_nothing(mailed: Faces) -> None:
    def tick() -> Any:
        context = dg.build_schedule_context(
            instance=mailed.instance,
            scheduled_execution_time=datetime.now(UTC),
            resources={"database": DatabaseResource()},
            repository_def=definitions.defs.get_repository_def(),
        )
        return learn_engagement.evaluate_tick(context)

    told = tick()
    keys = [request.partition_key for request in told.run_requests]
    assert keys[:3] == [(NEWEST - timedelta(days=number)).isoformat() for number in (2, 1, 0)] and len(keys) <= 4
    assert [one.run_key for one in tick().run_requests] == [one.run_key for one in told.run_requests]
    for key in keys:
        assert mailed.run(JOB, partition_key=key).success
    assert "no day waits" in tick().skip_message
