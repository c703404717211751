"""Settings: read once, refused in words, never showing a secret."""

from __future__ import annotations

from dataclasses import Field, fields, replace
from pathlib import Path

import pytest

from mailpipe.errors import SettingsError
from mailpipe.lane import DEFAULTS
from mailpipe.settings import Cap, Settings, load, transactional_sender, unsubscribe_keys


def test_without_anything_said_everything_has_a_safe_default(tmp_path: Path) -> None:
    found = load({"MAILPIPE_HOME": str(tmp_path)})
    assert found.var == tmp_path / "var"
    assert found.database_url is None and found.ses_endpoint is None
    assert not found.allow_unsafe_durability
    assert found.is_local


def test_the_nearest_checkout_above_is_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workspace.yaml").touch()
    (tmp_path / "assets" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "assets" / "deep")
    assert load({}).home == tmp_path.resolve()


@pytest.mark.parametrize(
    "name",
    [
        "MAILPIPE_LEASE",
        "MAILPIPE_CONNECT_TIMEOUT",
        "MAILPIPE_READ_TIMEOUT",
        "MAILPIPE_SEGMENT_TIMEOUT",
        "MAILPIPE_RATE",
        "MAILPIPE_THREADS",
    ],
)
@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan", "inf", "1e12"])
def test_numbers_that_are_none_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: value})


@pytest.mark.parametrize("value", ["1.5", "257"])
def test_threads_are_whole_and_not_too_many(value: str) -> None:
    with pytest.raises(SettingsError, match="MAILPIPE_THREADS: expected a whole number"):
        load({"MAILPIPE_THREADS": value})


REAL = {
    "MAILPIPE_DATABASE_URL": "postgresql://mail@db.example.com/mail",
    "MAILPIPE_PUBLIC_URL": "https://mail.example.com/",
    "MAILPIPE_UNSUBSCRIBE_KEYS": "1:a-secret-of-some-thirty-two-chars",
}


def test_where_mail_leaves_for_real_links_must_be_https() -> None:
    assert load(REAL).public_url == "https://mail.example.com"
    with pytest.raises(SettingsError, match="MAILPIPE_PUBLIC_URL: must start with https://"):
        load({**REAL, "MAILPIPE_PUBLIC_URL": "http://mail.example.com"})
    with pytest.raises(SettingsError, match="MAILPIPE_PUBLIC_URL"):
        load({name: value for name, value in REAL.items() if name != "MAILPIPE_PUBLIC_URL"})
    assert load({**REAL, "MAILPIPE_PUBLIC_URL": "", "MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1"}).is_local


def test_where_mail_leaves_for_real_the_keys_must_be_given() -> None:
    assert unsubscribe_keys(load(REAL)) == REAL["MAILPIPE_UNSUBSCRIBE_KEYS"]
    with pytest.raises(SettingsError, match="MAILPIPE_UNSUBSCRIBE_KEYS: not set"):
        unsubscribe_keys(load({**REAL, "MAILPIPE_UNSUBSCRIBE_KEYS": ""}))


def test_locally_a_key_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    found = Settings(home=tmp_path, var=tmp_path / "var")
    first = unsubscribe_keys(found)
    assert first.startswith("1:") and len(first) > 40
    assert unsubscribe_keys(found) == first
    assert (tmp_path / "var" / "unsubscribe.key").stat().st_mode & 0o077 == 0


def test_no_secret_is_shown() -> None:
    found = load({**REAL, "MAILPIPE_DATABASE_URL": "postgresql://mail:hunter2@db.example.com/mail"})
    assert "a-secret" not in repr(found)
    assert "hunter2" not in repr(found)
    with pytest.raises(SettingsError) as caught:
        load({**REAL, "MAILPIPE_LEASE": "x", "MAILPIPE_UNSUBSCRIBE_KEYS": "1:other-secret"})
    assert "other-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "field",
    [
        field
        for field in fields(Settings)
        if field.name not in ("home", "var", "lanes", "frequency_cap", "provider_rates")
    ],
    ids=lambda field: field.name,
)
def test_every_setting_is_read_from_the_variable_of_its_name(field: Field[object]) -> None:
    shares = {
        "marketing_share": "0.25",
        "reserve_share": "0.25",
        "transit": "0.05",
        "history": "/srv/engagement",
        "ses_operation": "single",
        "allow_unsafe_durability": "1",
        "one_processor": "0",
    }
    value = shares.get(field.name, "77")
    found = load({"MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1", f"MAILPIPE_{field.name.upper()}": value})
    assert str(getattr(found, field.name)) in (value, "77.0", "True", "False")
    assert getattr(found, field.name) != field.default


