"""What a message becomes by an answer: sent once, never by guess, and tried again a bounded number of times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mailpipe.lane import DEFAULTS, Lane
from mailpipe.lanes.outcome import after
from mailpipe.ses.answer import Kind, Result

lanes = st.sampled_from(list(DEFAULTS.values()))
attempts = st.integers(1, 5)
reasons = st.sampled_from(["", "no_connection", "not_sent", "refused", "transient_failure", "sender_not_verified"])
results = st.builds(Result, st.sampled_from(list(Kind)), reasons)
limited = st.sampled_from(["account_throttled", "account_daily_quota_exceeded"])


@given(lanes, results, attempts, st.integers(0, 50))
def test_an_answer_leads_to_one_state_and_only_a_lost_one_to_another_attempt(
    lane: Lane, result: Result, attempt: int, tries: int
) -> None:
    becomes = after(lane, result, attempt=attempt, tries=tries)
    states = {
        Kind.SENT: {"sent"},
        Kind.FAILED: {"failed"},
        Kind.UNKNOWN: {"unknown", "pending"},
        Kind.RETRY: {"pending", "dead"},
        Kind.AGAIN: {"pending", "dead"},
    }
    assert becomes.state in states[result.kind]
    resent = result.kind is Kind.UNKNOWN and becomes.state == "pending"
    assert resent == (result.kind is Kind.UNKNOWN and lane.unknown == "resend" and attempt == 1)
    assert becomes.attempt == attempt + resent


@given(lanes, st.sampled_from([Kind.AGAIN, Kind.RETRY]), reasons)
def test_what_certainly_sent_nothing_is_tried_as_often_as_the_lane_says_and_is_dead_then(
    lane: Lane, kind: Kind, reason: str
) -> None:
    tries, waited = 0, 0.0
    while (becomes := after(lane, Result(kind, reason), attempt=1, tries=tries)).state == "pending":
        assert becomes.tries == tries + 1
        assert becomes.delay > 0
        tries, waited = becomes.tries, waited + becomes.delay
    assert (becomes.state, becomes.tries) == ("dead", lane.retries + 1)
    # Not given up while it could still be of use and the trouble is a short one.
    assert waited > 300


@given(lanes, limited, attempts, st.integers(0, 50))
def test_throttling_costs_no_try(lane: Lane, reason: str, attempt: int, tries: int) -> None:
    becomes = after(lane, Result(Kind.AGAIN, reason), attempt=attempt, tries=tries)
    assert (becomes.state, becomes.attempt, becomes.tries, becomes.delay) == ("pending", attempt, tries, 0.0)
