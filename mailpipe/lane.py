"""The four lanes: how urgent a mail is, and what follows from it for messages. Pure.

How fast a lane may send is `pace`'s duty; how its messages are worked is told in `lanes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from mailpipe import adapters

LaneName = Literal["critical", "high", "normal", "low"]
NAMES: tuple[LaneName, ...] = get_args(LaneName)
"""The most urgent first."""
Policy = Literal["hold", "resend"]

_item = re.compile(r"([a-z_]+)=([a-z0-9.-]+)").fullmatch


@dataclass(frozen=True, slots=True)
class Lane:
    """How the messages of one lane are worked. Times are in seconds."""

    name: LaneName
    least: int
    """Threads that always wait for work ..."""
    most: int
    """... and threads at most. Each is in one call."""
    poll: float
    """Time between two looks into the outbox."""
    batch: int
    """Messages that one look takes, and that may share one call. A full look is followed by the next one at once."""
    sla: float
    """Within which a message that is due should be accepted."""
    unknown: Policy
    """What becomes of a message whose answer was lost: `hold` leaves it `unknown` for a person, `resend` sends it once more."""
    validity: float
    """A message that is later than this is of no use any more, unless it says so itself."""
    retries: int
    """Calls that certainly sent nothing before a message is `dead`. Throttling does not count."""
    answer: float
    """How long an answer is waited for. Late answers are the better ones, but nobody waits for a late login code."""
    adapter: adapters.Name = "ses"
    """How its messages leave."""


DEFAULTS: Mapping[LaneName, Lane] = {
    lane.name: lane
    for lane in (
        Lane("critical", 5, 20, 0.010, 50, 10, "resend", 600, 10, 10),
        Lane("high", 5, 30, 0.050, 50, 60, "hold", 6 * 3600, 12, 30),
        Lane("normal", 10, 100, 0.100, 100, 900, "hold", 3 * 86_400, 16, 60),
        Lane("low", 2, 20, 0.500, 500, 3600, "hold", 7 * 86_400, 20, 60),
    )
}
_NUMBERS = {"poll": float, "sla": float, "validity": float, "answer": float}


def changed(lane: Lane, text: str) -> Lane:
    """A lane with some of its fields changed: `unknown=hold validity=300 workers=10-40`.

    Raises:
        ValueError: a field does not exist or has an unusable value; the text names it.
    """
    values: dict[str, object] = {}
    for item in text.replace(",", " ").split():
        match = _item(item)
        if match is None:
            raise ValueError(f"{item!r}: expected field=value")
        name, value = match[1], match[2]
        if name == "workers":
            least, _, most = value.partition("-")
            values["least"], values["most"] = _number(name, least, int), _number(name, most or least, int)
        elif name == "unknown":
            if value not in get_args(Policy):
                raise ValueError("unknown: expected hold or resend")
            values[name] = value
        elif name == "adapter":
            if value not in get_args(adapters.Name):
                raise ValueError(f"adapter: expected one of {', '.join(get_args(adapters.Name))}")
            values[name] = value
        elif name not in {field.name for field in fields(Lane)} - {"name", "least", "most"}:
            raise ValueError(
                f"{name}: no such field; known are workers, poll, batch, sla, unknown, validity, retries, answer, adapter"
            )
        else:
            values[name] = _number(name, value, _NUMBERS.get(name, int))
    made = replace(lane, **values)  # type: ignore[arg-type]
    if not 1 <= made.least <= made.most <= 500:
        raise ValueError("workers: expected two numbers such as 5-20, from 1 to 500")
    return made


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not 0 < value < 1e8:
        raise ValueError(f"{name}: expected a {'whole ' if kind is int else ''}number above 0")
    return value


def backoff(tries: int) -> float:
    """Seconds before the next call after `tries` that certainly sent nothing: 0.5, 1, 2 ... at most five minutes."""
    return min(0.5 * 2.0 ** min(max(tries, 1) - 1, 20), 300.0)


def more_threads(lane: Lane, *, threads: int, idle: int, waiting: int) -> int:
    """How many threads to add when `waiting` calls are ready and `idle` of `threads` threads have nothing to do."""
    wanted = max(lane.least, min(lane.most, threads - idle + waiting))
    return max(0, wanted - threads)


def may_leave(lane: Lane, *, threads: int, idle_for: float) -> bool:
    """Whether a thread that has been idle for so long ends: the queue is gone, and the lane has more than it always keeps."""
    return threads > lane.least and idle_for >= IDLE


IDLE = 2.0
"""Seconds without work after which a thread beyond the lane's least number ends."""
