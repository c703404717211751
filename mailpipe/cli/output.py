"""How answers look: one JSON document for programs, tables for people, a bar while mail leaves."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from mailpipe import report

_PLAIN_EVERY = 5.0
"""Seconds between two lines of progress where there is no terminal."""


def show(answer: RenderableType) -> None:
    """Print for people. Where the output is no terminal, lines are as long as they need to be."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=200)
    console.print(answer)


def dump(document: object, *, line: bool = False) -> None:
    """Print one JSON document: on one line for programs, spread out on a terminal unless a `line` was promised."""
    indent = 2 if sys.stdout.isatty() and not line else None
    click.echo(json.dumps(document, ensure_ascii=False, default=_plain, indent=indent))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Numbers to the right, everything else to the left."""
    filled = [list(row) for row in rows]
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        values = [row[number] for row in filled]
        numeric = bool(values) and all(isinstance(value, int | float) or value is None for value in values)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in filled:
        made.add_row(*[Text(written(value)) for value in row])
    return made


def facts(values: Mapping[str, object]) -> Table:
    """Names and values below each other."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(Text(name), Text(written(value)))
    return made


def written(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    return str(value)


def minutes(value: float | None) -> str:
    """A time left, given in minutes."""
    if value is None:
        return "-"
    seconds = round(value * 60)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Bar:
    """One live bar on stderr with counts, rate and ETA; where stderr is no terminal, a line every few seconds."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._said = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rest(),
            console=self._console,
            expand=True,
        )
        self._task: TaskID | None = None

    def update(self, now: report.Progress) -> None:
        """Show where the campaign stands; the bar appears with the first call."""
        ended = now.total - now.pending - now.sending
        rest = f"{ended:,}/{now.total:,}  {now.rate_per_second:,.0f}/s  ETA {minutes(now.eta_minutes)}"
        if now.state == "paused":
            rest += f"  paused: {now.state_reason}"
        elif now.waiting:
            rest += f"  {now.waiting}"
        if not self._console.is_terminal:
            if time.monotonic() - self._said > _PLAIN_EVERY:
                self._said = time.monotonic()
                self.say(f"{now.campaign}: {rest}")
            return
        if self._task is None:
            self._task = self._bar.add_task(now.campaign, total=None, rest="")
            self._bar.start()
        self._bar.update(self._task, total=now.total or None, completed=ended, rest=rest)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._bar.stop()


class _Rest(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["rest"])


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
