"""The arithmetic before a campaign, as a person would do it on paper."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe import pace, plan


def made(
    recipients: int = 100_000,
    *,
    finish_within: float | None = None,
    quota: float | None = None,
    sent: float = 0,
    share: float = 1.0,
    **limits: Any,
) -> plan.Plan:
    day = pace.Day(None if quota is None or quota < 0 else quota, share, 0, 0, sent, sent)
    known = pace.Limits(**{"ceiling": None, "account_rate": None, "rate": None, "day": day, **limits})
    return plan.make("sale", recipients, 200, known, finish_within)


def test_half_a_million_and_some_at_six_hundred_a_second() -> None:
    found = made(971_696, rate=600.0, finish_within=1800.0)
    assert (found.call_size, found.calls) == (50, 19_434)
    assert found.calls_per_second == pytest.approx(12 / 1.041, rel=0.001)
    assert found.seconds is not None and 1680 < found.seconds < 1700
    assert found.required_rate == pytest.approx(539.8, abs=0.1)
    assert found.binding == "campaign rate"
    assert found.problems == ()


def test_many_small_chunks_are_a_call_each() -> None:
    assert made(2_366, account_rate=600.0).calls == 200


@pytest.mark.parametrize(
    ("limits", "binding"),
    [
        ({"rate": 100.0, "ceiling": 200.0, "account_rate": 300.0}, "campaign rate"),
        ({"rate": 300.0, "ceiling": 100.0, "account_rate": 200.0}, "MAILPIPE_RATE"),
        ({"rate": 300.0, "ceiling": 200.0, "account_rate": 100.0}, "SES account rate"),
        ({"account_rate": 14.0}, "SES account rate"),
        ({}, "none"),
    ],
)
def test_the_smallest_limit_binds(limits: dict[str, Any], binding: str) -> None:
    found = made(**limits)
    assert found.binding == binding
    assert found.rate == (min(limits.values()) if limits else None)


def test_without_a_quota_nobody_has_counted_what_was_sent() -> None:
    assert made(quota=1000.0, sent=12.0).sent_last_day == 12.0
    assert made(quota=None).sent_last_day is None, "not 0"


def test_what_cannot_be_met_is_said_with_what_it_would_need() -> None:
    found = made(100_000, rate=50.0, finish_within=600.0)
    [problem] = found.problems
    assert "it needs 167/s" in problem and "campaign rate" in problem and "100000 recipients at 50/s" in problem


def test_a_quota_that_does_not_suffice_binds() -> None:
    found = made(100_000, account_rate=1000.0, quota=150_000.0, sent=60_000.0)
    assert found.binding == "SES daily quota"
    assert "only 90000 more within 24 hours" in found.problems[0]


def test_the_share_of_marketing_binds_before_the_quota() -> None:
    found = made(100_000, account_rate=1000.0, quota=150_000.0, sent=10_000.0, share=0.5)
    assert found.binding == "share of marketing in the SES daily quota"
    assert "only 65000 more within 24 hours (50% of the quota of 150000: MAILPIPE_MARKETING_SHARE)" in found.problems[0]


@pytest.mark.parametrize("quota", [-1.0, None, 100_000.0])
def test_a_quota_that_suffices_is_no_problem(quota: float | None) -> None:
    assert made(100_000, account_rate=1000.0, quota=quota).problems == ()


def test_without_any_limit_nobody_can_say_how_long_it_takes() -> None:
    found = made(finish_within=60.0)
    assert (found.seconds, found.calls_per_second, found.rate) == (None, None, None)
    assert found.threads == plan.UNLIMITED_THREADS
    assert found.problems == ()


def test_nobody_takes_no_time() -> None:
    found = made(0, rate=100.0, finish_within=60.0)
    assert (found.calls, found.seconds, found.problems) == (0, None, ())


@pytest.mark.parametrize(
    ("rate", "threads", "together"),
    [(None, 30, 5), (1, 3, 1), (14, 9, 1), (100, 22, 1), (600, 22, 1), (950, 22, 1), (1000, 32, 5), (100_000, 256, 5)],
)
def test_threads_follow_the_calls_per_second(rate: float | None, threads: int, together: int) -> None:
    limits = pace.Limits(None, rate, None)
    assert plan.threads(limits) == threads
    assert plan.together(limits, threads) == together


def test_calls_of_one_recipient_are_opened_by_the_twenty() -> None:
    limits = pace.Limits(None, 600, None, most=1)
    assert (limits.call_size, plan.threads(limits)) == (1, 256)
    assert plan.together(limits, 256) == 20


@pytest.mark.parametrize(("threads", "together"), [(1, 1), (5, 1), (6, 2), (14, 4), (15, 5), (256, 5)])
def test_there_are_three_senders_before_one_has_a_fourth_call(threads: int, together: int) -> None:
    assert plan.together(pace.Limits(None, None, None), threads) == together


@given(st.floats(0.1, 100_000), st.integers(1, 2_000_000))
def test_a_plan_never_promises_more_than_the_rate(rate: float, recipients: int) -> None:
    found = made(recipients, rate=rate)
    assert found.seconds is not None
    assert recipients / found.seconds <= max(1.0, rate) * 1.000001
    assert found.to_json()["problems"] == list(found.problems)
