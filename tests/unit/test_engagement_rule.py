"""The arithmetic of engagement: how fresh a mail is, and how long it is at risk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.engagement import hours, rule

CURVE = rule.DEFAULT_FRESHNESS


def test_before_there_are_own_reactions_the_published_curve_holds() -> None:
    assert sum(CURVE) == pytest.approx(1)
    assert 0.32 < CURVE[0] < 0.37 and 0.7 < sum(CURVE[:6]) < 0.8
    assert rule.freshness([0] * 24, 0) == pytest.approx(list(CURVE), rel=0.2)


def test_many_own_reactions_outweigh_the_published_curve() -> None:
    ages = [0.0] * 24
    ages[5] = 1e6
    found = rule.freshness(ages, 1e8)
    assert found.index(max(found)) == 5 and found[5] > 0.99 and sum(found) == pytest.approx(1)


@given(st.integers(0, 23), st.integers(0, 23))
def test_a_mail_is_at_risk_from_its_hour_until_the_reaction(send_hour: int, last_age: int) -> None:
    found = rule.exposure(CURVE, send_hour, last_age)
    assert found[send_hour] == pytest.approx(CURVE[0])
    assert sum(found) == pytest.approx(sum(CURVE[: last_age + 1]))
    assert [hour for hour in range(24) if found[hour]] == sorted((send_hour + age) % 24 for age in range(last_age + 1))


@given(st.lists(st.floats(0, 1e9), min_size=24, max_size=24), st.floats(0, 1e9))
def test_whatever_is_counted_the_curve_stays_one(ages: list[float], mails: float) -> None:
    found = rule.freshness(ages, mails)
    assert sum(found) == pytest.approx(1) and min(found) >= 0


def test_every_exposure_has_its_place() -> None:
    made = dict(rule.exposures(CURVE))
    assert len(made) == 576
    assert made[10 * 24 + 3] == rule.exposure(CURVE, 10, 3)


def test_exposure_behind_a_proxy_is_the_weight_that_clicks_bring() -> None:
    assert rule.thinning(0, 0) == pytest.approx(2 / 11)
    assert rule.thinning(9e6, 1e6) == pytest.approx(2 / 11, rel=1e-3)
    assert rule.thinning(0, 1e9) == pytest.approx(1)


MARCH = datetime(2026, 3, 28, tzinfo=UTC)


def test_clocks_that_change_are_told_to_the_hour() -> None:
    found = hours.spans(["europe/berlin", "Asia/Kolkata", "nowhere", ""], MARCH, MARCH + timedelta(days=3))
    assert found == [
        ("europe/berlin", "Europe/Berlin", MARCH, MARCH + timedelta(hours=25), timedelta(hours=1)),
        ("europe/berlin", "Europe/Berlin", MARCH + timedelta(hours=25), MARCH + timedelta(days=3), timedelta(hours=2)),
        ("Asia/Kolkata", "Asia/Kolkata", MARCH, MARCH + timedelta(days=3), timedelta(hours=5, minutes=30)),
        ("nowhere", None, MARCH, MARCH + timedelta(days=3), timedelta()),
        ("", None, MARCH, MARCH + timedelta(days=3), timedelta()),
    ]


def test_spans_cover_the_time_without_holes() -> None:
    since, until = datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, 7, tzinfo=UTC)
    for zone in ("America/New_York", "Africa/Casablanca", "Australia/Lord_Howe", "UTC"):
        found = hours.spans([zone], since, until)
        assert found[0][2] == since and found[-1][3] == until
        assert all(one[3] == two[2] and one[4] != two[4] for one, two in pairwise(found))
