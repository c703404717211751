"""A campaign file: what it may say, and how clearly it is told when it says something else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe import address
from mailpipe.campaign_file import Spec, parse, read_file
from mailpipe.errors import CampaignError
from mailpipe.schedule.when import parse_duration

ROOT = Path(__file__).parents[2]
LEAST: dict[str, Any] = {
    "key": "flash-sale",
    "segment": "active",
    "template": "flash_sale",
    "sender": "Shop <news@mail.example.com>",
}


def spec(**fields: Any) -> Spec:
    return parse({**LEAST, **fields}, where="sale.yaml")


def refusal(**fields: Any) -> str:
    with pytest.raises(CampaignError) as caught:
        spec(**fields)
    return str(caught.value)


def test_the_least_that_a_file_must_say() -> None:
    found = spec()
    assert (found.chunk_size, found.topic, found.rate, found.due_at, found.parameters) == (
        500,
        "marketing",
        None,
        None,
        {},
    )


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sale.yaml"
    path.write_text(
        "key: sale\nsegment: active\ntemplate: sale\nsender: Shop <news@mail.example.com>\nfinish_within: 30m\nrate: 600\n"
        "parameters: {days: 90}\ndue_at: 2026-11-27T09:00:00+01:00\n"
    )
    found = read_file(path)
    assert (found.finish_within, found.rate, found.parameters) == (1800, 600.0, {"days": 90})
    assert found.due_at == datetime(2026, 11, 27, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("key: [", r"sale\.yaml:\d+: not valid YAML"),
        ("- a list", r"sale\.yaml: expected fields such as"),
        ("", r"sale\.yaml: expected fields such as"),
        ("key: x", r"sale\.yaml: template: is missing"),
        ("key: x\ntemplate: y\nsender: a@example.com", r"sale\.yaml: file: give either segment, or audience"),
        (
            "key: x\nsegment: a\ntemplate: y\nsender: a@example.com\nwarmup:\nexperiment:",
            r"sale\.yaml: experiment: is empty; fill it in, or leave it out\n.*sale\.yaml: warmup: is empty",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "sale.yaml"
    path.write_text(content)
    with pytest.raises(CampaignError, match=told):
        read_file(path)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"none\.yaml: cannot be read: No such file or directory$"):
        read_file(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CampaignError, match=r"binary\.yaml: cannot be read: it is no UTF-8 text$"):
        read_file(tmp_path / "binary.yaml")


def test_every_wrong_field_is_told_in_a_line_of_its_own() -> None:
    told = refusal(key="Not A Key", chunk_size=99, rate=0, colour="red").splitlines()
    assert [text.split(": ")[1] for text in told] == ["key", "rate", "chunk_size", "colour"]
    assert told[-1].endswith("colour: there is no such field")
    assert all(text.startswith("sale.yaml: ") for text in told)


@pytest.mark.parametrize("key", ["", "A", "a b", "x" * 64, "ä", "a/b", "a\nb", "a\n"])
def test_a_key_is_made_of_few_characters(key: str) -> None:
    if key.strip() == key:
        assert "key" in refusal(key=key)


@pytest.mark.parametrize("size", [0, 99, 1001, "many"])
def test_a_chunk_holds_a_hundred_to_a_thousand(size: Any) -> None:
    assert "chunk_size" in refusal(chunk_size=size)


@pytest.mark.parametrize("rate", [0, -1, 100_001, "nan", "inf"])
def test_a_rate_is_a_number_above_nothing(rate: Any) -> None:
    assert "rate" in refusal(rate=rate)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("1h 5s", 3605), (" 2h ", 7200), ("45", 45), (45, 45)],
)
def test_a_duration_is_written_as_people_write_it(text: Any, seconds: int) -> None:
    assert spec(finish_within=text).finish_within == seconds


@pytest.mark.parametrize("text", ["soon", "30 minutes", "", "m", "-5m", "0s", "0", -5, 0, "1.5h"])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    assert "finish_within" in refusal(finish_within=text)


@given(st.integers(0, 99), st.integers(0, 999), st.integers(0, 999))
def test_hours_minutes_and_seconds_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("field", ["as_of", "due_at"])
def test_a_time_needs_an_offset_and_is_kept_in_utc(field: str) -> None:
    assert "needs an offset" in refusal(**{field: "2026-11-27T09:00:00"})
    found = spec(**{field: "2026-11-27T09:00:00+07:00"})
    assert getattr(found, field) == datetime(2026, 11, 27, 2, tzinfo=UTC)
    assert getattr(found, field).tzinfo is UTC


@pytest.mark.parametrize("zone", ["Asia/Ho_Chi_Minh", "UTC", "Europe/Amsterdam", None])
def test_zones_of_the_iana_database_are_known(zone: str | None) -> None:
    assert spec(default_timezone=zone).default_timezone == zone


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", "+07:00"])
def test_other_zones_are_refused(zone: str) -> None:
    assert "not a zone of the IANA database" in refusal(default_timezone=zone)


@pytest.mark.parametrize(
    "sender",
    [
        "news@mail.example.com",
        "Shop <news@mail.example.com>",
        '"Shop, Inc." <news@mail.example.com>',
        "Cửa hàng <news@mail.example.com>",
        "news@bücher.example.com",
    ],
)
@pytest.mark.parametrize("field", ["sender", "reply_to"])
def test_a_sender_that_ses_takes_is_taken(sender: str, field: str) -> None:
    assert address.mailbox(getattr(spec(**{field: sender}), field)).isascii()


@pytest.mark.parametrize(
    "sender",
    [
        "",
        "Shop",
        "Shop <>",
        "news@mail.example.com (Shop)",
        "Shop <news@mail.example.com> and more",
        "a@mail.example.com, b@mail.example.com",
        "Shop\r\nBcc: x@mail.example.com <news@mail.example.com>",
        "đặng@mail.example.com",
        "news@localhost",
    ],
)
@pytest.mark.parametrize("field", ["sender", "reply_to"])
def test_a_sender_that_ses_would_refuse_is_refused_in_the_file(sender: str, field: str) -> None:
    """One that passed here failed every call that had been opened for it."""
    told = refusal(**{field: sender})
    assert "expected an address such as" in told
    assert "@mail.example.com>" in told or "@" not in sender or sender not in told


def test_what_a_file_says_survives_the_database() -> None:
    found = spec(rate=14, finish_within="2h", due_at="2026-11-27T09:00:00Z", parameters={"days": 3}, topic="news")
    assert Spec.model_validate(found.model_dump(mode="json")) == found


WAVES = [{"tiers": ["T1", "T2"], "within": "30m"}, {"rest": True, "spread": "36h"}]


def test_waves_and_warm_up_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "warm.yaml"
    path.write_text(
        "key: warm\nsegment: active\ntemplate: sale\nsender: Shop <news@mail.example.com>\n"
        "waves:\n  - {tiers: [T1, T2], within: 30m}\n  - {rest: true, spread: 36h}\n"
        "warmup: {ramp: [50, 100], start_day: 2, at: '10:00', timezone: asia/ho_chi_minh, exclude: []}\n"
    )
    found = read_file(path)
    assert found.waves is not None and [wave.length for wave in found.waves] == [1_800, 129_600]
    assert found.warmup is not None
    assert (found.warmup.ramp, found.warmup.timezone, found.days_of) == (
        (50, 100),
        "Asia/Ho_Chi_Minh",
        "Asia/Ho_Chi_Minh",
    )
    assert Spec.model_validate(found.model_dump(mode="json")) == found
    assert not spec().in_waves and spec(warmup={}).in_waves


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"waves": WAVES, "send_at": "2026-12-24T10:00"}, "send_at in each recipient's zone"),
        ({"warmup": {}, "quiet_hours": "22:00-08:00"}, "quiet_hours would move some of them"),
        ({"waves": WAVES, "canary": {"slices": 1}}, "has a canary already"),
        ({"warmup": {}, "finish_within": "30m"}, "leave finish_within out"),
        (
            {"waves": WAVES, "experiment": {"variants": [{"name": "a"}, {"name": "b", "subject": "x"}]}},
            "exclude each other",
        ),
        ({"waves": [{"tiers": ["T6"], "within": "1h"}]}, "waves.0.tiers.0"),
        ({"waves": [{"tiers": ["T1"]}, {"rest": True, "within": 60}]}, "give either within"),
        ({"waves": [{"within": "1h"}]}, "give either tiers"),
        *(
            (
                {"warmup": {"ramp": ramp}},
                "sale.yaml: warmup.ramp: expected conservative, moderate, aggressive, or mails a day",
            )
            for ramp in ("slow", [], [50, -1], ["a"], [True], 50)
        ),
        ({"warmup": {"at": "25:00"}}, "a time of the day"),
        ({"warmup": {"timezone": "Mars/Olympus"}}, "IANA"),
    ],
)
def test_what_waves_exclude_is_told(fields: dict[str, Any], told: str) -> None:
    assert told in refusal(**fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"experiment": "yes"}, ["experiment: expected fields, as `name: value`"]),
        (
            {"experiment": {"variants": ["a", {"name": "b"}]}},
            ["experiment.variants.0: expected fields, as `name: value`"],
        ),
        ({"experiment": {"variants": [{"name": "a"}]}}, ["experiment.variants: expected at least 2"]),
        (
            {"experiment": {"variants": [{"name": "a"}, {"name": "b", "subjet": "x"}]}},
            ["experiment.variants.1.subjet: there is no such field"],
        ),
        *(
            (
                {"experiment": {"variants": [{"name": "a"}, {"name": "b"}], "utm": utm}},
                ["experiment.utm: expected true, false, or {source: newsletter, medium: email}"],
            )
            for utm in (7, {"sauce": "x"}, None)
        ),
        ({"waves": "all"}, ["waves: expected a list, as [a, b]"]),
    ],
)
def test_each_wrong_field_is_told_once_and_in_the_words_of_the_file(fields: dict[str, Any], told: list[str]) -> None:
    assert refusal(**fields).splitlines() == [f"sale.yaml: {line}" for line in told]


def test_waves_at_a_wall_time_of_one_zone_are_possible() -> None:
    assert spec(waves=WAVES, send_at="2026-12-24T10:00", timezone="Europe/Berlin").in_waves


@pytest.mark.parametrize("path", sorted((ROOT / "assets" / "campaigns").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_campaigns_that_come_with_it_can_be_read(path: Path) -> None:
    assert read_file(path).key.replace("-", "_") == path.stem
