"""Slots: the right to make one call at one time, given away by the database to all processes together.

What is asked for is decided here from limits that are read twice a second (`requests`, pure); the database decides by its own state
and clock in one statement (`take_slot`). Slots are booked a fraction of a second ahead, so that a changed limit holds soon; who was
refused is told when to ask again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mailpipe.db import Connection
from mailpipe.lane import LaneName
from mailpipe.pace import rule
from mailpipe.pace.limits import QUERIES, QUOTA_WAIT, Limits, block, claim, read
from mailpipe.pace.rule import LATENESS
from mailpipe.ses.answer import Block

UNREACHABLE = 1_000_000.0
"""Recipients per second from which on an account's limit is none: nobody gets there, and slots would only cost time."""
_REFRESH = 0.5
_NEAR = 0.06
"""Seconds that the line is booked ahead by whoever comes, also beyond their share: one who comes late must not leave it idle."""
_HOLE = 0.03
"""Seconds of the account's line that a campaign with a rate of its own may leave unused while others want slots."""
_PROMPT = 0.15
"""A slot of the reserve within this is not worth looking for one of bulk, which costs the campaigns a whole call. With 0.03, codes
that come at half the reserve's rate would borrow a fifth of their slots, by the arithmetic of queues; so it is one in a hundred."""
_PROMPT_BESIDE_FINE = 0.03
"""The same where a slot of bulk costs only what it is used for."""
_ALL = 1e6


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


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of `take_slot`: a slot that all `lines` allow, with the gaps for `size` recipients. Seconds and recipients."""

    size: int
    lines: tuple[str, ...]
    gaps: tuple[float, ...]
    tags: tuple[int, ...]
    share: str | None = None
    share_gap: float = 0.0
    """What the one who asks may take while others want slots too."""
    hole: float = _ALL
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.lines and not self.counters


def requests(
    limits: Limits, lane: LaneName, campaign_id: int | None, recipients: int | None, *, roomy: bool = False
) -> list[Request]:
    """What one who wants slots asks for, best first: transactional lanes their reserve and then a slot of bulk. `roomy`: a slot of
    whole calls is wanted for as many as it can take, because it costs as much for one as for all of them."""
    split = limits.split
    if split is None or limits.account is None or limits.account >= UNREACHABLE:
        line, reserve = None, None
    else:
        line, reserve = split.bulk, split.reserve
    wanted = limits.call_size if recipients is None else min(recipients, limits.call_size)
    transactional = lane in rule.TRANSACTIONAL
    counters, left = _counters(limits, transactional)
    wanted = max(1, min(wanted, left)) if left is not None else wanted
    found = []
    if transactional and reserve is not None and rule.is_usable(limits.claims):
        size = min(wanted, reserve.size)
        found.append(
            Request(
                size,
                ("mailpipe.pace_reserve",),
                (reserve.gap(size) * limits.stretch,),
                (reserve.tag,),
                counters=counters,
            )
        )
    if roomy and line is not None and not line.unit:
        wanted = max(1, limits.call_size if left is None else min(limits.call_size, left))
    request = Request(wanted, (), (), (), counters=counters)
    if line is not None:
        request = _and(request, "mailpipe.pace_account", line.gap(wanted) * limits.stretch, line.tag)
        if not transactional:
            request = _with_share(request, limits, line, lane, campaign_id or 0)
    elif limits.rate is not None and campaign_id is not None:
        own = rule.campaign_line(limits.rate, wanted)
        request = _and(request, f"mailpipe.pace_campaign_{campaign_id}", own.gap(own.size), own.tag)
    found.append(request)
    if limits.call_rate is None or line is None:
        return found
    between = rule.REACH / limits.call_rate
    return [_and(one, "mailpipe.pace_calls", between, 0) for one in found]


def fit(limits: Limits, families: Sequence[str]) -> list[int]:
    """Which of those who wait, told by their providers, go into the next call: in their order, but of a provider with a limit of
    its own no more than bulk need not wait for; all that it may take where nobody else is left."""
    split = limits.split
    lines = {family: rule.provider_line(rate) for family, rate in limits.provider_rates.items()}
    if split is None or lines.keys().isdisjoint(families):
        return list(range(min(len(families), limits.call_size)))
    alone = lines.keys() >= set(families)
    most = {name: line.size if alone else rule.of_one_provider(line, split.bulk) for name, line in lines.items()}
    chosen: list[int] = []
    for position, family in enumerate(families):
        if len(chosen) == limits.call_size:
            break
        if most.get(family, 1) > 0:
            chosen.append(position)
            if family in most:
                most[family] -= 1
    return chosen


def with_providers(request: Request, limits: Limits, families: Mapping[str, int]) -> Request | None:
    """The request for a call with so many people of each provider; None: more than a call may have by now."""
    for family, people in families.items():
        if family in limits.provider_rates:
            line = rule.provider_line(limits.provider_rates[family])
            if people > line.size:
                return None
            request = _and(request, f"mailpipe.pace_provider_{family}", line.gap(people), line.tag)
    return request


def _with_share(request: Request, limits: Limits, line: rule.Line, lane: LaneName, campaign_id: int) -> Request:
    """The own limit of the one who asks, and what it may take while others want slots too."""
    if limits.rate is not None and campaign_id:
        own = rule.campaign_line(limits.rate, line.size)
        request = _and(request, f"mailpipe.pace_campaign_{campaign_id}", own.gap(own.size), own.tag)
    shares = rule.shares(limits.claims, line)
    if len(shares) < 2:
        return request
    share = shares.get((lane, campaign_id), 1.0)
    gap = rule.share_gap(line, share, request.size) * limits.stretch
    return replace(request, share=f"mailpipe.pace_share_{campaign_id or lane}", share_gap=gap, hole=_HOLE)


def _and(request: Request, line: str, gap: float, tag: int) -> Request:
    return replace(request, lines=(*request.lines, line), gaps=(*request.gaps, gap), tags=(*request.tags, tag))


def _counters(limits: Limits, transactional: bool) -> tuple[dict[str, int], int | None]:
    """How far the counters of the day may go, and how many recipients that are from here."""
    day = limits.day
    left, left_for_marketing = day.left, day.left_for_marketing
    if left is None or left_for_marketing is None:
        return {}, None
    # A share of the quota that comes to whole recipients shall not lose one to the arithmetic.
    whole, marketing = int(left + 1e-6), int(left_for_marketing + 1e-6)
    most = {"mailpipe.pace_handed": day.handed + whole}
    if transactional:
        return most, whole
    return {**most, "mailpipe.pace_marketing": day.marketing + marketing}, marketing


class Pace:
    """The pace of one campaign, or without one of the messages of a lane, in one process; shared by its threads."""

    def __init__(self, lane: LaneName, campaign_id: int | None = None, *, apart: int | None = None) -> None:
        """`apart`: the most recipients of a call that does not leave through SES, and takes nothing from what does; else None."""
        self._lane = lane
        self._apart = apart
        self._campaign_id = campaign_id
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._clock = Clock()
        self._limits: Limits | None = None
        self._read_at = 0.0
        self._refused_until = 0.0
        self._returned = 0

    def limits(self, connection: Connection) -> Limits:
        """The present limits, at most half a second old: a changed one needs no restart. Says that this lane wants slots."""
        with self._lock:
            if self._limits is None or time.monotonic() - self._read_at > _REFRESH:
                # Before the question, so that they are rather thought older than they are.
                self._read_at = time.monotonic()
                if self._apart is None:
                    self._limits = claim(connection, self._lane, self._campaign_id)
                else:
                    self._limits = read(connection, self._campaign_id, apart=self._apart)
            return self._limits

    def fit(self, connection: Connection, families: Callable[[], Sequence[str]]) -> list[int] | None:
        """See `fit`; None where no provider has a limit of its own, and nobody needs to be asked for."""
        limits = self.limits(connection)
        return fit(limits, families()) if limits.provider_rates else None

    def keep(self, connection: Connection) -> None:
        """Keep the reserve of a transactional lane that has nothing to send; once a second. Other lanes have nothing to keep."""
        if self._lane in rule.TRANSACTIONAL:
            self.limits(connection)

    def take(
        self,
        connection: Connection,
        *,
        patience: float,
        lead: float = 0.0,
        recipients: int | None = None,
        families: Mapping[str, int] | None = None,
        roomy: bool = False,
    ) -> Slot | Refusal:
        """Book the next slot that lies `lead` to `patience` seconds ahead. What is booked stays spent, whatever happens.

        No slot is booked further ahead than the lane allows (`rule.AHEAD`): a refusal then says when to come again. `recipients`:
        how many the call will have; None: as many as a call may have. A slot is for no more than it says. `families`: how many of
        them are of each provider. `roomy`: the slot may be for more, where that costs nothing; who comes later can join. The
        connection must be in no transaction: one that commits later would keep the limiter to itself until then.
        """
        limits = self.limits(connection)
        blocked = (limits.blocked_for or 0.0) - (time.monotonic() - self._read_at)
        if blocked > 0:
            return Refusal(blocked, limits.blocked_reason)
        with self._lock:
            if self._returned:
                # Else nobody would ask any more once all of the day was booked, and what was given back of it stayed lost.
                limits = replace(limits, day=limits.day.without(self._returned))
        left = limits.day.left if self._lane in rule.TRANSACTIONAL else limits.day.left_for_marketing
        if left is not None and left < 1:
            return Refusal(QUOTA_WAIT, "quota")
        lead = min(lead, rule.MOST_AHEAD / 2)
        # One thread of a process asks at a time, and the others share its refusal: else all of them ask for the same slot.
        with self._asking:
            ahead = rule.ahead(self._lane, limits.claims)
            patient = patience >= ahead
            rest = self._refused_until - time.monotonic()
            if patient and rest > 0:
                return Refusal(rest)
            patience = min(patience, max(ahead, lead + 0.1))
            wanted = requests(limits, self._lane, self._campaign_id, recipients, roomy=roomy)
            if families:
                capped = [with_providers(request, limits, families) for request in wanted]
                wanted = [request for request in capped if request is not None]
                if len(wanted) < len(capped):
                    return Refusal(0.0)
            found = self._take(connection, limits, wanted, lead, patience)
            if patient and isinstance(found, Refusal):
                self._refused_until = time.monotonic() + found.wait
            return found

    def give_back(self, recipients: int) -> None:
        """So many of a slot were not handed over: they do not count for the day. The slot stays spent."""
        with self._lock:
            self._returned += recipients

    def block(self, connection: Connection, reason: Block) -> None:
        """SES refused for `rate`, `calls` or `quota`: everybody waits a while."""
        block(connection, reason, self.limits(connection))
        with self._lock:
            self._limits = None

    def _take(
        self, connection: Connection, limits: Limits, wanted: Sequence[Request], lead: float, patience: float
    ) -> Slot | Refusal:
        """The slot that was asked for; where there are two to choose from, the first if it is prompt, else the sooner."""

        def ask(request: Request, within: float) -> Slot | Refusal:
            return self._ask(connection, limits, request, lead, within)

        if len(wanted) == 1:
            return ask(wanted[0], patience)
        fine = limits.split is not None and limits.split.bulk.unit
        prompt = min(patience, lead + (_PROMPT_BESIDE_FINE if fine else _PROMPT))
        first = ask(wanted[0], prompt)
        if isinstance(first, Slot):
            return first
        at = first.wait + prompt
        second = ask(wanted[1], min(patience, max(at, lead)))
        if isinstance(second, Slot) or at > patience:
            return second
        return ask(wanted[0], patience)

    def _ask(
        self, connection: Connection, limits: Limits, request: Request, lead: float, patience: float
    ) -> Slot | Refusal:
        if request.is_empty:
            return Slot(time.monotonic(), float("inf"), request.size)
        with self._lock:
            returned, self._returned = self._returned if request.counters else 0, 0
        asked = time.monotonic()
        row = connection.execute(
            QUERIES["take"],
            {
                "lines": list(request.lines),
                "gaps": [rule.microseconds(gap) if gap else 0 for gap in request.gaps],
                "tags": list(request.tags),
                "apart": rule.microseconds(rule.LONGEST_REACH),
                "share": request.share,
                "share_gap": rule.microseconds(request.share_gap),
                "near": _NEAR,
                "hole": request.hole,
                "counters": list(request.counters),
                "most": list(request.counters.values()),
                "recipients": request.size,
                "returned": returned,
                "valid_until": limits.read_at + rule.VALID,
                "lead": lead,
                "patience": patience,
            },
        ).fetchone()
        received = time.monotonic()
        assert row is not None
        granted, slot, again, present, stale, spent, started = row
        low, high = self._clock.note(asked, received, started, present)
        if not granted:
            with self._lock:
                self._returned += returned
                if stale or spent:
                    # Decided anew, for as many as are left.
                    self._limits = None
            return Refusal(0.0) if stale or spent else Refusal(max(0.0, again - present))
        # Never early by the upper bound, never more than LATENESS late by the lower one.
        lateness = slot + low + LATENESS - (slot + high)
        if lateness > 0:
            return Slot(slot + high, lateness, request.size)
        if request.counters:
            self.give_back(request.size)
        return Refusal(0.0)
