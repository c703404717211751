"""Brings in a history of opens and clicks that somebody else kept, so that people are known from the first day on.

Rows with `sent_at` say how soon a mail was read; where only reactions were kept, nobody knows what people were exposed to, and the
hours at which others of the same UTC offset react stand for it: what is learned is how somebody differs from them. Mails that
nobody read are in no such table; each reaction stands for as many mails as the audience's rate says. The same content again changes
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import psycopg

from mailpipe.db import Connection, queries
from mailpipe.engagement import days, fold, hours, intake_file, rule
from mailpipe.engagement.intake_file import Row
from mailpipe.errors import EngagementError
from mailpipe.feedback import machine

QUERIES = queries.beside(__file__)

LEAN = 500.0
"""The hours of an offset lean on those of everybody as if it had so many reactions from there."""
_DAY = timedelta(days=1)
_TIMESTAMPTZ = 1184


@dataclass(frozen=True)
class Imported:
    """Counts of one import: `events` are human reactions, one for each mail (or hour), `machines` rows that machines made."""

    source: str
    rows: int
    events: int
    machines: int
    people: int
    already: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_file(connection: Connection, path: Path, *, zone: tzinfo = UTC) -> Imported:
    """Bring in a Parquet or CSV file; times without an offset are those of `zone`. `connection` is in autocommit mode.

    Raises:
        EngagementError: the file cannot be used; nothing of it was kept.
    """
    digest = intake_file.digest(path)
    with connection.transaction():
        connection.execute(fold.QUERIES["lock"])
        known = _known(connection, digest)
        if known is not None:
            return known
        connection.execute(QUERIES.texts["stage"].encode())
        _copy(connection, intake_file.read(path, zone))
        return _add(connection, digest, path.name)


def from_query(connection: Connection, query: str) -> Imported:
    """Bring in the rows of a query on this server, with the columns of `intake_file.COLUMNS` by their own names.

    Raises:
        EngagementError: the query cannot be used, or its rows cannot; nothing of it was kept.
    """
    query = query.strip().rstrip(";")
    with connection.transaction():
        connection.execute(fold.QUERIES["lock"])
        connection.execute(QUERIES.texts["stage"].encode())
        statement = _statement(connection, query)
        try:
            connection.execute(statement, {})
        except psycopg.errors.NotNullViolation as error:
            raise EngagementError(f"query: {error.diag.column_name or 'a column'} is NULL in some rows") from None
        _check(connection)
        row = connection.execute(QUERIES["content"]).fetchone()
        digest = hashlib.sha256(str(row).encode()).digest()
        known = _known(connection, digest)
        return known if known is not None else _add(connection, digest, "sql")


def _known(connection: Connection, digest: bytes) -> Imported | None:
    row = connection.execute(QUERIES["known"], {"digest": digest}).fetchone()
    if row is None:
        return None
    source, at, *counts = row
    return replace(Imported(source, *counts), already=at)


def _copy(connection: Connection, rows: Iterable[Row]) -> None:
    with connection.cursor() as cursor, cursor.copy(b"COPY engagement_told FROM STDIN") as copy:
        for one in rows:
            copy.write_row((one.recipient_id, one.kind, one.at, one.sent_at, one.timezone, one.agent, one.ip))


def _statement(connection: Connection, query: str) -> bytes:
    try:
        with connection.transaction():
            cursor = connection.execute(queries.to_psycopg(f"SELECT * FROM ({query}\n) AS q LIMIT 0"), {})
    except (psycopg.errors.ProgrammingError, psycopg.errors.DataError) as error:
        raise EngagementError(f"query: {str(error).splitlines()[0]}") from None
    types = {column.name: column.type_code for column in cursor.description or []}
    missing = [name for name in intake_file.NEEDED if name not in types]
    if missing:
        raise EngagementError(f"query: has no column {' and no '.join(missing)}. It has: {', '.join(types) or 'none'}")
    for name in ("opened_at", "sent_at"):
        if name in types and types[name] != _TIMESTAMPTZ:
            raise EngagementError(
                f"query: {name} is no timestamptz; say of which zone it is, as in {name} AT TIME ZONE 'UTC'"
            )
    fragments = {
        name: f"CAST(q.{column} AS {kind})" if column in types else f"CAST(NULL AS {kind})"
        for name, column, kind in (
            ("sent_at", "sent_at", "timestamptz"),
            ("timezone", "timezone", "text"),
            ("agent", "user_agent", "text"),
            ("ip", "ip", "text"),
        )
    }
    return QUERIES.filled("copy_query", query=query, **fragments)


def _check(connection: Connection) -> None:
    """What a file is asked line by line is asked of all rows at once."""
    for text, number in connection.execute(QUERIES["kinds"]).fetchall():
        try:
            kind = intake_file.kind_of(text)
        except ValueError as error:
            raise EngagementError(f"query: column event_type: {number:,} rows are {error}") from None
        if kind is None:
            connection.execute(QUERIES["drop_kind"], {"kind": text})
        elif kind != text:
            connection.execute(QUERIES["rename_kind"], {"from": text, "to": kind})
    row = connection.execute(QUERIES["wrong"], {"latest": datetime.now(UTC) + _DAY}).fetchone()
    assert row is not None
    said = (
        "recipient_id is empty",
        "recipient_id is an address",
        "sent_at is after opened_at",
        "opened_at is no time yet",
    )
    for number, text in zip(row, said, strict=True):
        if number:
            raise EngagementError(f"query: in {number:,} rows {text}")


def _add(connection: Connection, digest: bytes, source: str) -> Imported:
    row = connection.execute(QUERIES["span"]).fetchone()
    assert row is not None
    rows, first, last, _ = row
    if not rows:
        raise EngagementError(f"{source}: holds neither an open nor a click")
    if last > datetime.now(UTC) + _DAY:
        raise EngagementError(f"{source}: column opened_at: the last reaction is in the future")
    day = last.astimezone(UTC).date()
    known = days.state(connection)
    rate = (known.opens + known.clicks + rule.PRIOR_REACTIONS) / (known.mails + rule.PRIOR_MAILS)
    _keep_agents(connection)
    connection.execute(b"SET LOCAL work_mem = '128MB'")
    connection.execute(b"ANALYZE engagement_told")
    hours.add(connection, [one[0] for one in connection.execute(QUERIES["texts"])], first, last + timedelta(hours=1))
    connection.execute(QUERIES["people"])
    connection.execute(QUERIES["events"], {"click": rule.CLICK, "open": rule.OPEN, "day": day})
    connection.execute(b"ANALYZE engagement_person, engagement_event")
    _keep_exposures(connection, known.freshness, rate)
    connection.execute(QUERIES["shares"], {"lean": LEAN})
    connection.execute(_SUMS, {"rate": rate})
    connection.execute(QUERIES["settle_zones"])
    connection.execute(QUERIES["new_people"], {"day": day})
    connection.execute(b"ANALYZE engagement_sum")
    connection.execute(_ADD, {"day": day})
    connection.execute(QUERIES["retier"])
    row = connection.execute(QUERIES["counts"]).fetchone()
    assert row is not None
    done = Imported(source, rows, *row)
    connection.execute(QUERIES["keep"], {"digest": digest, "source": source, "rows": rows, "events": row[0],
                                         "machines": row[1], "people": row[2]})  # fmt: skip
    return done


def _keep_agents(connection: Connection) -> None:
    found = connection.execute(QUERIES["agents"]).fetchall()
    with connection.cursor() as cursor, cursor.copy(b"COPY engagement_agent FROM STDIN") as copy:
        for text, ip in found:
            copy.write_row((text, ip, machine.agent(text, ip or None)))


def _keep_exposures(connection: Connection, freshness: Sequence[float], rate: float) -> None:
    """A mail that was read stands for 1 / rate mails of that hour, of which the others were not."""
    with connection.cursor() as cursor, cursor.copy(b"COPY engagement_exposure FROM STDIN") as copy:
        for place, read in rule.exposures(freshness):
            unread = rule.exposure(freshness, place // rule.HOURS, rule.HOURS - 1)
            copy.write_row((place, [one + (1 / rate - 1) * other for one, other in zip(read, unread, strict=True)]))


_HOURS = range(1, rule.HOURS + 1)
_SUMS = QUERIES.filled(
    "sums",
    ev=", ".join(f"CAST(coalesce(sum(v.weight * v.fade) FILTER (WHERE v.hour = {n - 1}), 0) AS real)" for n in _HOURS),
    ex=", ".join(f"CAST(sum(v.fade * coalesce(x.x[{n}], s.x[{n}] / CAST(:rate AS real))) AS real)" for n in _HOURS),
)
_ADD = QUERIES.filled(
    "add",
    ev=", ".join(f"e.ev[{n}] * w.old + d.ev[{n}] * w.new" for n in _HOURS),
    ex=", ".join(f"e.ex[{n}] * w.old + d.ex[{n}] * w.new" for n in _HOURS),
)
