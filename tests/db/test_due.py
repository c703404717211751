"""Due times on a real ledger: who is mailed when, what expires, what quiet hours put off, and who has had enough."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailpipe import campaign, ledger, reconcile, report, snapshot
from mailpipe.errors import CampaignError
from mailpipe.schedule import timing, window, zones
from mailpipe.schedule.when import When
from mailpipe.settings import DEFAULT_CONSENT, Cap
from tests.support import World

ZONES = ["Pacific/Kiritimati", "Asia/Tokyo", "Europe/Berlin", "America/New_York", "Pacific/Niue"]
NOW = datetime.now(UTC)


def inhabit(scene: World, *names: str | None, each: int = 60) -> None:
    """`each` people in every one of these zones, mixed."""
    scene.people(each * len(names))
    scene.execute(
        "UPDATE users SET timezone = (CAST(%(names)s AS text[]))[1 + user_id %% %(n)s]",
        {"names": list(names), "n": len(names)},
    )


def rows(scene: World, key: str, table: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
    """Columns of a campaign's rows in a table."""
    return scene.execute(
        f"SELECT {columns} FROM mailpipe.{table} WHERE campaign_id = %(id)s {more}",
        {"id": scene.campaign(key).campaign_id},
    )


def dues(scene: World, key: str) -> dict[str, datetime]:
    """When the people of each zone are due."""
    found = rows(scene, key, "delivery", "coalesce(timezone, ''), due_at", "GROUP BY 1, 2")
    assert len({zone for zone, _ in found}) == len(found)
    return dict(found)


def shift(scene: World, key: str, table: str, column: str, seconds: float) -> None:
    """As if the clock had moved on."""
    scene.execute(
        f"UPDATE mailpipe.{table} SET {column} = {column} - make_interval(secs => %(by)s) WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id, "by": seconds},
    )


def test_everybody_is_due_at_the_wall_time_of_their_own_zone(scene: World) -> None:
    inhabit(scene, *ZONES, "Mars/Base", None)
    morning = (NOW + timedelta(days=3)).replace(hour=10, minute=0, second=0, microsecond=0, tzinfo=None)
    key = scene.ready(send_at=morning.isoformat(), default_timezone="Asia/Tokyo")
    expected = {zone: zones.instant(zone, morning) for zone in ZONES} | {
        "Mars/Base": zones.instant("Asia/Tokyo", morning),
        "": zones.instant("Asia/Tokyo", morning),
    }
    assert dues(scene, key) == expected
    assert scene.campaign(key).due_at == zones.earliest(morning)
    launches = rows(scene, key, "due", "due_at, first_slice, last_slice, people, launched_at", "ORDER BY 1")
    assert [(due, people) for due, _, _, people, _ in launches] == [
        (zones.instant(zone, morning), 180 if zone == "Asia/Tokyo" else 60) for zone in ZONES
    ]
    assert all(first <= last and launched is None for _, first, last, _, launched in launches)
    ((taken,),) = rows(scene, key, "snapshot", "timing")
    assert (taken["unknown_zone"], taken["unknown_zones"], taken["past"]) == (120, ["(none)", "Mars/Base"], 0)
    assert [one["people"] for one in taken["due"]] == [60, 180, 60, 60, 60]
    in_order = [due for (due,) in rows(scene, key, "chunk", "due_at", "ORDER BY first_seq")]
    assert in_order == sorted(in_order)


def test_only_those_who_are_due_are_mailed_and_the_rest_wait(scene: World) -> None:
    inhabit(scene, "Asia/Tokyo", "America/New_York")
    local = zones.wall("Asia/Tokyo", NOW).replace(microsecond=0)
    key = scene.ready(send_at=local.isoformat())
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 60, "pending": 60}
    assert len(scene.journal(key)) == 60
    assert scene.campaign(key).state == "sending"