def test_rates_of_providers_are_read_by_name() -> None:
    assert load({"MAILPIPE_PROVIDER_RATES": "gmail=200, yahoo=5.5"}).provider_rates == {"gmail": 200.0, "yahoo": 5.5}
    with pytest.raises(SettingsError, match="MAILPIPE_PROVIDER_RATES: 'aol' is none of gmail, microsoft"):
        load({"MAILPIPE_PROVIDER_RATES": "aol=5"})
    with pytest.raises(SettingsError, match="MAILPIPE_PROVIDER_RATES: expected a number above 0"):
        load({"MAILPIPE_PROVIDER_RATES": "gmail"})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MAILPIPE_MARKETING_SHARE", "50", "above 0 and at most 1"),
        ("MAILPIPE_MARKETING_SHARE", "0", "above 0 and at most 1"),
        ("MAILPIPE_RESERVE_SHARE", "1", "above 0 and at most 0.9"),
        ("MAILPIPE_SES_OPERATION", "both", "bulk or single"),
        ("MAILPIPE_ONE_PROCESSOR", "yes", "1 or 0"),
    ],
)
def test_shares_are_parts_and_operations_known(name: str, value: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: expected.*{text}"):
        load({name: value})


def test_no_reserve_is_a_choice() -> None:
    assert load({"MAILPIPE_RESERVE_SHARE": "0"}).reserve_share == 0.0


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    found = Settings(home=tmp_path, var=tmp_path)
    with pytest.raises(AttributeError):
        found.rate = 5.0  # type: ignore[misc]
    assert replace(found, rate=5.0).rate == 5.0
    assert found.segments == tmp_path / "assets" / "segments"
    assert found.templates == tmp_path / "assets" / "templates"


def test_lanes_are_changed_one_field_at_a_time() -> None:
    found = load({"MAILPIPE_LANE_CRITICAL": "unknown=hold, validity=300 workers=2-9"}).lanes
    assert (found["critical"].unknown, found["critical"].validity) == ("hold", 300.0)
    assert (found["critical"].least, found["critical"].most) == (2, 9)
    assert found["critical"].poll == DEFAULTS["critical"].poll
    assert found["low"] == DEFAULTS["low"]


@pytest.mark.parametrize(
    "text", ["fast", "speed=1", "unknown=forget", "workers=9-5", "workers=0-5", "poll=-1", "batch=1.5", "name=low"]
)
def test_a_lane_that_cannot_be_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="MAILPIPE_LANE_HIGH"):
        load({"MAILPIPE_LANE_HIGH": text})


def test_campaigns_and_messages_never_share_a_configuration_set() -> None:
    with pytest.raises(SettingsError, match="MAILPIPE_TRANSACTIONAL_CONFIGURATION_SET"):
        load({"MAILPIPE_CONFIGURATION_SET": "one", "MAILPIPE_TRANSACTIONAL_CONFIGURATION_SET": "one"})


def test_a_sender_of_messages_is_needed_only_where_mail_leaves(tmp_path: Path) -> None:
    assert transactional_sender(load({}))
    with pytest.raises(SettingsError, match="MAILPIPE_TRANSACTIONAL_SENDER"):
        transactional_sender(load(REAL))


@pytest.mark.parametrize("name", ["MAILPIPE_SMTP_URL", "MAILPIPE_WEBHOOK_URL"])
def test_a_way_that_leads_away_from_this_machine_makes_it_real(name: str) -> None:
    scheme = "smtps" if "SMTP" in name else "https"
    local = {"MAILPIPE_PUBLIC_URL": "http://127.0.0.1:8025"}
    for host in ("127.0.0.1:1025", "[::1]:1025", "localhost", "mailpit:1025"):
        assert load({**local, name: f"{scheme}://{host}"}).is_local
    for host in ("mail.example.com", "10.0.0.7", "[::1"):
        with pytest.raises(SettingsError, match="MAILPIPE_PUBLIC_URL"):
            load({**local, name: f"{scheme}://{host}"})


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("3/7d", Cap(3, 7)),
        (" 1 / 30 ", Cap(1, 30)),
        ("", None),
        ("0", None),
        (" ", None),
        ("0/7d", None),
        ("3/0d", None),
    ],
)
def test_a_frequency_cap_is_mails_in_days_or_nothing(text: str, cap: Cap | None) -> None:
    assert load({"MAILPIPE_FREQUENCY_CAP": text}).frequency_cap == cap


@pytest.mark.parametrize("text", ["3", "3 a week", "-1/7d", "three/7d", "3/7w"])
def test_any_other_frequency_cap_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="3/7d"):
        load({"MAILPIPE_FREQUENCY_CAP": text})


def test_a_jump_of_the_volume_is_asked_about_where_mail_leaves_for_real() -> None:
    real = {"MAILPIPE_DATABASE_URL": "postgresql://db.example.com/m", "MAILPIPE_PUBLIC_URL": "https://u.example.com"}
    assert load({}).most_of_usual is None
    assert load(real).most_of_usual == 5.0
    assert load({**real, "MAILPIPE_USUAL_FACTOR": "12"}).most_of_usual == 12.0
    assert load({**real, "MAILPIPE_USUAL_FACTOR": "0"}).most_of_usual is None
    assert load({**real, "MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1"}).most_of_usual is None
