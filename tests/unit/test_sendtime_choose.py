"""Who is mailed when: within the window of their own clock, for sure; at their best hour, unless it is crowded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe import campaign_file
from mailpipe.engagement.rule import HOURS
from mailpipe.errors import CampaignError
from mailpipe.schedule import zones
from mailpipe.sendtime import choose
from mailpipe.sendtime.choose import CONTROL, EXPLORE, OPTIMISED, Slots
from mailpipe.sendtime.spec import STEP, Optimise, awake, launches

BASE = datetime(2026, 11, 27, 9, 17, tzinfo=UTC)
DAY = timedelta(days=1)
SOME = ["Asia/Ho_Chi_Minh", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati", "Asia/Kathmandu", "UTC"]


def digests(people: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, 2**32, (people, 4), np.uint32)


def worth(people: int, best: int = 19, second: int = 9) -> Any:
    made = np.full((people, HOURS), 10, np.uint8)
    made[:, second], made[:, best] = 200, 255
    return made


def plan(people: int, capacity: float | None = None, of_zone: Slots | None = None, **fields: Any) -> choose.Choice:
    optimise = Optimise(**fields)
    of_zone = of_zone or choose.slots(["UTC"], optimise.hours, BASE, DAY)
    numbers = digests(people)
    groups = choose.draw(numbers, optimise.explore, optimise.control)
    zone = np.arange(people) % len(of_zone.starts)
    hour = optimise.control_hour
    return choose.choose(worth(people), zone, numbers, groups, of_zone, control_hour=hour, capacity=capacity)


@given(
    st.sampled_from(SOME),
    st.integers(0, 23),
    st.integers(1, 23),
    st.integers(0, 3 * 365 * 288),
    st.integers(1, 48),
)
def test_every_time_lies_within_window_and_horizon_by_the_clock_of_the_zone(
    name: str, first: int, length: int, ago: int, horizon: int
) -> None:
    base = BASE - timedelta(minutes=5 * ago)
    window = Optimise(window=f"{first:02}:00-{(first + length) % 24:02}:00", control=0)
    found = choose.slots([name], window.hours, base, timedelta(hours=horizon))
    for column in np.flatnonzero(found.open[0]):
        start = datetime.fromtimestamp(int(found.starts[0, column]), UTC)
        assert base <= start < base + timedelta(hours=horizon) + timedelta(minutes=5)
        last = start + timedelta(seconds=STEP * (int(found.steps[0, column]) - 1))
        assert window.hours[zones.wall(name, last).hour]
        assert column % HOURS == zones.wall(name, start).hour or zones.wall(name, start).minute == 0


def test_the_next_day_has_every_hour_and_the_hour_that_has_begun_what_is_left_of_it() -> None:
    found = choose.slots(["UTC"], (True,) * 24, BASE, DAY)
    assert found.open.sum() == 24
    assert datetime.fromtimestamp(int(found.starts[0, 9]), UTC) == datetime(2026, 11, 27, 9, 20, tzinfo=UTC)
    assert found.steps[0, 9] == 8
    assert datetime.fromtimestamp(int(found.starts[0, 8]), UTC) == datetime(2026, 11, 28, 8, tzinfo=UTC)


def test_what_ends_before_an_hour_is_over_does_not_use_it() -> None:
    found = choose.slots(["UTC"], (True,) * 24, BASE, DAY, BASE + timedelta(hours=2))
    assert list(np.flatnonzero(found.open[0])) == [9, 10]
    assert not choose.slots(["UTC"], Optimise().hours, BASE, DAY, BASE + timedelta(minutes=5)).open.any()


def test_people_get_their_best_hour_the_control_group_its_own_and_some_a_random_one() -> None:
    found = plan(20_000)
    groups = choose.draw(digests(20_000), 0.05, 0.10)
    assert set(found.columns[groups == OPTIMISED]) == {19}
    assert set(found.columns[groups == CONTROL]) == {10}
    drawn = np.bincount(found.columns[groups == EXPLORE], minlength=24)
    assert (drawn[8:21] > 0).all() and drawn.sum() == drawn[8:21].sum()
    # Uniform among 13 hours: chi-square with 12 degrees of freedom, a chance of one in ten thousand.
    assert ((drawn[8:21] - drawn.sum() / 13) ** 2 / (drawn.sum() / 13)).sum() < 39.1
    assert set(found.propensity) == {1 / 13}
    assert set(found.best) == {19}
    assert np.bincount(groups) / 20_000 == pytest.approx([0.85, 0.10, 0.05], abs=0.01)


def test_minutes_are_spread_over_the_hour_in_steps_of_five() -> None:
    due = plan(20_000, explore=0, control=0).due % 3600
    assert sorted(set(due)) == list(range(0, 3600, STEP))
    assert np.bincount(due // STEP).min() > 20_000 / 12 * 0.85


@given(st.integers(0, 3000), st.floats(50, 2000))
def test_crowded_hours_are_relieved_and_nobody_leaves_the_window(people: int, capacity: float) -> None:
    found = plan(people, capacity, control=0, explore=0)
    assert all(8 <= hour <= 20 for hour in found.columns)
    load = np.bincount(found.columns, minlength=24)
    if people <= capacity:
        assert found.moved == 0
    elif people <= 12 * np.floor(capacity):
        assert load.max() <= np.ceil(capacity)


def test_who_loses_least_is_moved_and_control_and_exploration_stay() -> None:
    numbers = digests(1000)
    groups = np.array([OPTIMISED] * 800 + [CONTROL] * 100 + [EXPLORE] * 100, np.int8)
    values = worth(1000)
    values[:400, 9] = 250
    slots = choose.slots(["UTC"], Optimise().hours, BASE, DAY)
    found = choose.choose(values, np.zeros(1000, int), numbers, groups, slots, control_hour=19, capacity=550)
    free = choose.choose(values, np.zeros(1000, int), numbers, groups, slots, control_hour=19, capacity=None)
    assert (found.columns[800:] == free.columns[800:]).all()
    assert set(found.columns[400:800]) == {19}
    assert set(found.columns[:400]) == {9, 19}
    assert np.bincount(found.columns)[19] <= 550


def test_a_second_day_is_used_when_the_first_is_full() -> None:
    of_zone = choose.slots(["UTC"], Optimise(window="19:00-20:00", control=0).hours, BASE, 2 * DAY)
    found = plan(100, 60, of_zone, explore=0, control=0)
    assert sorted(np.bincount(found.columns)[[19, 43]]) == [40, 60]


def test_nobody_is_planned_without_trouble() -> None:
    assert len(plan(0, 10).due) == 0


def test_quiet_hours_take_whole_hours_out_of_the_window() -> None:
    loud = awake(Optimise().hours, "20:30-09:15")
    assert [hour for hour in range(24) if loud[hour]] == list(range(10, 20))


def test_one_run_an_hour_is_launched_where_people_are_due_every_five_minutes() -> None:
    dues = [BASE + timedelta(minutes=5 * number) for number in (0, 1, 2, 11, 12, 13, 14)]
    assert launches([*dues, None]) == [dues[0]] * 3 + [dues[3]] * 4 + [None]
    everything = [BASE + timedelta(minutes=5 * number) for number in range(48)]
    assert len(set(launches(everything))) == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimise": {"window": "08:00-21:00"}}, "belongs to mode: optimised"),
        ({"mode": "optimised", "send_at": "2026-12-24T10:00"}, "send_at one hour to all"),
        ({"mode": "optimised", "optimise": {"window": "08:30-21:00"}}, "full hours"),
        ({"mode": "optimised", "optimise": {"control_hour": 22}}, "outside of the window"),
        ({"mode": "optimised", "optimise": {"horizon": "3d"}}, "172800"),
        ({"mode": "optimised", "quiet_hours": "07:00-22:00"}, "no hour of window"),
        ({"mode": "optimised", "quiet_hours": "09:30-11:00"}, "control_hour lies in quiet_hours"),
        ({"mode": "optimised", "waves": [{"rest": True, "within": "30m"}]}, "leave mode out until it is warm"),
        ({"mode": "optimized"}, "optimised"),
    ],
)
def test_what_contradicts_itself_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    content = {"key": "x", "segment": "s", "template": "t", "sender": "Shop <news@mail.example.com>", **fields}
    with pytest.raises(CampaignError, match=words):
        campaign_file.parse(content, where="file")
