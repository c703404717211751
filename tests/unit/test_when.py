"""When mails may leave: every zone gets one window or one reason, whatever the clocks and the file say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mailpipe.schedule import zones
from mailpipe.schedule.when import Quiet, When, Window, after_quiet, arrange, decide

NOW = datetime(2026, 12, 23, 12, tzinfo=UTC)
TEN = "2026-12-24T10:00"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def when(**fields: Any) -> When:
    return When.model_validate(fields)


def verdict(zone: str, now: datetime = NOW, **fields: Any) -> tuple[Any, ...]:
    found = decide(when(**fields), zone, NOW, now)
    return (found.window.due_at if found.window else found.reason), found.past, found.deferred


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"due_at": "2026-12-24T10:00"}, "needs an offset"),
        ({"send_at": "2026-12-24T10:00Z"}, "wall time"),
        ({"send_at": TEN, "due_at": "2026-12-24T10:00Z"}, "exclude each other"),
        ({"send_at": TEN, "timezone": "Mars/Base"}, "recipient"),
        ({"timezone": "Europe/Berlin"}, "belongs to send_at"),
        ({"default_timezone": "PST"}, "IANA"),
        ({"expires_at": "2026-12-24T10:00"}, "no send_at"),
        ({"send_at": TEN, "expires_at": "2026-12-24T09:00"}, "before the mails are due"),
        ({"due_at": "2026-12-24T10:00Z", "expires_at": "2026-12-24T10:00Z"}, "before the mails are due"),
        ({"expires_after": "0s"}, "greater than 0"),
        ({"expires_after": "soon"}, "duration"),
        ({"quiet_hours": "22-8"}, "22:00-08:00"),
        ({"quiet_hours": "22:00-24:00"}, "22:00-08:00"),
        ({"quiet_hours": "22:00-22:00"}, "same time"),
        ({"past_policy": "never"}, "past_policy"),
        ({"snapshot_lead": -1}, "snapshot_lead"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        when(**fields)


def test_a_file_says_when_it_first_begins() -> None:
    assert when().first_due() is None
    assert when(due_at="2026-12-24T10:00+01:00").first_due() == at("2026-12-24T09:00")
    assert when(send_at=TEN, timezone="asia/tokyo").first_due() == at("2026-12-24T01:00")
    assert when(send_at=TEN).first_due() == at("2026-12-23T20:00"), "first on Kiritimati"
    assert when(expires_after="1d", quiet_hours=" 22:00 - 08:00").quiet_hours == "22:00-08:00"
    kept = when(send_at=TEN, expires_at="2026-12-24T18:00", snapshot_lead="30m")
    assert When.model_validate(kept.model_dump(mode="json")) == kept


@pytest.mark.parametrize(
    ("fields", "zone", "expected"),
    [
        ({"send_at": TEN}, "Europe/Berlin", (at("2026-12-24T09:00"), False, False)),
        ({"send_at": TEN}, "America/New_York", (at("2026-12-24T15:00"), False, False)),
        ({"send_at": TEN, "timezone": "UTC"}, "America/New_York", (at("2026-12-24T10:00"), False, False)),
        # Passed in Auckland: 20:00 UTC the day before.
        ({"send_at": "2026-12-23T10:00"}, "Pacific/Auckland", (at("2026-12-23T21:00"), True, False)),
        ({"send_at": "2026-12-23T10:00", "past_policy": "send_now"}, "Pacific/Auckland", (NOW, True, False)),
        ({"send_at": "2026-12-23T10:00", "past_policy": "skip"}, "Pacific/Auckland", ("past_local_time", True, False)),
        ({"send_at": "2026-12-23T10:00", "past_policy": "skip"}, "America/New_York", (at("2026-12-23T15:00"), False, False)),
        # A quarter of an hour is forgiven.
        ({"send_at": "2026-12-23T12:50"}, "Europe/Berlin", (at("2026-12-23T11:50"), False, False)),
        ({"send_at": "2026-12-23T12:40"}, "Europe/Berlin", (at("2026-12-24T11:40"), True, False)),
        ({"send_at": "2026-12-20T10:00"}, "Europe/Berlin", (at("2026-12-24T09:00"), True, False)),
        # One wall time for all is due as it is, for everybody.
        ({"send_at": "2026-12-23T10:00", "timezone": "UTC"}, "Asia/Tokyo", (at("2026-12-23T10:00"), False, False)),
        ({"quiet_hours": "22:00-08:00"}, "Asia/Tokyo", (NOW, False, False)),
        ({"quiet_hours": "21:00-08:00"}, "Asia/Tokyo", (at("2026-12-23T23:00"), False, True)),
        ({"quiet_hours": "21:00-08:00", "quiet_policy": "skip"}, "Asia/Tokyo", ("quiet_hours", False, False)),
        ({"quiet_hours": "12:00-14:00"}, "Europe/Berlin", (at("2026-12-23T13:00"), False, True)),
        ({"send_at": TEN, "expires_at": "2026-12-24T11:00"}, "Europe/Berlin", (at("2026-12-24T09:00"), False, False)),
        ({"quiet_hours": "21:00-08:00", "expires_after": "2h"}, "Asia/Tokyo", ("expired", False, True)),
        ({"send_at": "2026-12-23T10:00", "expires_after": "1h", "timezone": "UTC"}, "UTC", ("expired", False, False)),
    ],
)  # fmt: skip
def test_a_zone_gets_its_due_time_or_a_reason(fields: dict[str, Any], zone: str, expected: tuple[Any, ...]) -> None:
    found = verdict(zone, **fields)
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    if not isinstance(expected[0], str):
        assert found[2] == expected[2]


def test_a_mail_expires_by_the_clocks_that_it_is_sent_by() -> None:
    local = decide(when(send_at=TEN, expires_at="2026-12-24T18:00"), "America/New_York", NOW, NOW)
    assert local.window == Window(at("2026-12-24T15:00"), at("2026-12-24T23:00"))
    central = decide(when(send_at=TEN, timezone="UTC", expires_at="2026-12-24T18:00"), "America/New_York", NOW, NOW)
    assert central.window == Window(at("2026-12-24T10:00"), at("2026-12-24T18:00"))
    earlier = decide(when(send_at=TEN, expires_after="2h", expires_at="2026-12-24T18:00"), "UTC", NOW, NOW)
    assert earlier.window == Window(at("2026-12-24T10:00"), at("2026-12-24T12:00"))


def test_quiet_hours_close_a_window_for_the_night_or_for_good() -> None:
    open_until = decide(when(quiet_hours="22:00-08:00"), "Europe/Berlin", NOW, NOW).window
    assert open_until == Window(NOW, None, at("2026-12-23T21:00"))
    assert decide(when(quiet_hours="22:00-08:00", quiet_policy="skip"), "Europe/Berlin", NOW, NOW).window == Window(
        NOW, at("2026-12-23T21:00"), None
    )
    night = after_quiet(open_until, Quiet.parse("22:00-08:00"), "Europe/Berlin", at("2026-12-23T21:05"))
    assert night == Window(at("2026-12-24T07:00"), None, at("2026-12-24T21:00"))
    late = after_quiet(open_until, Quiet.parse("22:00-08:00"), "Europe/Berlin", at("2026-12-24T09:00"))
    assert late == Window(NOW, None, at("2026-12-24T21:00")), "the night is over before anybody has looked"


def test_quiet_hours_end_when_the_clocks_jump_over_their_end() -> None:
    found = decide(when(quiet_hours="22:00-02:30"), "America/New_York", at("2026-03-08T05:00"), at("2026-03-08T05:00"))
    assert found.window is not None
    assert found.window.due_at == at("2026-03-08T07:00")


TEXTS = st.lists(st.sampled_from([None, "", "Mars/Base", "utc", *zones.every()]), max_size=40)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "send_at": st.sampled_from(["2026-03-08T02:30", "2026-11-01T01:30", "2026-09-06T00:00"]),
        "past_policy": st.sampled_from(["next_day", "send_now", "skip"]),
        "expires_after": st.sampled_from(["30m", "12h"]),
        "quiet_hours": st.sampled_from(["22:00-08:00", "00:00-02:30", "12:00-13:00"]),
        "quiet_policy": st.sampled_from(["defer", "skip"]),
    },
)
MOMENTS = st.datetimes(datetime(2026, 3, 6), datetime(2026, 11, 3)).map(lambda now: now.replace(tzinfo=UTC))


@settings(max_examples=150, deadline=None)
@given(FILES, TEXTS, MOMENTS)
def test_everybody_has_one_window_or_one_reason(fields: dict[str, Any], texts: list[str | None], now: datetime) -> None:
    rules = when(**fields)
    made = arrange(rules, texts, default_zone="Asia/Ho_Chi_Minh", due_at=now, now=now)
    placed = [text for group in made.groups for text in group.texts]
    assert sorted(map(str, [*placed, *made.refused])) == sorted(map(str, set(texts)))
    dues = [group.window.due_at for group in made.groups]
    assert dues == sorted(dues)
    assert made.unknown == {text for text in texts if zones.find(text) is None}
    for group in made.groups:
        window = group.window
        start = max(window.due_at, now)
        if rules.send_at is None or rules.past_policy != "next_day":
            assert window.due_at >= min(now, rules.first_due() or now)
        else:
            assert window.due_at >= now - timedelta(minutes=15)
        assert window.expires_at is None or window.expires_at > start
        assert window.quiet_at is None or window.quiet_at > start
        if rules.quiet_hours is not None:
            quiet = Quiet.parse(rules.quiet_hours)
            assert not quiet.holds(group.zone, start)
            assert (window.quiet_at or window.expires_at) is not None
