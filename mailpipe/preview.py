"""What a segment looks like before anybody uses it: how many people, where they are, what is missing.

The server does the counting; pandas shapes the small tables. What is returned may be shown to everybody
who sees the project: it holds no address, and no value that few people share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mailpipe import provider
from mailpipe import segment as segments
from mailpipe.db import Connection, Database
from mailpipe.segment import Column, Segment

TOP = 10
"""Rows of a breakdown before everything else is summed up as `OTHER`."""
OTHER = "(other)"
NONE = "(none)"
SAMPLE = 5
LOOKED_AT = 1000
"""The sample is taken from the first rows of the segment, as many as this."""
SHARED_BY = 10
"""A text of the sample is shown when at least this many of the rows looked at have it, else masked."""

_OWN_DOMAIN = "own domain"


@dataclass(frozen=True)
class Preview:
    """A segment's numbers at one moment."""

    segment: str
    rows: int
    """Rows that the segment returns."""
    people: int
    """Different `user_id`s among them. The snapshot also removes suppressed and opted-out people."""
    columns: tuple[Column, ...]
    nulls: Mapping[str, int]
    """Column -> rows without a value."""
    sample: pd.DataFrame
    """The first rows in sending order; addresses and rare texts masked."""
    breakdowns: Mapping[str, pd.DataFrame]
    """`provider`, and `locale` and `timezone` where they are columns: value, people, share (0 to 1)."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain values for `json.dumps`."""
        return {
            "segment": self.segment,
            "rows": self.rows,
            "people": self.people,
            "columns": {column.name: column.type for column in self.columns},
            "nulls": dict(self.nulls),
            "sample": self.sample.to_dict(orient="records"),
            "breakdowns": {name: table.to_dict(orient="records") for name, table in self.breakdowns.items()},
            "seconds": round(self.seconds, 3),
        }


def preview(database: Database, segment: Segment, bound: Mapping[str, object], *, timeout: float) -> Preview:
    """Check the segment, run it once for its numbers and once for its first rows; it cannot write.

    `bound` comes from `segment.bind`; `timeout` is in seconds for each statement.

    Raises:
        SegmentError: the segment is wrong, or takes too long.
    """
    started = time.perf_counter()
    with database.transaction() as connection:
        columns = segments.check(connection, segment, bound)
        segments.read_only(connection, timeout)
        names = [column.name for column in columns]
        rows, people, nulls, counted = _numbers(connection, segment, bound, names)
        body = segments.statement(segment).decode()
        query = f"SELECT * FROM (\n{body}\n) AS segment LIMIT {LOOKED_AT}".encode()
        with segments.explained(segment, query):
            first = pd.DataFrame(connection.execute(query, bound).fetchall(), columns=names, dtype=object)
    return Preview(
        segment=segment.name,
        rows=rows,
        people=people,
        columns=tuple(columns),
        nulls=nulls,
        sample=masked(first).head(SAMPLE),
        breakdowns={name: breakdown(table) for name, table in counted.items()},
        seconds=time.perf_counter() - started,
    )


def breakdown(counted: pd.Series[int]) -> pd.DataFrame:
    """The commonest values of a count by value, the rest in one row; columns value, people, share."""
    named = [NONE if pd.isna(value) else str(value) for value in counted.index]
    counted = counted.groupby(pd.Index(named, dtype=object)).sum()
    counted = counted.sort_index().sort_values(ascending=False, kind="stable")
    table = counted.head(TOP)
    if len(counted) > TOP:
        table = pd.concat([table, pd.Series({OTHER: counted.iloc[TOP:].sum()})])
    share = (table / max(1, counted.sum())).round(4)
    return pd.DataFrame({"value": table.index, "people": table.to_numpy(int), "share": share.to_numpy(float)})


def masked(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as plain JSON values. A text that fewer than `SHARED_BY` rows share keeps its first character.

    The column `email` is masked whatever is in it, as is every text with an @.
    """
    return pd.DataFrame({name: _masked_column(name, rows[name]) for name in rows.columns}, dtype=object)


def _masked_column(name: object, values: pd.Series[Any]) -> list[object]:
    texts = [value if value is None or isinstance(value, bool | int | float) else str(value) for value in values]
    common = pd.Series([text for text in texts if isinstance(text, str)], dtype=object).value_counts()
    shown = {text for text, number in common.items() if number >= SHARED_BY and "@" not in str(text)}
    return [
        text if not isinstance(text, str) or (text in shown and name != "email") else f"{text[:1]}***" for text in texts
    ]


def _numbers(
    connection: Connection, segment: Segment, bound: Mapping[str, object], names: list[str]
) -> tuple[int, int, dict[str, int], dict[str, pd.Series[int]]]:
    """Rows, different people, missing values by column, and rows by value of what is broken down."""
    values = {"provider": "split_part(lower(substring(email FROM '@([^@]+)$')), '.', 1)"}
    values |= {name: f'"{name}"' for name in ("locale", "timezone") if name in names}
    missing = ", ".join(f'count(*) FILTER (WHERE "{name}" IS NULL)' for name in names)
    counts = "".join(
        f"\nUNION ALL SELECT '{name}', {value}, count(*), 0, NULL FROM segment GROUP BY 2"
        for name, value in values.items()
    )
    # Materialized, so that the segment runs once for all of them.
    query = f"""\
WITH segment AS MATERIALIZED (
{segments.statement(segment).decode()}
)
SELECT 'all', NULL, count(*), count(DISTINCT user_id), ARRAY[{missing}] FROM segment{counts}""".encode()
    with segments.explained(segment, query):
        (_, _, rows, people, nulls), *groups = connection.execute(query, bound).fetchall()
    counted = {
        name: pd.Series({value: number for of, value, number, _, _ in groups if of == name}, dtype="int64")
        for name in values
    }
    counted["provider"].index = pd.Index([_provider(label) for label in counted["provider"].index], dtype=object)
    return rows, people, dict(zip(names, nulls, strict=True)), counted


def _provider(label: object) -> str | None:
    return (provider.of(str(label)) or _OWN_DOMAIN) if label else None
