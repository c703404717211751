"""What people bought, as the team's own tables tell: the query of MAILPIPE_ORDERS, checked and brought into one form. Reads only.

What an order means (an engaged person, a point for a variant) is told by who asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import psycopg

from mailpipe.db import Connection, queries
from mailpipe.errors import OrdersError
from mailpipe.settings import Settings

_TIMESTAMPTZ = 1184
_PARAMETER = re.compile(r"(?<![:\w']):[a-z_]")


def relation(connection: Connection, settings: Settings) -> str | None:
    """The orders as SQL for a FROM clause (in brackets): user_id text, ordered_at timestamptz, campaign text, variant text. None:
    no query is set.

    Raises:
        OrdersError: the query does not run, or lacks a column.
    """
    if settings.orders is None:
        return None
    return checked(connection, settings.orders, "MAILPIPE_ORDERS", at="ordered_at", optional=("campaign", "variant"))


def checked(connection: Connection, query: str, name: str, *, at: str, optional: Sequence[str] = ()) -> str:
    """A query of the settings with `user_id` and the instant `at`, as SQL with exactly these columns; the `optional` ones are NULL
    where it has none.

    Raises:
        OrdersError: it does not run, lacks a column, or its instant has no zone.
    """
    if _PARAMETER.search(query):
        raise OrdersError(f"{name}: takes no parameters such as :as_of; write the query without them")
    try:
        with connection.transaction():
            found = (
                connection.execute(queries.to_psycopg(f"SELECT * FROM ({query}\n) AS q LIMIT 0"), {}).description or []
            )
    except (psycopg.errors.ProgrammingError, psycopg.errors.DataError) as error:
        raise OrdersError(f"{name}: {str(error).splitlines()[0]}") from None
    types: Mapping[str, int] = {column.name: column.type_code for column in found}
    missing = [column for column in ("user_id", at) if column not in types]
    if missing:
        raise OrdersError(
            f"{name}: has no column {' and no '.join(missing)}. It has: {', '.join(types) or 'none'}. Name them with AS"
        )
    if types[at] != _TIMESTAMPTZ:
        raise OrdersError(
            f"{name}: {at} is no timestamptz; say of which zone it is, as in ({at} AT TIME ZONE 'UTC') AS {at}"
        )
    others = [f"CAST(q.{column} AS text)" if column in types else "CAST(NULL AS text)" for column in optional]
    columns = ["CAST(q.user_id AS text) AS user_id", f"q.{at} AS {at}"]
    columns += [f"{value} AS {column}" for value, column in zip(others, optional, strict=True)]
    return f"SELECT {', '.join(columns)} FROM ({query}\n) AS q WHERE q.user_id IS NOT NULL AND q.{at} IS NOT NULL"
