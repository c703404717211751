"""Recurring campaigns: schedules, and their fires. The only writer of `schedule` and `occurrence`.

Shortly before each fire its campaign is made; from then on it is a campaign like any other. What has fired is a row with the local
slot as its key, so nothing fires twice: not with two daemons, not after a restart, not when the cron is changed. A fire that fails
is noted with its reason, and the next one comes all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from mailpipe import campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import ScheduleError, UserError
from mailpipe.schedule import zones
from mailpipe.schedule.cron import Fire
from mailpipe.schedule.spec import ScheduleSpec, name
from mailpipe.schedule.when import RECIPIENT
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

ON_TIME = timedelta(minutes=2)
"""A fire that is noticed no later than this after its time is not a missed one."""
_MOST_SCHEDULES = 200
"""Schedules that are looked at in one tick; the rest follows in the next, a few seconds later."""
_MOST_FIRES = 500
"""Fires of one schedule in one tick, for one that nobody has looked after for long."""


@dataclass(frozen=True)
class Schedule:
    """A row of `schedule`. `next_slot` is what the clocks of `timezone` show at the next fire; the other times are UTC."""

    schedule_id: int
    key: str
    cron_expression: str
    timezone: str
    is_active: bool
    next_slot: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    spec: ScheduleSpec
    author: str
    approver: str | None
    template_version: str | None
    created_at: datetime
    changed_at: datetime
    now: datetime
    """The database's clock when the row was read, or the one that was given."""

    @property
    def state(self) -> str:
        """active, paused, done, or not approved."""
        if not self.is_active:
            return "paused"
        if self.next_run_at is None:
            return "done"
        return "not approved" if self.spec.approval == "series" and self.approver is None else "active"


def _of_row(**row: Any) -> Schedule:
    return Schedule(**{**row, "spec": ScheduleSpec.model_validate(row["spec"])})


@dataclass(frozen=True)
class Occurrence:
    """What became of a fire: the campaign it made and that one's state, or why there is none."""

    slot: datetime
    due_at: datetime
    state: Literal["made", "missed", "failed"]
    campaign: str | None
    campaign_state: str | None
    reason: str | None


@dataclass(frozen=True)
class Ticked:
    """What one look has done: campaigns made by key, fires that were missed, and those that failed, with the reason."""

    made: tuple[str, ...]
    missed: int
    failed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.made or self.missed or self.failed)


def create(connection: Connection, config: Settings, spec: ScheduleSpec, *, author: str) -> Schedule:
    """Record a schedule. Its series is approved by somebody else before it makes campaigns.

    Raises:
        ScheduleError: the key is taken, or there is no fire at all.
        CronError: the cron cannot be used.
        SegmentError, TemplateError: what its campaigns refer to is missing or broken.
    """
    with connection.transaction():
        first = spec.first_after(_now(connection), minimum=config.minimum_interval)
        if first is None:
            raise ScheduleError(f"schedule {spec.key!r} ends at {spec.ends_at}, before it has ever fired")
        campaign.check(config, spec.campaign_of(first, first.at))
        row = connection.execute(
            QUERIES["create"],
            {
                "key": spec.key,
                "cron": spec.cron,
                "timezone": spec.timezone,
                "slot": first.slot,
                "at": first.at,
                "lead": spec.snapshot_lead,
                "spec": Jsonb(spec.model_dump(mode="json")),
                "author": author,
            },
        ).fetchone()
        if row is None:
            raise ScheduleError(f"schedule {spec.key!r} exists or existed; a key is never used again, choose another")
        _note(connection, spec.key, author, "create", spec.model_dump(mode="json"))
    return get(connection, spec.key)


def get(connection: Connection, key: str) -> Schedule:
    """The schedule with this key.

    Raises:
        ScheduleError: there is none.
    """
    with connection.cursor(row_factory=kwargs_row(_of_row)) as cursor:
        found = cursor.execute(QUERIES["get"], {"key": key}).fetchone()
    if found is None:
        raise ScheduleError(f"no schedule {key!r}; `mailpipe schedule list` shows them")
    return found


def get_all(connection: Connection) -> list[Schedule]:
    """All schedules, the oldest first."""
    with connection.cursor(row_factory=kwargs_row(_of_row)) as cursor:
        return cursor.execute(QUERIES["get_all"]).fetchall()


