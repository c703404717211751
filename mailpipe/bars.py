"""Numbers of people as bars of text, for the command line and for Dagster. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 40
"""Characters of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def plot(rows: Sequence[tuple[str, int]]) -> list[str]:
    """Bars of people, a line each."""
    most = max((people for _, people in rows), default=0)
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}} {_bar(people, most):<{_WIDTH}} {people:>9,}" for name, people in rows]


def _bar(people: int, most: int) -> str:
    eighths = round(people / most * _WIDTH * 8) if most else 0
    return "█" * (eighths // 8) + _EIGHTHS[max(eighths % 8, 0 if eighths or not people else 1)].strip()
