"""Cells: people of one audience who have window, variant, labels and what they wait for in common. A chunk holds people of one.

Run in the transaction of a snapshot, between refusing people and numbering them. What tells people apart is not known here: zones
come from `schedule.timing`, all else from assigners (send times, experiments, waves), each of which gives every person a key, and
makes cells of the keys that occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from mailpipe.db import Connection, queries
from mailpipe.schedule.timing import Timing, due_json
from mailpipe.schedule.when import Window

QUERIES = queries.beside(__file__)

Held = Literal["experiment", "wave"]


@dataclass(frozen=True)
class Cell:
    """What people of one chunk have in common. `window`: when their mail may leave (UTC; of `held` people: when it is planned to);
    `zone`: by whose clocks quiet hours begin and end, where there are any; `variant`: None is the campaign's own mail, or not
    decided yet; `labels`: what a plan calls them. Cells that are due together are sent in the order of `order`."""

    window: Window
    zone: str | None = None
    variant: str | None = None
    held: Held | None = None
    labels: tuple[str, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts cells as they are sent; open ends come last."""
        never = datetime.max.replace(tzinfo=UTC)
        ends = self.window.expires_at or never, self.window.quiet_at or never
        return (
            self.window.due_at,
            self.order,
            *ends,
            self.zone or "",
            self.variant or "",
            self.held or "",
            self.labels,
        )


class Column(NamedTuple):
    """A key of each person, never NULL. `expression` is SQL over the staged people (`person.place`, `user_id`, `email`,
    `timezone`, `locale`, `variables`) and what `join` adds: one row for each of them, so mostly a LEFT JOIN. Both are our own SQL,
    never data."""

    name: str
    expression: str
    join: str = ""


class Assigner(Protocol):
    """Tells people of one audience apart."""

    def columns(self, connection: Connection, staged: str) -> Sequence[Column]:
        """The keys, by which people of the table `staged` differ. May make temporary tables that end with the transaction, and put
        people into `refused` (place, reason); who stands there already gets no key."""

    def cell(self, keys: Mapping[str, Any], so_far: Cell) -> Cell:
        """The cell of people with these keys, made of what the assigners before have said."""

    def to_json(self, people: Mapping[Cell, int]) -> dict[str, Any]:
        """What is kept with the snapshot beside the due times; `people` are the numbered ones of each cell."""


@runtime_checkable
class Overseer(Protocol):
    """An assigner that can place some people only when it knows when all the others are due."""

    def oversee(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """The same cells in the same order, some of them at another time. Comes after all assigners."""


@dataclass
class Placement:
    """The cells of an audience in sending order. `join` and `order` sort the staged people `person` by them; `sizes` are the people
    of each, known once they are numbered."""

    cells: tuple[Cell, ...]
    join: str = ""
    order: str = ""
    sizes: list[int] = field(default_factory=list)
    timed: Timing | None = None
    assigners: tuple[Assigner, ...] = ()

    def measure(self, connection: Connection, table: str, recipients: int) -> None:
        """Count the numbered people of the table by cell. `recipients` are all of them."""
        if self.timed:
            self.timed.measure(connection, table)
        if self.assigners:
            found = {int(rank): int(people) for rank, people in connection.execute(QUERIES["people"])}
            self.sizes[:] = [found.get(rank, 0) for rank in range(len(self.cells))]
        else:
            self.sizes[:] = self.timed.sizes if self.timed else [recipients]

    def to_json(self, when: Any) -> dict[str, Any]:
        """What is kept beside the snapshot: who is due when, and what each assigner has to say. `when` is the campaign's file."""
        sized = dict(zip(self.cells, self.sizes, strict=True))
        kept = self.timed.to_json(when) if self.timed else {}
        kept |= due_json((cell.window.due_at, people) for cell, people in sized.items())
        for assigner in self.assigners:
            kept |= assigner.to_json(sized)
        return kept


def place(
    connection: Connection, staged: str, plain: Window, timed: Timing | None, assigners: Sequence[Assigner]
) -> Placement:
    """Find the cells of the staged people who are not refused. `plain` is everybody's window where zones make no difference."""
    zoned = [_of_group(timed, number) for number in range(len(timed.groups))] if timed else [Cell(plain)]
    if not assigners:
        return Placement(tuple(zoned), timed.join if timed else "", timed.order if timed else "", timed=timed)
    columns = [column for assigner in assigners for column in assigner.columns(connection, staged)]
    grouped = timed is not None and bool(timed.join)
    fragments = {
        "staged": staged,
        "group": "rank" if grouped else "0",
        "columns": ", ".join(f"{column.expression} AS {column.name}" for column in columns),
        "joins": "\n".join([timed.join if timed else "", *(column.join for column in columns)]),
        "names": ", ".join(column.name for column in columns),
    }
    for step in ("keys", "combinations"):
        connection.execute(QUERIES.filled(step, **fragments))
    found = connection.execute(QUERIES.filled("met", **fragments)).fetchall()
    cells: dict[int, Cell] = {}
    for number, group, *values in found:
        cell = zoned[group]
        keys = dict(zip((column.name for column in columns), values, strict=True))
        for assigner in assigners:
            cell = assigner.cell(keys, cell)
        cells[number] = cell
    for assigner in assigners:
        if isinstance(assigner, Overseer):
            cells = dict(zip(cells, assigner.oversee(list(cells.values())), strict=True))
    ordered = sorted(set(cells.values()), key=lambda cell: cell.rank) or [Cell(plain)]
    ranks = {cell: rank for rank, cell in enumerate(ordered)}
    connection.execute(QUERIES["rank"], {"numbers": list(cells), "ranks": [ranks[cell] for cell in cells.values()]})
    for step in ("known", "place"):
        connection.execute(QUERIES.filled(step, **fragments))
    return Placement(
        tuple(ordered), "JOIN placed USING (place)", "cell_rank, ", timed=timed, assigners=tuple(assigners)
    )


def _of_group(timed: Timing, number: int) -> Cell:
    return Cell(timed.groups[number].window, timed.zone(number))
