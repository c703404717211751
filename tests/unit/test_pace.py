"""The arithmetic of the pace: whatever the rate and however late calls leave, no second sees more than the limit."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailpipe import pace
from mailpipe.pace import LATENESS, TRANSIT, WINDOW, Clock, Limits

RATES = st.one_of(
    st.integers(1, 100_000).map(float),
    st.floats(0.05, 300, allow_nan=False),
    st.floats(300, 100_000, allow_nan=False),
)


@given(RATES)
def test_a_call_holds_no_more_than_ses_takes_and_no_more_than_a_second_s_worth(rate: float) -> None:
    assert 1 <= pace.call_size(rate) <= min(50, max(1, rate))


def test_without_a_limit_a_call_is_full() -> None:
    assert pace.call_size(None) == 50


@pytest.mark.parametrize(
    ("rate", "size"), [(1, 1), (14, 14), (50, 50), (51, 25), (99, 49), (100, 50), (570, 47), (0.2, 1)]
)
def test_calls_divide_the_rate_well(rate: float, size: int) -> None:
    """570/s is 12 calls of 47, not 11 of 50."""
    assert pace.call_size(rate) == size


@given(RATES)
@example(14.0)
@example(51.0)
@example(570.0)
@example(1.0)
def test_no_closed_window_of_a_second_can_catch_more_than_the_rate(rate: float) -> None:
    """Calls that arrive within a window come from slots within the window, the lateness and the difference of two ways."""
    reach = (WINDOW + LATENESS + TRANSIT) * 1e6
    slots = math.floor(reach / pace.distance(rate)) + 1
    assert slots * pace.call_size(rate) <= max(1, rate)


@given(RATES, st.data())
def test_however_late_calls_are_no_window_catches_more_than_the_rate(rate: float, data: st.DataObject) -> None:
    """The same, by playing it: each call leaves up to LATENESS after its slot and is up to TRANSIT on its way."""
    between = pace.distance(rate) / 1e6
    number = min(60, 3 * math.ceil(1 / between) + 3)
    delays = data.draw(
        st.lists(st.sampled_from([0.0, 0.004, LATENESS, LATENESS + TRANSIT]), min_size=number, max_size=number)
    )
    arrivals = sorted(i * between + delay for i, delay in enumerate(delays))
    for i, start in enumerate(arrivals):
        caught = bisect_right(arrivals, start + WINDOW) - i
        assert caught * pace.call_size(rate) <= max(1, rate)


@given(st.one_of(st.integers(14, 100_000).map(float), st.floats(20, 100_000, allow_nan=False)))
@example(14.0)
@example(20.99)
@example(51.0)
def test_at_least_nine_tenths_of_a_limit_can_be_used(rate: float) -> None:
    assert pace.call_size(rate) / (pace.distance(rate) / 1e6) >= 0.9 * rate


@given(st.none() | RATES, st.none() | RATES, st.none() | RATES)
def test_a_call_is_never_larger_than_what_its_slot_is_charged_for(
    ceiling: float | None, account: float | None, campaign: float | None
) -> None:
    limits = Limits(ceiling, account, campaign, None, None, None)
    assert limits.call_size <= pace.call_size(limits.account)
    assert limits.call_size <= pace.call_size(limits.campaign)
    known = [limit for limit in (ceiling, account, campaign) if limit is not None]
    assert limits.campaign == (min(known) if known else None)
    if limits.account is not None:
        assert limits.campaign is not None and limits.campaign <= limits.account


@given(
    offset=st.floats(-1e6, 1e6),
    drift=st.floats(-Clock.DRIFT, Clock.DRIFT),
    answers=st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0, 0.4)), min_size=1, max_size=20
    ),
)
def test_the_true_distance_of_the_clocks_is_always_within_the_bounds(
    offset: float, drift: float, answers: list[tuple[float, float, float, float]]
) -> None:
    """Each answer: a pause before it, the way there, the time at the server, the way back."""
    clock, now = Clock(), 1000.0

    def database(local: float) -> float:
        return local * (1 + drift) - offset

    for pause, there, inside, back in answers:
        asked = now + pause
        now = asked + there + inside + back
        low, high = clock.note(asked, now, database(asked + there), database(asked + there + inside))
        told = database(now)
        assert told + low - 1e-6 <= now <= told + high + 1e-6


def test_one_quick_answer_makes_up_for_slow_ones() -> None:
    clock = Clock()
    clock.note(10.0, 10.4, 5.1, 5.3)
    low, high = clock.note(11.0, 11.001, 6.0005, 6.0005)
    assert high - low == pytest.approx(0.001, rel=0.01)
    low, high = clock.note(12.0, 12.5, 7.4, 7.4)
    assert high - low < 0.001 + 2 * 1.5 * Clock.DRIFT + 1e-9


def test_a_clock_that_somebody_has_set_is_believed_again() -> None:
    clock = Clock()
    clock.note(10.0, 10.001, 5.0, 5.0)
    low, high = clock.note(11.0, 11.002, 3600.0, 3600.001)
    assert low == pytest.approx(11.0 - 3600.0, abs=1e-5) and high == pytest.approx(11.002 - 3600.001, abs=1e-5)
