"""The load in numbers: how deep the queues are, how old their oldest is, what is in flight, what calls came to, and how much of
the pace is used. Reads only.

These are the signals by which one decides how many processes should run; how busy a processor is says nothing about a sender that
waits for answers. Everything comes from the database, so any number of processes tell the same. What has been recorded for a while
cannot change any more and is added up only once by each process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.rows import class_row, dict_row

from mailpipe import lane, outbox, pace
from mailpipe.db import Connection, queries
from mailpipe.outbox import Depth

QUERIES = queries.beside(__file__)

BOUNDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper ends, in seconds, of the classes of the time from request to answer."""
RESULTS = ("sent", "failed", "retry", "again", "unknown")
"""What is told of one recipient of a call: `retry` counts as a try, `again` (throttled, or it never left) does not."""
SETTLED = 60.0
"""Seconds after which no transaction writes a call with an earlier time any more."""
RECENT = 10.0
"""Seconds over which the present speed is measured."""
FRESH = 1.0
"""Seconds for which an answer is given again."""


@dataclass
class Calls:
    """What the recorded calls of one campaign or lane came to. `classes` has one number for each of BOUNDS and one beyond."""

    classes: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))

    def add(self, row: Mapping[str, Any]) -> None:
        if row["class"] is not None:
            self.classes[row["class"]] += row["calls"]
            self.seconds += row["seconds"]
        for result in RESULTS:
            self.results[result] += row[result]

    def copy(self) -> Calls:
        return Calls(list(self.classes), self.seconds, dict(self.results))


@dataclass(frozen=True)
class Campaign:
    """A campaign that is sending or paused: people by state, chunks that are free and in work, seconds for which the oldest free
    one has been due."""

    campaign_id: int
    campaign: str
    lane: str
    state: str
    pending: int
    sending: int
    sent: int
    failed: int
    skipped: int
    unknown: int
    pending_chunks: int
    leased_chunks: int
    oldest_age: float


@dataclass(frozen=True)
class Pace:
    """The limit and how much of it is used, in recipients per second; None: no limit is known. `ease`: the part of the limit that
    the provider lets through (1: it does not throttle). `handed` and `marketing`: recipients handed over since the beginning.
    `quota_left`: recipients that may still be sent to in this 24 hours. `refusals`: calls that the provider refused since the
    beginning, by `rate`, `calls` or `quota`."""

    limit: float | None
    used: float
    blocked_for: Mapping[str, float]
    ease: float
    handed: int
    marketing: int
    quota_left: float | None
    refusals: Mapping[str, int]

    @property
    def utilisation(self) -> float | None:
        return None if self.limit is None else self.used / self.limit


@dataclass(frozen=True)
class Load:
    """Everything at one moment."""

    lanes: Mapping[str, Depth]
    threads: Mapping[str, int]
    lane_calls: Mapping[str, Calls]
    campaigns: Sequence[Campaign]
    campaign_calls: Mapping[int, Calls]
    pace: Pace
    unsubscribe_alarms: int


class Watch:
    """Reads the load; shared by the threads of a process. Calls of messages are counted from midnight UTC on, those of a campaign
    from its beginning: all processes begin at the same places."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._load: Load | None = None
        self._campaigns = _Adder("campaign_calls")
        self._lanes = _Adder("lane_calls")

    def load(self, connection: Connection) -> Load:
        """The load, at most FRESH seconds old."""
        with self._lock:
            if self._load is None or time.monotonic() - self._read_at > FRESH:
                self._load = self._read(connection)
                self._read_at = time.monotonic()
            return self._load

    def _read(self, connection: Connection) -> Load:
        with connection.transaction():
            # One moment for all statements: no answer shows somebody in two states.
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            with connection.cursor(row_factory=class_row(Campaign)) as cursor:
                campaigns = cursor.execute(QUERIES["campaigns"]).fetchall()
            row = connection.execute(QUERIES["moment"], {"settled": SETTLED}).fetchone()
            assert row is not None
            until, midnight, alarms = row
            begins: dict[str, datetime | None] = {str(one.campaign_id): None for one in campaigns}
            campaign_calls = self._campaigns.read(connection, begins, until)
            lane_calls = self._lanes.read(connection, dict.fromkeys(lane.NAMES, midnight), until)
            return Load(
                lanes=outbox.depths(connection),
                threads=dict(connection.execute(QUERIES["threads"]).fetchall()),
                lane_calls=lane_calls,
                campaigns=campaigns,
                campaign_calls={int(key): calls for key, calls in campaign_calls.items()},
                pace=_pace(connection),
                unsubscribe_alarms=alarms,
            )


class _Adder:
    """Adds up the calls of each key (a campaign, a lane): what is settled once, what is younger each time anew."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._settled: dict[str, tuple[datetime | None, datetime | None, Calls]] = {}

    def read(self, connection: Connection, begins: Mapping[str, datetime | None], until: datetime) -> dict[str, Calls]:
        """The calls of these keys, each from its beginning on (None: from the first). What ends at `until` is settled."""
        for key in self._settled.keys() - begins.keys():
            del self._settled[key]
        for key, begin in begins.items():
            if key not in self._settled or self._settled[key][0] != begin:
                self._settled[key] = (begin, begin, Calls())
        after = {key: reached for key, (_, reached, _) in self._settled.items()}
        for row in self._rows(connection, after, until):
            self._settled[row["key"]][2].add(row)
        for key, (begin, reached, calls) in self._settled.items():
            self._settled[key] = (begin, until if reached is None else max(reached, until), calls)
        totals = {key: calls.copy() for key, (_, _, calls) in self._settled.items()}
        for row in self._rows(connection, {key: reached for key, (_, reached, _) in self._settled.items()}, None):
            totals[row["key"]].add(row)
        return totals

    def _rows(
        self, connection: Connection, after: Mapping[str, datetime | None], until: datetime | None
    ) -> list[dict[str, Any]]:
        with connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(
                QUERIES[self._query],
                {"keys": list(after), "after": list(after.values()), "until": until, "bounds": list(BOUNDS)},
            ).fetchall()


def _pace(connection: Connection) -> Pace:
    row = connection.execute(QUERIES["used"], {"recent": RECENT}).fetchone()
    assert row is not None
    limits = pace.read(connection)
    blocked = {} if limits.blocked_reason is None else {limits.blocked_reason: max(0.0, limits.blocked_for or 0.0)}
    day = limits.day
    return Pace(
        limits.account,
        float(row[0]),
        blocked,
        limits.ease,
        day.handed,
        day.marketing,
        day.left,
        pace.refusals(connection),
    )
