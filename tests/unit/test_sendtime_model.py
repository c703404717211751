"""The hour model: what it owes to the person, to those like them, and to nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks import send_histories, send_truth, sendtime
from mailpipe.engagement.rule import HOURS
from mailpipe.sendtime import model
from mailpipe.sendtime.model import Event, Why, score, tally

ALWAYS = np.ones(HOURS, bool)
hours = st.integers(0, HOURS - 1)
people = st.lists(st.lists(st.tuples(hours, st.booleans()), max_size=12), min_size=1, max_size=8)


def counts(histories: list[list[tuple[int, bool]]]) -> model.Curves:
    events = [Event(row, hour, clicked) for row, history in enumerate(histories) for hour, clicked in history]
    return tally(events, len(histories))


def crowd(hour: int, number: int = 200) -> model.Curves:
    """So many people, each of whom engaged once, around an hour."""
    return tally([Event(row, (hour + row % 3 - 1) % HOURS) for row in range(number)], number)


def nothing(ev: model.Curves) -> NDArray[np.float32]:
    return np.zeros_like(ev)


def test_with_no_data_anywhere_it_is_ten_and_nobody_claims_to_know() -> None:
    found = score(np.zeros((3, HOURS)), np.zeros((3, HOURS)), [0, 1, 0])
    assert list(found.hours) == [10, 10, 10]
    assert list(found.why) == [Why.default] * 3
    assert list(found.confidence) == [0, 0, 0]


def test_there_may_be_nobody() -> None:
    assert len(score(np.zeros((0, HOURS)), np.zeros((0, HOURS)), []).hours) == 0


@given(people, st.integers(0, HOURS - 1))
def test_turning_everybodys_clock_turns_their_curves(histories: list[list[tuple[int, bool]]], turn: int) -> None:
    """Midnight is an hour like any other. (The base curve stands still, so its weight is taken away.)"""
    ev = np.vstack([counts(histories), np.full((1, HOURS), 5e4)])
    segments = np.zeros(len(ev), int)
    shape = model.Shape(global_prior=1e-6)
    plain = score(ev, nothing(ev), segments, hours=ALWAYS, shape=shape)
    turned = score(np.roll(ev, turn, axis=1), nothing(ev), segments, hours=ALWAYS, shape=shape)
    np.testing.assert_allclose(turned.values, np.roll(plain.values, turn, axis=1), rtol=1e-3)


@given(people)
def test_somebody_without_data_has_the_curve_of_their_segment(histories: list[list[tuple[int, bool]]]) -> None:
    ev = np.vstack([np.zeros((1, HOURS), np.float32), counts(histories)])
    segments = np.zeros(len(ev), int)
    above = model.population(model.totals(ev, nothing(ev), segments))
    own = model.curves(ev, nothing(ev), segments, above)
    np.testing.assert_allclose(own[0], above.segments[0], rtol=1e-5)
    # Nor do mails that came at one hour and brought nothing say that another one would be better.
    mailed = np.zeros_like(ev)
    mailed[:, 10] = 20
    above = model.population(model.totals(ev, mailed, segments))
    own = model.curves(ev, mailed, segments, above)
    np.testing.assert_allclose(own[0] / own[0].sum(), above.segments[0] / above.segments[0].sum(), rtol=1e-4)
    assert score(ev, nothing(ev), segments).confidence[0] == 0


def test_an_unknown_segment_has_the_curve_of_everybody() -> None:
    ev = np.vstack([crowd(20), np.zeros((1, HOURS), np.float32)])
    segments = np.array([0] * 200 + [1])
    above = model.population(model.totals(ev, nothing(ev), segments))
    np.testing.assert_allclose(above.segments[1], above.everybody, rtol=1e-5)
    found = score(ev, nothing(ev), segments)
    assert (found.why[0], found.why[-1]) == (Why.own, Why.everybody)
    assert found.hours[-1] in (18, 19, 20)


def test_a_segment_with_data_of_its_own_goes_its_own_way() -> None:
    morning, evening = crowd(9, 400), crowd(19, 400)
    cold = np.zeros((1, HOURS), np.float32)
    ev = np.vstack([morning, evening, cold, cold])
    segments = np.array([0] * 400 + [1] * 400 + [0, 1])
    found = score(ev, nothing(ev), segments)
    assert found.hours[-2] in (8, 9) and found.hours[-1] in (17, 18, 19)
    assert list(found.why[-2:]) == [Why.segment, Why.segment]


def test_a_segment_apart_tells_nothing_about_the_others_unless_there_are_none() -> None:
    ev = np.vstack([crowd(9, 400), crowd(21, 4000)])
    segments = np.array([0] * 400 + [1] * 4000)
    sums = model.totals(ev, nothing(ev), segments)
    assert np.argmax(model.population(sums).everybody) in (20, 21, 22)
    assert np.argmax(model.population(sums, apart=1).everybody) in (8, 9, 10)
    alone = model.totals(ev[400:], nothing(ev[400:]), segments[400:] - 1)
    assert np.argmax(model.population(alone, apart=0).everybody) in (20, 21, 22)


@given(people, st.lists(st.tuples(st.integers(0, 7), hours), max_size=30))
def test_what_machines_opened_weighs_nothing(
    histories: list[list[tuple[int, bool]]], machines: list[tuple[int, int]]
) -> None:
    human = [Event(row, hour, clicked) for row, history in enumerate(histories) for hour, clicked in history]
    noise = [Event(row % len(histories), hour, machine=True) for row, hour in machines]
    assert (tally(human + noise, len(histories)) == tally(human, len(histories))).all()


@given(hours, st.integers(1, 30))
def test_the_more_evidence_the_closer_to_the_persons_own_hours(hour: int, number: int) -> None:
    crowded = crowd(10)
    peaks = []
    for events in (number, 2 * number):
        ev = np.vstack([crowded, tally([Event(0, hour)] * events, 1)])
        segments = np.zeros(len(ev), int)
        above = model.population(model.totals(ev, nothing(ev), segments))
        curve = model.curves(ev, nothing(ev), segments, above)[-1]
        peaks.append((curve[hour] / curve.sum(), score(ev, nothing(ev), segments).confidence[-1]))
    assert peaks[1] >= peaks[0]


def test_opens_at_the_hour_of_sending_are_no_habit() -> None:
    """Everybody was always mailed at ten and opened half of it then; the few who were mailed at seven in the evening opened all."""
    number = 400
    ev, ex = np.zeros((2, number, HOURS), np.float32)
    ex[:, 10], ev[:, 10] = 20, 6
    ex[:, 19], ev[:, 19] = 2, 2
    found = score(ev, ex, np.zeros(number, int), freshness=[1], shape=model.Shape(window=1, smoothing=0.5))
    assert set(found.hours) == {19}
    assert set(score(ev, nothing(ev), np.zeros(number, int), shape=model.Shape(window=1)).hours) == {10}


def test_hours_that_are_not_allowed_are_not_chosen() -> None:
    ev = crowd(3)
    found = score(
        ev, nothing(ev), np.zeros(200, int), hours=np.array([hour >= 22 or hour <= 5 for hour in range(HOURS)])
    )
    assert set(found.hours) <= {22, 23, 0, 1, 2, 3, 4, 5}
    assert all(8 <= hour <= 20 for hour in score(ev, nothing(ev), np.zeros(200, int)).hours)


def test_each_row_of_the_smoothing_adds_up_to_one_and_hour_23_is_beside_hour_0() -> None:
    smooth = model.kernel(2)
    np.testing.assert_allclose(smooth.sum(axis=1), 1, rtol=1e-6)
    assert smooth[23, 0] == pytest.approx(smooth[11, 12])


def test_the_prior_follows_how_much_people_differ() -> None:
    rng = np.random.default_rng(1)
    alike = rng.poisson(0.2, (3000, HOURS)).astype(np.float32)
    habits = np.zeros((3000, HOURS), np.float32)
    np.add.at(habits, (np.repeat(np.arange(3000), 5), np.repeat(rng.integers(0, HOURS, 3000), 5)), 1)
    segments = np.zeros(3000, int)
    assert model.tuned(alike, nothing(alike), segments).prior == max(model.PRIORS)
    assert model.tuned(habits, nothing(habits), segments).prior < 1
    assert model.tuned(habits[:10], nothing(habits[:10]), segments[:10]) == model.SHAPE


def test_it_beats_the_fixed_hour_and_the_classic_rule_where_the_truth_is_known() -> None:
    for own in (1.0, 0.25):
        found = send_truth.simulate(3_000, 3, own)
        mean = {rule: found[f"{rule}_day"][1] for rule in ("classic", "classic_human", "ours", "oracle")}
        assert max(0, mean["classic"], mean["classic_human"]) < mean["ours"] < mean["oracle"]


def test_the_invented_history_runs_and_ours_fits_best() -> None:
    found = sendtime.fit(send_histories.invented(), cuts=2)
    assert found["hit_random"] < found["hit_global"] < found["hit_classic"] < found["hit_ours"] < found["hit_best"]
    assert found["logloss_ours"] < found["logloss_global"]


def test_a_burst_is_one_session_and_its_hour_is_of_the_persons_clock() -> None:
    at = np.array([0, 60, 1500, 10_000, 0])
    history = send_histories.sessions("x", np.array([1, 1, 1, 1, 2]), at, np.full(5, 120))
    assert sorted(zip(history.person.tolist(), history.hour.tolist(), strict=True)) == [(0, 2), (0, 4), (1, 2)]
