"""What launches itself: pure decisions, and shells that say why they do nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import dagster as dg

from assets.resources import DatabaseResource
from mailpipe.campaign import Campaign
from sensors.campaigns import campaigns, missing
from sensors.reconcile import open_campaigns, reconcile
from tests.faces.conftest import Faces


def tick(sensor: dg.SensorDefinition, faces: Faces) -> Any:
    context = dg.build_sensor_context(instance=faces.instance, resources={"database": DatabaseResource()})
    return sensor.evaluate_tick(context)


def test_keys_are_registered_once_and_in_the_order_of_their_creation() -> None:
    assert missing(["a", "b", "c"], {"b"}) == ["a", "c"]
    assert missing(["a"], {"a", "gone"}) == []
    assert missing([], set()) == []


def test_a_campaign_of_the_command_line_becomes_a_partition(faces: Faces) -> None:
    first, second = faces.world.create(), faces.world.create()
    faces.register(first)
    told = tick(campaigns, faces)
    (request,) = told.dynamic_partitions_requests
    assert request.partitions_def_name == "campaign"
    assert second in request.partition_keys
    assert first not in request.partition_keys
    assert told.run_requests == []
    faces.register(*request.partition_keys)
    assert "campaigns are partitions" in tick(campaigns, faces).skip_message


def test_only_campaigns_in_the_middle_of_sending_are_put_in_order() -> None:
    found = [SimpleNamespace(key=state, state=state) for state in ("draft", "approved", "sending", "paused", "done")]
    assert open_campaigns(cast(list[Campaign], found)) == ["sending", "paused"]


def test_reconcile_is_launched_while_somebody_is_sending(faces: Faces) -> None:
    # Campaigns that other tests of this module left behind are drafts.
    assert "no campaign is sending or paused" in tick(reconcile, faces).skip_message
    faces.world.people(100)
    key = faces.world.ready(due_at="2099-01-01T00:00:00Z")
    faces.world.send(key)
    (request,) = tick(reconcile, faces).run_requests
    assert request.run_key.startswith("reconcile-")
    (again,) = tick(reconcile, faces).run_requests
    assert int(again.run_key.split("-")[1]) - int(request.run_key.split("-")[1]) <= 1, "the same minutes, the same key"
    assert faces.run("reconcile", {}).success
    assert faces.world.keep_promises(key) == {"pending": 100}
