"""The table of hours: everybody's engagement scored, and written anew as a whole. A million people take some seconds.

Between two folds of engagement nothing changes, and a fold changes nearly everybody through decay and the curves of all, so there
is nothing to gain from writing only some. Whoever reads meanwhile waits for the few seconds in which it is written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import class_row

from mailpipe.db import Connection, queries
from mailpipe.engagement.rule import HOURS
from mailpipe.sendtime import model
from mailpipe.sendtime.model import Curves, Scores, Why

QUERIES = queries.beside(__file__)

REASONS = tuple(why.name for why in Why)
_ROW = np.dtype(
    [("fields", ">i2")]
    + [
        part
        for name in ("ev", "ex")
        for part in ((f"{name}_head", "V24"), (name, [("length", ">i4"), ("value", ">f4")], (HOURS,)))
    ]
    + [("zone_length", ">i4"), ("zone", ">i4"), ("weight_length", ">i4"), ("weight", ">f4")]
)
START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = struct.pack(">h", -1)
"""The first and the last bytes of PostgreSQL's binary COPY."""
_BLOCK = 50_000


@dataclass(frozen=True)
class Refreshed:
    """The last refresh. `prior`: how many events in each hour of others a person's own had to outweigh."""

    refreshed_at: datetime
    folded_to: date | None
    people: int
    prior: float
    seconds: float


class Share(NamedTuple):
    """People with one best hour for one reason, and their mean confidence."""

    hour: int
    why: str
    people: int
    confidence: float


@dataclass(frozen=True)
class Known:
    """What is known of one person: `worth` of sending at each hour, as a share of the best one; `events`: decayed mails that they
    engaged with."""

    hour: int
    confidence: float
    why: str
    worth: list[float]
    zone: str | None
    events: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text}

    @property
    def text(self) -> str:
        """Why it is this hour, as a sentence."""
        group = f"in {self.zone}" if self.zone else "without a zone"
        reasons = {
            "own": f"{self.events:.1f} recent mails that this person engaged with",
            "segment": f"people {group}: this person has engaged with hardly anything lately",
            "everybody": "everybody else: too little is known of this person and of others in their zone",
            "default": "nobody has engaged with enough yet",
        }
        clock = "by their clock" if self.zone else "UTC, as their zone is not known"
        return f"{self.hour:02}:00 {clock}, from {reasons[self.why]}"


def refresh(connection: Connection) -> Refreshed:
    """Score everybody in `engagement` and write `send_hours` anew. `connection` is in autocommit mode."""
    begun = time.monotonic()
    with connection.transaction():
        zones = [zone for zone, _ in connection.execute(QUERIES["zones"])]
        state = connection.execute(QUERIES["state"]).fetchone()
        folded_to, freshness = state or (None, model.FRESHNESS)
        connection.execute(QUERIES["number_zones"], {"zones": zones})
        people = _read(connection)
        sums = model.totals(people.ev, people.ex, people.zones, number=len(zones))
        _add_exposure(connection, sums)
        zoneless = zones.index("") if "" in zones else None
        above = model.population(sums, apart=zoneless)
        shape = model.tuned(people.ev, people.ex, people.zones, above=above)
        scores = model.score(people.ev, people.ex, people.zones, shape=shape, freshness=freshness, above=above)
        connection.execute(QUERIES["empty"])
        _write(connection, people.ids, scores)
        everybody = _write_curves(connection, zones, above, shape, np.asarray(freshness, float))
        connection.execute(
            QUERIES["keep"],
            {
                "folded_to": folded_to,
                "people": len(people.ids) + everybody,
                "prior": shape.prior,
                "seconds": round(time.monotonic() - begun, 2),
            },
        )
    connection.execute(QUERIES["known"])
    found = refreshed(connection)
    assert found is not None
    return found


class _People(NamedTuple):
    ids: list[bytes]
    ev: Curves
    ex: Curves
    zones: NDArray[np.int32]


def _read(connection: Connection) -> _People:
    ids: list[bytes] = []
    parts: list[tuple[Curves, Curves, NDArray[np.int32]]] = []
    fixed: list[bytes] = []

    def flush() -> None:
        rows = np.frombuffer(b"".join(fixed), _ROW)
        weight = rows["weight"].astype(np.float32)[:, None]
        parts.append((rows["ev"]["value"] * weight, rows["ex"]["value"] * weight, rows["zone"].astype(np.int32)))
        fixed.clear()

    for row in _rows(connection):
        fixed.append(row[: _ROW.itemsize])
        ids.append(row[_ROW.itemsize + 4 :])
        if len(fixed) == _BLOCK:
            flush()
    flush()
    ev, ex, zones = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _People(ids, ev.astype(np.float32), ex.astype(np.float32), zones)


