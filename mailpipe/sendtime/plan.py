"""Lets a snapshot follow everybody's own hour: an assigner of `cells`. What is decided is told in `choose`; here it meets the
staged people and the tables of hours.

Each person gets their hour in their zone, within the window, outside of quiet hours, before the campaign's horizon ends. A part
gets a random one of these hours and is noted in `send_explored` with the chance that it had; another part the fixed hour. Which
part somebody is in is a hash of campaign and person: nobody is always in the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mailpipe import pace
from mailpipe.campaign import Campaign
from mailpipe.cells import Cell, Column
from mailpipe.db import Connection, queries
from mailpipe.engagement.rule import HOURS
from mailpipe.schedule import when, zones
from mailpipe.sendtime import choose, hours, model
from mailpipe.sendtime.choose import EXPLORE, HEADROOM, OPTIMISED, Choice, Slots
from mailpipe.sendtime.spec import LABELS, STEP, Optimise, awake

QUERIES = queries.beside(__file__)

_STAGED = np.dtype([("place", ">i4"), ("zone", ">i4"), ("digest", ">u4", 4), ("worth", "u1", HOURS)])
_CHOSEN = np.dtype(
    [("fields", ">i2"), ("place_length", ">i4"), ("place", ">i4"), ("key_length", ">i4"), ("key", ">i4")]
)


class SendTimes:
    """The assigner of a campaign with `mode: optimised`."""

    def __init__(self, found: Campaign, default_zone: str) -> None:
        self._found = found
        self._spec = found.spec
        self._optimise = found.spec.optimise or Optimise()
        self._default = found.spec.default_timezone or default_zone
        self._base = max(found.due_at, found.now)
        self._hours = awake(self._optimise.hours, found.spec.quiet_hours)
        self._keys: list[tuple[str, int, str]] = []
        self._told: dict[str, Any] = {}

    def columns(self, connection: Connection, staged: str) -> Sequence[Column]:
        """Choose everybody's time, and note who explores. Who has none left is refused (`expired`)."""
        texts = [text for (text,) in connection.execute(QUERIES.filled("texts", staged=staged))]
        names = [zones.find(text) or zones.load(self._default).key for text in texts]
        connection.execute(QUERIES["number_texts"], {"texts": texts})
        connection.execute(QUERIES["known"])
        people = self._read(connection, staged)
        of_zone = choose.slots(
            names, self._hours, self._base, timedelta(seconds=self._optimise.horizon), self._spec.expires_at
        )
        people = self._refuse(connection, people, of_zone)
        zone, digests = people["zone"].astype(np.int64), people["digest"].astype(np.uint32)
        groups = choose.draw(digests, self._optimise.explore, self._optimise.control)
        worth, cold = self._worth(connection, staged, people, names)
        limit = pace.limits.read(connection, self._found.campaign_id).campaign
        choice = choose.choose(
            worth,
            zone,
            digests,
            groups,
            of_zone,
            control_hour=self._optimise.control_hour,
            capacity=None if limit is None else limit * 3600 * HEADROOM,
        )
        self._note(connection, staged, people, groups, choice)
        self._put(connection, people, names, groups, choice)
        self._told = {
            "without_own_hour": int(cold),
            "moved_for_pace": choice.moved,
            "hours": _by_hour(choice.columns[groups == OPTIMISED]),
        }
        return [Column("send_time", "send_choice.key", "JOIN send_choice ON send_choice.place = person.place")]

    def _read(self, connection: Connection, staged: str) -> NDArray[Any]:
        salt = f"send-time:{self._found.campaign_id}:"
        with connection.cursor(binary=True) as cursor:
            blocks = cursor.execute(QUERIES.filled("staged", staged=staged), {"salt": salt})
            return np.frombuffer(b"".join(block for (block,) in blocks), _STAGED)

    def _refuse(self, connection: Connection, people: NDArray[Any], of_zone: Slots) -> NDArray[Any]:
        late = np.asarray(~of_zone.open.any(axis=1), np.bool_)[people["zone"]]
        if late.any():
            connection.execute(QUERIES["refuse"], {"places": people["place"][late].tolist()})
        return np.asarray(people[~late])

    def _worth(
        self, connection: Connection, staged: str, people: NDArray[Any], names: list[str]
    ) -> tuple[NDArray[np.uint8], int]:
        """What each hour is worth to each person; of whom nothing is known, as in their zone. And of how many nothing is."""
        curves = {zone: np.frombuffer(worth, np.uint8) for zone, worth in connection.execute(QUERIES["curves"])}
        base = model.base_curve() @ model.kernel_of_value(model.SHAPE.window)
        others = curves.get("", hours.worth(base[None])[0])
        of_zone = np.stack([curves.get(name, others) for name in names]) if names else np.zeros((0, HOURS), np.uint8)
        worth = people["worth"].copy()
        # The best hour of whoever is known is worth 255.
        cold = ~worth.any(axis=1)
        worth[cold] = of_zone[people["zone"][cold]]
        # Hours that were learned by the clock of UTC are moved to that of the zone by which this mail is planned.
        with connection.cursor(binary=True) as cursor:
            places = [place for (place,) in cursor.execute(QUERIES.filled("of_utc", staged=staged))]
        astray = np.flatnonzero(np.isin(people["place"], np.frombuffer(places[0], ">i4")) & ~cold)
        utc = zones.wall("UTC", self._base)
        ahead = [round((zones.wall(name, self._base) - utc) / timedelta(hours=1)) for name in names]
        turned = (np.arange(HOURS) - np.array(ahead, np.int64)[people["zone"][astray], None]) % HOURS
        worth[astray] = np.take_along_axis(worth[astray], turned, axis=1)
        return worth, int(cold.sum())

    def _note(
        self,
        connection: Connection,
        staged: str,
        people: NDArray[Any],
        groups: NDArray[np.int8],
        choice: Choice,
    ) -> None:
        explores = groups == EXPLORE
        connection.execute(
            QUERIES.filled("note", staged=staged),
            {
                "campaign_id": self._found.campaign_id,
                "places": people["place"][explores].tolist(),
                "hours": (choice.columns[explores] % HOURS).tolist(),
                "best": (choice.best[explores] % HOURS).tolist(),
                "propensities": choice.propensity[explores].tolist(),
            },
        )

    def _put(
        self,
        connection: Connection,
        people: NDArray[Any],
        names: list[str],
        groups: NDArray[np.int8],
        choice: Choice,
    ) -> None:
        """Write everybody's key: due time, group, and, where quiet hours are counted by it, the zone."""
        zone = people["zone"].astype(np.int64) if self._spec.quiet_hours else np.zeros(len(people), np.int64)
        origin = int(choice.due.min()) if len(people) else 0
        packed = (zone * 2**20 + (choice.due - origin) // STEP) * len(LABELS) + groups
        met, numbers = np.unique(packed, return_inverse=True)
        for one in met.tolist():
            rest, group = divmod(one, len(LABELS))
            row, step = divmod(rest, 2**20)
            self._keys.append((names[row], origin + step * STEP, LABELS[group]))
        rows = np.empty(len(people), _CHOSEN)
        rows["fields"], rows["place_length"], rows["key_length"] = 2, 4, 4
        rows["place"], rows["key"] = people["place"], numbers
        connection.execute(QUERIES["create_choice"])
        with connection.cursor() as cursor, cursor.copy(QUERIES["put"]) as copy:
            copy.write(hours.START + rows.tobytes() + hours.END)
        connection.execute(QUERIES["known_choice"])

    def cell(self, keys: Mapping[str, Any], so_far: Cell) -> Cell:
        """The window that opens at the person's own time, as the campaign's file closes it."""
        zone, due, label = self._keys[int(keys["send_time"])]
        due_at = datetime.fromtimestamp(due, UTC)
        window = when.decide(self._spec, zone, due_at, self._found.now).window or when.plain(self._spec, due_at)
        return Cell(
            window,
            zone if window.quiet_at else None,
            so_far.variant,
            so_far.held,
            (*so_far.labels, label),
            so_far.order,
        )

    def to_json(self, people: Mapping[Cell, int]) -> dict[str, Any]:
        """People by group, the best hours of those who got theirs, and what the rest of the plan rests on."""
        groups: Counter[str] = Counter()
        for cell, number in people.items():
            for label in LABELS:
                groups[label] += number if label in cell.labels else 0
        return {
            "optimised": {
                "groups": {label: groups[label] for label in LABELS},
                "window": self._optimise.window,
                "control_hour": self._optimise.control_hour,
                "explore": self._optimise.explore,
                "control": self._optimise.control,
                **self._told,
            }
        }


def _by_hour(columns: NDArray[np.int64]) -> dict[str, int]:
    counts = np.bincount(columns % HOURS, minlength=HOURS)
    return {f"{hour:02}": int(number) for hour, number in enumerate(counts) if number}