def occurrences(connection: Connection, found: Schedule, most: int = 20) -> list[Occurrence]:
    """What became of the last fires, the newest first."""
    rows = connection.execute(QUERIES["occurrences"], {"schedule_id": found.schedule_id, "most": most})
    return [Occurrence(*row) for row in rows]


def approve(connection: Connection, config: Settings, ses: Ses, key: str, *, approver: str) -> Schedule:
    """Approve the whole series: the template is published as it is now, and every fire sends exactly that.

    Raises:
        ScheduleError: each campaign is approved by itself, the approver is the author, or the schedule has just changed.
        TemplateError: the template is broken.
    """
    found = get(connection, key)
    if found.spec.approval == "each":
        raise ScheduleError(f"schedule {key!r}: each of its campaigns is approved by itself (approval: each)")
    if approver.strip().casefold() == found.author.strip().casefold():
        raise ScheduleError(f"schedule {key!r}: its author cannot approve it; another person must")
    version = campaign.publish(connection, config, ses, found.spec.campaign["template"])
    with connection.transaction():
        approved = connection.execute(
            QUERIES["approve"],
            {
                "schedule_id": found.schedule_id,
                "approver": approver,
                "template_version": version,
                "spec": Jsonb(found.spec.model_dump(mode="json")),
            },
        ).rowcount
        if not approved:
            raise ScheduleError(f"schedule {key!r} was changed meanwhile; look at it and try again")
        _note(connection, key, approver, "approve", {"template_version": version})
    return get(connection, key)


def pause(connection: Connection, key: str, *, actor: str) -> Schedule:
    """No fires any more. A campaign that is made already goes on; it has a pause of its own."""
    return _switch(connection, get(connection, key), actor, on=False)


def resume(connection: Connection, key: str, *, actor: str) -> Schedule:
    """Fires again, from now on: what fell into the pause was not missed."""
    with connection.transaction():
        found = _switch(connection, get(connection, key), actor, on=True)
        _advance(connection, found, found.now)
    return get(connection, key)


def change(connection: Connection, config: Settings, key: str, changes: dict[str, Any], *, actor: str) -> Schedule:
    """Set other fields of the schedule. Whoever changes when or what it sends becomes its author, and somebody else has to approve
    it again.

    Raises:
        ScheduleError: a field is wrong, or there is no fire any more.
        CronError: the cron cannot be used.
    """
    from mailpipe.schedule import spec as specs  # noqa: PLC0415 - the module's name is that of many variables here

    with connection.transaction():
        found = get(connection, key)
        changed = specs.parse({**found.spec.model_dump(), **changes, "key": found.key}, where=f"schedule {key}")
        first = changed.first_after(found.now, minimum=config.minimum_interval)
        if first is None:
            raise ScheduleError(f"schedule {key!r} would end at {changed.ends_at}, before it fires again")
        campaign.check(config, changed.campaign_of(first, first.at))
        same = all(
            getattr(changed, one) == getattr(found.spec, one) for one in ("cron", "timezone", "campaign", "approval")
        )
        connection.execute(
            QUERIES["change"],
            {
                "schedule_id": found.schedule_id,
                "cron": changed.cron,
                "timezone": changed.timezone,
                "spec": Jsonb(changed.model_dump(mode="json")),
                "author": found.author if same else actor,
                "keeps": same,
            },
        )
        _note(connection, key, actor, "change", changed.model_dump(mode="json", include=set(changes)))
        _advance(connection, get(connection, key), found.now)
    return get(connection, key)


def delete(connection: Connection, key: str, *, actor: str) -> None:
    """No fires any more, for good. Its campaigns and the history stay."""
    found = get(connection, key)
    with connection.transaction():
        connection.execute(QUERIES["delete"], {"schedule_id": found.schedule_id})
        _note(connection, key, actor, "delete", {})


def run_now(connection: Connection, config: Settings, key: str, *, actor: str, now: datetime | None = None) -> str:
    """Fire at once, besides the cron; answers the campaign's key. This minute's slot is used up by it.
    `now` is the database's clock unless it is given.

    Raises:
        ScheduleError: this minute has fired already, or the series is not approved.
    """
    with connection.transaction():
        found = get(connection, key)
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
        _note(connection, key, actor, "run-now", {"campaign": made})
    return made


