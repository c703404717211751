"""What came back, told to people; narrowing the rest of a campaign; a canary that goes ahead."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, narrow
from mailpipe.cli import main
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.feedback import machine, summary, upkeep
from mailpipe.feedback.upkeep import Kept, Tidied
from tests.db.test_feedback import COMPLAINT, DELIVERY, HARD, ago, take, told
from tests.ses_events import shape
from tests.support import World

OPEN, CLICK = shape("Open"), shape("Click")
TIERED = """\
-- title: Everybody with a tier
-- owner: team:growth
-- description: For tests.
SELECT user_id, email, timezone, locale, first_name, city, CASE WHEN user_id <= 4 THEN 'gold' ELSE 'basic' END AS tier,
       CAST(:as_of AS timestamptz) - make_interval(days => CAST(user_id AS int) * 10) AS last_login_at
FROM users ORDER BY user_id
"""
FEW = """\
-- title: The first few
-- owner: team:growth
-- description: For tests.
SELECT user_id, email FROM users WHERE user_id <= 120 ORDER BY user_id
"""


@pytest.fixture
def tiered(scene: World) -> World:
    (scene.settings.segments / "tiered.sql").write_text(TIERED)
    (scene.settings.segments / "few.sql").write_text(FEW)
    return scene


@pytest.fixture
def run(scene: World, tmp_path: Path) -> Callable[..., Result]:
    url = scene.database.url.render_as_string(hide_password=False)
    environ = {"MAILPIPE_DATABASE_URL": url, "MAILPIPE_SES_ENDPOINT": scene.stand_in.url, "MAILPIPE_VAR": str(tmp_path),
               "MAILPIPE_HOME": str(scene.settings.home), "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1", "MAILPIPE_USER": "ana",
               "PATH": os.environ["PATH"]}  # fmt: skip
    return lambda *arguments, **more: CliRunner().invoke(main, ["campaign", *arguments], env=environ, **more)


def test_complaints_are_told_by_tier_and_by_the_age_of_the_last_login(
    tiered: World, run: Callable[..., Result]
) -> None:
    tiered.people(10)
    key = tiered.ready(segment="tiered")
    tiered.send(key)
    take(tiered, *(told(COMPLAINT, key, seq) for seq in (5, 6, 10)), told(HARD, key, 1))
    with tiered.database.connection() as connection:
        by_tier = summary.by_variable(connection, key, "tier")
        assert [(one.value, one.sent, one.complaints, one.hard_bounces) for one in by_tier] == [
            ("basic", 6, 3, 0),
            ("gold", 4, 0, 1),
        ]
        by_login = {
            one.value: (one.sent, one.complaints) for one in summary.by_variable(connection, key, "last_login_at")
        }
        assert list(summary.complaints(connection, key)) == ["tier", "last_login_at"]
        assert by_login == {"up to 30 days": (3, 0), "up to 90 days": (6, 2), "up to a year": (1, 1)}
        with pytest.raises(CampaignError, match="They have: first_name, city, tier, last_login_at"):
            summary.by_variable(connection, key, "source")
    shown = run("feedback", key, "--by", "tier")
    assert shown.exit_code == 0 and "none are told to SES" in shown.output and "50.000%" in shown.output
    document = json.loads(run("feedback", key, "--by", "tier", "--json").output)
    assert (document["sent"], document["events"]["complaint"]) == (10, 3)
    assert [one["level"] for one in document["rates"]] == ["too_few"] * 3


def test_people_and_machines_are_counted_from_the_events_and_the_raw_ones_stay(scene: World) -> None:
    scene.people(4)
    key = scene.ready()
    scene.send(key)
    delivered, at = ago(3_000), datetime.now(UTC) - timedelta(seconds=3_000)

    def after(seconds: float) -> str:
        return (at + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")

    take(scene, *(told(DELIVERY, key, seq, at=delivered) for seq in (1, 2, 3)))
    take(scene, told(OPEN, key, 1, at=after(300)), told(CLICK, key, 1, at=after(330)))
    links = []
    for number in range(3):
        content = json.loads(told(CLICK, key, 2, at=after(2 + number / 4)))
        content["click"]["link"] += f"/{number}"
        links.append(json.dumps(content))
    take(scene, *links)
    apple = json.loads(told(OPEN, key, 3, at=after(60)))
    apple["open"]["userAgent"] = "Mozilla/5.0"
    take(scene, json.dumps(apple))
    with scene.database.connection() as connection:
        found = machine.counts(connection, campaign.get(connection, key).campaign_id)
    assert (found.openers, found.apple, found.raw_openers) == (1, 1, 2)
    assert (found.clickers, found.machine_clickers, found.raw_clickers) == (1, 1, 2)


class TestNarrowing:
    def halfway(self, scene: World) -> str:
        scene.people(200)
        key = scene.ready()
        scene.send(key, (0, 24))
        with scene.database.connection() as connection:
            campaign.pause(connection, key, actor="ana", reason="complaints")
        return key

    def narrow(self, connection: Connection, scene: World, key: str, keep: str = "few") -> int:
        return narrow.narrow(connection, scene.settings, key, keep=keep, actor="ana", reason="old accounts complain")

    def test_the_pending_rest_outside_of_the_segment_is_skipped_and_the_others_are_sent(self, tiered: World) -> None:
        key = self.halfway(tiered)
        sent = tiered.progress(key).sent
        assert 0 < sent < 120
        with tiered.database.connection() as connection:
            assert self.narrow(connection, tiered, key) == 80
            assert self.narrow(connection, tiered, key) == 0
            campaign.resume(connection, key, actor="ana")
            history = campaign.history(connection, campaign.get(connection, key).campaign_id)
        assert [one["detail"]["skipped"] for one in history if one["action"] == "narrow"] == [80, 0]
        tiered.send(key)
        assert tiered.keep_promises(key) == {"sent": 120, "skipped": 80}
        assert {reason for state, reason in tiered.states(key).values() if state == "skipped"} == {"narrowed"}
        assert tiered.campaign(key).state == "done"

    def test_it_needs_a_pause_a_reason_and_a_segment(self, tiered: World, run: Callable[..., Result]) -> None:
        key = self.halfway(tiered)
        assert run("narrow", key, "--keep", "nobody", "--because", "x").exit_code == 2
        assert run("narrow", key, "--keep", "few").exit_code == 2
        assert run("narrow", key, "--keep", "few", "--because", " ").exit_code == 2
        with tiered.database.connection() as connection:
            campaign.resume(connection, key, actor="ana")
            with pytest.raises(CampaignError, match="pause it before"):
                self.narrow(connection, tiered, key)
        assert tiered.progress(key).skipped == 0
        run("pause", key, "--reason", "x")
        assert json.loads(run("narrow", key, "--keep", "few", "--because", "x", "--json").output)["skipped"] == 80


def test_a_canary_goes_first_and_a_bad_one_stops_the_rest(scene: World) -> None:
    scene.people(200)
    key = scene.ready(canary={"slices": 2, "wait": "10m"}, lines={"complaints": 0.02, "complaints_after": 50})
    scene.send(key)
    assert scene.balance(key) == {"sent": 100, "pending": 100}
    waiting = scene.execute(
        "SELECT extract(epoch FROM min(c.due_at) - clock_timestamp()) FROM mailpipe.chunk c JOIN mailpipe.campaign g"
        " USING (campaign_id) WHERE g.key = %(key)s AND c.state = 'pending'",
        {"key": key},
    )
    assert 580 < waiting[0][0] <= 600
    assert take(scene, *(told(COMPLAINT, key, seq) for seq in (1, 2, 3))).paused == [key]
    scene.execute("UPDATE mailpipe.chunk SET due_at = clock_timestamp()")
    scene.send(key)
    assert scene.balance(key) == {"sent": 100, "pending": 100}


def test_a_campaign_without_a_canary_waits_for_nothing(scene: World) -> None:
    scene.people(200)
    key = scene.ready()
    scene.send(key)
    assert scene.balance(key) == {"sent": 200}


def test_rates_of_postmaster_tools_are_read_from_a_file(run: Callable[..., Result]) -> None:
    good = "domain,day,rate\nshop.example.com,2026-11-27,0.0012\nshop.example.com,2026-11-28,0\n"
    assert json.loads(run("postmaster", "-", "--json", input=good).output) == {"kept": 2}
    bad = run("postmaster", "-", input=good + "shop.example.com,yesterday,0.1\n")
    assert bad.exit_code == 2 and "line 4" in bad.output


def test_upkeep_is_quiet_when_there_is_nothing_to_do(scene: World) -> None:
    with scene.database.connection() as connection:
        upkeep.run(connection)
        assert upkeep.run(connection) == Kept(0, [])
        upkeep.daily(connection, 90)
        assert upkeep.daily(connection, 90) == Tidied([], [])


def test_months_are_made_ahead_and_dropped_when_their_days_are_over(scene: World) -> None:
    now = datetime.now(UTC)
    this, following = f"event_{now:%Y%m}", f"event_{now.replace(day=1) + timedelta(days=32):%Y%m}"
    with scene.database.connection() as connection:
        connection.execute(f"DROP TABLE IF EXISTS mailpipe.{this}, mailpipe.{following}".encode())
        connection.execute(
            "CREATE TABLE mailpipe.event_202601 PARTITION OF mailpipe.event FOR VALUES FROM ('2026-01-01Z') TO ('2026-02-01Z')"
        )
        assert upkeep.daily(connection, 90) == Tidied([this, following], ["event_202601"])
        assert upkeep.daily(connection, 90) == Tidied([], [])
