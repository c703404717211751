"""The due times of an audience while it is frozen: who is due when, in which order, and whom the time leaves out.

`when` decides for each zone; here the decision meets a campaign's staged people, in the transaction of the snapshot. People are
numbered in the order in which they are due, so a chunk holds people of one window only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from mailpipe.db import Connection, queries
from mailpipe.schedule import zones
from mailpipe.schedule.when import Arrangement, Group, When, arrange

QUERIES = queries.beside(__file__)
_LISTED = 10
"""Texts that are no zones and are told with the snapshot; a segment may hold anything there."""


class Piece(Protocol):
    """A chunk of a snapshot."""

    @property
    def slice(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def group(self) -> int: ...


@dataclass(frozen=True)
class Timing:
    """How the people of one snapshot are due. `sizes` are the people of each group, in order; known once they are numbered."""

    made: Arrangement
    sizes: list[int] = field(default_factory=list)
    people: dict[str | None, int] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.made.groups

    def zone(self, number: int) -> str | None:
        """The zone by whose clocks quiet hours begin and end for a group, where there are any."""
        group = self.groups[number]
        return group.zone if group.window.quiet_at else None

    @property
    def join(self) -> str:
        """What the staged people, called `person`, are joined with, so that they can be sorted."""
        return "JOIN due_rank ON zone = coalesce(person.timezone, '')" if len(self.groups) > 1 else ""

    @property
    def order(self) -> str:
        """What people are sorted by before their own order."""
        return "rank, " if len(self.groups) > 1 else ""

    def measure(self, connection: Connection, table: str) -> None:
        """Count the numbered people by zone."""
        self.people.clear()
        for text, number in connection.execute(QUERIES.filled("people", table=table)):
            self.people[text] = int(number)
        self.sizes[:] = [sum(self.people.get(text, 0) for text in group.texts) for group in self.groups]

    def to_json(self, when: When) -> dict[str, Any]:
        """What is kept beside the snapshot: counts, and some of the texts that are no zones."""

        def count(texts: frozenset[str | None]) -> int:
            return sum(self.people.get(text, 0) for text in texts)

        unknown = sorted(self.made.unknown, key=lambda text: (-self.people.get(text, 0), text or ""))
        return {
            "past": count(self.made.past),
            "past_policy": when.past_policy,
            "deferred": count(self.made.deferred),
            "unknown_zone": count(self.made.unknown),
            "unknown_zones": [_shown(text) for text in unknown if self.people.get(text)][:_LISTED],
        }


def due_json(dues: Iterable[tuple[datetime, int]]) -> dict[str, Any]:
    """The same of every audience: how many people are due at each instant."""
    due: dict[datetime, int] = defaultdict(int)
    for at, people in dues:
        due[at] += people
    return {
        "due": [{"at": at.isoformat(), "people": people} for at, people in sorted(due.items()) if people],
        "rules": zones.RULES,
    }


def _columns(rows: Iterable[tuple[Any, Any]], *names: str) -> dict[str, list[Any]]:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    return dict(zip(names, columns, strict=True))


def _shown(text: str | None) -> str:
    if not text:
        return "(none)"
    return "(an address)" if "@" in text else text[:40]


def stage(
    connection: Connection, when: When, staged: str, *, default_zone: str, due_at: datetime, now: datetime
) -> Timing | None:
    """Decide for the staged people when they are due, and refuse whom the time leaves out. None: time makes no difference between
    them, and nothing was looked at.

    Raises:
        ZoneError: the default is no zone.
    """
    if not when.varies:
        return None
    texts = [text for (text,) in connection.execute(QUERIES.filled("zones", staged=staged))]
    made = arrange(when, texts, default_zone=default_zone, due_at=due_at, now=now)
    ranks = [(text, rank) for rank, group in enumerate(made.groups) for text in group.texts]
    connection.execute(QUERIES["rank"])
    connection.execute(QUERIES["ranks"], _columns(ranks, "texts", "ranks"))
    connection.execute(QUERIES["known"])
    if made.refused:
        connection.execute(QUERIES.filled("refuse", staged=staged), _columns(made.refused.items(), "texts", "reasons"))
    return Timing(made)


def keep(connection: Connection, campaign_id: int, dues: Sequence[datetime | None], pieces: Iterable[Piece]) -> None:
    """Note when which slices of a campaign are due; runs are launched from it. `dues` are the instants of the groups; None:
    theirs is not known yet."""
    spans: dict[datetime, list[int]] = {}
    for piece in pieces:
        due_at = dues[piece.group]
        if due_at is None:
            continue
        first, last, people = spans.get(due_at, [piece.slice, piece.slice, 0])
        spans[due_at] = [min(first, piece.slice), max(last, piece.slice), people + piece.size]
    connection.execute(
        QUERIES["keep_due"],
        {
            "campaign_id": campaign_id,
            "dues": list(spans),
            "firsts": [span[0] for span in spans.values()],
            "lasts": [span[1] for span in spans.values()],
            "people": [span[2] for span in spans.values()],
        },
    )


_LEFT_OUT = {
    "past_local_time": "are left out: their wall time has passed already",
    "quiet_hours": "are left out: they would be mailed in their quiet hours",
    "expired": "are left out: the mail would come after its end",
    "inactive_tier": "are left out: their tier is in `warmup.exclude`; T5 has not reacted for half a year",
    "frequency_cap": "are left out: they have had as many mails as MAILPIPE_FREQUENCY_CAP allows",
}
_PAST = {
    "next_day": "they are mailed at that time another day",
    "send_now": "they are mailed at once",
    "skip": "they get no mail",
}


def told(when: When, kept: dict[str, Any], excluded: dict[str, int]) -> list[str]:
    """What time makes of a snapshot, a line each, for people who are about to launch it."""
    lines = []
    due = [datetime.fromisoformat(one["at"]) for one in kept.get("due", [])]
    if len(due) == 1:
        local = "" if when.send_at is None or when.is_local else f" ({when.send_at:%Y-%m-%d %H:%M} {when.timezone})"
        lines.append(f"due at {due[0]:%Y-%m-%d %H:%M} UTC{local}")
    elif due:
        local = f": {when.send_at:%Y-%m-%d %H:%M} by each recipient's clock" if when.send_at and when.is_local else ""
        lines.append(f"due at {len(due)} times, from {due[0]:%Y-%m-%d %H:%M} to {due[-1]:%Y-%m-%d %H:%M} UTC{local}")
    if own := kept.get("optimised"):
        groups = own["groups"]
        lines.append(
            f"{groups['optimised']:,} recipients at their own hour, {groups['control']:,} at {own['control_hour']:02}:00 to compare"
            f" with, {groups['explore']:,} at a random hour to learn from; of {own['without_own_hour']:,} nothing is known, who get"
            " the hours of people like them"
        )
        if own["moved_for_pace"]:
            lines.append(f"{own['moved_for_pace']:,} recipients were moved out of hours that the pace does not hold")
    if kept.get("past"):
        lines.append(f"{kept['past']:,} recipients had passed their wall time: {_PAST[kept['past_policy']]}")
    if kept.get("deferred"):
        lines.append(f"{kept['deferred']:,} recipients are put off to the end of their quiet hours")
    if kept.get("unknown_zone"):
        names = ", ".join(kept["unknown_zones"])
        lines.append(f"{kept['unknown_zone']:,} recipients have no known zone and get the default one ({names})")
    lines += [f"{excluded[reason]:,} people {words}" for reason, words in _LEFT_OUT.items() if excluded.get(reason)]
    return lines
