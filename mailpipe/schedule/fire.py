"""Fires: what happens when the time of a schedule has come.

Shortly before each fire its campaign is made; from then on it is a campaign like any other. What has fired is a row with the local
slot as its key, so nothing fires twice: not with two daemons, not after a restart, not when the cron is changed. A fire that fails
is noted with its reason, and the next one comes all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Literal

import pydantic
from psycopg.rows import kwargs_row

from mailpipe import campaign
from mailpipe.db import Connection
from mailpipe.errors import ScheduleError, UserError
from mailpipe.schedule import recurring, zones
from mailpipe.schedule.cron import Fire
from mailpipe.schedule.spec import name
from mailpipe.schedule.when import RECIPIENT
from mailpipe.settings import Settings

ON_TIME = timedelta(minutes=2)
"""A fire that is noticed no later than this after its time is not a missed one."""
_MOST_SCHEDULES = 200
"""Schedules that are looked at in one tick; the rest follows in the next, a few seconds later."""
_MOST_FIRES = 500
"""Fires of one schedule in one tick, for one that nobody has looked after for long."""


@dataclass(frozen=True)
class Ticked:
    """What one look has done: campaigns made by key, fires that were missed, and those that failed, with the reason."""

    made: tuple[str, ...]
    missed: int
    failed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.made or self.missed or self.failed)


def tick(connection: Connection, config: Settings, *, now: datetime | None = None) -> Ticked:
    """Make the campaigns of all fires that are near. `now` is the database's clock unless given. A second time does nothing."""
    awake = connection.execute(recurring.QUERIES["awake"], {"now": now, "most": _MOST_SCHEDULES}).fetchall()
    made: list[str] = []
    failed: list[str] = []
    missed = 0
    for (schedule_id,) in awake:
        with connection.transaction(), connection.cursor(row_factory=kwargs_row(recurring.of_row)) as cursor:
            try:
                found = cursor.execute(recurring.QUERIES["take"], {"schedule_id": schedule_id, "now": now}).fetchone()
            except pydantic.ValidationError as error:
                # Written by another version: the others must not wait for it.
                _switch_off(connection, schedule_id)
                failed.append(f"schedule {schedule_id} cannot be read and is paused: {error.errors()[0]['msg']}")
                continue
            if found is None:
                continue
            done = _fire(connection, config, found)
        made += done.made
        missed += done.missed
        failed += done.failed
    return Ticked(tuple(made), missed, tuple(failed))


def run_now(connection: Connection, config: Settings, key: str, *, actor: str, now: datetime | None = None) -> str:
    """Fire at once, besides the cron; answers the campaign's key. This minute's slot is used up by it.
    `now` is the database's clock unless it is given.

    Raises:
        ScheduleError: this minute has fired already, or the series is not approved.
    """
    with connection.transaction():
        found = recurring.get(connection, key)
        if found.timezone == RECIPIENT:
            raise ScheduleError(
                f"schedule {key!r} fires by the clocks of its recipients; there is no now for all of them"
            )
        now = now or found.now
        fire = Fire(zones.wall(found.timezone, now).replace(second=0, microsecond=0), now)
        made = _make(connection, config, found, fire, now)
        if made is None:
            raise ScheduleError(
                f"schedule {key!r} has fired at {fire.slot:%H:%M} already; try again in the next minute"
            )
        recurring.note(connection, key, actor, "run-now", {"campaign": made})
    return made


def next_wake(connection: Connection) -> tuple[str, datetime] | None:
    """The schedule that fires next, and when its campaign is made."""
    row = connection.execute(recurring.QUERIES["next_wake"]).fetchone()
    return None if row is None else (str(row[0]), row[1])


