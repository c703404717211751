"""The arithmetic of the pace: how a limit becomes slots, how lanes and campaigns share it. Pure; the state is in the database.

A line gives away slots one after the other, each at least `gap` after the one before. W is one second, the window of SES. J is how
much later than its slot a call may leave; one that would leave later gives its slot up. T is by how much the ways of two calls to
SES may differ, because SES counts what arrives. Calls that arrive within W come from slots within R = W + J + T.

- A line of whole calls (`Line.unit` false): slots are R / F apart, where F calls of `size` fit into the limit. R holds at most F
  slots, whatever each of them is used for: F x size recipients. A call of one person costs as much as a full one.
- A line by recipients (`unit` true): k x R / (N - size + 1) pass before a call of k recipients. The calls of R without their
  first have at most N - size recipients, and the first at most `size`: N. So small calls cost what they use, and all of them
  together lose `size - 1` recipients a second.

Slots of different sizes in one line could add up to more than either allows; `take_slot` keeps them a whole R apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mailpipe.lane import LaneName

TRANSACTIONAL: frozenset[LaneName] = frozenset({"critical", "high"})
WEIGHTS: Mapping[LaneName, int] = {"normal": 4, "low": 1}
"""How the bulk lanes share when both have work: `normal` goes first, and `low` still moves."""
AHEAD: Mapping[LaneName, float] = {"critical": 0.6, "high": 0.45, "normal": 0.25, "low": 0.25}
"""Seconds ahead that a slot may be booked. Who books further ahead goes first; and a changed limit holds when this has passed."""
AHEAD_OF_NOBODY = 0.13
"""The same for bulk while transactional lanes are served: they wait behind what bulk has booked. Calls are opened 60 to 90 ms
before their slots; less than that ahead wastes some of them."""
MOST_AHEAD = 1.0
"""Seconds ahead that a slot lies at the most, whatever lead a caller needs."""

WINDOW = 1.0
"""Seconds over which SES counts its rate."""
LATENESS = 0.025
"""Seconds that a call may leave after its slot. Smaller wastes slots on a busy machine, larger wastes quota on every one: with
15 ms sixteen processes on two cores missed up to a slot in fifteen, beside eight other loads."""
TRANSIT = 0.015
"""Seconds by which one call's way to SES may be longer than another's: a new connection, the network, SES's own queue. Ways to the
stand-in on one busy machine (load 5 to 7 on two cores) differed by 7 ms for 99 of 100 calls, and by 20 for the slowest of 1,500. A
call that leaves in time may take LATENESS longer too."""
MOST_TRANSIT = 0.1
REACH = WINDOW + LATENESS + TRANSIT
LONGEST_REACH = WINDOW + LATENESS + MOST_TRANSIT
_MARGIN = 1.001
"""So that no window can catch a slot at both of its ends, nor a clock that is slewed (500 ppm) make a second shorter."""
MAX_CALL = 50
"""Destinations of one SendBulkEmail request (SES quotas)."""
ONE_LINE = 20
"""Recipients per second below which transactional lanes have no reserve: all share one line, in calls of one recipient."""
_OFTEN = 30
"""Whole calls a second with which bulk leaves enough slots to borrowers while transactional lanes are served: a borrowed one costs
at most a thirtieth of the rate. With fewer, bulk goes by recipients: 15 codes a second would cost a campaign a tenth of 570/s."""
FINE = 40
"""Calls a second of a line by recipients: it costs a fortieth of the rate."""
_PARTS = 8
"""A call has at most this part of a provider's second: the line by recipients then loses no more of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """How one line gives slots away: calls of at most `size` recipients, `rate` recipients in any second."""

    size: int
    rate: float
    unit: bool = False

    @property
    def calls(self) -> float:
        """Full calls a window; less than one where a call is more than a second's worth."""
        if self.unit:
            return self._by_recipients / self.size
        return math.floor(self.rate / self.size) or self.rate / self.size

    def gap(self, recipients: int) -> float:
        """Seconds before a call of so many recipients."""
        if self.unit:
            return REACH * recipients / self._by_recipients
        return REACH / self.calls

    @property
    def _by_recipients(self) -> int:
        return math.floor(self.rate) - self.size + 1

    @property
    def real_rate(self) -> float:
        """Recipients per second that full calls reach in the long run, without lateness."""
        return self.size / (self.gap(self.size) * _MARGIN)

    @property
    def tag(self) -> int:
        """What slots that may follow each other have in common, 0..127."""
        return self.size + 64 * self.unit


@dataclass(frozen=True, slots=True)
class Split:
    """An account's rate: the line of bulk, and beside it the reserve of the transactional lanes, if there is one."""

    bulk: Line
    reserve: Line | None = None


def microseconds(gap: float) -> int:
    """A gap as slots are given away: rounded up, with the margin."""
    return int(gap * _MARGIN * 1e6) + 1


