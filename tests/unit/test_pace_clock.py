"""The distance of the database's clock: whatever answers take, a slot is never thought earlier than it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.pace import Clock


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
