"""The decision of an experiment: once, at one time that is fixed when the test is out, and frozen with its numbers.

Deciding and freeing the rest are one transaction, under the lock of the campaign: of several who decide at once the first
one does, and one that dies in between has done nothing. The only writer of `experiment`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from mailpipe import campaign, hold
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError, OrdersError
from mailpipe.experiment import assign, counts, rule
from mailpipe.experiment.rule import Arm, Outcome, Verdict
from mailpipe.feedback import machine
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

MACHINE = "mailpipe"
"""Who decides when nobody does."""


@dataclass(frozen=True)
class Decision:
    """A row of `experiment`. Until it is decided only `decide_at` is known. `numbers` has the arms as they were counted
    (`arms`) and what the rule made of them (`verdict`); `released` are the people who were freed. Times are UTC."""

    campaign_id: int
    decide_at: datetime
    decided_at: datetime | None
    outcome: Outcome | None
    winner: str | None
    reason: str | None
    actor: str | None
    rule: int | None
    machine_rule: int | None
    numbers: dict[str, Any] | None
    released: int | None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "campaign_id"}

    @property
    def arms(self) -> list[Arm]:
        """The arms as they were counted."""
        return [Arm(**arm) for arm in (self.numbers or {}).get("arms", [])]


@dataclass(frozen=True)
class Waiting:
    """A campaign whose experiment is not decided. `complete`: nobody of its test is pending or in a call."""

    key: str
    campaign_id: int
    complete: bool | None
    last_mail: datetime
    decide_at: datetime | None
    now: datetime


def catch_up(connection: Connection, settings: Settings, found: Campaign) -> None:
    """Decide a campaign that is about to be sent, if its time has come and nobody was there to do it."""
    if found.spec.experiment is not None:
        tick(connection, settings, found.campaign_id)


def get(connection: Connection, campaign_id: int) -> Decision | None:
    """The decision of a campaign, or when it will be made; None: its test is not out yet."""
    with connection.cursor(row_factory=class_row(Decision)) as cursor:
        return cursor.execute(QUERIES["get"], {"campaign_id": campaign_id}).fetchone()


@dataclass(frozen=True)
class Ticked:
    """What a look at all experiments has done: campaigns that were decided, and the next one and when; `failed` are those
    that could not be, with the reason."""

    decided: tuple[str, ...]
    coming: tuple[str, datetime] | None
    failed: tuple[str, ...] = ()


def tick(connection: Connection, settings: Settings, campaign_id: int | None = None) -> Ticked:
    """Decide what is due, of one campaign or of all. Doing it twice, or late, changes no decision: clicks count up to the
    fixed time. `connection` is in autocommit mode."""
    with connection.cursor(row_factory=class_row(Waiting)) as cursor:
        waiting = cursor.execute(QUERIES["waiting"], {"campaign_id": campaign_id}).fetchall()
    decided, failed, coming = [], [], []
    for one in waiting:
        if not one.complete:
            continue
        found = campaign.get(connection, one.key)
        decide_at = one.decide_at or _fix(connection, found, one.last_mail)
        if decide_at > one.now:
            coming.append((one.key, decide_at))
            continue
        try:
            decide(connection, settings, one.key)
            decided.append(one.key)
        except (CampaignError, OrdersError) as error:
            failed.append(f"{one.key}: {error}")
    return Ticked(tuple(decided), min(coming, key=lambda item: item[1], default=None), tuple(failed))


def decide(
    connection: Connection,
    settings: Settings,
    key: str,
    *,
    actor: str = MACHINE,
    winner: str | None = None,
    reason: str | None = None,
) -> Decision:
    """Decide a campaign's experiment, and let its rest be mailed: by the rule once its time has come, or for `winner`, as a
    person's order, at any time and whatever the numbers say. One that was decided stays as it is.

    Raises: CampaignError: there is no experiment, its audience is not frozen, the campaign is over, the winner is none of
    its variants, or it was decided otherwise before."""
    with connection.transaction():
        found = campaign.lock(connection, key)
        known = get(connection, found.campaign_id)
        _check(found, known, actor, winner)
        if known is not None and known.decided_at is not None:
            return known
        at = known.decide_at if winner is None and known is not None else found.now
        arms = _counted(connection, settings, found, at, must=winner is None)
        verdict = rule.decide(arms) if arms else None
        outcome: Outcome = "manual"
        if winner is None:
            assert verdict is not None
            outcome, winner, said = verdict.outcome, verdict.winner, verdict.reason
            reason = said if reason is None else f"{said}; {reason}"
        released = _release(connection, found, winner, found.now)
        connection.execute(
            QUERIES["freeze"],
            {
                "campaign_id": found.campaign_id,
                "at": at,
                "outcome": outcome,
                "winner": winner,
                "reason": reason or f"by {actor}",
                "actor": actor,
                "rule": rule.RULE,
                "machine_rule": machine.RULE,
                "numbers": Jsonb(_numbers(arms, verdict)),
                "released": released,
            },
        )
        detail = {"winner": winner, "outcome": outcome, "reason": reason or f"by {actor}", "released": released}
        campaign.note(connection, found.campaign_id, actor=actor, action="decide", detail=detail)
    decided = get(connection, found.campaign_id)
    assert decided is not None
    return decided


def _check(found: Campaign, known: Decision | None, actor: str, winner: str | None) -> None:
    experiment = found.spec.experiment
    if experiment is None:
        raise CampaignError(f"campaign {found.key!r} has no experiment")
    if winner is not None and winner not in experiment.names:
        raise CampaignError(f"campaign {found.key!r} has no variant {winner!r}; it has: {', '.join(experiment.names)}")
    if known is not None and known.decided_at is not None:
        if actor != MACHINE and winner not in (None, known.winner):
            raise CampaignError(
                f"campaign {found.key!r}: it was decided at {known.decided_at:%Y-%m-%d %H:%M %Z} by {known.actor} for"
                f" {known.winner}; a decision is never changed. Whoever has no mail yet can be spared: pause or cancel it"
            )
        return
    if found.state not in ("sending", "paused", "done"):
        raise CampaignError(
            f"campaign {found.key!r} is {found.state}; an experiment is decided while its campaign is sending or paused"
        )
    if winner is None and (known is None or known.decide_at > found.now):
        when = f"at {known.decide_at:%Y-%m-%d %H:%M:%S %Z}" if known else "once all mails of its test have left"
        raise CampaignError(
            f"campaign {found.key!r}: its experiment is decided {when}, and not sooner: whoever looks often sees winners that"
            " are none. A person can choose a variant at any time (--winner)"
        )


def _fix(connection: Connection, found: Campaign, last_mail: datetime) -> datetime:
    """Fix when the experiment is decided, unless somebody has."""
    assert found.spec.experiment is not None
    at = last_mail + timedelta(seconds=found.spec.experiment.decide_after)
    connection.execute(QUERIES["note"], {"campaign_id": found.campaign_id, "decide_at": at})
    known = get(connection, found.campaign_id)
    assert known is not None
    return known.decide_at


def _counted(connection: Connection, settings: Settings, found: Campaign, at: datetime, *, must: bool) -> list[Arm]:
    try:
        return counts.arms(connection, settings, found, at=at)
    except OrdersError:
        if must:
            raise
        return []


def _numbers(arms: list[Arm], verdict: Verdict | None) -> dict[str, Any]:
    return {"arms": [asdict(arm) for arm in arms], "verdict": verdict.to_json() if verdict else None}


def _release(connection: Connection, found: Campaign, winner: str, now: datetime) -> int:
    """Let the rest be mailed. Whoever is due by their own clock stays so, at the winner's hour, and on a day that has not
    begun."""
    assert found.spec.experiment is not None
    row = connection.execute(QUERIES["first_held"], {"campaign_id": found.campaign_id}).fetchone()
    if row is None or row[0] is None:
        return 0
    by, due_at = timedelta(), None
    if assign.is_by_clock(found.spec):
        by = assign.shift(found.spec, found.spec.experiment.variant(winner))
        by += assign.DAY * assign.days_until(row[0] + by, now)
    elif found.spec.quiet_hours is None:
        # Decided sooner than planned: nobody waits any longer.
        by, due_at = min(timedelta(), now - row[0]), now
    else:
        due_at = now
    if by:
        hold.retime(connection, found.campaign_id, held="experiment", by=by)
    return hold.release(connection, found.campaign_id, held="experiment", variant=winner, due_at=due_at)