def judge(
    fires: Sequence[Fire],
    now: datetime,
    missed: Literal["skip", "latest", "all"],
    grace: float,
    *,
    ends_after: float | None = None,
    more: bool = False,
) -> list[tuple[Fire, str | None]]:
    """Which of these fires are made, and why not the others (None: it is made).

    `grace`: seconds that the newest may be late; `ends_after`: seconds after which mails have expired; `more`: newer ones follow.
    """
    late = [fire for fire in fires if fire.at < now - ON_TIME]
    newest = None if more else fires[-1] if fires else None
    judged: list[tuple[Fire, str | None]] = []
    for fire in fires:
        behind = (now - fire.at).total_seconds()
        reason = None
        if fire in late and missed == "skip":
            reason = f"noticed {behind / 60:.0f} minutes late"
        elif fire in late and missed == "latest" and fire is not newest:
            reason = "a newer fire was due before anybody noticed"
        elif fire in late and missed == "latest" and behind > grace:
            reason = f"noticed {behind / 3600:.1f} hours late, more than its grace"
        elif ends_after is not None and behind >= ends_after:
            reason = f"noticed {behind / 3600:.1f} hours late, when its mails had expired"
        judged.append((fire, reason))
    return judged


def _fire(connection: Connection, config: Settings, found: recurring.Schedule) -> Ticked:
    assert found.next_run_at is not None
    spec, now = found.spec, found.now
    try:
        compiled = spec.compiled(minimum=0)
    except UserError as error:
        # Rules of zones and of cron can change under a schedule that was right once.
        _switch_off(connection, found.schedule_id)
        return Ticked((), 0, (f"{found.key}: {error}",))
    near = now + timedelta(seconds=spec.snapshot_lead)
    due = takewhile(lambda fire: fire.at <= near, compiled.fires(found.next_run_at - timedelta(microseconds=1)))
    fires = list(islice(due, _MOST_FIRES + 1))
    more = len(fires) > _MOST_FIRES
    fires = [fire for fire in fires[:_MOST_FIRES] if spec.ends_at is None or fire.at <= spec.ends_at]
    # By the clocks of the recipients the first of them expire much earlier than the last; their windows say so.
    ends_after = None if spec.timezone == RECIPIENT else spec.campaign.get("expires_after")
    made: list[str] = []
    failed: list[str] = []
    missed = 0
    last_run_at = None
    for fire, reason in judge(fires, now, spec.missed, spec.grace, ends_after=ends_after, more=more):
        if reason is None:
            try:
                with connection.transaction():
                    key = _make(connection, config, found, fire, now)
            except UserError as error:
                recurring.keep(connection, found, fire, "failed", reason=str(error))
                failed.append(f"{name(found.key, fire)}: {error}")
                continue
            if key is not None:
                made.append(key)
                last_run_at = fire.at
        elif recurring.keep(connection, found, fire, "missed", reason=reason):
            missed += 1
    recurring.advance(connection, found, fires[-1].at if more else near, last_run_at)
    return Ticked(tuple(made), missed, tuple(failed))


def _switch_off(connection: Connection, schedule_id: int) -> None:
    connection.execute(recurring.QUERIES["switch"], {"schedule_id": schedule_id, "is_active": False})


def _make(connection: Connection, config: Settings, found: recurring.Schedule, fire: Fire, now: datetime) -> str | None:
    """Make the campaign of a fire; None: this slot has fired already."""
    known = connection.execute(
        recurring.QUERIES["known"], {"schedule_id": found.schedule_id, "slot": fire.slot}
    ).fetchone()
    if known is not None:
        return None
    if found.spec.approval == "series" and found.approver is None:
        raise ScheduleError(
            f"schedule {found.key!r}: nobody has approved its series (`mailpipe schedule approve {found.key}`)"
        )
    made = campaign.create(connection, config, found.spec.campaign_of(fire, now), author=found.author)
    if found.approver is not None and found.template_version is not None:
        campaign.adopt(connection, made, approver=found.approver, template_version=found.template_version)
    if not recurring.keep(connection, found, fire, "made", campaign_id=made.campaign_id):
        raise ScheduleError(f"schedule {found.key!r}: its slot {fire.slot} was made by somebody else just now")
    return made.key
