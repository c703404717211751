"""An experiment to look at: before the launch what its arms can show, later what came back and what was decided. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from math import sqrt
from typing import Any

from psycopg.rows import class_row

from mailpipe import campaign, hold, orders, snapshot
from mailpipe.campaign_file import Spec
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.experiment import counts, decision, power, rule
from mailpipe.experiment.decision import Decision
from mailpipe.experiment.rule import Arm, Verdict
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

USUAL = {"clicks": 0.02, "orders": 0.005}
"""Rates by which arms are judged before anybody has counted."""
EFFECT_DAYS = 14
_SURE = 1.96


@dataclass(frozen=True)
class Shown:
    """One arm as of now, late clicks included. `lift` is against the control, relative, with a 95 % interval; None: there
    is nothing to compare. `chance` is that of being the best."""

    variant: str
    assigned: int
    delivered: int
    successes: int
    complaints: int
    rate: float
    chance: float
    lift: float | None
    lift_low: float | None
    lift_high: float | None


@dataclass(frozen=True)
class Look:
    """An experiment as of now. `decide_at` is fixed once the test is out, and planned before; `waiting` are people of the
    rest who are held, `ratio_p` is the probability of arms as unequal as these by accident, `held_out` counts the people
    who get no mail."""

    campaign: str
    state: str
    metric: str
    arms: tuple[Shown, ...]
    ratio_p: float
    verdict_now: Verdict
    decide_at: datetime | None
    is_fixed: bool
    decision: Decision | None
    waiting: int
    held_out: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "decision": self.decision.to_json() if self.decision else None}


def look(connection: Connection, settings: Settings, key: str) -> Look:
    """What came back of an experiment so far.

    Raises:
        CampaignError: there is no such campaign, it has no experiment, or its audience is not frozen.
        OrdersError: it goes by orders, which cannot be read.
    """
    found = campaign.get(connection, key)
    if found.spec.experiment is None:
        raise CampaignError(f"campaign {key!r} has no experiment")
    taken = snapshot.get(connection, found.campaign_id)
    if taken is None:
        raise CampaignError(f"campaign {key!r} has no snapshot yet, so nobody is in an arm; take it first")
    arms = counts.arms(connection, settings, found, at=found.now)
    verdict = rule.decide(arms)
    known = decision.get(connection, found.campaign_id)
    planned = taken.timing.get("experiment", {}).get("decide_at")
    return Look(
        campaign=key,
        state=found.state,
        metric=found.spec.experiment.metric,
        arms=tuple(_shown(arm, arms[0], chance) for arm, chance in zip(arms, verdict.chances, strict=True)),
        ratio_p=verdict.ratio_p,
        verdict_now=verdict,
        decide_at=known.decide_at if known else datetime.fromisoformat(planned) if planned else None,
        is_fixed=known is not None,
        decision=known if known is not None and known.decided_at is not None else None,
        waiting=hold.waiting(connection, found.campaign_id).get("experiment", 0),
        held_out=held_out(connection, found.campaign_id),
    )


@dataclass(frozen=True)
class Effect:
    """Of a campaign that has left people out: how many bought within EFFECT_DAYS after its first mail, of those in its audience
    (mailed or not: else the two groups would differ in more than the mail) and of those who were held out."""

    mailed: int
    mailed_buyers: int
    held_out: int
    held_out_buyers: int

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """By how much the share of buyers is higher because of the campaign, with a 95 % interval; None: a group is empty."""
        if not self.mailed or not self.held_out:
            return None
        one, two = self.mailed_buyers / self.mailed, self.held_out_buyers / self.held_out
        spread = _SURE * sqrt(one * (1 - one) / self.mailed + two * (1 - two) / self.held_out)
        return one - two, one - two - spread, one - two + spread


def effect(connection: Connection, settings: Settings, key: str) -> Effect | None:
    """What a campaign has done, by those whom it left out. None: it left nobody out, or there is no query of orders.

    Raises:
        CampaignError: there is no such campaign.
        OrdersError: the query cannot be used.
    """
    found = campaign.get(connection, key)
    relation = orders.relation(connection, settings)
    if found.spec.holdout is None or relation is None:
        return None
    given = {"campaign_id": found.campaign_id, "days": EFFECT_DAYS}
    with connection.cursor(row_factory=class_row(Effect)) as cursor:
        return cursor.execute(QUERIES.filled("effect", orders=relation), given).fetchone()


def held_out(connection: Connection, campaign_id: int) -> int:
    """How many people a campaign has left out to see its effect."""
    row = connection.execute(QUERIES["held_out"], {"campaign_id": campaign_id}).fetchone()
    return int(row[0]) if row else 0


def planned(spec: Spec, timing: Mapping[str, Any], excluded: Mapping[str, int]) -> list[str]:
    """What an experiment makes of an audience, a line each, for people who are about to launch it. `timing` and `excluded`
    are those of the snapshot."""
    lines = []
    if number := excluded.get("holdout"):
        lines.append(f"{number:,} people are held out: they get no mail, so that its effect can be seen")
    kept = timing.get("experiment")
    if spec.experiment is None or kept is None:
        return lines
    arms: dict[str, int] = kept["arms"]
    lines.append("experiment: " + ", ".join(f"{name} {number:,}" for name, number in arms.items()) + " people")
    if kept["rest"]:
        after = _long(spec.experiment.decide_after)
        days = f", at their own time {kept['days']} days later" if kept["days"] else ""
        lines.append(
            f"{kept['rest']:,} people wait; decided {after} after the last mail of the test, if all goes as planned at"
            f" {_minute(kept['decide_at'])}, and mailed from {_minute(kept['rest_from'])} on{days}"
        )
    lines.append(seen(spec.experiment.metric, min(arms.values()), len(arms)))
    return lines


def smallest_lift(spec: Spec, timing: Mapping[str, Any]) -> float | None:
    """The smallest lift that the arms of a snapshot can show at the usual rate; None: nothing, or there is no experiment."""
    kept = timing.get("experiment")
    if spec.experiment is None or kept is None:
        return None
    arms = kept["arms"]
    return power.smallest_lift(USUAL[spec.experiment.metric], min(arms.values()), arms=len(arms))


def seen(metric: str, people: int, arms: int, *, rate: float | None = None) -> str:
    """What arms of so many people can show, in a sentence. `rate` is the share of people who do what counts."""
    rate = USUAL[metric] if rate is None else rate
    lift = power.smallest_lift(rate, people, arms=arms) if people else None
    needed = power.per_arm(rate, 0.1, arms=arms)
    what = f"at a rate of {rate:.1%} ({metric}); to see +10 % it takes {needed:,} an arm"
    if lift is None:
        return f"your arms of {people:,} are too small to see anything {what}"
    return f"your arms of {people:,} can see a lift of {lift:+.0%} or more {what}"


def _shown(arm: Arm, control: Arm, chance: float) -> Shown:
    lift = low = high = None
    if arm is not control and control.rate:
        lift = arm.rate / control.rate - 1
        spread = sqrt(sum(one.rate * (1 - one.rate) / one.delivered for one in (arm, control))) / control.rate
        low, high = lift - _SURE * spread, lift + _SURE * spread
    return Shown(
        arm.variant, arm.assigned, arm.delivered, arm.successes, arm.complaints, arm.rate, chance, lift, low, high
    )


def _minute(at: str) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M} UTC"


def _long(seconds: int) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
