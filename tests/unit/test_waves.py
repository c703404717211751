"""Ramps and the layout of an audience: caps hold, nobody is lost, those who read most go first."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailpipe.errors import CampaignError
from mailpipe.provider import FAMILIES
from mailpipe.waves import ramp, table
from mailpipe.waves.layout import FLOOR, Run, Stage, by_days, by_waves, shared
from mailpipe.waves.spec import TIERS, Warmup, Wave, check

BEGIN = datetime(2026, 3, 2, 10, tzinfo=UTC)
ALL = (Wave(rest=True, within=1),)


def begins(day: int) -> datetime:
    return BEGIN + timedelta(days=day - 1)


def people(number: int) -> dict[str, list[Run]]:
    """An ordinary list of so many people."""
    families = shared(number, {"gmail": 45, "microsoft": 20, "yahoo": 12, "apple": 8, "other": 15})
    parts = {family: shared(size, {"T1": 10, "T2": 20, "T3": 25, "T4": 45}) for family, size in families.items()}
    return {family: [Run(0, tier, some[tier]) for tier in TIERS if some.get(tier)] for family, some in parts.items()}


@pytest.mark.parametrize(("name", "day"), [("aggressive", 13), ("moderate", 17), ("conservative", 34)])
def test_the_first_pass_over_a_million_ends_on_the_published_day(name: ramp.Name, day: int) -> None:
    stages = by_days(people(1_000_000), ALL, ramp.of(name), begins)
    assert (stages[-1].number, sum(stage.people for stage in stages)) == (day, 1_000_000)


def test_caps_grow_as_published_and_on_by_their_rule() -> None:
    moderate, conservative, aggressive = (ramp.of("moderate"), ramp.of("conservative"), ramp.of("aggressive"))
    assert [moderate.cap(day) for day in (1, 4, 10, 17, 21, 22)] == [50, 1_000, 35_000, 375_000, 1_000_000, 1_250_000]
    assert [conservative.cap(day) for day in (1, 3, 4, 21, 22, 24, 25)] == [50, 50, 100, 8_000, 16_000, 16_000, 32_000]
    assert [aggressive.cap(day) for day in (5, 17, 18, 19)] == [5_000, 4_000_000, 8_000_000, 16_000_000]
    assert [ramp.of((10, 30)).cap(day) for day in (1, 2, 3, 99)] == [10, 30, 30, 30]


def test_a_domain_begins_where_its_last_days_have_brought_it() -> None:
    moderate = ramp.of("moderate")
    assert [moderate.day_after(volume) for volume in (0, 49, 50, 30_000, 375_000)] == [1, 1, 2, 10, 18]
    assert moderate.cap(moderate.day_after(50_000_000)) > 50_000_000
    assert ramp.of((10, 30)).day_after(1_000) == 2


numbers = st.integers(0, 400)
queues_of = st.fixed_dictionaries(
    {family: st.lists(st.tuples(st.integers(0, 2), st.sampled_from(TIERS), numbers), max_size=6) for family in FAMILIES}
)
ramps = st.lists(st.integers(60, 3_000), min_size=1, max_size=12).map(sorted).map(tuple).map(ramp.of)
wave_of = st.one_of(
    st.builds(lambda s: Wave(tiers=("T1",), within=s), st.integers(60, 90_000)),
    st.builds(lambda s: Wave(tiers=("T1",), spread=s), st.integers(60, 200_000)),
)
busy = st.dictionaries(st.integers(0, 20).map(lambda n: date(2026, 3, 2) + timedelta(days=n)), st.integers(0, 4_000))


def ordered(given: dict[str, list[tuple[int, Any, int]]]) -> dict[str, list[Run]]:
    return {family: [Run(*run) for run in sorted(runs)] for family, runs in given.items()}


def whole(queues: dict[str, list[Run]]) -> Counter[tuple[int, str, str]]:
    counted: Counter[tuple[int, str, str]] = Counter()
    for family, runs in queues.items():
        for run in runs:
            counted[run.wave, run.tier, family] += run.people
    return +counted


def laid(stages: list[Stage]) -> Counter[tuple[int, str, str]]:
    counted: Counter[tuple[int, str, str]] = Counter()
    for stage in stages:
        for piece in stage.pieces:
            assert piece.people > 0
            counted[piece.wave, piece.tier, piece.family] += piece.people
    return counted


@settings(max_examples=150)
@given(given=queues_of, steps=ramps, waves=st.lists(wave_of, min_size=3, max_size=3), others=busy)
def test_caps_hold_nobody_is_lost_and_the_order_is_kept(
    given: dict[str, list[tuple[int, Any, int]]], steps: ramp.Ramp, waves: list[Wave], others: dict[date, int]
) -> None:
    queues = ordered(given)
    stages = by_days(queues, waves, steps, begins, others=others)
    assert laid(stages) == whole(queues)
    for stage in stages:
        assert stage.cap == steps.cap(stage.rung or 0)
        assert stage.people + others.get(stage.at.date(), 0) <= stage.cap
        assert all(stage.at <= piece.due_at < stage.at + timedelta(days=1) for piece in stage.pieces)
    for family in FAMILIES:
        order = [(piece.wave, piece.tier) for stage in stages for piece in stage.pieces if piece.family == family]
        assert order == sorted(order)
        due = [piece.due_at for stage in stages for piece in stage.pieces if piece.family == family]
        assert due == sorted(due)


@settings(max_examples=100)
@given(given=queues_of, steps=ramps)
def test_no_provider_gets_more_than_its_share_nor_grows_faster_than_the_ramp(
    given: dict[str, list[tuple[int, Any, int]]], steps: ramp.Ramp
) -> None:
    queues = ordered({family: [(0, tier, number) for _, tier, number in runs] for family, runs in given.items()})
    left = {family: sum(run.people for run in runs) for family, runs in queues.items()}
    before: Counter[str] = Counter()
    cap_before = 0
    for stage in by_days(queues, ALL, steps, begins):
        day: Counter[str] = Counter()
        for piece in stage.pieces:
            day[piece.family] += piece.people
        assert stage.cap is not None
        for family in FAMILIES:
            assert day[family] <= max(FLOOR, stage.cap * left[family] / max(1, sum(left.values())) + 1)
            if cap_before:
                assert day[family] <= max(FLOOR, max(2, stage.cap / cap_before) * before[family])
        before, cap_before = day, stage.cap
        for family in FAMILIES:
            left[family] -= day[family]


@settings(max_examples=100)
@given(given=queues_of, waves=st.lists(wave_of, min_size=3, max_size=3))
def test_waves_follow_each_other_and_nobody_is_lost(
    given: dict[str, list[tuple[int, Any, int]]], waves: list[Wave]
) -> None:
    queues = ordered(given)
    stages = by_waves(queues, waves, BEGIN)
    assert laid(stages) == whole(queues)
    for earlier, later in pairwise(stages):
        assert later.at == earlier.at + timedelta(seconds=waves[earlier.number - 1].length)
        assert max(piece.due_at for piece in earlier.pieces) < later.at


def test_a_wave_that_is_spread_comes_in_even_steps() -> None:
    (only,) = by_waves(people(100_000), [Wave(rest=True, spread=36 * 3600)], BEGIN)
    due = Counter[datetime]()
    for piece in only.pieces:
        due[piece.due_at] += piece.people
    assert len(due) == 48
    assert max(due.values()) - min(due.values()) <= 25
    assert max(due) < BEGIN + timedelta(hours=36)


def test_a_wave_over_36_hours_takes_two_days_where_the_ramp_allows_all_at_once() -> None:
    stages = by_days(people(9_000), [Wave(rest=True, spread=36 * 3600)], ramp.of((1_000_000,)), begins)
    assert [stage.people for stage in stages] == [6_000, 3_000]


def test_what_other_campaigns_of_the_domain_send_is_taken_off_the_cap() -> None:
    stages = by_days(
        people(700), ALL, ramp.of("moderate"), begins, others={date(2026, 3, 3): 90, date(2026, 3, 4): 600}
    )
    assert [(stage.number, stage.people, stage.others) for stage in stages] == [(1, 50, 0), (2, 10, 90), (4, 640, 0)]


def test_a_warm_up_of_more_than_a_year_is_a_mistake() -> None:
    with pytest.raises(CampaignError, match="longer than a year"):
        by_days(people(1_000_000), ALL, ramp.of((50,)), begins)


@pytest.mark.parametrize(
    ("waves", "warmup", "told"),
    [
        ([], None, "waves is empty"),
        ([Wave(tiers=("T1",), within=60), Wave(tiers=("T1",), within=60)], None, "T1 is in two waves"),
        ([Wave(rest=True, within=60), Wave(tiers=("T1",), within=60)], None, "put it last"),
        ([Wave(tiers=("T1", "T2"), within=60)], None, "T3, T4, T5 are in no wave"),
        ([Wave(tiers=("T5",), within=60), Wave(rest=True, within=60)], Warmup(), "which warmup excludes"),
        ([Wave(rest=True, within=60)], Warmup(spread=3600), "leave it out"),
    ],
)
def test_waves_that_make_no_sense_are_refused(waves: list[Wave], warmup: Warmup | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(waves, warmup)


def test_a_plan_is_done_when_the_last_people_are_due_and_not_when_their_wave_begins() -> None:
    begins, ends = "2026-12-01T10:00:00+00:00", "2026-12-02T21:15:00+00:00"
    stage = {
        "label": "wave:2",
        "at": begins,
        "people": 96,
        "cap": None,
        "others": 0,
        "tiers": {"T4": 96},
        "providers": {},
    }
    kept = {
        "due": [{"at": begins, "people": 48}, {"at": ends, "people": 48}],
        "waves": {"ramp": None, "timezone": "Europe/Berlin", "stages": [{**stage, "label": "wave:1"}, stage]},
    }
    assert table.told(kept) == ["2 waves, each behind a gate; done on wave 2 (2026-12-02 22:15), if every gate passes"]
