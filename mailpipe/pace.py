"""The pace: in no sliding second do all processes together hand SES more recipients than the limit.

Slots are given away by the database, on its clock, at equal distances (a GCRA without burst). With c recipients a call and a
limit of N, slots are (W + J + T) / floor(N / c) apart. W is one second. J is the lateness that is allowed: a slot reached more
than J late is given up. T is by how much the ways of two calls to SES may differ, because SES counts what arrives. Calls that
arrive within a window of W come from slots within W + J + T, and those are at most floor(N / c): never more than N recipients.
What it costs is (J + T) / (W + J + T), 5 % at 15 and 35 ms.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row

from mailpipe.db import Connection, queries
from mailpipe.ses.client import Account

QUERIES = queries.beside(__file__)

WINDOW = 1.0
"""Seconds over which SES counts its rate."""
LATENESS = 0.015
"""Seconds that a call may leave after its slot. Smaller wastes slots on a busy machine, larger wastes quota on every one."""
TRANSIT = 0.035
"""Seconds by which one call's way to SES may be longer than another's: a new connection, the network, SES's own queue. Without it
a first call that left 16 ms late and took 18 ms to be accepted made SES throttle the thirteenth."""
MAX_CALL = 50
"""Destinations of one SendBulkEmail request (SES quotas)."""
Lane = Literal["critical", "high", "normal", "low"]
"""Priority classes, the first goes first."""
LANES: tuple[Lane, ...] = ("critical", "high", "normal", "low")
UNREACHABLE = 1_000_000.0
"""Recipients per second from which on an account's limit is none: nobody gets there, and slots would only cost time."""
THROTTLE_WAIT = 1.0
"""Seconds that everybody waits after SES has refused for the rate."""
QUOTA_WAIT = 60.0
"""Seconds until it is tried again after SES has refused for the daily quota, which frees little by little."""
_ACCOUNT = "mailpipe.pace_account"
_REFRESH = 1.0


