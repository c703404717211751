"""Recurring campaigns on a real database, with the clock moved: one campaign for each local slot, whoever asks and whenever."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import errors

from mailpipe import campaign
from mailpipe.errors import CampaignError, CronError, ScheduleError, SegmentError, TemplateError
from mailpipe.schedule import fire, recurring, zones
from mailpipe.schedule.fire import Ticked
from mailpipe.schedule.spec import parse
from tests.support import World

CAMPAIGN = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Clock:
    """Schedules under a clock that a test moves."""

    def __init__(self, world: World) -> None:
        self.world = world

    def create(self, start: str, *, approved: bool = True, **fields: Any) -> str:
        """A schedule as if it had been made at `start` (UTC)."""
        number = next(self.world.numbers)
        spec = parse(
            {"key": f"series-{number}", "cron": "0 9 * * *", "timezone": "UTC", "campaign": CAMPAIGN, **fields},
            where="test",
        )
        with self.world.database.connection() as connection:
            recurring.create(connection, self.world.settings, spec, author="ana")
            if approved and spec.approval == "series":
                recurring.approve(connection, self.world.settings, self.world.ses, spec.key, approver="ben")
            first = spec.first_after(at(start), minimum=0)
            assert first is not None
            connection.execute(
                recurring.QUERIES["advance"],
                {
                    "schedule_id": recurring.get(connection, spec.key).schedule_id,
                    "slot": first.slot,
                    "at": first.at,
                    "lead": spec.snapshot_lead,
                    "last_run_at": None,
                },
            )
        return spec.key

    def tick(self, now: str | datetime) -> Ticked:
        moment = at(now) if isinstance(now, str) else now
        with self.world.database.connection() as connection:
            return fire.tick(connection, self.world.settings, now=moment)

    def every(self, minutes: int, start: str, end: str) -> list[str]:
        """The campaigns that ticks every so many minutes make."""
        made: list[str] = []
        now = at(start)
        while now <= at(end):
            made += self.tick(now).made
            now += timedelta(minutes=minutes)
        return made

    def get(self, key: str) -> recurring.Schedule:
        with self.world.database.connection() as connection:
            return recurring.get(connection, key)

    def occurrences(self, key: str) -> list[recurring.Occurrence]:
        with self.world.database.connection() as connection:
            return list(reversed(recurring.occurrences(connection, recurring.get(connection, key), 100)))


@pytest.fixture
def clock(scene: World) -> Iterator[Clock]:
    yield Clock(scene)
    scene.execute("UPDATE mailpipe.schedule SET is_active = false")


def test_each_fire_makes_one_campaign_that_the_series_has_approved(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00", cron="0 9 * * mon", timezone="Europe/Berlin")
    assert clock.tick("2027-01-04T07:44") == Ticked((), 0, ())
    assert clock.tick("2027-01-04T07:45") == Ticked((f"{key}-20270104-0900",), 0, ())
    assert not clock.tick("2027-01-04T07:45"), "again"
    assert not clock.tick("2027-01-04T08:10")
    made = clock.world.campaign(f"{key}-20270104-0900")
    assert (made.state, made.due_at, made.author, made.approver) == ("approved", at("2027-01-04T08:00"), "ana", "ben")
    assert made.template_version is not None
    found = clock.get(key)
    assert (found.next_slot, found.next_run_at) == (datetime(2027, 1, 11, 9), at("2027-01-11T08:00"))
    assert found.last_run_at == at("2027-01-04T08:00")
    assert [(one.state, one.campaign, one.campaign_state) for one in clock.occurrences(key)] == [
        ("made", made.key, "approved")
    ]


@pytest.mark.parametrize(
    ("zone", "cron", "start", "end", "slots"),
    [
        ("America/New_York", "30 2 * * *", "2027-03-13T00:00", "2027-03-16T00:00", ["13-0230", "14-0230", "15-0230"]),
        ("America/New_York", "30 1 * * *", "2027-11-06T00:00", "2027-11-09T00:00", ["06-0130", "07-0130", "08-0130"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2027-10-01T00:00", "2027-10-03T20:00", ["02-0215", "03-0215", "04-0215"]),
        ("America/Santiago", "0 0 * * *", "2027-09-04T00:00", "2027-09-06T12:00", ["04-0000", "05-0000", "06-0000"]),
    ],
)  # fmt: skip
def test_nights_in_which_the_clocks_change_have_one_campaign_each(
    clock: Clock, zone: str, cron: str, start: str, end: str, slots: list[str]
) -> None:
    key = clock.create(start, cron=cron, timezone=zone)
    month = start[5:7]
    assert clock.every(20, start, end) == [f"{key}-2027{month}{slot}" for slot in slots]
    for one in clock.occurrences(key):
        assert one.due_at == zones.instant(zone, one.slot)


@pytest.mark.parametrize(
    ("missed", "grace", "made", "reasons"),
    [
        ("latest", "6h", ["1200"], 3),
        ("latest", "10m", [], 4),
        ("skip", "6h", [], 4),
        ("all", "6h", ["0900", "1000", "1100", "1200"], 0),
    ],
)
def test_after_an_outage_only_what_is_wanted_is_made_up(
    clock: Clock, missed: str, grace: str, made: list[str], reasons: int
) -> None:
    key = clock.create("2027-01-04T08:30", cron="0 9-12,18 * * *", missed=missed, grace=grace)
    told = clock.tick("2027-01-04T12:40")
    assert list(told.made) == [f"{key}-20270104-{slot}" for slot in made]
    assert told.missed == reasons
    assert clock.get(key).next_slot == datetime(2027, 1, 4, 18)
    assert [one.state for one in clock.occurrences(key)].count("missed") == reasons
    assert not clock.tick("2027-01-04T12:41")
    for one in made:
        late = clock.world.campaign(f"{key}-20270104-{one}")
        assert late.due_at == at("2027-01-04T12:40"), "what is late is due at once"


def test_two_daemons_at_once_make_one_campaign(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00")
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: clock.tick("2027-01-04T08:50"), range(8)))
    assert [one for each in told for one in each.made] == [f"{key}-20270104-0900"]
    assert not [one for each in told for one in each.failed]


def test_a_changed_cron_never_fires_the_same_slot_again(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00")
    assert clock.tick("2027-01-04T08:50").made == (f"{key}-20270104-0900",)
    world = clock.world
    with world.database.connection() as connection:
        changed = recurring.change(connection, world.settings, key, {"cron": "0 9-17 * * *"}, actor="cleo")
        assert (changed.author, changed.approver) == ("cleo", None), "somebody else has to look at it again"
        with pytest.raises(ScheduleError, match="its author cannot"):
            recurring.approve(connection, world.settings, world.ses, key, approver="Cleo")
        recurring.approve(connection, world.settings, world.ses, key, approver="ana")
        first = changed.spec.first_after(at("2027-01-04T08:00"), minimum=0)
        assert first is not None
        connection.execute(recurring.QUERIES["advance"], {"schedule_id": changed.schedule_id, "slot": first.slot, "at": first.at,
                                                          "lead": 900, "last_run_at": None})  # fmt: skip
    assert clock.tick("2027-01-04T09:50").made == (f"{key}-20270104-1000",)
    with pytest.raises(errors.UniqueViolation):
        world.execute(
            "INSERT INTO mailpipe.occurrence (schedule_id, slot, due_at, state, reason)"
            " SELECT schedule_id, slot, due_at, 'missed', 'x' FROM mailpipe.occurrence LIMIT 1"
        )


def test_a_change_that_sends_nothing_else_keeps_the_approval(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00")
    with clock.world.database.connection() as connection:
        changed = recurring.change(
            connection, clock.world.settings, key, {"missed": "skip", "grace": "1h"}, actor="cleo"
        )
        assert (changed.author, changed.approver, changed.spec.grace) == ("ana", "ben", 3600)
        for wrong, kind in (({"cron": "0 0 31 2 *"}, CronError), ({"cron": "*/5 * * * *"}, CronError),
                            ({"missed": "some"}, ScheduleError), ({"ends_at": "2020-01-01T00:00Z"}, ScheduleError)):  # fmt: skip
            with pytest.raises(kind):
                recurring.change(connection, clock.world.settings, key, wrong, actor="cleo")
    assert clock.get(key).spec == changed.spec


def test_a_paused_schedule_does_not_fire_and_makes_up_nothing(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00", missed="all")
    with clock.world.database.connection() as connection:
        assert not recurring.pause(connection, key, actor="ana").is_active
        assert not clock.tick("2027-01-05T10:00")
        resumed = recurring.resume(connection, key, actor="ana")
    assert resumed.is_active
    assert resumed.next_run_at is not None
    assert resumed.next_run_at > resumed.now


def test_a_fire_that_fails_does_not_stop_the_next_one(clock: Clock) -> None:
    key, other = clock.create("2027-01-04T00:00"), clock.create("2027-01-04T00:00")
    segment = clock.world.settings.segments / "everybody.sql"
    text = segment.read_text()
    try:
        segment.unlink()
        told = clock.tick("2027-01-04T08:50")
        assert told.made == ()
        assert [one.split(":")[0] for one in told.failed] == [f"{key}-20270104-0900", f"{other}-20270104-0900"]
    finally:
        segment.write_text(text)
    (failed,) = clock.occurrences(key)
    assert failed.state == "failed"
    assert "everybody" in (failed.reason or "")
    assert clock.tick("2027-01-05T08:50").made == (f"{key}-20270105-0900", f"{other}-20270105-0900")


def test_a_schedule_that_cannot_be_read_any_more_does_not_stop_the_others(clock: Clock) -> None:
    broken, good = clock.create("2027-01-04T00:00"), clock.create("2027-01-04T00:00")
    clock.world.execute(
        'UPDATE mailpipe.schedule SET spec = spec || \'{"colour": "red"}\' WHERE key = %(key)s', {"key": broken}
    )
    told = clock.tick("2027-01-04T08:50")
    assert told.made == (f"{good}-20270104-0900",)
    assert "cannot be read and is paused" in told.failed[0]
    assert not clock.tick("2027-01-04T08:51")
    clock.world.execute("UPDATE mailpipe.schedule SET spec = spec - 'colour' WHERE key = %(key)s", {"key": broken})
    assert not clock.get(broken).is_active


def test_nothing_is_sent_for_a_series_that_nobody_has_approved(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00", approved=False)
    told = clock.tick("2027-01-04T08:50")
    assert told.made == ()
    assert "nobody has approved" in told.failed[0]
    each = clock.create("2027-01-06T00:00", approval="each")
    assert clock.tick("2027-01-06T08:50").made == (f"{each}-20270106-0900",)
    assert clock.world.campaign(f"{each}-20270106-0900").state == "draft"
    with clock.world.database.connection() as connection, pytest.raises(ScheduleError, match="by itself"):
        recurring.approve(connection, clock.world.settings, clock.world.ses, each, approver="ben")
    assert clock.get(key).approver is None


def test_a_file_without_fields_that_came_later_can_be_approved_and_one_that_has_just_changed_cannot(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = clock.create("2027-01-04T00:00", approved=False)
    clock.world.execute("UPDATE mailpipe.schedule SET spec = spec - 'grace' WHERE key = %(key)s", {"key": key})
    settings, ses, publish = clock.world.settings, clock.world.ses, campaign.publish
    with clock.world.database.connection() as connection:

        def slowly(*given: Any, **options: Any) -> str:
            recurring.change(connection, settings, key, {"cron": "0 10 * * 1"}, actor="cleo")
            return publish(*given, **options)

        with monkeypatch.context() as patched:
            patched.setattr(campaign, "publish", slowly)
            with pytest.raises(ScheduleError, match="was changed meanwhile"):
                recurring.approve(connection, settings, ses, key, approver="ben")
        assert clock.get(key).approver is None
        recurring.approve(connection, settings, ses, key, approver="ben")
    assert clock.get(key).approver == "ben"


def test_what_was_approved_is_sent_though_the_template_has_changed(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00")
    subject = clock.world.settings.templates / "hello" / "subject.txt"
    text = subject.read_text()
    try:
        subject.write_text("Another {{first_name}}\n")
        made = clock.tick("2027-01-04T08:50").made
    finally:
        subject.write_text(text)
    assert clock.world.campaign(made[0]).template_version == clock.get(key).template_version


def test_run_now_uses_up_its_minute(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00", cron="0 9 * * *")
    with clock.world.database.connection() as connection:
        now = at("2027-01-03T15:20:40")
        made = fire.run_now(connection, clock.world.settings, key, actor="ana", now=now)
        assert made == f"{key}-20270103-1520"
        assert campaign.get(connection, made).state == "approved"
        with pytest.raises(ScheduleError, match="already"):
            fire.run_now(connection, clock.world.settings, key, actor="ana", now=now + timedelta(seconds=10))
        assert clock.tick("2027-01-04T08:50").made == (f"{key}-20270104-0900",), "the cron goes on"
        local = clock.create("2027-01-04T00:00", timezone="recipient")
        with pytest.raises(ScheduleError, match="clocks of its recipients"):
            fire.run_now(connection, clock.world.settings, local, actor="ana")


def test_a_deleted_schedule_is_gone_and_its_key_is_not_used_again(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00")
    spec = clock.get(key).spec
    with clock.world.database.connection() as connection:
        recurring.delete(connection, key, actor="ana")
        with pytest.raises(ScheduleError, match="no schedule"):
            recurring.get(connection, key)
        assert not clock.tick("2027-01-05T10:00")
        assert key not in [one.key for one in recurring.get_all(connection)]
        with pytest.raises(ScheduleError, match="never used again"):
            recurring.create(connection, clock.world.settings, spec, author="ana")


def test_what_cannot_work_is_refused_when_it_is_created(clock: Clock) -> None:
    def create(author: str = "ana", **fields: Any) -> None:
        spec = parse(
            {"key": "wrong", "cron": "0 9 * * *", "timezone": "UTC", "campaign": CAMPAIGN, **fields}, where="test"
        )
        with clock.world.database.connection() as connection:
            recurring.create(connection, clock.world.settings, spec, author=author)

    with pytest.raises(SegmentError):
        create(campaign={**CAMPAIGN, "segment": "nobody"})
    with pytest.raises(TemplateError):
        create(campaign={**CAMPAIGN, "template": "nothing"})
    with pytest.raises(CronError, match="never occur"):
        create(cron="0 9 31 2 *")
    with pytest.raises(CronError, match="MAILPIPE_MINIMUM_INTERVAL"):
        create(cron="*/10 * * * *")
    with pytest.raises(ScheduleError, match="before it has ever fired"):
        create(ends_at="2020-01-01T00:00Z")
    with pytest.raises(CampaignError, match="who you are"):
        create(author=" ")


def test_a_schedule_of_the_recipients_makes_local_campaigns(clock: Clock) -> None:
    key = clock.create("2027-01-04T00:00", cron="0 17 * * fri", timezone="recipient")
    assert clock.tick("2027-01-08T02:50").made == (f"{key}-20270108-1700",)
    made = clock.world.campaign(f"{key}-20270108-1700")
    assert made.spec.is_local
    assert made.due_at == at("2027-01-08T03:00")


def test_a_long_outage_is_caught_up_with_in_parts(clock: Clock) -> None:
    key = clock.create("2027-01-01T00:00", cron="0 * * * *", missed="latest")
    total = Ticked((), 0, ())
    for _ in range(4):
        told = clock.tick("2027-02-20T00:30")
        total = Ticked(total.made + told.made, total.missed + told.missed, total.failed + told.failed)
    assert total.made == (f"{key}-20270220-0000",)
    assert total.missed == 50 * 24 - 1
    assert clock.get(key).next_slot == datetime(2027, 2, 20, 1)
