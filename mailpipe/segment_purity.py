"""Refuses a segment that calls a function which may change something. Whether it can run at all is `segment.py`'s question.

A snapshot fills its table with one statement, and that statement can write: a read-only transaction cannot protect it. What does is
PostgreSQL's own rule that a function marked STABLE or IMMUTABLE cannot write; so a segment may call only those, and the few
VOLATILE ones of the server that merely answer something new each time.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg

from mailpipe.errors import SegmentError
from mailpipe.segment_file import Segment

HARMLESS = frozenset(
    {"random", "random_normal", "clock_timestamp", "timeofday", "gen_random_uuid", "uuidv4", "uuidv7", "pg_sleep"}
)

_PLACEHOLDER = re.compile(r"%%|%\(\w+\)s")
_STRING = re.compile(r"'(?:[^']|'')*'")
_CALL = re.compile(r"\b([a-z_][a-z0-9_]*)\(")

# A view's rule depends on the functions it calls, except on those that came with the server: these stand in its text.
_FOREIGN = """\
SELECT DISTINCT p.proname FROM pg_depend d
JOIN pg_rewrite w ON w.oid = d.objid AND w.ev_class = 'pg_temp.mailpipe_segment'::regclass
JOIN pg_proc p ON p.oid = d.refobjid
WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_proc'::regclass AND p.provolatile = 'v'"""
_OWN = "SELECT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile = 'v' AND proname = ANY(%s)"


def check(connection: psycopg.Connection[Any], segment: Segment, statement: bytes) -> None:
    """Ask the server which functions the segment calls. `statement` is that of `segment.statement`, and known to be valid.

    Raises:
        SegmentError: one of them may write.
    """
    text = _PLACEHOLDER.sub(lambda match: "%" if match[0] == "%%" else "NULL", statement.decode())
    with connection.transaction(force_rollback=True):
        connection.execute(f"CREATE TEMPORARY VIEW mailpipe_segment AS SELECT * FROM (\n{text}\n) AS segment".encode())
        found = {row[0] for row in connection.execute(_FOREIGN)}
        row = connection.execute("SELECT pg_get_viewdef('pg_temp.mailpipe_segment'::regclass)").fetchone()
        called = set(_CALL.findall(_STRING.sub("''", row[0] if row else ""))) - HARMLESS
        found |= {row[0] for row in connection.execute(_OWN, (sorted(called),))}
    if found:
        raise SegmentError(
            f"{segment.path}:{segment.body_line}: calls {', '.join(sorted(found))}, which may change something. A segment only"
            " reads; if the function only reads too, mark it STABLE"
        )
