"""Which adapter is used is said by the settings, a lane or a campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mailpipe.adapters.connect import connect
from mailpipe.errors import SettingsError
from mailpipe.lane import DEFAULTS, changed
from mailpipe.pace.limits import Day, Limits
from mailpipe.pace.rule import Claim
from mailpipe.pace.slots import requests
from mailpipe.ses.client import Ses
from mailpipe.ses.client import connect as ses_client
from mailpipe.settings import Settings


def test_adapters_say_which_of_their_settings_is_missing(tmp_path: Path) -> None:
    found = Settings(home=tmp_path, var=tmp_path)

    def ses() -> Ses:
        return ses_client(found, endpoint="http://127.0.0.1:1", connections=1)

    adapter = connect(found, "ses", ses=ses)
    assert adapter.name == "ses"
    adapter.close()
    with pytest.raises(SettingsError, match="MAILPIPE_SMTP_URL: not set"):
        connect(found, "smtp", ses=ses)
    with pytest.raises(SettingsError, match="MAILPIPE_WEBHOOK_URL: not set"):
        connect(found, "webhook", ses=ses)
    with pytest.raises(SettingsError, match="MAILPIPE_WEBHOOK_SECRET"):
        connect(replace(found, webhook_url="https://hooks.example.com/"), "webhook", ses=ses)
    assert connect(replace(found, smtp_url="smtp://127.0.0.1:1025"), "smtp", ses=ses).name == "smtp"


def test_a_lane_can_leave_another_way() -> None:
    lane = DEFAULTS["normal"]
    assert lane.adapter == "ses"
    assert changed(lane, "adapter=smtp workers=2-4").adapter == "smtp"
    with pytest.raises(ValueError, match="adapter: expected one of ses, smtp, webhook"):
        changed(lane, "adapter=pigeon")


@pytest.mark.parametrize(
    ("rate", "ceiling", "most", "expected", "size"),
    [
        (None, None, 10, None, 10),
        (100.0, None, 10, 100, 10),
        (14.0, None, 10, 14, 7),
        (300.0, 3.0, 50, 3, 3),
        (None, 0.5, 10, 0.5, 1),
    ],
)
def test_mails_that_do_not_leave_through_ses_know_their_own_rate_and_our_ceiling_alone(
    rate: float | None, ceiling: float | None, most: int, expected: float | None, size: int
) -> None:
    limits = Limits(
        ceiling,
        account_rate=1.0,
        rate=rate,
        blocked_reason="quota",
        blocked_for=60.0,
        call_rate=0.1,
        ease=0.2,
        day=Day(1.0, 1.0, 5, 5, 5.0, 5.0),
        claims=(Claim("critical", 0, None, 9.0, 0.0),),
    ).apart(most)
    assert (limits.campaign, limits.call_size) == (expected, size)
    assert (limits.blocked_for, limits.day.left, limits.claims) == (None, None, ())
    [asked] = requests(limits, "normal", 7, None)
    assert asked.size == size
    assert asked.lines == (() if expected is None else ("mailpipe.pace_campaign_7",))
    assert not asked.counters
