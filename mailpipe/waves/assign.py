"""Lets a snapshot follow waves and warm-up: who is in which tier, at which provider, and so due when. See `cells`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from mailpipe import provider
from mailpipe.campaign import Campaign
from mailpipe.cells import Cell, Column
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.schedule import when, zones
from mailpipe.waves import domain, layout, ramp
from mailpipe.waves.layout import Piece, Run, Stage
from mailpipe.waves.spec import TIERS, Warmup, Wave, wave_of

QUERIES = queries.beside(__file__)


def waves_of(found: Campaign) -> tuple[Wave, ...]:
    """The waves of a campaign's file; of a warm-up that names none, all people in one."""
    spec = found.spec
    if spec.waves is not None:
        return spec.waves
    spread = spec.warmup.spread if spec.warmup else None
    return (Wave(rest=True, within=None if spread else 1, spread=spread),)


def begins(warmup: Warmup, start: datetime) -> layout.Times:
    """When the days of a warm-up begin that may begin at `start`: at its time of the day, in its zone."""
    wall = zones.wall(warmup.timezone, start)
    if warmup.clock is None:
        return lambda day: start if day == 1 else zones.instant(warmup.timezone, wall + timedelta(days=day - 1))
    first = datetime.combine(wall.date(), warmup.clock)
    if zones.instant(warmup.timezone, first) < start:
        first += timedelta(days=1)
    return lambda day: zones.instant(warmup.timezone, first + timedelta(days=day - 1))


class Waves:
    """The assigner of a campaign that goes out in waves or warms up its domain."""

    def __init__(self, found: Campaign) -> None:
        self._found = found
        self._spec = found.spec
        self._waves = waves_of(found)
        self._excluded = found.spec.warmup.exclude if found.spec.warmup else ()
        self._start = max(found.due_at, found.now)
        self._pieces: list[tuple[Stage, Piece]] = []
        self._stages: list[Stage] = []
        self._rung: int | None = None
        self._begins = self._start

    def columns(self, connection: Connection, staged: str) -> Sequence[Column]:
        """Find tier and provider of everybody, lay them out, and leave out the tiers that warm-up excludes (`inactive_tier`)."""
        given = {
            "at": self._start,
            "salt": self._found.campaign_id,
            "waves": [wave_of(tier, self._waves) for tier in TIERS],
        }
        connection.execute(QUERIES.filled("people", staged=staged, family=provider.number_sql("person.email")), given)
        tiers = {"tiers": [TIERS.index(tier) + 1 for tier in self._excluded]}
        if self._excluded:
            connection.execute(QUERIES["refuse"], tiers)
        self._lay(connection, self._queues(connection, tiers))
        families = provider.FAMILIES
        by_line = sorted(enumerate(self._pieces), key=lambda item: (families.index(item[1][1].family), item[0]))
        firsts = [1]
        for _, (_, piece) in by_line:
            firsts.append(firsts[-1] + piece.people)
        self._pieces = [pair for _, pair in by_line]
        connection.execute(QUERIES["pieces"], {"firsts": firsts[:-1] or [1], **tiers})
        return [
            Column(
                "wave_piece", "coalesce(wave_piece.piece, 0)", "LEFT JOIN wave_piece ON wave_piece.place = person.place"
            )
        ]

    def _queues(self, connection: Connection, tiers: Mapping[str, Any]) -> dict[str, list[Run]]:
        runs = defaultdict(list)
        for lot, people in connection.execute(QUERIES["numbers"], tiers):
            tier = TIERS[lot % 10 - 1]
            runs[provider.FAMILIES[lot // 1000]].append(Run(lot // 10 % 100, tier, int(people)))
        return dict(runs)

    def _lay(self, connection: Connection, queues: layout.Queues) -> None:
        warmup = self._spec.warmup
        if warmup is None:
            self._stages = layout.by_waves(queues, self._waves, self._start, chunk=self._spec.chunk_size)
        else:
            steps = ramp.of(warmup.ramp)
            known = domain.volume(
                connection, self._spec.sender_domain, zone=warmup.timezone, but=self._found.campaign_id
            )
            self._rung = warmup.start_day or steps.day_after(known.peak)
            times = begins(warmup, self._start)
            self._begins = times(1)
            self._stages = layout.by_days(
                queues,
                self._waves,
                steps,
                times,
                zone=warmup.timezone,
                rung=self._rung,
                others=known.days,
                chunk=self._spec.chunk_size,
            )
        self._pieces = [(stage, piece) for stage in self._stages for piece in stage.pieces]
        if late := [stage for stage in self._stages if self._is_over(stage)]:
            raise CampaignError(
                f"{late[0].label} is planned for {late[0].at:%Y-%m-%d %H:%M} UTC, after expires_at: its people would get nothing."
                " Let it expire later, or take a steeper ramp"
            )

    def _is_over(self, stage: Stage) -> bool:
        ends = when.plain(self._spec, stage.at).expires_at
        return ends is not None and ends <= stage.at

    def cell(self, keys: Mapping[str, Any], so_far: Cell) -> Cell:
        """The first part goes when it is due, the others wait for the gate before them."""
        stage, piece = self._pieces[keys["wave_piece"]]
        return Cell(
            window=when.plain(self._spec, piece.due_at),
            variant=so_far.variant,
            held=so_far.held if stage is self._stages[0] else "wave",
            labels=(*so_far.labels, *labels(stage, piece, named=self._spec.waves is not None)),
            order=(stage.number, piece.wave, TIERS.index(piece.tier)),
        )

    def to_json(self, people: Mapping[Cell, int]) -> dict[str, Any]:
        """The plan: a line for each day or wave, with the people who were numbered."""
        counted: dict[str, Counter[str]] = defaultdict(Counter)
        for cell, number in people.items():
            if not number:
                continue
            for label in cell.labels[1:]:
                counted[cell.labels[0]][label] += number
            counted[cell.labels[0]]["people"] += number
        warmup = self._spec.warmup
        return {
            "waves": {
                "ramp": None if warmup is None else ramp.of(warmup.ramp).name,
                "start_day": self._rung,
                "timezone": "UTC" if warmup is None else warmup.timezone,
                "begins": self._begins.isoformat(),
                "excluded_tiers": list(self._excluded),
                "stages": [
                    {
                        "label": stage.label,
                        "at": stage.at.isoformat(),
                        "rung": stage.rung,
                        "cap": stage.cap,
                        "others": stage.others,
                        "people": counted[stage.label]["people"],
                        "tiers": {tier: counted[stage.label][tier] for tier in TIERS if counted[stage.label][tier]},
                        "providers": {
                            family: counted[stage.label][family]
                            for family in provider.FAMILIES
                            if counted[stage.label][family]
                        },
                    }
                    for stage in self._stages
                ],
            }
        }


def labels(stage: Stage, piece: Piece, *, named: bool) -> tuple[str, ...]:
    """What chunks of this piece are called: day or wave, tier, family, and on days of `named` waves the wave too."""
    wave = (f"wave:{piece.wave + 1}",) if named and stage.rung is not None else ()
    return (stage.label, piece.tier, piece.family, *wave)
