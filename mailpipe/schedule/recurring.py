"""Recurring campaigns: schedules, who approves and moves them, and what became of their fires. The only writer of `schedule` and
`occurrence`. What happens when the time has come is told in `fire`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from mailpipe import campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import ScheduleError
from mailpipe.schedule.cron import Fire
from mailpipe.schedule.spec import ScheduleSpec
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)


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


def of_row(**row: Any) -> Schedule:
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
        note(connection, spec.key, author, "create", spec.model_dump(mode="json"))
    return get(connection, spec.key)


def get(connection: Connection, key: str) -> Schedule:
    """The schedule with this key.

    Raises:
        ScheduleError: there is none.
    """
    with connection.cursor(row_factory=kwargs_row(of_row)) as cursor:
        found = cursor.execute(QUERIES["get"], {"key": key}).fetchone()
    if found is None:
        raise ScheduleError(f"no schedule {key!r}; `mailpipe schedule list` shows them")
    return found


def get_all(connection: Connection) -> list[Schedule]:
    """All schedules, the oldest first."""
    with connection.cursor(row_factory=kwargs_row(of_row)) as cursor:
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
    fields = found.spec.campaign
    version = campaign.publish(connection, config, ses, fields["template"], adapter=fields.get("adapter", "ses"))
    with connection.transaction():
        approved = connection.execute(
            QUERIES["approve"],
            {
                "schedule_id": found.schedule_id,
                "approver": approver,
                "template_version": version,
                # Not the file itself: one that an older version wrote lacks fields that have a default by now.
                "changed_at": found.changed_at,
            },
        ).rowcount
        if not approved:
            raise ScheduleError(f"schedule {key!r} was changed meanwhile; look at it and try again")
        note(connection, key, approver, "approve", {"template_version": version})
    return get(connection, key)


def pause(connection: Connection, key: str, *, actor: str) -> Schedule:
    """No fires any more. A campaign that is made already goes on; it has a pause of its own."""
    return _switch(connection, get(connection, key), actor, on=False)


def resume(connection: Connection, key: str, *, actor: str) -> Schedule:
    """Fires again, from now on: what fell into the pause was not missed."""
    with connection.transaction():
        found = _switch(connection, get(connection, key), actor, on=True)
        advance(connection, found, found.now)
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
        note(connection, key, actor, "change", changed.model_dump(mode="json", include=set(changes)))
        advance(connection, get(connection, key), found.now)
    return get(connection, key)


def delete(connection: Connection, key: str, *, actor: str) -> None:
    """No fires any more, for good. Its campaigns and the history stay."""
    found = get(connection, key)
    with connection.transaction():
        connection.execute(QUERIES["delete"], {"schedule_id": found.schedule_id})
        note(connection, key, actor, "delete", {})


def keep(
    connection: Connection,
    found: Schedule,
    fire: Fire,
    state: str,
    *,
    campaign_id: int | None = None,
    reason: str | None = None,
) -> bool:
    """Note what became of a fire; False: it was noted before."""
    values = {"schedule_id": found.schedule_id, "slot": fire.slot, "due_at": fire.at}
    given = {**values, "state": state, "campaign_id": campaign_id, "reason": reason}
    return connection.execute(QUERIES["note"], given).rowcount == 1


def advance(connection: Connection, found: Schedule, after: datetime, last_run_at: datetime | None = None) -> None:
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
        note(connection, found.key, actor, "resume" if on else "pause", {})
    return get(connection, found.key)


def note(connection: Connection, key: str, actor: str, action: str, detail: dict[str, Any]) -> None:
    campaign.note(connection, None, actor=actor, action=f"schedule {action}", detail={"schedule": key, **detail})


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