def tick(connection: Connection, config: Settings, *, now: datetime | None = None) -> Ticked:
    """Make the campaigns of all fires that are near. `now` is the database's clock unless given. A second time does nothing."""
    awake = connection.execute(QUERIES["awake"], {"now": now, "most": _MOST_SCHEDULES}).fetchall()
    made: list[str] = []
    failed: list[str] = []
    missed = 0
    for (schedule_id,) in awake:
        with connection.transaction(), connection.cursor(row_factory=kwargs_row(_of_row)) as cursor:
            found = cursor.execute(QUERIES["take"], {"schedule_id": schedule_id, "now": now}).fetchone()
            if found is None:
                continue
            done = _fire(connection, config, found)
        made += done.made
        missed += done.missed
        failed += done.failed
    return Ticked(tuple(made), missed, tuple(failed))


def next_wake(connection: Connection) -> tuple[str, datetime] | None:
    """The schedule that fires next, and when its campaign is made."""
    row = connection.execute(QUERIES["next_wake"]).fetchone()
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


def _fire(connection: Connection, config: Settings, found: Schedule) -> Ticked:
    assert found.next_run_at is not None
    spec, now = found.spec, found.now
    try:
        compiled = spec.compiled(minimum=0)
    except UserError as error:
        # Rules of zones and of cron can change under a schedule that was right once.
        connection.execute(QUERIES["switch"], {"schedule_id": found.schedule_id, "is_active": False})
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
                _keep(connection, found, fire, "failed", reason=str(error))
                failed.append(f"{name(found.key, fire)}: {error}")
                continue
            if key is not None:
                made.append(key)
                last_run_at = fire.at
        elif _keep(connection, found, fire, "missed", reason=reason):
            missed += 1
    _advance(connection, found, fires[-1].at if more else near, last_run_at)
    return Ticked(tuple(made), missed, tuple(failed))


def _make(connection: Connection, config: Settings, found: Schedule, fire: Fire, now: datetime) -> str | None:
    """Make the campaign of a fire; None: this slot has fired already."""
    known = connection.execute(QUERIES["known"], {"schedule_id": found.schedule_id, "slot": fire.slot}).fetchone()
    if known is not None:
        return None
    if found.spec.approval == "series" and found.approver is None:
        raise ScheduleError(
            f"schedule {found.key!r}: nobody has approved its series (`mailpipe schedule approve {found.key}`)"
        )
    made = campaign.create(connection, config, found.spec.campaign_of(fire, now), author=found.author)
    if found.approver is not None and found.template_version is not None:
        campaign.adopt(connection, made, approver=found.approver, template_version=found.template_version)
    if not _keep(connection, found, fire, "made", campaign_id=made.campaign_id):
        raise ScheduleError(f"schedule {found.key!r}: its slot {fire.slot} was made by somebody else just now")
    return made.key


def _keep(
    connection: Connection,
    found: Schedule,
    fire: Fire,
    state: str,
    *,
    campaign_id: int | None = None,
    reason: str | None = None,
) -> bool:
    values = {"schedule_id": found.schedule_id, "slot": fire.slot, "due_at": fire.at}
    given = {**values, "state": state, "campaign_id": campaign_id, "reason": reason}
    return connection.execute(QUERIES["note"], given).rowcount == 1


def _advance(connection: Connection, found: Schedule, after: datetime, last_run_at: datetime | None = None) -> None:
    """Note the next fire behind an instant. The least interval was asked when the schedule was made, and is not asked again."""
    fire = found.spec.first_after(after, minimum=0)
    connection.execute(
        QUERIES["advance"],
        {
            "schedule_id": found.schedule_id,
            "slot": fire.slot if fire else None,
            "at": fire.at if fire else None,
            "lead": found.spec.snapshot_lead,
            "last_run_at": last_run_at,
        },
    )


def _switch(connection: Connection, found: Schedule, actor: str, *, on: bool) -> Schedule:
    with connection.transaction():
        connection.execute(QUERIES["switch"], {"schedule_id": found.schedule_id, "is_active": on})
        _note(connection, found.key, actor, "resume" if on else "pause", {})
    return get(connection, found.key)


def _note(connection: Connection, key: str, actor: str, action: str, detail: dict[str, Any]) -> None:
    campaign.note(connection, None, actor=actor, action=f"schedule {action}", detail={"schedule": key, **detail})


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