def call_size(rate: float | None, most: int | None = None) -> int:
    """Recipients of one call: as many as SES takes, never more than a second's worth, and dividing the rate well.

    570/s is 12 calls of 47, not 11 of 50: 564 of 570 can be used instead of 550.
    """
    most = MAX_CALL if most is None else min(most, MAX_CALL)
    if rate is None:
        return most
    if rate < 1:
        return 1
    return int(rate // -(-rate // most)) or 1


# Asked for with each slot, and the same until the limits are read again.
@lru_cache(maxsize=256)
def split(
    rate: float,
    *,
    reserve: float = 0.0,
    held: bool = False,
    mixed: bool = False,
    most: int | None = None,
    calls: float | None = None,
) -> Split:
    """How an account's `rate` (recipients per second) is given away.

    `held`: transactional lanes are served, `reserve` is their share (0..1) of the rate. `mixed`: small campaigns are beside others.
    Either lets bulk go by recipients, in small calls, unless there are many whole ones anyway.
    `most`: recipients of a call. `calls`: calls per second; calls are as large as that asks for.
    """
    most = MAX_CALL if most is None else min(most, MAX_CALL)
    own = max(1, math.floor(rate * reserve)) if held and reserve > 0 and rate >= ONE_LINE else 0
    left = rate - own
    single = held and rate < ONE_LINE
    fine = not single and (mixed or (held and left < most * _OFTEN))
    if single:
        size = 1
    elif fine:
        size = math.ceil(left / FINE)
    else:
        size = most
    least = 1 if calls is None else math.ceil(left / calls)
    if not fine and size * 2 > min(most, left):
        size = call_size(left, most)
    size = max(1, min(max(size, least), most, math.floor(left)))
    bulk = Line(size, left, fine and size > 1)
    if not own:
        return Split(bulk)
    # What whole calls do not use is left to the reserve.
    own = math.floor(rate - (left if bulk.unit else size * bulk.calls))
    return Split(bulk, Line(max(1, min(own // 4, most)), own, unit=True))


def campaign_line(rate: float, size: int) -> Line:
    """A campaign's own limit, in calls that the account's line can carry."""
    return Line(min(call_size(rate), size), rate)


def provider_line(rate: float) -> Line:
    """The limit of one mailbox provider: by recipients, because a call has people of several providers."""
    size = max(1, min(MAX_CALL, math.floor(rate / _PARTS)))
    return Line(size, rate, unit=size > 1)


def of_one_provider(provider: Line, bulk: Line) -> int:
    """People of a provider whom a call may have so that bulk does not wait for them, if there are others to fill it."""
    return max(1, min(provider.size, math.floor(bulk.gap(bulk.size) / provider.gap(1))))


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants slots: a campaign, or the messages of a lane (`campaign_id` 0). `rate`: the campaign's own, recipients per second.
    `since` and `wanted`: for how many seconds without a gap, and how many seconds ago the last time."""

    lane: LaneName
    campaign_id: int
    rate: float | None
    since: float
    wanted: float


VALID = 0.75
"""Seconds after which nothing is decided any more by limits as they were read."""
ACTIVE = 3.0
"""Seconds for which whoever wanted a slot is counted when slots are shared."""
SERVED = 5.0
"""Seconds for which a transactional lane may use the reserve after it was last heard of ..."""
HOLD = 8.0
"""... and for which bulk leaves it alone: longer by VALID, MOST_AHEAD and one window, so that no slot of the one can leave within a
second of a slot that the other took from the same recipients."""
SETTLE = 3.0
"""Seconds from the first word of a transactional lane to its first use of the reserve: bulk has let go of it by then, and what
bulk had booked before is more than a window ago. Again VALID, MOST_AHEAD and one window."""


def is_held(claims: tuple[Claim, ...]) -> bool:
    """Whether bulk leaves the reserve alone."""
    return any(claim.lane in TRANSACTIONAL and claim.wanted < HOLD for claim in claims)


def ahead(lane: LaneName, claims: tuple[Claim, ...]) -> float:
    """Seconds ahead that this lane may book."""
    return AHEAD_OF_NOBODY if lane in WEIGHTS and is_held(claims) else AHEAD[lane]


def is_usable(claims: tuple[Claim, ...]) -> bool:
    """Whether transactional lanes may use the reserve."""
    return any(claim.lane in TRANSACTIONAL and claim.since >= SETTLE and claim.wanted < SERVED for claim in claims)


def is_mixed(claims: tuple[Claim, ...], size: int) -> bool:
    """Whether a campaign whose calls are less than half as large as the others' is beside others."""
    bulk = [claim for claim in claims if claim.lane not in TRANSACTIONAL and claim.wanted < ACTIVE]
    return len(bulk) > 1 and any(claim.rate is not None and call_size(claim.rate) * 2 <= size for claim in bulk)


def shares(claims: tuple[Claim, ...], line: Line) -> dict[tuple[LaneName, int], float]:
    """What of a line each bulk claim gets, by weight: a part of 1. What a campaign with a rate of its own cannot use goes to the
    others."""
    capacity = line.rate if line.unit else line.size * line.calls
    open_ = {
        (claim.lane, claim.campaign_id): (WEIGHTS[claim.lane], _need(claim.rate, line) / capacity)
        for claim in claims
        if claim.lane in WEIGHTS and claim.wanted < ACTIVE
    }
    found: dict[tuple[LaneName, int], float] = {}
    left = 1.0
    while open_:
        level = left / sum(weight for weight, _ in open_.values())
        full = {key: need for key, (weight, need) in open_.items() if need <= weight * level}
        if not full:
            return found | {key: weight * level for key, (weight, _) in open_.items()}
        for key, need in full.items():
            found[key] = need
            left -= need
            del open_[key]
    return found


def _need(rate: float | None, line: Line) -> float:
    """Recipients per second that a campaign's own rate costs the line: in whole calls also a small one costs a full one."""
    if rate is None:
        return math.inf
    return rate if line.unit else campaign_line(rate, line.size).calls * line.size


def share_gap(line: Line, share: float, recipients: int) -> float:
    """Seconds that pass on average between two calls of someone with this share of a line."""
    return line.gap(recipients) / share if share > 0 else 0.0
