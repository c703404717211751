"""Schedules without a database: what a file may say, and which of the fires that nobody was there for are made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.errors import CronError, ScheduleError
from mailpipe.schedule.cron import Fire
from mailpipe.schedule.fire import ON_TIME, judge
from mailpipe.schedule.spec import name, parse, read_file

CAMPAIGN = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}
GOOD = {"key": "weekly", "cron": "0 9 * * 1", "timezone": "europe/berlin", "campaign": CAMPAIGN}
NOW = datetime(2026, 12, 7, 12, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(*hours_ago: float) -> list[Fire]:
    return [
        Fire((NOW - timedelta(hours=hours)).replace(tzinfo=None), NOW - timedelta(hours=hours)) for hours in hours_ago
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key": "Weekly"}, "key: expected 1 to 45 of a-z, 0-9, _ and -"),
        ({"timezone": "Mars/Base"}, "timezone: expected a zone"),
        ({"missed": "some"}, "missed"),
        ({"grace": "later"}, "grace: expected a duration"),
        ({"starts_at": "2026-12-01T09:00"}, "starts_at: needs an offset"),
        ({"starts_at": "2026-12-02T09:00Z", "ends_at": "2026-12-01T09:00Z"}, "before starts_at"),
        ({"snapshot_lead": "8d"}, "snapshot_lead"),
        ({"campaign": {**CAMPAIGN, "key": "mine"}}, "campaign: key is decided by each fire"),
        ({"campaign": {**CAMPAIGN, "due_at": "2026-12-01T09:00Z"}}, "due_at is decided by each fire"),
        ({"campaign": {"segment": "everybody"}}, "campaign: template: is missing"),
        ({"campaign": {**CAMPAIGN, "expires_after": "soon"}}, "expires_after"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_the_field(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        parse({**GOOD, **wrong}, where="weekly.yaml")


def test_a_broken_file_says_where(tmp_path: Path) -> None:
    (tmp_path / "weekly.yaml").write_text("key: weekly\ncron: [\n")
    with pytest.raises(ScheduleError, match=r"weekly.yaml:\d: not valid YAML"):
        read_file(tmp_path / "weekly.yaml")
    (tmp_path / "list.yaml").write_text("- one\n")
    with pytest.raises(ScheduleError, match="expected fields"):
        read_file(tmp_path / "list.yaml")
    with pytest.raises(ScheduleError, match=r"cannot be read: No such file or directory$"):
        read_file(tmp_path / "none.yaml")


def test_a_part_of_its_campaign_that_was_begun_and_not_filled_in_is_refused(tmp_path: Path) -> None:
    """An empty warm-up would mail everybody at each fire."""
    (tmp_path / "weekly.yaml").write_text("key: weekly\ncron: 0 9 * * 1\ncampaign:\n  segment: everybody\n  warmup:\n")
    with pytest.raises(ScheduleError, match=r"weekly\.yaml: campaign\.warmup: is empty; fill it in, or leave it out"):
        read_file(tmp_path / "weekly.yaml")


def test_the_shipped_examples_are_the_three_that_everybody_asks_for() -> None:
    folder = Path(__file__).parents[2] / "assets" / "schedules"
    words = {}
    for path in sorted(folder.glob("*.yaml")):
        found = read_file(path)
        words[found.key] = (found.compiled(minimum=3600).words, found.timezone)
    assert words == {
        "weekly-news": ("at 09:00, every Monday", "Europe/Berlin"),
        "friday-deals": ("at 17:00, every Friday", "recipient"),
        "monthly-win-back": ("at 08:00, on day 1 of the month", "Asia/Ho_Chi_Minh"),
    }


def test_a_fire_makes_a_campaign_that_is_due_then() -> None:
    spec = parse({**GOOD, "campaign": {**CAMPAIGN, "expires_after": "5h"}, "snapshot_lead": "1h"}, where="test")
    fire = spec.first_after(NOW, minimum=3600)
    assert fire == Fire(datetime(2026, 12, 14, 9), at("2026-12-14T08:00"))
    made = spec.campaign_of(fire, NOW)
    assert (made.key, made.due_at, made.expires_after, made.snapshot_lead) == (
        "weekly-20261214-0900",
        fire.at,
        18_000,
        3600,
    )
    late = spec.campaign_of(fire, at("2026-12-14T10:00"))
    assert (late.key, late.due_at, late.expires_at) == (made.key, at("2026-12-14T10:00"), at("2026-12-14T13:00"))


def test_a_schedule_of_the_recipients_fires_where_the_day_begins_first() -> None:
    spec = parse({**GOOD, "timezone": "recipient", "cron": "0 17 * * fri"}, where="test")
    fire = spec.first_after(NOW, minimum=3600)
    assert fire == Fire(datetime(2026, 12, 11, 17), at("2026-12-11T03:00"))
    made = spec.campaign_of(fire, NOW)
    assert made.is_local
    assert made.first_due() == fire.at
    assert made.key == name("weekly", fire) == "weekly-20261211-1700"


def test_start_and_end_bound_the_fires() -> None:
    spec = parse({**GOOD, "starts_at": "2026-12-21T08:00Z", "ends_at": "2026-12-28T08:00Z"}, where="test")
    first = spec.first_after(NOW, minimum=3600)
    assert first is not None
    assert first.at == at("2026-12-21T08:00"), "a fire at the start counts"
    last = spec.first_after(first.at, minimum=3600)
    assert last is not None
    assert last.at == at("2026-12-28T08:00"), "and one at the end"
    assert spec.first_after(last.at, minimum=3600) is None
    with pytest.raises(CronError):
        spec.first_after(NOW, minimum=8 * 86_400)


@pytest.mark.parametrize(
    ("missed", "hours_ago", "made"),
    [
        ("skip", [3, 2, 1, 0.01, -0.2], [0.01, -0.2]),
        ("latest", [3, 2, 1], [1]),
        ("latest", [30, 20, 8], []),
        ("latest", [3, 2, -0.2], [-0.2]),
        ("latest", [0.01], [0.01]),
        ("all", [30, 2, -0.2], [30, 2, -0.2]),
        ("all", [], []),
        ("latest", [], []),
    ],
)
def test_fires_that_nobody_was_there_for(missed: Any, hours_ago: list[float], made: list[float]) -> None:
    judged = judge(fires(*hours_ago), NOW, missed, 6 * 3600)
    assert [fire for fire, reason in judged if reason is None] == fires(*made)


def test_the_newest_of_a_part_is_not_the_newest() -> None:
    assert [reason for _, reason in judge(fires(2, 1), NOW, "latest", 6 * 3600, more=True) if reason is None] == []


def test_a_fire_whose_mails_have_expired_is_not_made_up() -> None:
    ((_, reason),) = judge(fires(3), NOW, "all", 0, ends_after=2 * 3600)
    assert reason is not None
    assert "expired" in reason


@given(
    st.lists(st.floats(-1, 200), max_size=20).map(lambda hours: sorted(hours, reverse=True)),
    st.sampled_from(["skip", "latest", "all"]),
    st.floats(0, 50),
)
def test_what_is_on_time_is_made_and_at_most_one_that_is_late(hours: list[float], missed: Any, grace: float) -> None:
    judged = judge(fires(*hours), NOW, missed, grace * 3600)
    assert [fire for fire, _ in judged] == fires(*hours)
    late = [fire for fire, reason in judged if reason is None and fire.at < NOW - ON_TIME]
    assert all(reason is None for fire, reason in judged if fire.at >= NOW - ON_TIME)
    if missed != "all":
        assert len({fire.at for fire in late}) <= (1 if missed == "latest" else 0)
