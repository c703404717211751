"""Which adapter is used is said by the settings, a lane or a campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mailpipe.adapters.connect import connect
from mailpipe.errors import SettingsError
from mailpipe.lane import DEFAULTS, changed
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
