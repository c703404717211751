"""Zones: one instant for each wall time, whatever the clocks do, and a default for what is no zone."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.errors import ZoneError
from mailpipe.schedule import zones

NAMES = st.sampled_from(zones.every())
WALLS = st.datetimes(datetime(2000, 1, 1), datetime(2035, 1, 1)).map(lambda wall: wall.replace(microsecond=0))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "wall", "instant"),
    [
        ("America/New_York", "2026-03-08T02:30", "2026-03-08T07:00"),  # skipped: 03:00 EDT
        ("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30"),  # twice: EDT, not EST
        ("America/New_York", "2026-07-01T09:00", "2026-07-01T13:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30"),  # half an hour is skipped
        ("Australia/Lord_Howe", "2026-04-05T01:45", "2026-04-04T14:45"),  # half an hour comes twice
        ("America/Santiago", "2026-09-06T00:00", "2026-09-06T04:00"),  # a day without midnight
        ("Pacific/Apia", "2011-12-30T09:00", "2011-12-30T10:00"),  # a day that never was
        ("Asia/Kolkata", "2026-06-01T00:00", "2026-05-31T18:30"),
        ("Asia/Kathmandu", "2026-06-01T00:00", "2026-05-31T18:15"),
        ("Europe/Dublin", "2026-03-29T01:30", "2026-03-29T01:00"),  # its winter time is the one that saves
        ("Africa/Cairo", "2026-04-24T00:00", "2026-04-23T22:00"),
        ("UTC", "2026-03-29T02:30", "2026-03-29T02:30"),
    ],
)
def test_the_instant_of_a_wall_time(zone: str, wall: str, instant: str) -> None:
    assert zones.instant(zone, datetime.fromisoformat(wall)) == at(instant)


@given(NAMES, WALLS)
def test_the_clocks_show_the_wall_time_for_the_first_time_or_have_just_skipped_it(name: str, wall: datetime) -> None:
    instant = zones.instant(name, wall)
    shown = zones.wall(name, instant)
    second = timedelta(seconds=1)
    if shown == wall:
        earlier = {zones.wall(name, instant - timedelta(minutes=minutes)) for minutes in range(15, 24 * 60, 15)}
        assert wall not in earlier
    else:
        assert shown > wall
        assert zones.wall(name, instant - second) < wall


@given(NAMES, WALLS, st.integers(0, 90_000))
def test_a_later_wall_time_is_never_an_earlier_instant(name: str, wall: datetime, seconds: int) -> None:
    assert zones.instant(name, wall + timedelta(seconds=seconds)) >= zones.instant(name, wall)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("Asia/Ho_Chi_Minh", "Asia/Ho_Chi_Minh"),
        (" asia/ho chi minh ", "Asia/Ho_Chi_Minh"),
        ("utc", "UTC"),
        ("US/Pacific", "US/Pacific"),
        ("Asia/Saigon", "Asia/Saigon"),
        ("Europe/Kyiv", "Europe/Kyiv"),
        ("Asia/Calcutta", "Asia/Calcutta"),
        ("Etc/GMT+5", "Etc/GMT+5"),
    ],
)
def test_old_names_and_careless_spelling_are_known(text: str, zone: str) -> None:
    assert zones.find(text) == zone
    assert zones.load(text).key == zone


@pytest.mark.parametrize(
    "text",
    [None, "", " ", "localtime", "Factory", "posixrules", "../etc/passwd", "/etc/localtime", "GMT+5x", "+07:00", "PST", "Mars/Base",
     "a\0b", "Asia/"],
)  # fmt: skip
def test_what_is_no_zone_is_told_apart(text: str | None) -> None:
    assert zones.find(text) is None
    if text is not None:
        with pytest.raises(ZoneError, match="IANA"):
            zones.load(text)


def test_people_without_a_zone_have_the_default_one_and_are_counted() -> None:
    given_zones = {"Europe/Berlin": 3, "Mars/Base": 2, None: 4, "europe/berlin": 1}
    assigned = zones.assign(given_zones, "asia/ho_chi_minh")
    assert assigned.zones == {
        "Europe/Berlin": "Europe/Berlin",
        "europe/berlin": "Europe/Berlin",
        "Mars/Base": "Asia/Ho_Chi_Minh",
        None: "Asia/Ho_Chi_Minh",
    }
    assert assigned.unknown == {"Mars/Base": 2, None: 4}
    assert zones.assign([None, None, "UTC"], "UTC").unknown == {None: 2}
    with pytest.raises(ZoneError):
        zones.assign(given_zones, "Mars/Base")


def test_a_morning_goes_around_the_world_in_26_hours() -> None:
    nine = datetime(2026, 6, 1, 9)
    assert zones.earliest(nine) == at("2026-05-31T19:00")
    assert zones.latest(nine) == at("2026-06-01T21:00")
    assert len({zones.instant(name, nine) for name in zones.every()}) == 38


def test_the_rules_are_those_of_the_package_whatever_the_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    zones.load.cache_clear()
    assert zones.instant("US/Central", datetime(2026, 7, 1, 9)) == at("2026-07-01T14:00")
