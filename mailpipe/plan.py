"""The arithmetic before a campaign: how long it takes, which limit binds, and whether it can be met. Pure but for `of`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mailpipe import adapters, campaign, ledger, pace, snapshot
from mailpipe.db import Connection
from mailpipe.errors import CampaignError

CALL_SECONDS = 0.5
"""A cautious length of one call, for the number of threads; SES usually answers within 0.1 to 0.3 s."""
MIN_THREADS, MAX_THREADS = 2, 64
UNLIMITED_THREADS = 16


def threads(limits: pace.Limits) -> int:
    """Sender threads that keep the pace of a campaign busy while each call takes CALL_SECONDS."""
    if limits.campaign is None:
        return UNLIMITED_THREADS
    calls = limits.campaign / limits.call_size
    return min(MAX_THREADS, max(MIN_THREADS, math.ceil(calls * CALL_SECONDS) + 2))


@dataclass(frozen=True)
class Plan:
    """Rates in recipients per second, times in seconds. `sent_last_day`: by SES's count or ours. `binding` names the limit that
    decides; `problems` what cannot be met."""

    campaign: str
    recipients: int
    chunks: int
    call_size: int
    calls: int
    calls_per_second: float | None
    rate: float | None
    seconds: float | None
    finish_within: float | None
    required_rate: float | None
    daily_quota: float | None
    sent_last_day: float | None
    threads: int
    binding: str
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "problems": list(self.problems)}


def make(
    key: str,
    recipients: int,
    chunks: int,
    limits: pace.Limits,
    finish_within: float | None,
) -> Plan:
    """Hold what is wanted against what the limits allow."""
    rate = limits.campaign
    candidates = {
        "campaign rate": limits.rate,
        "MAILPIPE_RATE": limits.ceiling,
        "order of `mailpipe pace`": limits.order_rate,
        "SES account rate": limits.account_rate,
    }
    binding = next((name for name, value in candidates.items() if value is not None and value == rate), "none")
    # What the spacing of slots really lets through, which is a few per cent less than the rate.
    real = limits.real_rate
    seconds = None if real is None or not recipients else recipients / real
    required = None if not finish_within else recipients / finish_within
    problems = []
    if seconds is not None and finish_within and seconds > finish_within:
        problems.append(
            f"{recipients} recipients at {rate:g}/s take {_minutes(seconds)}, longer than finish_within"
            f" ({_minutes(finish_within)}); it needs {required:.0f}/s. The limit is the {binding}"
        )
    day = limits.day
    left, left_for_marketing = day.left, day.left_for_marketing
    if left is not None and left_for_marketing is not None and recipients > left_for_marketing:
        share = left_for_marketing < left
        binding = "share of marketing in the SES daily quota" if share else "SES daily quota"
        problems.append(
            f"{recipients} recipients, but campaigns may send only {left_for_marketing:.0f} more within 24 hours"
            f" ({day.marketing_share:.0%} of the quota of {day.quota:.0f}: MAILPIPE_MARKETING_SHARE)"
            if share
            else f"{recipients} recipients, but the SES account may send only {left:.0f} more within 24 hours"
            f" (quota {day.quota:.0f})"
        )
    return Plan(
        campaign=key,
        recipients=recipients,
        chunks=chunks,
        call_size=limits.call_size,
        # A call never holds people of two chunks, and due times make small ones.
        calls=max(chunks, math.ceil(recipients / limits.call_size)) if recipients else 0,
        calls_per_second=None if real is None else real / limits.call_size,
        rate=rate,
        seconds=seconds,
        finish_within=finish_within,
        required_rate=required,
        daily_quota=day.quota,
        sent_last_day=day.used,
        threads=threads(limits),
        binding=binding,
        problems=tuple(problems),
    )


def of(connection: Connection, key: str) -> Plan:
    """The plan of a campaign that has its snapshot.

    Raises:
        CampaignError: it has none yet.
    """
    found = campaign.get(connection, key)
    taken = snapshot.get(connection, found.campaign_id)
    if taken is None:
        raise CampaignError(
            f"campaign {key!r} has no snapshot yet, so nobody knows how many it will mail; take it first"
        )
    counts = ledger.counts(connection, found.campaign_id)
    return make(
        key,
        taken.recipients,
        counts.chunks,
        pace.read(connection, found.campaign_id, apart=adapters.MOST.get(found.spec.adapter)),
        found.spec.finish_within,
    )


def check(connection: Connection, key: str, *, accept: bool) -> Plan | None:
    """The plan of a campaign before it is approved or started: one that cannot be met is refused unless somebody accepts it.

    None while the campaign has no snapshot, and once it has been started: then nothing is decided by it any more.

    Raises:
        CampaignError: what cannot be met, one problem a line.
    """
    found = campaign.get(connection, key)
    if found.state not in ("draft", "approved") or snapshot.get(connection, found.campaign_id) is None:
        return None
    made = of(connection, key)
    if made.problems and not accept:
        raise CampaignError(
            "\n".join([f"campaign {key!r} cannot be sent as wanted:", *made.problems])
            + "\nchange rate, finish_within or audience, or accept the plan as it is (--accept-plan)"
        )
    return made


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"
