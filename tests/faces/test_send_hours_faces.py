"""The hours in Dagster: written anew behind each fold, with numbers to plot and a check that can fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from assets import send_hours
from assets.resources import DatabaseResource
from tests.faces.conftest import Faces


def checked() -> dg.AssetCheckResult:
    result = send_hours.everybody_has_an_hour(DatabaseResource())
    assert isinstance(result, dg.AssetCheckResult)
    return result


def numbers(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [
        one for one in result.get_asset_materialization_events() if one.asset_key == dg.AssetKey(send_hours.NAME)
    ]
    return {name: entry.value for name, entry in event.materialization.metadata.items()}


def test_hours_follow_engagement_and_the_check_says_when_they_do_not(faces: Faces) -> None:
    faces.world.execute(
        "TRUNCATE mailpipe.engagement, mailpipe.engagement_state, mailpipe.engagement_fold, mailpipe.send_hours,"
        " mailpipe.send_refresh"
    )
    faces.world.execute(
        "INSERT INTO mailpipe.engagement (person_id, as_of, events, ev, since, tier)"
        " SELECT CAST(i AS text), CURRENT_DATE, i % 2, array_fill(CAST(i % 2 AS real), ARRAY[24]), now(), 3"
        " FROM generate_series(1, 10) i"
    )
    assert not checked().passed
    result = faces.run("learn_engagement", asset_selection=[dg.AssetKey(send_hours.NAME)])
    assert result.success
    told = numbers(result)
    assert (told["people"], told["from_own"], told["own_data_share"]) == (10, 5, 0.5)
    assert sum(record.data["people"] for record in told["by_hour"].records) == 10
    assert "10 █" in told["plot"]
    assert checked().passed


def test_a_frozen_campaign_shows_who_is_mailed_when_and_what_it_has_brought(faces: Faces) -> None:
    faces.world.people(300)
    key = faces.world.create(mode="optimised", due_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    taken = faces.world.freeze(key)
    found = faces.world.campaign(key)
    told = send_hours.plan_of(found, taken)
    assert told["people_optimised"] + told["people_control"] + told["people_explore"] == 300
    assert "at their own hour" in told["send_times"].value
    assert told["people_by_utc_hour"].value.count("█") > 10
    plain = faces.world.create()
    assert send_hours.plan_of(faces.world.campaign(plain), faces.world.freeze(plain)) == {}
    faces.register(key)
    result = faces.run("report", partition_key=key)
    assert result.success
    (event,) = result.get_asset_materialization_events()
    assert "not enough data" in str(event.materialization.metadata["send_time_uplift"].value)
