"""The arithmetic of the pace: whatever the rate, the lanes and the lateness, no second sees more than the limit."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailpipe import pace
from mailpipe.pace import LATENESS, TRANSIT, WINDOW, Limits, rule
from mailpipe.pace.rule import Claim, Line, Split
from mailpipe.pace.slots import fit

RATES = st.one_of(
    st.integers(1, 100_000).map(float),
    st.floats(0.05, 300, allow_nan=False),
    st.floats(300, 100_000, allow_nan=False),
)
SPLITS = st.builds(
    rule.split,
    RATES,
    reserve=st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.9]),
    held=st.booleans(),
    mixed=st.booleans(),
    most=st.sampled_from([None, 1, 10, 50]),
    calls=st.none() | st.floats(0.5, 1000),
)
PART = ("normal", 1), ("normal", 2), ("low", 3), ("low", 0)


def most_in_a_window(departures: list[tuple[float, int]]) -> int:
    """The most recipients that leave in any closed window of a second."""
    departures = sorted(departures)
    best = total = first = 0
    for at, recipients in departures:
        total += recipients
        while departures[first][0] < at - WINDOW:
            total -= departures[first][1]
            first += 1
        best = max(best, total)
    return best


def played(line: Line, chance: random.Random, ease: float = 1.0) -> list[tuple[float, int]]:
    """A line that is always busy, its calls of any size that it allows, each up to LATENESS late and up to TRANSIT on its way."""
    slot, found = chance.random(), []
    for _ in range(min(150, 3 * math.ceil(line.calls * (line.size if line.unit else 1)) + 3)):
        size = chance.choice([1, line.size, chance.randint(1, line.size)])
        slot += rule.microseconds(line.gap(size) / ease) / 1e6
        found.append((slot + chance.choice([0.0, LATENESS, LATENESS + TRANSIT, chance.random() * LATENESS]), size))
    return found


@settings(deadline=None)
@given(SPLITS, st.randoms(use_true_random=False))
def test_all_lines_together_never_let_more_than_the_rate_through(split: Split, chance: random.Random) -> None:
    departures = played(split.bulk, chance)
    limit = split.bulk.rate
    if split.reserve is not None:
        departures += played(split.reserve, chance)
        limit = split.reserve.rate + (
            split.bulk.rate
            if split.bulk.unit
            else split.bulk.size * max(1, math.floor(split.bulk.rate / split.bulk.size))
        )
    assert most_in_a_window(departures) <= max(1, limit)


@given(RATES, st.booleans(), st.booleans(), st.sampled_from([0.0, 0.05, 0.5]), st.none() | st.floats(0.5, 1000))
@example(53.0, True, False, 0.05, None)
@example(20.99, True, True, 0.05, None)
def test_the_parts_of_a_split_are_no_more_than_the_rate(
    rate: float, held: bool, mixed: bool, reserve: float, calls: float | None
) -> None:
    split = rule.split(rate, reserve=reserve, held=held, mixed=mixed, calls=calls)
    bulk = split.bulk
    used = bulk.rate if bulk.unit else bulk.size * bulk.calls
    assert 1 <= bulk.size <= min(50, max(1, rate))
    assert used + (split.reserve.rate if split.reserve else 0) <= rate * (1 + 1e-9)
    if split.reserve is not None:
        assert held and rate >= rule.ONE_LINE
        assert split.reserve.rate - split.reserve.size + 1 >= 1, "the reserve moves"
    if calls is not None and calls * min(50, bulk.rate) >= bulk.rate and not bulk.unit:
        assert bulk.calls <= math.ceil(calls)


@given(RATES, st.data())
def test_whole_calls_stay_within_the_limit_however_late_they_are(rate: float, data: st.DataObject) -> None:
    """The same as above with lateness chosen by hypothesis, which looks for the worst."""
    line = rule.split(rate).bulk
    between = rule.microseconds(line.gap(1)) / 1e6
    number = min(60, 3 * math.ceil(1 / between) + 3)
    delays = data.draw(
        st.lists(st.sampled_from([0.0, 0.004, LATENESS, LATENESS + TRANSIT]), min_size=number, max_size=number)
    )
    assert most_in_a_window([(i * between + delay, line.size) for i, delay in enumerate(delays)]) <= max(1, rate)


@given(st.integers(1, 2000), st.integers(1, 50), st.lists(st.integers(1, 50), min_size=1, max_size=300))
def test_a_line_by_recipients_holds_with_any_mixture_of_calls(rate: int, size: int, calls: list[int]) -> None:
    size = min(size, rate)
    line, at = Line(size, float(rate), unit=True), 0.0
    departures = []
    for recipients in (min(wanted, size) for wanted in calls):
        at += rule.microseconds(line.gap(recipients)) / 1e6
        departures.append((at, recipients))
    assert most_in_a_window(departures) <= rate


def test_without_a_limit_a_call_is_full() -> None:
    assert pace.call_size(None) == 50


@pytest.mark.parametrize(
    ("rate", "size"), [(1, 1), (14, 14), (50, 50), (51, 25), (99, 49), (100, 50), (570, 47), (0.2, 1)]
)
def test_calls_divide_the_rate_well(rate: float, size: int) -> None:
    """570/s is 12 calls of 47, not 11 of 50."""
    assert pace.call_size(rate) == size
    assert rule.split(float(rate)).bulk.size == size


@given(st.one_of(st.integers(14, 100_000).map(float), st.floats(20, 100_000, allow_nan=False)))
@example(14.0)
@example(20.99)
@example(51.0)
def test_at_least_nine_tenths_of_a_limit_can_be_used(rate: float) -> None:
    assert rule.split(rate).bulk.real_rate >= 0.9 * rate


@pytest.mark.parametrize("rate", [14.0, 53.0, 570.0, 600.0, 2000.0])
def test_of_the_usual_limits_more_than_that(rate: float) -> None:
    assert rule.split(rate).bulk.real_rate >= 0.93 * rate


def test_the_times_of_the_reserve_are_long_enough_for_the_longest_way() -> None:
    on_its_way = rule.VALID + rule.MOST_AHEAD + rule.LONGEST_REACH
    assert on_its_way < rule.SETTLE
    assert rule.SERVED + on_its_way < rule.HOLD


@given(st.floats(0, rule.MOST_TRANSIT))
def test_a_shorter_way_uses_more_of_the_rate(transit: float) -> None:
    limits = Limits(None, 600.0, None, transit=transit)
    assert limits.real_rate == pytest.approx(600 / (WINDOW + LATENESS + transit), rel=0.002)


def test_a_reserve_is_only_held_while_somebody_can_use_it() -> None:
    assert rule.split(600.0, reserve=0.05) == Split(Line(50, 600.0))
    held = rule.split(600.0, reserve=0.05, held=True)
    assert held == Split(Line(15, 570.0, unit=True), Line(7, 30, unit=True))
    held = rule.split(2030.0, reserve=0.05, held=True)
    assert held.bulk.size == 49 and held.bulk.calls == 39
    assert held.reserve == Line(29, 119, unit=True), "what whole calls do not use belongs to the reserve"


def test_below_twenty_a_second_all_share_one_line_of_single_calls() -> None:
    held = rule.split(14.0, reserve=0.05, held=True)
    assert held == Split(Line(1, 14.0)) and held.bulk.calls == 14


def test_borrowers_find_a_slot_of_bulk_within_a_tenth_of_a_second_or_so() -> None:
    for rate in (20.0, 53.0, 120.0, 570.0, 2000.0):
        line = rule.split(rate, reserve=0.05, held=True).bulk
        assert line.gap(line.size) < 0.06, rate
        assert line.gap(1) * rate / 50 < 1.2, "and a code costs them little of the rate"


def test_small_campaigns_cost_what_they_use_beside_large_ones() -> None:
    mixed = rule.split(600.0, mixed=True).bulk
    assert mixed.unit and mixed.gap(5) < 0.01
    assert mixed.real_rate > 0.92 * 600


def test_calls_grow_when_only_a_few_a_second_are_allowed() -> None:
    assert rule.split(14.0, held=True, calls=1.0).bulk == Line(14, 14.0)
    assert rule.split(570.0, calls=1.0).bulk.size == 50


@given(st.none() | RATES, st.none() | RATES, st.none() | RATES, st.booleans())
def test_a_call_is_never_larger_than_what_its_slot_is_charged_for(
    ceiling: float | None, account: float | None, campaign: float | None, held: bool
) -> None:
    claims = (Claim("critical", 0, None, 100.0, 0.1),) if held else ()
    limits = Limits(ceiling, account, campaign, claims=claims)
    if limits.split is not None:
        assert limits.call_size <= limits.split.bulk.size
    if campaign is not None:
        assert limits.call_size <= max(1, campaign)
    known = [limit for limit in (ceiling, account, campaign) if limit is not None]
    assert limits.campaign == (min(known) if known else None)


CLAIMS = st.lists(
    st.builds(
        lambda key, rate: Claim(key[0], key[1], rate, 100.0, 0.5),
        st.sampled_from(PART),
        st.none() | st.floats(0.5, 1000),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda claim: claim.campaign_id,
).map(tuple)


@given(CLAIMS, st.sampled_from([14.0, 53.0, 600.0, 2000.0]), st.booleans())
def test_shares_are_the_whole_line_and_nobody_gets_less_than_their_weight_or_need(
    claims: tuple[Claim, ...], rate: float, mixed: bool
) -> None:
    line = rule.split(rate, mixed=mixed).bulk
    shares = rule.shares(claims, line)
    assert shares.keys() == {(claim.lane, claim.campaign_id) for claim in claims}
    total = sum(shares.values())
    assert total <= 1 + 1e-9
    if any(claim.rate is None for claim in claims):
        assert total == pytest.approx(1), "nothing is left lying while somebody can use it"
    weights = sum(rule.WEIGHTS[claim.lane] for claim in claims)
    for claim, other in itertools.product(claims, claims):
        share = shares[claim.lane, claim.campaign_id]
        assert share > 0
        if claim.rate is None:
            assert share >= rule.WEIGHTS[claim.lane] / weights - 1e-9
            if claim.lane == other.lane:
                assert share >= shares[other.lane, other.campaign_id] - 1e-9, (
                    "nobody gets more than one without a limit"
                )


def test_ten_equal_campaigns_get_a_tenth_each_and_low_a_quarter_of_normal() -> None:
    ten = tuple(Claim("normal", number, None, 1.0, 0.0) for number in range(1, 11))
    assert list(rule.shares(ten, Line(50, 600.0)).values()) == pytest.approx([0.1] * 10)
    both = (Claim("normal", 1, None, 1.0, 0.0), Claim("low", 2, None, 1.0, 0.0))
    assert rule.shares(both, Line(50, 600.0)) == {("normal", 1): 0.8, ("low", 2): 0.2}


def test_who_has_not_wanted_anything_for_a_while_has_no_share() -> None:
    claims = (Claim("normal", 1, None, 9.0, 0.0), Claim("normal", 2, None, 9.0, rule.ACTIVE + 0.1))
    assert rule.shares(claims, Line(50, 600.0)) == {("normal", 1): 1.0}


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_reserve_is_never_used_within_a_second_of_a_slot_that_bulk_took_from_it(chance: random.Random) -> None:
    """A transactional lane is heard of at any times; bulk and the lane decide by what they read up to VALID ago, and book up to
    MOST_AHEAD ahead."""
    touches, now = [], 0.0
    for _ in range(chance.randint(1, 8)):
        now += chance.choice(
            [chance.uniform(0.5, 2), chance.uniform(4.5, 5.5), chance.uniform(7, 9), chance.uniform(1, 20)]
        )
        touches.append(now)

    def seen(at: float) -> tuple[Claim, ...]:
        since = last = -math.inf
        for touch in itertools.takewhile(lambda touch: touch <= at, touches):
            since, last = (touch if touch - last > rule.SERVED else since), touch
        return (Claim("critical", 0, None, at - since, at - last),) if last > -math.inf else ()

    borders = [touch + delay for touch in touches for delay in (0, rule.SETTLE, rule.SERVED, rule.HOLD)]
    reserve, taken = [], []
    for border in borders:
        for _ in range(8):
            read = border + chance.uniform(-1, 1) * chance.choice([0.001, 0.3])
            leaves = read + chance.choice([0.0, rule.VALID, chance.random() * rule.VALID])
            leaves += chance.choice([0.0, rule.MOST_AHEAD, chance.random()])
            claims = seen(read)
            if rule.is_usable(claims):
                reserve.append(leaves)
            if not rule.is_held(claims):
                taken.append(leaves)
    assert all(abs(one - other) > rule.REACH for one in reserve for other in taken)


FAMILIES = st.lists(st.sampled_from(["gmail", "yahoo", "other"]), min_size=1, max_size=200)


@given(FAMILIES, st.sampled_from([14.0, 53.0, 600.0, 2000.0]), st.floats(0.2, 2000))
def test_a_call_has_no_more_of_a_provider_than_its_line_allows(families: list[str], rate: float, cap: float) -> None:
    limits = Limits(None, rate, None, provider_rates={"gmail": cap})
    chosen = fit(limits, families)
    line = rule.provider_line(cap)
    assert chosen and chosen == sorted(set(chosen)) and len(chosen) <= limits.call_size
    people = Counter(families[position] for position in chosen)
    assert people["gmail"] <= line.size
    if people.total() < min(limits.call_size, len(families)):
        assert all(families[position] == "gmail" for position in set(range(len(families))) - set(chosen))


@given(st.floats(0.2, 2000), st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_the_line_of_a_provider_holds_its_limit(cap: float, calls: list[int]) -> None:
    line, at, departures = rule.provider_line(cap), 0.0, []
    for people in (min(wanted, line.size) for wanted in calls):
        at += rule.microseconds(line.gap(people)) / 1e6
        departures.append((at, people))
    assert most_in_a_window(departures) <= max(1, cap)


def test_a_mixed_call_does_not_wait_for_a_capped_provider() -> None:
    limits = Limits(None, 600.0, None, provider_rates={"gmail": 100.0})
    people = fit(limits, ["gmail", "other"] * 100)
    gmail = sum(position % 2 == 0 for position in people)
    assert len(people) == 50 and 0 < gmail < 10
    assert rule.provider_line(100.0).gap(gmail) <= rule.split(600.0).bulk.gap(50)
