"""A statement that runs for every call, sent straight through libpq.

psycopg's way through a statement of 26 parameters took 0.17 ms of a sender's processor, as much as all else that is done in Python
for an opening: a cursor, adapters, and eight times that the interpreter is given away and taken back. This takes a third of it.
Only for statements whose parameters are numbers, texts, bytes and lists of bytes; everything else is what `Connection.execute`
is for.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from mailpipe.db import Connection

Value = int | float | str | bytes | list[bytes | None] | None

_PARAMETER = re.compile(rb"%\((\w+)\)s|%%")
_OIDS = {
    int: psycopg.postgres.types["int4"].oid,
    float: psycopg.postgres.types["float8"].oid,
    str: psycopg.postgres.types["text"].oid,
    bytes: psycopg.postgres.types["bytea"].oid,
    list: psycopg.postgres.types["bytea"].array_oid,
}
_BINARY = (bytes, list)
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_UNKNOWN_STATEMENT = b"26000"

_known: WeakKeyDictionary[Connection, set[bytes]] = WeakKeyDictionary()
"""What is prepared on which connection. psycopg forgets all of it with a transaction that is rolled back."""


class Prepared:
    """One statement, written for psycopg, prepared once on each connection. `types` names the parameters whose type cannot be seen
    in the statement. Safe to share between threads."""

    def __init__(self, statement: bytes, types: Mapping[str, type]) -> None:
        self._names: list[str] = []
        self._text = _PARAMETER.sub(self._number, statement)
        self._oids = [_OIDS[types[name]] if name in types else 0 for name in self._names]
        self._formats = [pq.Format.BINARY if types.get(name) in _BINARY else pq.Format.TEXT for name in self._names]
        self._name = b"mailpipe_" + hashlib.sha256(self._text).hexdigest()[:16].encode()

    def first(self, connection: Connection, parameters: Mapping[str, Value]) -> tuple[bytes | None, ...] | None:
        """Run it, in autocommit mode or in somebody's transaction; the first row as PostgreSQL writes it, or None. Raises what
        `Connection.execute` does."""
        encoding = connection.info.encoding
        values: list[Any] = [
            value
            if value is None or type(value) is bytes
            else _array(value)
            if type(value) is list
            else str(value).encode(encoding)
            for value in map(parameters.__getitem__, self._names)
        ]
        with connection.lock:
            result = self._execute(connection, values)
        _check(connection, result)
        return tuple([result.get_value(0, i) for i in range(result.nfields)]) if result.ntuples else None

    def _execute(self, connection: Connection, values: list[Any]) -> pq.abc.PGresult:
        server = connection.pgconn
        if server.transaction_status != pq.TransactionStatus.IDLE:
            # What psycopg has forgotten meanwhile would be an error that ends somebody's transaction.
            return server.exec_params(self._text, values, self._oids, self._formats)
        if self._name not in _known.setdefault(connection, set()):
            self._prepare(connection)
        result = server.exec_prepared(self._name, values, self._formats)
        if result.error_field(pq.DiagnosticField.SQLSTATE) != _UNKNOWN_STATEMENT:
            return result
        self._prepare(connection)
        return server.exec_prepared(self._name, values, self._formats)

    def _number(self, match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return b"%"
        name = match[1].decode()
        if name not in self._names:
            self._names.append(name)
        return b"$%d" % (self._names.index(name) + 1)

    def _prepare(self, connection: Connection) -> None:
        _check(connection, connection.pgconn.prepare(self._name, self._text, self._oids))
        _known[connection].add(self._name)


def _array(items: Sequence[bytes | None]) -> bytes:
    """A list of bytes as PostgreSQL reads a `bytea[]` in binary (`array_recv`)."""
    parts = [struct.pack("!iiIii", 1, 1, _OIDS[bytes], len(items), 1)]
    for item in items:
        parts += (b"\xff\xff\xff\xff",) if item is None else (len(item).to_bytes(4), item)
    return b"".join(parts)


def _check(connection: Connection, result: pq.abc.PGresult) -> None:
    if result.status in _FINE:
        return
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # Not said by the server, but by libpq: the connection is lost, and nobody knows how much of it was done.
        raise psycopg.OperationalError(result.get_error_message())
    raise error_from_result(result, encoding=connection.info.encoding)
