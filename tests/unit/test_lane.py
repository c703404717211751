"""What follows from a lane: when a call is tried again, and how many threads work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mailpipe.lane import DEFAULTS, IDLE, Lane, backoff, changed, may_leave, more_threads

lanes = st.sampled_from(list(DEFAULTS.values()))


@given(st.integers(0, 10_000))
def test_the_wait_before_another_call_grows_and_has_an_end(tries: int) -> None:
    assert 0.5 <= backoff(tries) <= backoff(tries + 1) <= 300


@given(lanes, st.integers(0, 500), st.integers(0, 500), st.integers(0, 20_000))
def test_threads_grow_with_what_waits_and_stay_within_the_lane(
    lane: Lane, threads: int, idle: int, waiting: int
) -> None:
    idle = min(idle, threads)
    more = more_threads(lane, threads=threads, idle=idle, waiting=waiting)
    assert more >= 0
    assert threads + more <= max(lane.most, threads)
    assert threads + more >= lane.least
    if waiting <= idle and threads >= lane.least:
        assert more == 0, "who is idle comes first"
    if waiting > idle:
        assert more == max(0, min(lane.most - threads, max(waiting - idle, lane.least - threads)))


@given(lanes, st.integers(0, 500), st.floats(0, 100))
def test_threads_leave_when_idle_and_never_below_the_least(lane: Lane, threads: int, idle_for: float) -> None:
    assert may_leave(lane, threads=threads, idle_for=idle_for) == (threads > lane.least and idle_for >= IDLE)


def test_the_lanes_are_ordered_by_urgency() -> None:
    urgent = list(DEFAULTS.values())
    for field in ("poll", "batch", "sla", "answer"):
        values = [getattr(lane, field) for lane in urgent]
        assert values == sorted(values)
    assert [lane.unknown for lane in urgent] == ["resend", "hold", "hold", "hold"]


@given(lanes)
def test_nothing_said_changes_nothing(lane: Lane) -> None:
    assert changed(lane, "  ") == lane