@pytest.mark.parametrize(
    ("policy", "left", "told"),
    [("next_day", 120, "another day"), ("send_now", 120, "at once"), ("skip", 60, "wall time has passed already")],
)
def test_people_past_their_time_are_counted_before_the_launch(scene: World, policy: str, left: int, told: str) -> None:
    inhabit(scene, "Asia/Tokyo", "America/New_York")
    scene.execute("UPDATE users SET email = 'bad address' || user_id WHERE user_id IN (1, 2)")
    local = (zones.wall("America/New_York", NOW) + timedelta(minutes=30)).replace(microsecond=0)
    key = scene.create(send_at=local.isoformat(), past_policy=policy)
    scene.approve(key)
    taken = scene.freeze(key)
    assert taken.recipients == left
    assert taken.excluded == ({"past_local_time": 60} if policy == "skip" else {})
    assert taken.timing["past"] == (0 if policy == "skip" else 60)
    assert any(told in line for line in timing.told(When(), taken.timing, taken.excluded))
    when = dues(scene, key)
    assert when["America/New_York"] == zones.instant("America/New_York", local)
    if policy == "next_day":
        assert NOW < when["Asia/Tokyo"] == zones.instant("Asia/Tokyo", zones.wall("Asia/Tokyo", when["Asia/Tokyo"]))
    if policy == "send_now":
        assert abs((when["Asia/Tokyo"] - NOW).total_seconds()) < 3600
    # Whose address is unusable is found whatever the order.
    wrong = [seq for seq, (state, _) in scene.states(key).items() if state == "skipped"]
    emails = rows(scene, key, "recipient", "email", f"AND seq = ANY(ARRAY{wrong})")
    assert len(wrong) == (1 if policy == "skip" else 2)
    assert all(email.startswith("bad address") for (email,) in emails)


def test_a_mail_that_has_expired_is_not_sent_and_the_campaign_ends(scene: World) -> None:
    inhabit(scene, "Asia/Tokyo", "America/New_York")
    local = zones.wall("Asia/Tokyo", NOW).replace(microsecond=0)
    key = scene.ready(send_at=local.isoformat(), expires_after="20h")
    scene.send(key)
    shift(scene, key, "chunk", "expires_at", 2 * 86_400)
    shift(scene, key, "chunk", "due_at", 2 * 86_400)
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 60, "skipped": 60}
    assert {reason for state, reason in scene.states(key).values() if state == "skipped"} == {"expired"}
    assert scene.campaign(key).state == "done"
    with scene.database.connection() as connection:
        assert report.reasons(connection, key) == [report.Reason("skipped", "expired", 60)]
        assert reconcile.unattended(connection) == []


def test_reconcile_tells_how_many_have_expired(scene: World) -> None:
    scene.people(100)
    key = scene.ready(due_at=NOW.isoformat(), expires_after="1d")
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        assert reconcile.run(connection, key).expired == 0
        shift(scene, key, "chunk", "expires_at", 2 * 86_400)
        found = reconcile.run(connection, key)
        assert (found.expired, found.finished) == (100, (key,))
        assert reconcile.run(connection, key).expired == 0


@pytest.mark.parametrize("column", ["expires_at", "quiet_at"])
def test_nothing_is_leased_or_opened_in_a_window_that_has_closed(scene: World, column: str) -> None:
    scene.people(150)
    hour = zones.wall("Asia/Ho_Chi_Minh", NOW)
    key = scene.ready(
        expires_after="1d", quiet_hours=f"{hour + timedelta(hours=3):%H:00}-{hour + timedelta(hours=4):%H:00}"
    )
    opening = ledger.opening(scene.campaign(key).campaign_id, "marketing", consent=DEFAULT_CONSENT)

    def call(held: ledger.Lease) -> tuple[ledger.Opened, ...] | None:
        people = ledger.people(connection, held)[:10]
        return ledger.open_calls(connection, held, [people], opening=opening, seconds=30)

    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        held = ledger.lease(connection, scene.campaign(key).campaign_id, (0, 99), owner="me", seconds=30)
        assert held is not None
        assert call(held) is not None
        shift(scene, key, "chunk", column, 2 * 86_400)
        assert call(held) is None
        assert ledger.lease(connection, held.campaign_id, (0, 99), owner="you", seconds=30) is None
        assert reconcile.unattended(connection) == []
        campaign.cancel(connection, key, actor="ana", reason="end of the test")