def _rows(connection: Connection) -> Iterator[bytes]:
    """Each row of the COPY, in PostgreSQL's binary form. The server sends a message a row; the first has the head before it."""
    with connection.cursor() as cursor, cursor.copy(QUERIES["read"]) as copy:
        first = True
        for block in copy:
            row = bytes(block)
            if first:
                first, row = False, row[len(START) :]
            if row and row != END:
                yield row


def _add_exposure(connection: Connection, sums: model.Totals) -> None:
    """Add the exposure of those who never engaged: that nothing came of it tells when hours are worth little."""
    parts = ", ".join(f"sum(e.ex[{hour + 1}] * e.weight)" for hour in range(HOURS))
    for number, *exposure in connection.execute(QUERIES.filled("exposed", sums=parts)):
        sums.ex[number] += np.asarray(exposure, np.float32)


def worth(values: Curves) -> NDArray[np.uint8]:
    """Values as parts of each row's best one, which is 255."""
    return np.asarray(np.rint(values / values.max(axis=1, keepdims=True) * 255), np.uint8)


def _write(connection: Connection, ids: list[bytes], scores: Scores) -> None:
    tails = np.empty(
        len(ids),
        [("a", ">i4"), ("hour", ">i2"), ("b", ">i4"), ("confidence", ">f4"), ("c", ">i4"), ("worth", "u1", HOURS)],
    )
    tails["a"], tails["b"], tails["c"] = 2, 4, HOURS
    tails["hour"], tails["confidence"], tails["worth"] = scores.hours, scores.confidence, worth(scores.values)
    packed, size = tails.tobytes(), tails.itemsize
    reasons = {int(why): struct.pack(">i", len(why.name)) + why.name.encode() for why in Why}
    with connection.cursor() as cursor, cursor.copy(QUERIES["write"]) as copy:
        copy.write(START)
        for start in range(0, len(ids), _BLOCK):
            block = [
                b"".join(
                    (
                        b"\0\x05",
                        len(name).to_bytes(4, "big"),
                        name,
                        packed[number * size : (number + 1) * size],
                        reasons[why],
                    )
                )
                for number, (name, why) in enumerate(
                    zip(ids[start : start + _BLOCK], scores.why[start : start + _BLOCK].tolist(), strict=True), start
                )
            ]
            copy.write(b"".join(block))
        copy.write(END)


def _write_curves(
    connection: Connection,
    zones: list[str],
    above: model.Population,
    shape: model.Shape,
    freshness: NDArray[np.float64],
) -> int:
    """The hours of zones, for whom nobody knows, and of all who have never engaged. Answers how many those are."""
    values = np.vstack([above.segments, above.everybody[None]]) @ model.kernel_of_value(shape.window, freshness)
    best, parts = model.best_hours(values, model.DAYTIME).tolist(), [row.tobytes() for row in worth(values)]
    common = Why.everybody if above.events >= HOURS * shape.global_prior else Why.default
    whys = [(Why.segment if one >= shape.segment_prior else common).name for one in above.segment_events]
    events = [*above.segment_events.tolist(), above.events]
    columns = {"zones": [*zones, ""], "hours": best, "worths": parts, "whys": [*whys, common.name], "events": events}
    # The clock of people without a zone is that of UTC: their own curve is none of those of zones.
    named = [number for number, zone in enumerate(columns["zones"]) if zone or number == len(zones)]
    connection.execute(
        QUERIES["write_curves"], {name: [column[number] for number in named] for name, column in columns.items()}
    )
    own = {name: columns[name][:-1] for name in ("zones", "hours", "worths", "whys")}
    return connection.execute(QUERIES["write_others"], own).rowcount


def refreshed(connection: Connection) -> Refreshed | None:
    """The last refresh; None: there was none."""
    with connection.cursor(row_factory=class_row(Refreshed)) as cursor:
        return cursor.execute(QUERIES["refreshed"]).fetchone()


def summary(connection: Connection) -> list[Share]:
    """How many people have which best hour, and why."""
    return [Share(*row) for row in connection.execute(QUERIES["summary"])]


def without_hour(connection: Connection) -> int:
    """People whose engagement is known, and not their hour; less than none: people who are no longer in `engagement`."""
    row = connection.execute(QUERIES["stale"]).fetchone()
    assert row is not None
    return int(row[0])


def days_behind(connection: Connection) -> int:
    """Days that were folded into engagement since the last refresh."""
    row = connection.execute(QUERIES["behind"]).fetchone()
    return int(row[0]) if row else 0


def of_person(connection: Connection, person_id: str) -> Known | None:
    """What is known of a person; None: nothing is, and the curve of their zone stands for them."""
    row = connection.execute(QUERIES["of_person"], {"person_id": person_id}).fetchone()
    if row is None:
        return None
    hour, confidence, why, parts, zone, events = row
    return Known(hour, confidence, why, [round(part / 255, 3) for part in parts], zone, events)
