"""Cron: once per local slot, on every night of the year, in every zone; and nothing that is not meant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from mailpipe.errors import CronError, ZoneError
from mailpipe.schedule import cron, zones


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "zone", "after", "fires"),
    [
        ("30 2 * * *", "America/New_York", "2026-03-07T20:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T20:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T05:30", ["2026-11-02T06:30"]),
        ("0 9 * * *", "Europe/Berlin", "2026-03-28T07:59", ["2026-03-28T08:00", "2026-03-29T07:00"]),
        ("0 9 13 * 5", "UTC", "2026-02-01T00:00", ["2026-02-06T09:00", "2026-02-13T09:00", "2026-02-20T09:00"]),
        ("0 9 31 * *", "UTC", "2026-01-31T09:00", ["2026-03-31T09:00", "2026-05-31T09:00"]),
        ("0 9 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T09:00", "2032-02-29T09:00"]),
        ("0 9 L * *", "UTC", "2026-01-31T09:00", ["2026-02-28T09:00", "2026-03-31T09:00"]),
        ("0 9 * * 2#2", "UTC", "2026-01-15T00:00", ["2026-02-10T09:00"]),
        ("0 9 * * 5#5", "UTC", "2026-01-31T00:00", ["2026-05-29T09:00", "2026-07-31T09:00"]),
        ("59/15 * * * *", "UTC", "2026-01-01T00:00", ["2026-01-01T00:59", "2026-01-01T01:59"]),
        ("0 9 */7 * *", "UTC", "2026-01-29T09:00", ["2026-02-01T09:00", "2026-02-08T09:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["2026-09-06T04:00", "2026-09-07T03:00"]),
        ("@daily", "Asia/Kolkata", "2026-06-01T00:00", ["2026-06-01T18:30"]),
        # The day that Samoa left out falls on the midnight after it, which fires once.
        ("0 0 * * *", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-30T10:00", "2011-12-31T10:00"]),
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-29T19:00", "2011-12-30T10:00", "2011-12-30T19:00"]),
        # An hour that is skipped shares its instant with the next one; an hour that comes twice fires the first time.
        ("0 * * * *", "America/New_York", "2026-03-08T05:30", ["2026-03-08T06:00", "2026-03-08T07:00", "2026-03-08T08:00"]),
        ("0 * * * *", "America/New_York", "2026-11-01T04:30", ["2026-11-01T05:00", "2026-11-01T07:00", "2026-11-01T08:00"]),
        ("0 9 * * fri", "Europe/Berlin", "2026-10-23T07:00:00.000001", ["2026-10-30T08:00"]),
    ],
)  # fmt: skip
def test_fires(expression: str, zone: str, after: str, fires: list[str]) -> None:
    found = cron.parse(expression, zone).next(at(after), len(fires))
    assert [fire.at for fire in found] == [at(fire) for fire in fires]


@pytest.mark.parametrize("minutes", range(0, 180, 20))
def test_a_fresh_start_in_any_minute_of_the_night_names_the_same_fires(minutes: int) -> None:
    """A restart between two fires must neither repeat one nor call it by another name."""
    for zone, night in (("America/New_York", "2026-03-08T05:00"), ("America/New_York", "2026-11-01T04:00"),
                        ("Australia/Lord_Howe", "2026-10-03T14:00"), ("Pacific/Apia", "2011-12-30T08:00")):  # fmt: skip
        found = cron.parse("*/30 * * * *", zone, minimum=60)
        start = at(night)
        whole = [fire for fire in found.next(start, 40) if fire.at > start + timedelta(minutes=minutes)]
        assert found.next(start + timedelta(minutes=minutes), len(whole)) == whole


EXPRESSIONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "*/20", "15,45", "59/15"]),
    st.sampled_from(["*", "0", "1", "2", "*/5", "1-3", "23", "0,12"]),
    st.sampled_from(["*", "1", "L", "*/7", "28-31", "13"]),
    st.sampled_from(["*", "3", "4", "9-12", "jan,jul"]),
    st.sampled_from(["*", "1", "mon-fri", "sun"]),
) | st.sampled_from(["30 1 * * 7#1", "0 2 * 3 sun#2", "0 0 * * L6"])
STARTS = st.datetimes(datetime(2009, 1, 1), datetime(2034, 1, 1)).map(lambda start: start.replace(tzinfo=UTC))


@settings(max_examples=80, deadline=None)
@given(EXPRESSIONS, st.sampled_from(zones.every()), STARTS)
def test_fires_grow_one_for_each_local_slot_and_none_is_missed(expression: str, zone: str, start: datetime) -> None:
    found = cron.parse(expression, zone, minimum=60)
    fires = found.next(start, 15)
    assert all(earlier.at < later.at and earlier.slot < later.slot for earlier, later in pairwise(fires))
    assert fires[0].at > start
    assert all(fire.at == zones.instant(zone, fire.slot) for fire in fires)
    # Every slot that the calendar knows between the first and the last fire is fired, or shares its instant with one that is.
    instants = {fire.at for fire in fires}
    slots = croniter(expression, zones.wall(zone, start) - timedelta(hours=30), ret_type=datetime)
    slot = slots.get_next()
    while (instant := zones.instant(zone, slot)) <= fires[-1].at:
        assert instant <= start or instant in instants
        slot = slots.get_next()
    # Whoever goes on from any fire sees the same.
    assert found.next(fires[9].at, 5) == fires[10:]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 0 31 2 *", "can never occur"),
        ("0 9 30 2 1", "can never occur"),
        ("0 9 * *", "five fields"),
        ("0 0 9 * * *", "five fields"),
        ("0 9 * * * 2027", "five fields"),
        ("", "five fields"),
        ("@reboot", "five fields"),
        ("@every 5m", "five fields"),
        ("H 9 * * *", "'H' is not understood"),
        ("0 R * * *", "'R' is not understood"),
        ("0 9 * * nope", "'nope' is not understood"),
        ("0 9 15W * *", "'W' is not understood"),
        ("0 9 * * ١", "is not understood"),
        ("61 9 * * *", "out of range"),
        ("0 25 * * *", "out of range"),
        ("0 9 * * 1#0", "cron"),
        ("0 9 1 * 2#2", "together"),
        ("0 9 * * 1;2", "is not understood"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0,30 9 1 1 *", "every 30 minutes"),
        ("* 9 * * *", "every 1 minutes"),
    ],
)
def test_what_is_not_meant_is_refused(expression: str, words: str) -> None:
    with pytest.raises(CronError, match=words):
        cron.parse(expression, "UTC")


def test_the_least_interval_is_a_setting() -> None:
    assert cron.parse("*/15 * * * *", "UTC", minimum=900)
    with pytest.raises(CronError, match="fires every 1440 minutes"):
        cron.parse("0 9 * * *", "UTC", minimum=2 * 86_400)
    with pytest.raises(CronError, match="fires every 10 minutes"):
        cron.parse("0,50 * * * *", "UTC", minimum=900)
    with pytest.raises(CronError, match="fires every 60 minutes"):
        cron.parse("0 0,23 * * *", "UTC", minimum=2 * 3600)
    assert cron.parse("0 0,23 1 * *", "UTC", minimum=2 * 3600), "these two are never on neighbouring days"
    with pytest.raises(ZoneError):
        cron.parse("0 9 * * *", "Mars/Base")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * 1", "at 09:00, every Monday"),
        ("0 17 * * fri", "at 17:00, every Friday"),
        ("0 8 1 * *", "at 08:00, on day 1 of the month"),
        ("0 9 * * *", "at 09:00, every day"),
        ("30 8,20 * * 1-5", "at 08:30 and 20:30, every Monday, Tuesday, Wednesday, Thursday and Friday"),
        ("0 9 13 * 5", "at 09:00, on day 13 of the month and every Friday"),
        ("0 9 1,L * *", "at 09:00, on day 1 and the last day of the month"),
        ("0 9 * 1,7 2#2", "at 09:00, on the second Tuesday of the month, in January and July"),
        ("0 9 * * L5", "at 09:00, on the last Friday of the month"),
        ("59/15 * * * *", "every hour at minute 59, every day"),
        ("0 */2 * * *", "at minute 0 of the hours 00, 02, 04, 06, 08, 10, 12, 14, 16, 18, 20 and 22, every day"),
        ("@weekly", "at 00:00, every Sunday"),
    ],
)
def test_an_expression_is_told_in_words(expression: str, words: str) -> None:
    assert cron.parse(expression, "Europe/Berlin").words == words
