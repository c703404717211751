"""What the pace knows at a moment: limits, the rolling day, who wants slots. Reads and writes the row `pace`; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from mailpipe.db import Connection
from mailpipe.db.queries import Queries
from mailpipe.lane import LaneName
from mailpipe.pace import rule
from mailpipe.pace.rule import Claim
from mailpipe.ses.answer import Block
from mailpipe.ses.client import Account
from mailpipe.settings import Settings

QUERIES = Queries(Path(__file__).with_name("pace.sql"))

THROTTLE_WAIT = 1.0
"""Seconds that everybody waits after SES has refused for the rate."""
QUOTA_WAIT = 60.0
"""Seconds until it is tried again after SES has refused for the daily quota, which frees little by little."""
EASE_CUT, EASE_LEAST, EASE_RAISE = 0.85, 0.1, 0.02
"""After SES has refused for the rate the pace is cut to this part, not below that, and grows by so much of the rate a second."""
CALL_CUT, CALL_RAISE = 0.5, 0.02
"""The same for calls per second, which grow by so many a second."""
_ONCE = 1.0
"""Seconds in which several refusals are one: the calls were on their way together."""


@dataclass(frozen=True, slots=True)
class Day:
    """The rolling 24 hours, in recipients. `quota`: None is unlimited or not known. `handed` and `marketing`: counted since the
    beginning; `used` and `used_by_marketing`: within the 24 hours, `used` by our own count or by SES's, whichever is larger."""

    quota: float | None
    marketing_share: float
    handed: int
    marketing: int
    used: float
    used_by_marketing: float

    def without(self, returned: int) -> Day:
        """The same after so many were given back, of whom the counters do not know yet."""
        return replace(
            self,
            handed=self.handed - returned,
            marketing=self.marketing - returned,
            used=self.used - returned,
            used_by_marketing=self.used_by_marketing - returned,
        )

    @property
    def left(self) -> float | None:
        """What may still be sent; None: no limit."""
        return None if self.quota is None else max(0.0, self.quota - self.used)

    @property
    def left_for_marketing(self) -> float | None:
        if self.quota is None or self.left is None:
            return None
        return min(self.left, max(0.0, self.quota * self.marketing_share - self.used_by_marketing))


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds at this moment, in recipients per second; None: no limit. `blocked_for`: seconds to wait for SES.

    `order_rate` is a person's order. `call_rate`: calls per second. `ease`: the part of the account's rate that SES lets through.
    `most`: recipients of a call. `read_at`: seconds since 1970, on the database's clock.
    """

    ceiling: float | None
    account_rate: float | None
    rate: float | None
    blocked_reason: str | None = None
    blocked_for: float | None = None
    account_age: float | None = None
    order_rate: float | None = None
    call_rate: float | None = None
    ease: float = 1.0
    reserve_share: float = 0.05
    most: int = rule.MAX_CALL
    provider_rates: Mapping[str, float] = field(default_factory=dict)
    transit: float = rule.TRANSIT
    day: Day = Day(None, 1.0, 0, 0, 0.0, 0.0)
    claims: tuple[Claim, ...] = ()
    read_at: float = 0.0

    @property
    def account(self) -> float | None:
        """The limit of all together: the smallest of the account's, our settings' and a person's order."""
        known = [limit for limit in (self.ceiling, self.account_rate, self.order_rate) if limit is not None]
        return min(known) if known else None

    @property
    def campaign(self) -> float | None:
        """The limit of this campaign: its own rate, where that is the smaller one."""
        known = [limit for limit in (self.account, self.rate) if limit is not None]
        return min(known) if known else None

    @property
    def split(self) -> rule.Split | None:
        """How the account's rate is given away now; None: no limit."""
        if self.account is None:
            return None
        alone = rule.split(self.account, most=self.most, calls=self.call_rate)
        return rule.split(
            self.account,
            reserve=self.reserve_share,
            held=rule.is_held(self.claims),
            mixed=rule.is_mixed(self.claims, alone.bulk.size),
            most=self.most,
            calls=self.call_rate,
        )

    @property
    def stretch(self) -> float:
        """By how much the gaps of the account's lines are longer than their rule says, or shorter where ways differ less."""
        return (rule.WINDOW + rule.LATENESS + self.transit) / rule.REACH / self.ease

    @property
    def call_size(self) -> int:
        """Recipients of one call. Never more than a slot of the account is charged for."""
        split = self.split
        size = rule.call_size(None, self.most) if split is None else split.bulk.size
        return size if self.rate is None else rule.campaign_line(self.rate, size).size

    def apart(self, most: int) -> Limits:
        """What holds for mails that do not leave through SES, in calls of at most `most` recipients: the campaign's own rate, and
        our ceiling for each such campaign alone. Nothing of the account's."""
        known = [limit for limit in (self.rate, self.ceiling, self.order_rate) if limit is not None]
        rate = min(known, default=None)
        return Limits(
            None, None, rate, account_age=self.account_age, most=rule.call_size(rate, most), read_at=self.read_at
        )

    @property
    def real_rate(self) -> float | None:
        """What a campaign reaches alone, which is a few per cent less than its limit; recipients per second."""
        if self.campaign is None:
            return None
        split = self.split
        found = [] if split is None else [split.bulk.real_rate / self.stretch * self.call_size / split.bulk.size]
        if self.rate is not None:
            found.append(rule.campaign_line(self.rate, self.call_size).real_rate)
        if self.call_rate is not None:
            found.append(self.call_rate * self.call_size / rule.REACH)
        return min(found)


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


