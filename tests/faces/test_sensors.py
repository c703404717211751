"""What launches itself: pure decisions, and shells that say why they do nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from assets.resources import DatabaseResource
from mailpipe import campaign
from mailpipe.campaign import Campaign
from sensors.campaigns import campaigns, missing
from sensors.reconcile import open_campaigns, reconcile
from sensors.resume import AFTER_FAILURE, Runs, reason_to_wait, resume
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


@pytest.mark.parametrize(
    ("runs", "is_partition", "words"),
    [
        (Runs(coming=False, ended_badly=None, launches=3), True, None),
        (Runs(coming=False, ended_badly=AFTER_FAILURE + 1, launches=3), True, None),
        (Runs(coming=False, ended_badly=5.0, launches=3), True, "failed or was cancelled 5 s ago"),
        (Runs(coming=True, ended_badly=None, launches=0), True, "about to start"),
        (Runs(coming=False, ended_badly=None, launches=0), False, "not a partition yet"),
    ],
)
def test_a_campaign_that_nobody_works_on_gets_a_run_unless_one_comes_or_has_just_failed(
    runs: Runs, is_partition: bool, words: str | None
) -> None:
    why = reason_to_wait(runs, is_partition=is_partition)
    assert (why is None) if words is None else (why is not None and words in why)


def quiet(faces: Faces, key: str) -> None:
    """As if a while had passed since the last call."""
    faces.world.execute(
        "UPDATE mailpipe.call c SET at = c.at - interval '1 minute' FROM mailpipe.campaign g"
        " WHERE g.campaign_id = c.campaign_id AND g.key = %(key)s",
        {"key": key},
    )


def half_sent(faces: Faces) -> str:
    """A campaign of a hundred slices whose first half was sent by a run that is gone."""
    faces.world.people(5_000)
    key = faces.ready(chunk_size=100)
    faces.world.send(key, (0, 49))
    return key


def test_due_slices_that_nobody_works_on_get_one_run_over_their_range(faces: Faces) -> None:
    key = half_sent(faces)
    assert "nobody is due" in tick(resume, faces).skip_message, "a moment after a call nobody is missed yet"
    quiet(faces, key)
    (request,) = [one for one in tick(resume, faces).run_requests if key in one.run_key]
    assert request.run_key == f"resume-{key}-1"
    assert request.tags["dagster/asset_partition_range_start"] == f"{key}|50"
    assert request.tags["dagster/asset_partition_range_end"] == f"{key}|99"
    assert (request.tags["mailpipe/lane"], request.tags["dagster/priority"]) == ("normal", "0")
    sent = faces.run("send", {"wait_seconds": 0.0}, tags=dict(request.tags))
    assert sent.success
    assert faces.world.keep_promises(key) == {"sent": 5_000}
    assert "nobody is due" in tick(resume, faces).skip_message


def test_a_run_that_failed_blocks_neither_its_key_nor_is_it_repeated_at_once(
    faces: Faces, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = half_sent(faces)
    quiet(faces, key)
    (request,) = tick(resume, faces).run_requests
    monkeypatch.setenv("MAILPIPE_CONSENT", "1 / (CASE WHEN person.user_id <> '' THEN 0 ELSE 1 END) = 1")
    assert not faces.run("send", {"wait_seconds": 0.0}, tags=dict(request.tags)).success
    monkeypatch.delenv("MAILPIPE_CONSENT")
    # What the fault held is free again after a lease.
    faces.world.execute("UPDATE mailpipe.chunk SET leased_until = now() - interval '1 s' WHERE state = 'leased'")
    assert f"{key}: its last run failed or was cancelled" in tick(resume, faces).skip_message
    monkeypatch.setattr("sensors.resume.AFTER_FAILURE", 0.0)
    (again,) = tick(resume, faces).run_requests
    assert again.run_key == f"resume-{key}-2"
    faces.world.send(key)
    assert faces.world.keep_promises(key) == {"sent": 5_000}


@pytest.mark.parametrize("hindrance", ["leased", "paused", "not due", "done"])
def test_who_is_not_due_or_in_somebodys_hands_gets_no_run(faces: Faces, hindrance: str) -> None:
    faces.world.people(200)
    key = faces.ready(**({"due_at": "2099-01-01T00:00:00Z"} if hindrance == "not due" else {}))
    faces.world.send(key, (0, 99 if hindrance == "done" else 49))
    quiet(faces, key)
    if hindrance == "leased":
        faces.world.execute(
            "UPDATE mailpipe.chunk c SET state = 'leased', owner = 'somebody', leased_until = now() + interval '1 min'"
            " FROM mailpipe.campaign g WHERE g.campaign_id = c.campaign_id AND g.key = %(key)s AND c.state = 'pending'"
            " AND c.chunk_no = (SELECT min(chunk_no) FROM mailpipe.chunk m WHERE m.campaign_id = c.campaign_id"
            " AND m.state = 'pending')",
            {"key": key},
        )
    if hindrance == "paused":
        with faces.world.database.connection() as connection:
            campaign.pause(connection, key, actor="cleo", reason="wrong price")
    try:
        assert "nobody is due" in tick(resume, faces).skip_message
    finally:
        with faces.world.database.connection() as connection:
            if hindrance != "done":
                campaign.cancel(connection, key, actor="cleo", reason="end of the test")


def test_a_dead_workers_lease_keeps_nobody_waiting(faces: Faces) -> None:
    key = half_sent(faces)
    quiet(faces, key)
    faces.world.execute(
        "UPDATE mailpipe.chunk SET state = 'leased', owner = 'dead', leased_until = now() - interval '1 s'"
        " WHERE state = 'pending' AND campaign_id = %(id)s",
        {"id": faces.world.campaign(key).campaign_id},
    )
    (request,) = tick(resume, faces).run_requests
    assert faces.run("send", {"wait_seconds": 0.0}, tags=dict(request.tags)).success
    assert faces.world.keep_promises(key) == {"sent": 5_000}
