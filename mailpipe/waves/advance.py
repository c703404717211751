"""Moves a campaign from one part to the next: judges the gate, keeps the verdict with its numbers, and lets the next part go.

A verdict is made once; launching this again, or twice at a time, changes nothing. With a ramp every release counts the day's cap
anew, on the people who are still held: whoever was deferred is first, and what others send on that day is taken off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Literal

from psycopg.types.json import Jsonb

from mailpipe import campaign, hold
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.schedule import when, zones
from mailpipe.waves import domain, layout, ramp
from mailpipe.waves.assign import labels, waves_of
from mailpipe.waves.gate import Judgement
from mailpipe.waves.layout import Piece, Run, Stage
from mailpipe.waves.spec import TIERS, Tier, Warmup
from mailpipe.waves.standing import Gate, Standing, Verdict, look, verdicts

QUERIES = queries.beside(__file__)

MACHINE = "mailpipe"
_DROPPED = 2
"""Days that two bad gates in a row cost."""
_EVER = 3_660
"""Days that a plan may still take once it has begun."""


@dataclass(frozen=True)
class Advanced:
    """What was let go: people who are pending by it, in the part `label`."""

    key: str
    label: str
    people: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Chunk:
    chunk_no: int
    first_seq: int
    size: int
    due_at: datetime
    labels: tuple[str, ...]

    @property
    def tier(self) -> Tier:
        return next(tier for tier in TIERS if tier in self.labels)

    @property
    def wave(self) -> int:
        return next((int(one[5:]) - 1 for one in self.labels if one.startswith("wave:")), 0)

    @property
    def family(self) -> str:
        return self.labels[self.labels.index(self.tier) + 1]


def run(connection: Connection, key: str) -> Advanced | None:
    """Judge the gate of a campaign that is sending, if it is time, and let the next part go if it passes. `connection` is in
    autocommit mode."""
    with connection.transaction():
        found = campaign.lock(connection, key)
        if found.state != "sending" or not found.spec.in_waves:
            return None
        gate = look(connection, found)
        if gate is None or found.now < gate.opens_at or gate.verdict == "hold":
            return None
        rung = _rung(connection, found, gate.stage)
        verdict = gate.verdict or _verdict(connection, found, gate.judgement)
        if verdict is None:
            return None
        if gate.verdict is None and gate.judgement is not None:
            rung = _next(rung, verdict)
            _keep(connection, found, gate.stage, verdict, rung, MACHINE, gate.judgement.text, gate.judgement)
        people = _release(connection, found, gate, rung)
        return None if people is None else Advanced(key, people[0], people[1], verdict)


def decide(connection: Connection, key: str, verdict: Literal["pass", "hold"], *, actor: str, reason: str) -> Gate:
    """A person's word on the gate before the next part: let it go when it is planned, or hold it until somebody says `pass`.

    Raises:
        CampaignError: nobody of the campaign waits for a gate, or it has been judged.
    """
    if not reason.strip():
        raise CampaignError("say why; the reason is kept with the verdict")
    with connection.transaction():
        found = campaign.lock(connection, key)
        gate = look(connection, found)
        if gate is None:
            raise CampaignError(f"campaign {key!r}: nobody waits for a gate between waves or days")
        if gate.verdict not in (None, "hold"):
            raise CampaignError(
                f"campaign {key!r}: the gate after {gate.stage.label} has been judged already: {gate.text}"
            )
        before = _rung(connection, found, gate.stage)
        rung = _next(before, verdict) if verdict == "pass" else before
        _keep(connection, found, gate.stage, verdict, rung, actor, reason, gate.judgement)
        campaign.note(
            connection,
            found.campaign_id,
            actor=actor,
            action=f"gate {verdict}",
            detail={"reason": reason, "stage": gate.stage.label},
        )
    run(connection, key)
    decided = look(connection, campaign.get(connection, key))
    return decided or gate


def _verdict(connection: Connection, found: Campaign, judgement: Judgement | None) -> Verdict | None:
    """What becomes of a judgement; None: the next part goes on waiting."""
    if judgement is None:
        return None
    if judgement.verdict == "pass":
        return "pass"
    if judgement.verdict != "bad" or found.spec.warmup is None:
        return None
    before = verdicts(connection, found.campaign_id)
    return "drop" if before and before[-1][1] in ("repeat", "drop") else "repeat"


def _next(rung: int | None, verdict: Verdict) -> int | None:
    """The day of the ramp that follows."""
    if rung is None:
        return None
    return {"pass": rung + 1, "repeat": rung, "drop": max(1, rung - _DROPPED), "hold": rung}[verdict]


def _rung(connection: Connection, found: Campaign, stage: Standing) -> int | None:
    """The day of the ramp on which a part went, or the one that was decided for the part after it."""
    if found.spec.warmup is None:
        return None
    told = [(number, rung) for number, verdict, _, rung in verdicts(connection, found.campaign_id) if verdict != "hold"]
    if told:
        return int(told[-1][1])
    return int(_plan(connection, found)["start_day"]) + stage.number - 1


def _plan(connection: Connection, found: Campaign) -> dict[str, Any]:
    row = connection.execute(QUERIES["plan"], {"campaign_id": found.campaign_id}).fetchone()
    assert row is not None
    return dict(row[0])


def _keep(
    connection: Connection,
    found: Campaign,
    stage: Standing,
    verdict: Verdict,
    rung: int | None,
    actor: str,
    reason: str,
    judgement: Judgement | None,
) -> None:
    connection.execute(
        QUERIES["keep"],
        {
            "campaign_id": found.campaign_id,
            "stage": stage.number,
            "verdict": verdict,
            "rung": rung,
            "actor": actor,
            "reason": reason,
            "numbers": Jsonb(judgement.to_json() if judgement else {}),
        },
    )


def _release(connection: Connection, found: Campaign, gate: Gate, rung: int | None) -> tuple[str, int] | None:
    """Let the next part go; None when the domain may send nothing more today."""
    warmup = found.spec.warmup
    if warmup is None:
        late = found.now - gate.following.at
        if late > timedelta(0):
            hold.retime(connection, found.campaign_id, held="wave", by=late)
        return gate.following.label, hold.release(
            connection, found.campaign_id, held="wave", label=gate.following.label
        )
    assert rung is not None
    stages = _replan(connection, found, gate, warmup, rung)
    today = zones.wall(warmup.timezone, found.now).date()
    if zones.wall(warmup.timezone, stages[0].at).date() > today:
        return None
    return stages[0].label, hold.release(connection, found.campaign_id, held="wave", label=stages[0].label)


def _replan(connection: Connection, found: Campaign, gate: Gate, warmup: Warmup, rung: int) -> list[Stage]:
    """Lay those who are still held out over days from today on: exactly what today allows, and the rest as far as can be said."""
    first = zones.wall(warmup.timezone, datetime.fromisoformat(_plan(connection, found)["begins"]))
    today = zones.wall(warmup.timezone, found.now).date()
    steps = ramp.of(warmup.ramp)

    def begins(day: int) -> datetime:
        return max(found.now, zones.instant(warmup.timezone, first + timedelta(days=day - 1)))

    held = _held(connection, found.campaign_id)
    others = dict(domain.volume(connection, found.spec.sender_domain, zone=warmup.timezone, but=found.campaign_id).days)
    before = _before(
        gate.stage, others.get(zones.wall(warmup.timezone, gate.stage.at).date(), 0), steps.cap(max(1, rung - 1))
    )
    for day, people in connection.execute(QUERIES["own"], {"campaign_id": found.campaign_id, "zone": warmup.timezone}):
        others[day] = others.get(day, 0) + int(people)
    stages = layout.by_days(
        {family: _runs(chunks) for family, chunks in held.items()},
        waves_of(found),
        steps,
        begins,
        zone=warmup.timezone,
        day=max((today - first.date()).days + 1, gate.stage.number + 1),
        rung=rung,
        others=others,
        before=before,
        chunk=found.spec.chunk_size,
        most=_EVER,
    )
    _follow(connection, found, held, stages)
    return stages


def _before(stage: Standing, others: int, cap: int) -> layout.Before | None:
    """What providers got on the day of a part, other campaigns' mails by the same shares. None: nobody was sent."""
    sent = {name: one.sent for name, one in stage.told.by_provider.items()}
    whole = sum(sent.values())
    if not whole:
        return None
    return layout.Before(cap, {name: people * (1 + others / whole) for name, people in sent.items()})


