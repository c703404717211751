"""The arithmetic before a campaign: how long it takes, which limit binds, and whether it can be met. Pure but for `of`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mailpipe import adapters, campaign, ledger, pace, snapshot
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.waves import usual

CALL_SECONDS = 0.5
"""A cautious length of one call, for the number of threads; SES usually answers within 0.1 to 0.3 s."""
MIN_THREADS, MAX_THREADS = 2, 256
UNLIMITED_THREADS = 30
MAX_SENDERS = 64
"""Each has a connection to the database, while it works a chunk. Somebody who sets the number of threads has as many senders."""
TOGETHER, TOGETHER_ALONE = 5, 20
"""Calls of a sender that are opened by one commit, and such with one recipient each, where they follow each other closely ..."""
CLOSELY = 20.0
"""... which is from so many calls a second on: then a commit for each is half of the database's work. Below, each has its own."""
_WINDOW_SECONDS = 0.25
"""For which a thread of a window waits for its own slot and for the answers to the others, beside its call."""


def threads(limits: pace.Limits) -> int:
    """Threads that keep the pace of a campaign busy while each call takes CALL_SECONDS: so many calls are under way at once."""
    if limits.campaign is None:
        return UNLIMITED_THREADS
    # Beside transactional lanes calls may become smaller at any moment.
    calls = max(limits.campaign / limits.call_size, min(limits.campaign, pace.rule.FINE))
    seconds = CALL_SECONDS + (_WINDOW_SECONDS if _follow_closely(limits) else 0)
    return min(MAX_THREADS, max(MIN_THREADS, math.ceil(calls * seconds) + 2))


def together(limits: pace.Limits, threads: int) -> int:
    """How many calls a sender has under way; of some threads no more than that there are three senders."""
    if not _follow_closely(limits):
        return 1
    return min(TOGETHER if limits.call_size > 1 else TOGETHER_ALONE, max(1, threads // 3))


def _follow_closely(limits: pace.Limits) -> bool:
    return limits.campaign is None or limits.campaign / limits.call_size >= CLOSELY


@dataclass(frozen=True)
class Plan:
    """Rates in recipients per second, times in seconds. `sent_last_day`: by SES's count or ours, where there is a quota. `binding`
    names the limit that decides; `problems` what cannot be met."""

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
    *,
    on_one_day: int | None = None,
) -> Plan:
    """Hold what is wanted against what the limits allow. `on_one_day`: the most recipients of 24 hours, where not all are."""
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
    wanted = recipients if on_one_day is None else on_one_day
    if left is not None and left_for_marketing is not None and wanted > left_for_marketing:
        share = left_for_marketing < left
        binding = "share of marketing in the SES daily quota" if share else "SES daily quota"
        problems.append(
            f"{wanted} recipients, but campaigns may send only {left_for_marketing:.0f} more within 24 hours"
            f" ({day.marketing_share:.0%} of the quota of {day.quota:.0f}: MAILPIPE_MARKETING_SHARE)"
            if share
            else f"{wanted} recipients, but the SES account may send only {left:.0f} more within 24 hours"
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
        # Without a quota nobody counts.
        sent_last_day=None if day.quota is None else day.used,
        threads=threads(limits),
        binding=binding,
        problems=tuple(problems),
    )


def of(connection: Connection, key: str, *, usual_factor: float | None = None) -> Plan:
    """The plan of a campaign that has its snapshot. `usual_factor`: so many times more than usual its domain may send on a day;
    None: as much as it wants.

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
    limits = pace.read(connection, found.campaign_id, apart=adapters.MOST.get(found.spec.adapter))
    stages = taken.timing.get("waves", {}).get("stages", [])
    made = make(
        key,
        taken.recipients,
        counts.chunks,
        limits,
        found.spec.finish_within,
        on_one_day=max((one["people"] for one in stages), default=0) if found.spec.warmup else None,
    )
    further = [*_too_slow(found, stages, limits)]
    if usual_factor is not None and (jump := usual.problem(connection, found, taken, usual_factor)):
        further.append(jump)
    return replace(made, problems=(*made.problems, *further))


def _too_slow(found: campaign.Campaign, stages: Sequence[Mapping[str, Any]], limits: pace.Limits) -> Iterator[str]:
    """Waves that take longer than their `within` or `spread`."""
    rate = limits.real_rate
    if found.spec.waves is None or found.spec.warmup is not None or not rate:
        return
    for one in stages:
        wave = found.spec.waves[int(one["label"].partition(":")[2]) - 1]
        if one["people"] / rate > wave.length:
            yield (
                f"{one['label']}: {one['people']:,} people at {limits.campaign:g}/s take {_minutes(one['people'] / rate)}, longer"
                f" than its {_minutes(wave.length)}"
            )


def check(
    connection: Connection, key: str, *, accept: bool, usual_factor: float | None = None, actor: str | None = None
) -> Plan | None:
    """The plan of a campaign before it is approved or started: one that cannot be met is refused unless somebody accepts it, which
    is kept in its history with the `actor`.

    None while the campaign has no snapshot, and once it has been started: then nothing is decided by it any more.

    Raises:
        CampaignError: what cannot be met, one problem a line.
    """
    found = campaign.get(connection, key)
    if found.state not in ("draft", "approved") or snapshot.get(connection, found.campaign_id) is None:
        return None
    made = of(connection, key, usual_factor=usual_factor)
    if made.problems and accept and actor is not None:
        campaign.note(
            connection,
            found.campaign_id,
            actor=actor,
            action="accept plan",
            detail={"reason": "; ".join(made.problems)},
        )
    if made.problems and not accept:
        raise CampaignError(
            "\n".join([f"campaign {key!r} cannot be sent as wanted:", *made.problems])
            + "\nchange rate, finish_within or audience, or accept the plan as it is (--accept-plan)"
        )
    return made


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"
