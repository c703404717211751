"""A segment: one SQL file that selects people. Finding it, binding its parameters, checking it on the server.

What the file may contain is decided in `segment_file.py`; here PostgreSQL is asked about syntax, tables,
columns and types. Running it belongs elsewhere: `preview.py` counts, `snapshot.py` freezes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg

from mailpipe import segment_purity
from mailpipe.errors import SegmentError
from mailpipe.segment_file import AS_OF, EXPECTED, Parameter, ParameterType, Segment, load, tokens, typed

__all__ = [
    "Column",
    "Parameter",
    "ParameterType",
    "Segment",
    "bind",
    "check",
    "explained",
    "find",
    "load",
    "load_all",
    "read_only",
    "statement",
]

SQL_TYPES: Mapping[str, str] = {
    "int": "integer",
    "float": "double precision",
    "text": "text",
    "date": "date",
    "bool": "boolean",
    "timestamp": "timestamptz",
}
_TEXTS = {"text", "character varying", "character", "citext"}
CONTRACT: Mapping[str, frozenset[str]] = {
    "user_id": frozenset(_TEXTS | {"smallint", "integer", "bigint", "uuid"}),
    "email": frozenset(_TEXTS),
    "timezone": frozenset(_TEXTS),
    "locale": frozenset(_TEXTS),
}
REQUIRED = ("user_id", "email")

# Unsupported, cardinality, data, functions, syntax and names, limits, PL/pgSQL (PostgreSQL, appendix A).
_FAULTS_OF_THE_SQL = {"0A", "21", "22", "2F", "38", "39", "42", "54", "P0"}

_PLACEHOLDER = re.compile(r"%%|%\((\w+)\)s")


@dataclass(frozen=True)
class Column:
    """A column that the segment returns, with PostgreSQL's name of its type."""

    name: str
    type: str


def load_all(folder: Path) -> tuple[list[Segment], list[SegmentError]]:
    """All segments of a folder by name, and what is wrong with the files that are none: one error each."""
    segments: list[Segment] = []
    problems: list[SegmentError] = []
    for path in sorted(folder.glob("*.sql")):
        try:
            segments.append(load(path))
        except SegmentError as error:
            problems.append(error)
    return segments, problems