def call_size(rate: float | None) -> int:
    """Recipients of one call: as many as SES takes, never more than a second's worth, and dividing the rate well.

    570/s is 12 calls of 47, not 11 of 50: 564 of 570 can be used instead of 550.
    """
    if rate is None:
        return MAX_CALL
    if rate < 1:
        return 1
    return int(rate // -(-rate // MAX_CALL)) or 1


def spacing(rate: float) -> float:
    """Seconds between two slots of `call_size(rate)` recipients each."""
    size = call_size(rate)
    calls = rate // size if rate >= size else rate / size
    return (WINDOW + LATENESS + TRANSIT) / calls


def distance(rate: float) -> int:
    """Microseconds between two slots as they are given away: rounded up, and half a per cent more than `spacing`, so that no
    window can catch a slot at both of its ends.
    """
    return int(spacing(rate) * 1.005e6) + 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds at this moment, in recipients per second; None: no limit. `blocked_for`: seconds to wait for SES."""

    ceiling: float | None
    account_rate: float | None
    rate: float | None
    blocked_reason: str | None
    blocked_for: float | None
    account_age: float | None

    @property
    def account(self) -> float | None:
        """The limit of all campaigns together: the smaller of the account's and our own."""
        known = [limit for limit in (self.ceiling, self.account_rate) if limit is not None]
        return min(known) if known else None

    @property
    def campaign(self) -> float | None:
        """The limit of this campaign: its own rate, where that is the smaller one."""
        known = [limit for limit in (self.account, self.rate) if limit is not None]
        return min(known) if known else None

    @property
    def call_size(self) -> int:
        """Recipients of one call. Never more than a slot of the account is charged for."""
        return min(call_size(self.account), call_size(self.campaign))


@dataclass(frozen=True, slots=True)
class Slot:
    """The right to make one call of at most `call_size` recipients at `at` (this process's monotonic clock, seconds), and up to
    `lateness` later."""

    at: float
    lateness: float
    call_size: int

    @property
    def wait(self) -> float:
        return self.at - time.monotonic()


@dataclass(frozen=True, slots=True)
class Refusal:
    """No slot within the caller's patience: come back in `wait` seconds."""

    wait: float
    reason: str | None = None


class Clock:
    """The distance of the database's clock to this process's monotonic clock, as two bounds in seconds.

    An answer tells a time of the database that lies between the asking and the receipt. The quickest answers narrow the
    bounds to a fraction of a millisecond; they widen again with time, because clocks drift. So neither a slow answer nor a busy
    machine makes a slot later than it is.
    """

    DRIFT = 0.0005
    """By how much two clocks may part: adjtimex and NTP slew by at most 500 ppm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds = (float("-inf"), float("inf"))
        self._noted_at = 0.0

    def note(self, asked: float, received: float, started: float, told: float) -> tuple[float, float]:
        """Take in one answer: the question left at `asked`, was begun on at `started` and answered at `told` (the database's
        clock), and was `received`. Answers the bounds of what must be added to a time of the database."""
        drift = (received - asked) * self.DRIFT
        low, high = asked - started - drift, received - told + drift
        with self._lock:
            drift = (received - self._noted_at) * self.DRIFT
            known = (max(low, self._bounds[0] - drift), min(high, self._bounds[1] + drift))
            # They contradict each other only when somebody has set a clock.
            self._bounds = known if known[0] <= known[1] else (low, high)
            self._noted_at = received
            return self._bounds


class Pace:
    """The pace of one campaign, or without one of the messages of a lane, in one process; shared by its sender threads."""

    def __init__(self, lane: Lane, campaign_id: int | None = None) -> None:
        self._lane = lane
        self._campaign_id = campaign_id
        self._lock = threading.Lock()
        self._clock = Clock()
        self._limits: Limits | None = None
        self._read_at = 0.0

    def limits(self, connection: Connection) -> Limits:
        """The present limits, at most a second old: a changed one needs no restart."""
        with self._lock:
            if self._limits is None or time.monotonic() - self._read_at > _REFRESH:
                self._limits = read(connection, self._campaign_id)
                self._read_at = time.monotonic()
            return self._limits

    def take(
        self, connection: Connection, *, patience: float, lead: float = 0.0, recipients: int | None = None
    ) -> Slot | Refusal:
        """Reserve the next slot that lies `lead` to `patience` seconds ahead. What is reserved stays spent, whatever happens.

        `recipients`: how many the call will have; None: as many as a call may have. A slot is for no more than it says.
        """
        limits = self.limits(connection)
        size = limits.call_size if recipients is None else min(recipients, limits.call_size)
        blocked = (limits.blocked_for or 0.0) - (time.monotonic() - self._read_at)
        if blocked > 0:
            return Refusal(blocked, limits.blocked_reason)
        sequences, distances = [], []
        if limits.account is not None and limits.account < UNREACHABLE:
            sequences.append(_ACCOUNT)
            distances.append(distance(limits.account))
        if self._campaign_id is not None and limits.campaign is not None and limits.campaign != limits.account:
            sequences.append(f"mailpipe.pace_campaign_{self._campaign_id}")
            distances.append(distance(limits.campaign))
        if not sequences:
            return Slot(time.monotonic(), float("inf"), size)
        asked = time.monotonic()
        row = connection.execute(
            QUERIES["take"],
            {
                "sequences": sequences,
                "spacings": distances,
                "lead": lead,
                "patience": patience,
            },
        ).fetchone()
        received = time.monotonic()
        assert row is not None
        granted, slot, present, started = row
        low, high = self._clock.note(asked, received, started, present)
        if not granted:
            return Refusal(slot - present)
        # Never early by the upper bound, never more than LATENESS late by the lower one.
        lateness = slot + low + LATENESS - (slot + high)
        return Slot(slot + high, lateness, size) if lateness > 0 else Refusal(0.0)

    def block(self, connection: Connection, reason: str) -> None:
        """SES refused for `rate` or `quota`: everybody waits a while."""
        seconds = QUOTA_WAIT if reason == "quota" else THROTTLE_WAIT
        connection.execute(QUERIES["block"], {"seconds": seconds, "reason": reason})
        with self._lock:
            self._limits = None


@dataclass(frozen=True)
class State:
    """What the pace knows, for people. Rates in recipients per second, times in UTC."""

    ceiling: float | None
    account_rate: float | None
    daily_quota: float | None
    sent_last_day: float | None
    account_read_at: datetime | None
    blocked_until: datetime | None
    blocked_reason: str | None


def read(connection: Connection, campaign_id: int | None = None) -> Limits:
    """The limits that hold for a campaign (None: for the account)."""
    with connection.cursor(row_factory=class_row(Limits)) as cursor:
        found = cursor.execute(QUERIES["limits"], {"campaign_id": campaign_id}).fetchone()
    assert found is not None
    return found


def state(connection: Connection) -> State:
    with connection.cursor(row_factory=class_row(State)) as cursor:
        found = cursor.execute(QUERIES["state"]).fetchone()
    assert found is not None
    return found


def keep_account(connection: Connection, account: Account, *, ceiling: float | None) -> None:
    """Note what GetAccount said, and the ceiling of our own settings."""
    connection.execute(
        QUERIES["keep_account"],
        {"rate": account.rate, "daily_quota": account.daily_quota, "sent_last_day": account.sent_last_day},
    )
    connection.execute(QUERIES["set_ceiling"], {"ceiling": ceiling})
