"""What launches itself on time: decisions from tables, repeated without harm, and quick with a thousand schedules."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from assets.partitions import CAMPAIGNS
from assets.resources import DatabaseResource
from mailpipe import campaign
from mailpipe.schedule import fire, launch, recurring, zones
from mailpipe.schedule.launch import Launch, Missed, Wanted
from mailpipe.schedule.spec import parse
from sensors.due import due, new_partitions, requests
from sensors.recurring import recurring as recurring_sensor
from sensors.recurring import told
from tests.faces.conftest import Faces
from tests.support import World

NOW = datetime(2026, 12, 24, 9, tzinfo=UTC)
GRACE = 6 * 3600


def tick(sensor: dg.SensorDefinition, faces: Faces) -> Any:
    context = dg.build_sensor_context(
        instance=faces.instance,
        resources={"database": DatabaseResource()},
    )
    return sensor.evaluate_tick(context)


@pytest.fixture(autouse=True)
def _nothing_else(scene: World) -> None:
    """Campaigns of other tests of this module are over, and their schedules rest."""
    scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE state NOT IN ('done', 'cancelled')")
    scene.execute("UPDATE mailpipe.schedule SET is_active = false")


def wanted(scene: World, now: datetime) -> Wanted:
    with scene.database.connection() as connection:
        return launch.wanted(connection, grace=GRACE, now=now)


def test_a_campaign_is_frozen_ahead_of_time_and_sent_two_minutes_ahead(faces: Faces) -> None:
    scene = faces.world
    scene.people(120)
    at = datetime.now(UTC) + timedelta(hours=1)
    key = scene.create(due_at=at.isoformat())
    assert wanted(scene, at - timedelta(minutes=10)) == Wanted([], [], []), "a draft waits for somebody"
    scene.approve(key)
    assert wanted(scene, at - timedelta(minutes=16)) == Wanted([], [], [])
    (freeze,) = wanted(scene, at - timedelta(minutes=14)).freezes
    assert (freeze.key, freeze.attempt, freeze.name) == (key, 0, f"freeze-{key}-0")
    assert wanted(scene, at - timedelta(minutes=14)) == Wanted([freeze], [], []), "the same name"
    (again,) = wanted(scene, at - timedelta(minutes=4)).freezes
    assert again.name == f"freeze-{key}-1", "its run has not done it for ten minutes"
    scene.freeze(key)
    assert wanted(scene, at - timedelta(minutes=3)) == Wanted([], [], [])
    (found,) = wanted(scene, at - timedelta(seconds=115)).launches
    assert (found.key, found.due_at, found.attempt) == (key, at, 0)
    assert wanted(scene, at + timedelta(hours=7)) == Wanted([], [], [Missed(key, at)])


def test_a_due_time_is_launched_until_a_run_works_on_it(faces: Faces) -> None:
    scene = faces.world
    scene.people(120)
    key = scene.ready(due_at=datetime.now(UTC).isoformat(), lane="low")
    told_once = tick(due, faces)
    (request,) = told_once.run_requests
    assert request.job_name == "send"
    assert (request.tags["mailpipe/lane"], request.tags["dagster/priority"]) == ("low", "-1")
    assert told_once.dynamic_partitions_requests[0].partition_keys == [key]
    faces.register(key)
    again = tick(due, faces)
    assert [one.run_key for one in again.run_requests] == [request.run_key]
    assert again.dynamic_partitions_requests == []
    assert faces.run("send", {"wait_seconds": 0.0}, tags=dict(request.tags)).success
    assert scene.keep_promises(key) == {"sent": 120}
    assert "nothing is due" in tick(due, faces).skip_message


def test_a_snapshot_that_was_asked_for_can_be_launched(faces: Faces) -> None:
    scene = faces.world
    scene.people(60)
    at = datetime.now(UTC) + timedelta(minutes=10)
    key = scene.create(due_at=at.isoformat())
    scene.approve(key)
    (request,) = tick(due, faces).run_requests
    assert request.job_name == "snapshot"
    faces.register(key)
    assert faces.run("snapshot", tags=dict(request.tags)).success
    skip = tick(due, faces).skip_message
    assert f"next: {key} at {at:%Y-%m-%d %H:%M:%S} UTC" in skip


def test_a_missed_campaign_waits_for_a_person_and_says_so(faces: Faces) -> None:
    key = faces.world.create(due_at=(datetime.now(UTC) - timedelta(hours=8)).isoformat())
    faces.world.approve(key)
    assert f"missed, and a person has to start them with `late`: {key}" in tick(due, faces).skip_message


def test_who_is_started_by_a_person_and_who_is_paused_is_left_alone(faces: Faces) -> None:
    scene = faces.world
    scene.people(60)
    manual = scene.ready()
    paused = scene.ready(due_at=datetime.now(UTC).isoformat())
    with scene.database.connection() as connection:
        campaign.pause(connection, paused, actor="ana", reason="look")
    assert wanted(scene, datetime.now(UTC)) == Wanted([], [], [])
    assert scene.campaign(manual).state == "approved"


def test_a_local_campaign_has_one_run_for_each_due_time_and_share(faces: Faces) -> None:
    scene = faces.world
    zones_of = ["Asia/Tokyo", "Europe/Berlin", "America/New_York"]
    scene.people(600)
    scene.execute("UPDATE users SET timezone = (CAST(%(z)s AS text[]))[1 + user_id %% 3]", {"z": zones_of})
    ten = (datetime.now(UTC) + timedelta(days=2)).replace(hour=10, minute=0, second=0, microsecond=0, tzinfo=None)
    key = scene.ready(send_at=ten.isoformat())
    names: dict[str, set[str]] = {}
    for near in sorted({zones.instant(zone, ten) for zone in zones_of} | {zones.earliest(ten), zones.latest(ten)}):
        for seconds in range(-240, 61, 30):
            now = near + timedelta(seconds=seconds)
            for found in wanted(scene, now).launches:
                zone = next(zone for zone in zones_of if zones.instant(zone, ten) == found.due_at)
                assert timedelta(0) < found.due_at - now <= launch.AHEAD
                asked = requests(Wanted([], [found], []), 2)
                names.setdefault(zone, set()).update(request.run_key or "" for request in asked)
                # A run works on it from now on.
                if found.due_at - now < timedelta(minutes=1):
                    scene.execute(
                        "UPDATE mailpipe.due SET launched_at = now() WHERE due_at = %(at)s", {"at": found.due_at}
                    )
    assert {zone: len(found) for zone, found in names.items()} == dict.fromkeys(zones_of, 2)
    assert scene.campaign(key).state == "approved"


def test_a_campaign_made_before_the_clocks_change_and_due_after_it_is_launched_once(faces: Faces) -> None:
    scene = faces.world
    scene.people(50)
    key = scene.ready(send_at="2027-10-31T02:30", timezone="Europe/Berlin")
    due_at = datetime(2027, 10, 31, 0, 30, tzinfo=UTC)
    seen: set[tuple[str, datetime]] = set()
    for minutes in range(-12 * 60, 24 * 60, 2):
        now = due_at + timedelta(minutes=minutes)
        for found in wanted(scene, now).launches:
            assert due_at - launch.AHEAD <= now <= due_at, (
                "02:30 comes twice in this night, and the mail the first time"
            )
            seen.add((found.key, found.due_at))
            scene.execute("UPDATE mailpipe.due SET launched_at = now()")
    assert seen == {(key, due_at)}


@pytest.mark.parametrize(
    ("span", "number", "ranges"),
    [
        ((0, 99), 1, [(0, 99)]),
        ((0, 99), 3, [(0, 32), (33, 65), (66, 99)]),
        ((7, 8), 5, [(7, 7), (8, 8)]),
        ((4, 4), 2, [(4, 4)]),
    ],
)
def test_shares_cover_every_slice_once(span: tuple[int, int], number: int, ranges: list[tuple[int, int]]) -> None:
    shares = Launch("news", NOW, *span, 0).shares(number)
    assert [share[1:] for share in shares] == ranges
    assert len({share[0] for share in shares}) == len(shares)
    assert shares[0][0] == "due-news-20261224T090000-0-0"


def test_new_keys_become_partitions_once(faces: Faces) -> None:
    asked = requests(
        Wanted([], [Launch("fresh", NOW, 0, 99, 0), Launch("fresh", NOW + timedelta(hours=1), 0, 9, 0)], []), 1
    )
    assert new_partitions(faces.instance, asked) == ["fresh"]
    faces.instance.add_dynamic_partitions(str(CAMPAIGNS.name), ["fresh"])
    assert new_partitions(faces.instance, asked) == []


def schedules(scene: World, number: int) -> None:
    spec = parse(
        {
            "key": "many",
            "cron": "0 9 * * 1",
            "timezone": "Europe/Berlin",
            "campaign": {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"},
        },
        where="test",
    )
    with scene.database.connection() as connection:
        recurring.create(connection, scene.settings, spec, author="ana")
        connection.execute(
            "INSERT INTO mailpipe.schedule (key, cron_expression, timezone, next_slot, next_run_at, wake_at, spec, author)"
            " SELECT 'many-' || i, cron_expression, timezone, next_slot, next_run_at + interval '100 years',"
            " wake_at + interval '100 years', spec, author FROM mailpipe.schedule, generate_series(1, %s) i WHERE key = 'many'",
            (number,),
        )


def test_ticks_are_quick_with_a_thousand_schedules_and_a_hundred_campaigns(faces: Faces) -> None:
    scene = faces.world
    schedules(scene, 1_000)
    scene.people(50)
    far = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    first = scene.ready(due_at=far)
    scene.execute(
        "WITH made AS (INSERT INTO mailpipe.campaign (key, state, spec, template_version, due_at, author, approver, approved_at)"
        " SELECT g.key || '-' || i, 'sending', g.spec, g.template_version, g.due_at, g.author, g.approver, g.approved_at"
        " FROM mailpipe.campaign g, generate_series(1, 100) i WHERE g.key = %(key)s RETURNING campaign_id),"
        " cut AS (INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
        " SELECT m.campaign_id, i, i %% 100, 1 + i * 10, 10, now() + i * interval '1 hour', repeat('0', 10)::varbit,"
        " repeat('0', 10)::varbit FROM made m, generate_series(0, 199) i)"
        " INSERT INTO mailpipe.due SELECT m.campaign_id, now() + i * interval '1 hour', i, i, 10, NULL"
        " FROM made m, generate_series(1, 38) i",
        {"key": first},
    )
    for sensor in (due, recurring_sensor):
        tick(sensor, faces)
        started = time.perf_counter()
        found = tick(sensor, faces)
        assert time.perf_counter() - started < 1
        assert found.run_requests == []
        assert "next: " in found.skip_message


def test_the_recurring_sensor_says_what_it_made_and_what_comes(faces: Faces) -> None:
    assert "no schedule is active" in tick(recurring_sensor, faces).skip_message
    text = told(fire.Ticked(("news-20270104-0900",), 2, ("other-1: no segment",)), "next: x at y")
    assert text.startswith("made news-20270104-0900; 2 fires were missed")
    assert text.endswith("failed: other-1: no segment; next: x at y")
