"""Everything that is or was to be sent at some time, as people and programs look at it: schedules, campaigns, queues, what is
late and why. Reads only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from psycopg.rows import dict_row

from mailpipe import outbox, report
from mailpipe.db import Connection, queries
from mailpipe.schedule import launch, recurring, zones
from mailpipe.schedule.spec import FIRST
from mailpipe.schedule.when import RECIPIENT

QUERIES = queries.beside(__file__)

Type = Literal["recurring", "scheduled", "local", "optimised"]
Status = Literal["active", "paused", "pending", "sending", "done", "failed"]

DAYS = 14
_EXPANDED = 200
"""Schedules whose every fire is put into the calendar; of further ones only the next: a fire costs a tenth of a millisecond."""
_A_DAY = 24
_LATE = timedelta(minutes=2)
_LISTED = 20


@dataclass(frozen=True)
class Place:
    """Where a page of entries begins: behind a schedule, or behind a campaign."""

    kind: Literal["s", "c"]
    number: int


@dataclass(frozen=True)
class Entry:
    """A schedule (`id` is s and a number) or a campaign (c and a number). `campaign_id` is the campaign's key, of a schedule that
    of its newest campaign. `scheduled_at` is an instant, or a wall time without offset. Times are UTC, `pending_count` people."""

    id: str
    campaign_id: str | None
    type: Type
    cron: str | None
    scheduled_at: str | None
    next_run: datetime | None
    last_run: datetime | None
    status: Status
    pending_count: int


@dataclass(frozen=True)
class Queue:
    """People and messages of a lane: not yet in a call, and in an open one. Delayed messages count from when they are due."""

    pending: int
    processing: int


@dataclass(frozen=True)
class Late:
    """What should have happened by now, since when, and why it has not."""

    what: str
    since: datetime
    why: str


@dataclass(frozen=True)
class Coming:
    """Something in the calendar: when by the clocks of its zone, when in UTC, and how many people where that is known."""

    at: datetime
    local: str
    what: str
    detail: str


def entries(
    connection: Connection,
    *,
    most: int,
    after: Place | None = None,
    kind: Type | None = None,
    status: Status | None = None,
    only: Place | None = None,
) -> tuple[list[Entry], Place | None]:
    """A page of schedules, the oldest first, and then of campaigns, the newest first; and where the next page begins (None: there
    is none). `only` asks for this one."""
    found: list[tuple[Place, Entry]] = []
    asked = {"kind": kind, "status": status, "most": most + 1, "only": only.number if only else None}
    if kind in (None, "recurring") and (after is None or after.kind == "s") and (only is None or only.kind == "s"):
        found += _rows(connection, "recurring", {**asked, "after": after.number if after else 0}, "s")
    if kind != "recurring" and len(found) <= most and (only is None or only.kind == "c"):
        below = after.number if after is not None and after.kind == "c" else None
        found += _rows(connection, "campaigns", {**asked, "most": most + 1 - len(found), "below": below}, "c")
    page = found[:most]
    return [entry for _, entry in page], page[-1][0] if len(found) > most else None


def _rows(
    connection: Connection, name: str, given: dict[str, Any], kind: Literal["s", "c"]
) -> list[tuple[Place, Entry]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(QUERIES[name], given).fetchall()
    return [(Place(kind, row["number"]), _entry(kind, **row)) for row in rows]


def _entry(kind: str, *, number: int, pending: int, **row: Any) -> Entry:
    return Entry(id=f"{kind}{number}", pending_count=int(pending), **row)


def queues(connection: Connection) -> dict[str, Queue]:
    """How full each lane is now."""
    pending: dict[str, int] = defaultdict(int)
    processing: dict[str, int] = defaultdict(int)
    for lane, depth in outbox.depths(connection).items():
        pending[lane] += depth.pending
        processing[lane] += depth.processing
    for lane, waiting, in_call in connection.execute(QUERIES["queues"]):
        pending[lane] += int(waiting)
        processing[lane] += int(in_call)
    return {lane: Queue(pending[lane], processing[lane]) for lane in ("critical", "high", "normal", "low")}


def late(connection: Connection, *, grace: float) -> list[Late]:
    """What is behind its time, the oldest first."""
    found = [
        Late(f"campaign {one.key}", one.due_at, "nobody started it in time; start it with --late, or cancel it")
        for one in launch.wanted(connection, grace=grace).missed
    ]
    rows = connection.execute(QUERIES["behind"], {"tolerance": _LATE, "grace": grace, "most": _LISTED}).fetchall()
    for key, state, reason, since, people in rows:
        found.append(Late(f"campaign {key}: {people:,} people", since, _why(connection, key, state, reason)))
    for key, due_at in connection.execute(
        QUERIES["unfrozen"], {"tolerance": _LATE, "grace": grace, "most": _LISTED}
    ).fetchall():
        found.append(Late(f"campaign {key}", due_at, _why(connection, key, "approved", None)))
    for key, due_at in connection.execute(QUERIES["unapproved"], {"most": _LISTED}).fetchall():
        found.append(Late(f"campaign {key}", due_at, "nobody has approved it"))
    for key, slot, since, state, reason in connection.execute(QUERIES["lost"], {"most": _LISTED}).fetchall():
        found.append(Late(f"schedule {key}, fire of {slot:%Y-%m-%d %H:%M}: {state}", since, reason))
    return sorted(found, key=lambda one: one.since)


def _why(connection: Connection, key: str, state: str, reason: str | None) -> str:
    if state == "paused":
        return f"paused: {reason}"
    if state == "approved":
        return "no run has begun; is the sensor `due` turned on?"
    now = report.progress(connection, key)
    if now.waiting:
        return now.waiting
    if now.rate_per_second:
        return f"sending at {now.rate_per_second:g}/s, {now.eta_minutes or 0:.0f} minutes left"
    return "nobody works on it; the sensor `resume` launches a run, if it is turned on"


def calendar(connection: Connection, now: datetime) -> dict[date, list[Coming]]:
    """What comes in the next two weeks, by days of UTC; days without anything are there too."""
    until = (now + timedelta(days=DAYS)).replace(hour=0, minute=0, second=0, microsecond=0)
    days: dict[date, list[Coming]] = {(now + timedelta(days=number)).date(): [] for number in range(DAYS)}
    coming = [
        one for one in recurring.get_all(connection) if one.is_active and one.next_run_at and one.next_run_at < until
    ]
    coming.sort(key=lambda one: (one.next_run_at, one.key))
    for place, one in enumerate(coming):
        for at in _fires(one, until, most=_A_DAY * DAYS if place < _EXPANDED else 1):
            days[at.date()].append(
                Coming(at, _local(one.timezone, at), one.key, "" if one.state == "active" else one.state)
            )
    for key, send_at, timezone, due_at, people in connection.execute(QUERIES["ahead"], {"now": now, "until": until}):
        local = f"{send_at[11:16]} {timezone}" if send_at else ""
        days[due_at.date()].append(
            Coming(due_at, local, key, f"{people:,} people" if people is not None else "audience not frozen yet")
        )
    return {day: sorted(found, key=lambda one: (one.at, one.what)) for day, found in days.items()}


def _fires(found: recurring.Schedule, until: datetime, *, most: int) -> Sequence[datetime]:
    assert found.next_run_at is not None
    fires = [found.next_run_at]
    if most > 1:
        for fire in found.spec.compiled(minimum=0).fires(found.next_run_at):
            if (
                fire.at >= until
                or len(fires) >= most
                or (found.spec.ends_at is not None and fire.at > found.spec.ends_at)
            ):
                break
            fires.append(fire.at)
    return fires


def _local(timezone: str, at: datetime) -> str:
    zone = FIRST if timezone == RECIPIENT else timezone
    return f"{zones.wall(zone, at):%H:%M} {timezone}"
