"""What is done every night, as Dagster would launch it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
import pytest

from sensors.daily import sync_suppression
from tests.faces.conftest import Faces


def nightly(faces: Faces) -> Any:
    return sync_suppression.evaluate_tick(dg.build_schedule_context(instance=faces.instance))


def test_the_night_makes_the_months_ahead(faces: Faces) -> None:
    this = f"event_{datetime.now(UTC):%Y%m}"
    faces.world.execute(f"DROP TABLE IF EXISTS mailpipe.{this}")
    assert faces.run("tidy_events").success
    assert faces.world.execute("SELECT to_regclass('mailpipe.' || %(name)s) IS NOT NULL", {"name": this}) == [(True,)]


def test_the_night_brings_both_suppression_lists_together(faces: Faces) -> None:
    faces.world.ses.suppress("gone@mail.example.com", "BOUNCE")
    faces.world.execute(
        "INSERT INTO mailpipe.suppression (email_key, scope, reason, source)"
        " VALUES ('dead@mail.example.com', 'all', 'hard_bounce', 'test')"
    )
    assert faces.run("sync_suppression").success
    rows = faces.world.execute("SELECT reason FROM mailpipe.suppression WHERE email_key = 'gone@mail.example.com'")
    assert rows == [("provider_list",)]
    assert faces.world.ses.suppressed("dead@mail.example.com") == "BOUNCE"


def test_it_is_not_asked_where_mail_goes_to_a_stand_in(faces: Faces, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stand-in" in str(nightly(faces).skip_message)
    monkeypatch.delenv("MAILPIPE_SES_ENDPOINT")
    monkeypatch.setenv("MAILPIPE_PUBLIC_URL", "https://mail.example.com")
    (request,) = cast(list[dg.RunRequest], nightly(faces).run_requests)
    assert request.run_key is None