def test_quiet_hours_put_off_whom_they_catch_until_the_morning(scene: World) -> None:
    inhabit(scene, "Asia/Tokyo", "Europe/Berlin")
    hour = zones.wall("Asia/Tokyo", NOW)
    hours = f"{hour - timedelta(hours=1):%H:00}-{hour + timedelta(hours=2):%H:00}"
    key = scene.ready(quiet_hours=hours)
    when = dues(scene, key)
    assert timedelta(hours=1) <= when["Asia/Tokyo"] - NOW <= timedelta(hours=2)
    assert when["Europe/Berlin"] <= NOW + timedelta(hours=1)
    # Berlin's quiet hours begin before anybody has been mailed.
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        ((quiet_at,),) = rows(scene, key, "chunk", "DISTINCT quiet_at", "AND timezone = 'Europe/Berlin'")
        assert window.close(connection, now=quiet_at - timedelta(seconds=1)).deferred == 0
        told = window.close(connection, now=quiet_at + timedelta(minutes=5))
        assert told.deferred == 60
        assert window.close(connection, now=quiet_at + timedelta(minutes=5)).deferred == 0
    moved = dues(scene, key)
    assert moved["Europe/Berlin"] == quiet_at + timedelta(hours=3)
    assert (moved["Europe/Berlin"], 60) in rows(scene, key, "due", "due_at, people")
    scene.send(key)
    assert scene.keep_promises(key) == {"pending": 120}
    with scene.database.connection() as connection:
        campaign.cancel(connection, key, actor="ana", reason="end of the test")


def test_quiet_hours_can_leave_people_out(scene: World) -> None:
    inhabit(scene, "Asia/Tokyo", "America/New_York")
    hour = zones.wall("Asia/Tokyo", NOW)
    hours = f"{hour - timedelta(hours=1):%H:00}-{hour + timedelta(hours=2):%H:00}"
    key = scene.create(quiet_hours=hours, quiet_policy="skip")
    scene.approve(key)
    taken = scene.freeze(key)
    assert taken.excluded == {"quiet_hours": 60}
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 60}


def test_a_local_campaign_that_nobody_started_in_time_is_missed(scene: World) -> None:
    inhabit(scene, "Asia/Tokyo", "America/New_York")
    local = zones.wall("Asia/Tokyo", NOW).replace(microsecond=0)
    key = scene.ready(send_at=local.isoformat())
    shift(scene, key, "due", "due_at", 7 * 3600)
    with scene.database.connection() as connection:
        with pytest.raises(CampaignError, match="it is missed"):
            campaign.start(connection, key, actor="ana")
        assert campaign.start(connection, key, actor="ana", late=True).state == "sending"
        campaign.cancel(connection, key, actor="ana", reason="end of the test")


def capped(scene: World, mails: int, days: int, **fields: Any) -> snapshot.Snapshot:
    key = scene.create(**fields)
    scene.approve(key)
    with scene.database.connection() as connection:
        return snapshot.take(connection, scene.with_settings(frequency_cap=Cap(mails, days)), key)


def test_nobody_gets_more_campaigns_than_the_cap_allows(scene: World) -> None:
    scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE state NOT IN ('done', 'cancelled')")
    scene.execute("UPDATE mailpipe.chunk SET due_at = due_at - interval '90 days'")
    scene.people(100)
    first = scene.ready()
    scene.execute("UPDATE users SET marketing_opt_in = false WHERE user_id <= 10")
    scene.send(first)
    assert scene.keep_promises(first) == {"sent": 90, "skipped": 10}
    scene.execute("UPDATE users SET marketing_opt_in = true")
    assert capped(scene, 2, 7).excluded == {}, "one mail of two"
    # The one of before is approved and waits: it counts for those who will get it.
    assert capped(scene, 2, 7).excluded == {"frequency_cap": 90}
    assert capped(scene, 1, 7).excluded == {"frequency_cap": 100}
    later = (NOW + timedelta(days=8)).isoformat()
    assert capped(scene, 1, 7, due_at=later).excluded == {}
    taken = capped(scene, 1, 30, due_at=later)
    assert taken.recipients == 0
    assert any("MAILPIPE_FREQUENCY_CAP" in line for line in timing.told(When(), taken.timing, taken.excluded))


def test_a_cancelled_campaign_uses_up_nothing_of_the_cap(scene: World) -> None:
    scene.execute("UPDATE mailpipe.chunk SET due_at = due_at - interval '90 days'")
    scene.people(50)
    key = scene.ready()
    with scene.database.connection() as connection:
        campaign.cancel(connection, key, actor="ana", reason="no")
    assert capped(scene, 1, 7).excluded == {}