def read(connection: Connection, campaign_id: int | None = None, *, apart: int | None = None) -> Limits:
    """The limits that hold for a campaign (None: for the account). `apart`: as `Limits.apart`; None: it leaves through SES."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(
            QUERIES["limits"],
            {
                "campaign_id": campaign_id,
                "raise": EASE_RAISE,
                "call_raise": CALL_RAISE,
                "hold": rule.HOLD,
                "longest": QUOTA_WAIT,
            },
        ).fetchone()
    assert found is not None
    calls = [limit for limit in (found.pop("call_ceiling"), found.pop("call_rate")) if limit is not None]
    quota, share = found.pop("daily_quota"), found.pop("marketing_share")
    seen_by_ses = (found.pop("sent_last_day") or 0.0) + found.pop("handed_since")
    claims = tuple(Claim(*claim) for claim in found.pop("claims"))
    day = Day(
        quota=None if quota is None or quota < 0 else quota,
        marketing_share=share,
        handed=found.pop("handed"),
        marketing=found.pop("marketing"),
        used=max(float(found.pop("handed_day")), seen_by_ses),
        used_by_marketing=float(found.pop("marketing_day")),
    )
    limits = Limits(**found, call_rate=min(calls, default=None), day=day, claims=claims)
    return limits if apart is None else limits.apart(apart)


def claim(connection: Connection, lane: LaneName, campaign_id: int | None) -> Limits:
    """Say that somebody wants slots, and read the limits that hold for them."""
    with connection.transaction():
        connection.execute(QUERIES["claim"], {"lane": lane, "campaign_id": campaign_id or 0, "served": rule.SERVED})
        return read(connection, campaign_id)


def block(connection: Connection, reason: Block, limits: Limits) -> None:
    """SES refused: everybody waits a while, and goes on more slowly unless it was for the daily quota."""
    if reason == "rate":
        connection.execute(QUERIES["ease"], {"least": EASE_LEAST, "raise": EASE_RAISE, "cut": EASE_CUT, "once": _ONCE})
    elif reason == "calls":
        split = limits.split
        known = [] if split is None else [split.bulk.calls]
        if limits.call_rate is not None:
            known.append(limits.call_rate)
        connection.execute(
            QUERIES["ease_calls"],
            {"calls": min(known, default=10.0), "call_raise": CALL_RAISE, "cut": CALL_CUT, "once": _ONCE},
        )
    connection.execute(QUERIES["count_refusal"], {"counter": f"mailpipe.pace_refused_{reason}"})
    quota = reason == "quota"
    connection.execute(
        QUERIES["block"],
        {
            "seconds": QUOTA_WAIT if quota else THROTTLE_WAIT,
            "reason": "quota" if quota else "rate",
            "longest": QUOTA_WAIT,
        },
    )


def refusals(connection: Connection) -> dict[str, int]:
    """How many calls SES has refused since the beginning, by what it was for."""
    return dict(connection.execute(QUERIES["refusals"], {"reasons": list(get_args(Block))}).fetchall())


def state(connection: Connection) -> State:
    with connection.cursor(row_factory=class_row(State)) as cursor:
        found = cursor.execute(QUERIES["state"]).fetchone()
    assert found is not None
    return found


def quota_frees(connection: Connection, day: Day) -> datetime | None:
    """When enough of the rolling day is over that marketing may go on; None: it may now.

    Where SES has counted more than we know of, nobody knows; then it is tried again every minute, and the answer is the next time.
    """
    if day.quota is None or day.left_for_marketing is None or day.left_for_marketing >= 1:
        return None
    row = connection.execute(
        QUERIES["quota_frees"],
        {
            "marketing": day.marketing - int(day.quota * day.marketing_share),
            "handed": day.handed - int(day.quota),
            "wait": QUOTA_WAIT,
        },
    ).fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def keep_account(connection: Connection, account: Account, config: Settings) -> None:
    """Note what GetAccount said, and what our settings allow."""
    configure(connection, config)
    connection.execute(
        QUERIES["keep_account"],
        {"rate": account.rate, "daily_quota": account.daily_quota, "sent_last_day": account.sent_last_day},
    )


def configure(connection: Connection, config: Settings) -> None:
    """Note what our settings allow."""
    connection.execute(
        QUERIES["configure"],
        {
            "ceiling": config.rate,
            "call_ceiling": config.call_rate,
            "marketing_share": config.marketing_share,
            "reserve_share": config.reserve_share,
            "most": 1 if config.ses_operation == "single" else rule.MAX_CALL,
            "transit": config.transit,
            "provider_rates": Jsonb(dict(config.provider_rates)),
        },
    )


def order_rate(connection: Connection, rate: float | None) -> None:
    """Limit everything to so many recipients per second from now on; None takes the order back."""
    connection.execute(QUERIES["order_rate"], {"rate": rate})