def _held(connection: Connection, campaign_id: int) -> dict[str, list[_Chunk]]:
    held: dict[str, list[_Chunk]] = defaultdict(list)
    for number, first, size, due_at, names in connection.execute(QUERIES["held"], {"campaign_id": campaign_id}):
        chunk = _Chunk(number, first, size, due_at, tuple(names))
        held[chunk.family].append(chunk)
    return dict(held)


def _runs(chunks: Iterable[_Chunk]) -> list[Run]:
    alike = groupby(chunks, key=lambda chunk: (chunk.wave, chunk.tier))
    return [Run(wave, tier, sum(chunk.size for chunk in some)) for (wave, tier), some in alike]


def _follow(connection: Connection, found: Campaign, held: dict[str, list[_Chunk]], stages: Sequence[Stage]) -> None:
    """Bring the held chunks where these stages want them. Only those of the first are cut where it ends; others go where their
    first person does, as their day is counted anew when it comes."""
    moves: list[tuple[int, datetime, datetime | None, str]] = []
    named = found.spec.waves is not None
    row = connection.execute(QUERIES["last"], {"campaign_id": found.campaign_id}).fetchone()
    assert row is not None
    new_no = int(row[0]) + 1
    for family, chunks in held.items():
        queue = list(chunks)
        wanted = [(stage, piece) for stage in stages for piece in stage.pieces if piece.family == family]
        done = [0]
        for _, piece in wanted:
            done.append(done[-1] + piece.people)
        position = index = 0
        while queue:
            chunk = queue.pop(0)
            while index + 1 < len(wanted) and position >= done[index + 1]:
                index += 1
            stage, piece = wanted[index]
            room = done[index + 1] - position
            if stage is stages[0] and room < chunk.size:
                connection.execute(
                    QUERIES["split"],
                    {"campaign_id": found.campaign_id, "chunk_no": chunk.chunk_no, "new_no": new_no, "head": room},
                )
                rest = _Chunk(new_no, chunk.first_seq + room, chunk.size - room, chunk.due_at, chunk.labels)
                chunk, new_no = _Chunk(chunk.chunk_no, chunk.first_seq, room, chunk.due_at, chunk.labels), new_no + 1
                queue.insert(0, rest)
            position += chunk.size
            moves += _move(found, chunk, stage, piece, named=named)
    if moves:
        numbers, dues, ends, texts = zip(*moves, strict=True)
        connection.execute(
            QUERIES["move"],
            {
                "campaign_id": found.campaign_id,
                "numbers": list(numbers),
                "dues": list(dues),
                "ends": list(ends),
                "labels": list(texts),
            },
        )


def _move(
    found: Campaign, chunk: _Chunk, stage: Stage, piece: Piece, *, named: bool
) -> list[tuple[int, datetime, datetime | None, str]]:
    """Where a chunk goes, unless it is there."""
    of_chunk = Piece(piece.due_at, chunk.wave, chunk.tier, chunk.family, chunk.size)
    names = labels(stage, of_chunk, named=named)
    if (piece.due_at, names) == (chunk.due_at, chunk.labels):
        return []
    window = when.plain(found.spec, piece.due_at)
    return [(chunk.chunk_no, window.due_at, window.expires_at, "{" + ",".join(names) + "}")]