def find(folder: Path, name: str) -> Segment:
    """The segment of that name.

    Raises:
        SegmentError: there is none (the text lists those there are), or its file is wrong.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.sql"))}
    if name not in paths:
        raise SegmentError(f"segment {name!r}: not in {folder}. There are: {', '.join(paths) or 'none yet'}")
    return load(paths[name])


def bind(segment: Segment, parameters: Mapping[str, object], as_of: datetime) -> dict[str, object]:
    """The values to execute `statement` with: given parameters over defaults, typed, and `as_of` in UTC.

    Text is converted (a command line knows nothing else). `as_of` must be aware, else ValueError.

    Raises:
        SegmentError: a parameter that the segment does not have, or a value that does not fit its type.
    """
    if as_of.tzinfo is None:
        raise ValueError("as_of needs a time zone")
    known = {parameter.name: parameter for parameter in segment.parameters}
    for name in parameters:
        if name not in known:
            raise SegmentError(f"{segment.path}: no parameter {name!r}. The segment has: {', '.join(known) or 'none'}")
    values: dict[str, object] = {}
    for parameter in segment.parameters:
        value = parameters.get(parameter.name, parameter.default)
        try:
            # NULL is a value only where the default is NULL too.
            nothing = value is None and parameter.default is None
            values[parameter.name] = None if nothing else typed(value, parameter.type)
        except ValueError:
            expected = EXPECTED[parameter.type]
            raise SegmentError(
                f"{segment.path}: parameter {parameter.name}: expected {expected}, got {value!r}"
            ) from None
    return {**values, AS_OF: as_of.astimezone(UTC)}


def statement(segment: Segment) -> bytes:
    """The SELECT as psycopg takes it, to be put between parentheses on lines of its own.

    Parameters become `%(name)s` with their type, so that the server never has to guess it. Their names start
    with a letter: names with a leading underscore are free for the statement around it.
    """
    types = {parameter.name: SQL_TYPES[parameter.type] for parameter in segment.parameters}
    types[AS_OF] = SQL_TYPES["timestamp"]
    return "".join(
        f"%({text[1:]})s::{types[text[1:]]}" if kind == "bind" else text.replace("%", "%%")
        for kind, text, _ in tokens(segment.sql)
    ).encode()


def check(
    connection: psycopg.Connection[Any],
    segment: Segment,
    bound: Mapping[str, object],
    *,
    timeout: float = 10.0,
) -> list[Column]:
    """Ask the server what the segment returns, without running it, and hold that against the contract.

    Everything happens in a read-only transaction (or savepoint) that is rolled back. `timeout` is in seconds.

    Raises:
        SegmentError: the server refuses the SQL, or a column is missing, unnamed, doubled or of a wrong type.
    """
    query = b"SELECT * FROM (\n" + statement(segment) + b"\n) AS segment LIMIT 0"
    with explained(segment, query), connection.transaction(force_rollback=True):
        read_only(connection, timeout)
        cursor = connection.execute(query, bound)
        described = [(column.name, column.type_code) for column in cursor.description or ()]
        types: dict[int, str] = dict(
            connection.execute(
                "SELECT oid::bigint, format_type(oid, NULL) FROM pg_type WHERE oid = ANY(%s::oid[])",
                ([code for _, code in described],),
            ).fetchall()
        )
    columns = [Column(name, types[code]) for name, code in described]
    _hold_contract(segment, columns)
    segment_purity.check(connection, segment, statement(segment))
    return columns


def read_only(connection: psycopg.Connection[Any], timeout: float) -> None:
    """Make the rest of this transaction (or savepoint) unable to write; `timeout` seconds a statement."""
    connection.execute("SET TRANSACTION READ ONLY")
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (str(max(1, round(timeout * 1000))),))


@contextmanager
def explained(segment: Segment, query: bytes = b"") -> Iterator[None]:
    """Turn an error of the server in `query`, which contains `statement(segment)`, into a SegmentError.

    Faults of the segment get file and line; any other (lost connection, full disk) passes as it is. The
    server's error is not kept as cause, and values that it quotes are left out: they may be somebody's address.
    """
    try:
        yield
    except psycopg.Error as error:
        mistake = _mistake(segment, error, query)
        if mistake is None:
            raise
        raise SegmentError(mistake) from None


def _mistake(segment: Segment, error: psycopg.Error, query: bytes) -> str | None:
    message = error.diag.message_primary or type(error).__name__
    if isinstance(error, pg.QueryCanceled):
        return (
            f"{segment.path}: stopped by the time limit. Select from fewer rows or add an index;"
            " MAILPIPE_SEGMENT_TIMEOUT sets the limit in seconds"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction | pg.ActiveSqlTransaction):
        return f"{segment.path}: {message}. A segment only reads: use a plain SELECT"
    kind = (error.sqlstate or "")[:2]
    if kind not in _FAULTS_OF_THE_SQL:
        return None
    if kind not in ("0A", "42"):
        message = re.sub(r'"[^"]*"', '"..."', re.sub(r"[^\s\"]+@[^\s\"]+", "...", message))
    hint = error.diag.message_hint
    line = _line(segment, error.diag.statement_position, query)
    return f"{segment.path}:{line}: {message}" + (f". {hint}" if hint else "")


def _line(segment: Segment, position: str | None, query: bytes) -> int:
    """The line of the file for a character position, counted from 1, in the text that psycopg sent."""
    before, found, _ = query.partition(statement(segment))
    if position is None or not found:
        return segment.body_line
    numbers: dict[str, int] = {}

    def sent(match: re.Match[str]) -> str:
        name = match[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    text = _PLACEHOLDER.sub(sent, query.decode())[: int(position) - 1]
    last = segment.body_line + segment.sql.count("\n")
    return min(segment.body_line + max(0, text.count("\n") - before.count(b"\n")), last)


def _hold_contract(segment: Segment, columns: list[Column]) -> None:
    names = [column.name for column in columns]
    for required in REQUIRED:
        if required not in names:
            raise SegmentError(
                f"{segment.path}:{segment.body_line}: no column {required}. Select it, with AS {required} if"
                f" the table calls it otherwise; now it returns: {', '.join(names) or 'nothing'}"
            )
    for column in columns:
        where = f"{segment.path}:{segment.body_line}: column {column.name}"
        if names.count(column.name) > 1:
            raise SegmentError(f"{where} comes twice. Name one of them otherwise with AS, or leave it out")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column.name):
            raise SegmentError(f"{where} cannot be used in a template. Name it with AS: letters, digits and _ only")
        allowed = CONTRACT.get(column.name)
        if allowed is not None and column.type not in allowed:
            raise SegmentError(f"{where} is of type {column.type}. Cast it: CAST(... AS text) AS {column.name}")
