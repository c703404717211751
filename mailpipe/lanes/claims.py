"""Claims: taking messages from the outbox, opening and closing calls, and what becomes of the claims of the dead.

Beside `outbox` this module alone writes the tables of messages. Safety rests on two rules that are inside the statements
(`claims.sql`): a call is opened by a synchronous commit before it is made, and a claim belongs to one process, whose id is never
used again once its lease has run out. Leases and clocks decide only who goes on with the work.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from mailpipe.db import Connection, queries
from mailpipe.lanes.outcome import Next
from mailpipe.ses.answer import Result

QUERIES = queries.beside(__file__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message in the hands of this process; no call is open."""

    message_id: UUID
    email: str
    sender: str | None
    reply_to: str | None
    template_version: str | None
    variables: Mapping[str, Any]
    subject: str | None
    body_text: str | None
    body_html: str | None
    attempt: int
    tries: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Opened:
    """An open call about one message: its number, and which attempt it is."""

    no: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a call said about one message, and what the message becomes by it."""

    message_id: UUID
    opened: Opened
    result: Result
    next: Next


def register(connection: Connection, owner: UUID, *, seconds: float) -> None:
    """Enter this process under a fresh id, with a lease of so many seconds."""
    connection.execute(
        QUERIES["register"], {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "seconds": seconds}
    )


def beat(connection: Connection, owner: UUID, *, seconds: float, threads: Mapping[str, int]) -> bool:
    """Renew the lease. False: it has run out, and somebody else has the messages; only a fresh id may take new ones."""
    row = connection.execute(
        QUERIES["beat"], {"owner": owner, "seconds": seconds, "threads": json.dumps(threads)}
    ).fetchone()
    return row is not None


def leave(connection: Connection, owner: UUID) -> None:
    """This process is done."""
    connection.execute(QUERIES["leave"], {"owner": owner})


def claim(connection: Connection, lane: str, owner: UUID, *, mark: datetime | None, most: int) -> list[Claimed]:
    """Take what is due, the longest due first, looking from `mark` on (None: from the beginning)."""
    with connection.cursor(row_factory=class_row(Claimed)) as cursor:
        # Never by a prepared plan: one that was made for an empty table reads a full one from end to end.
        return cursor.execute(
            QUERIES["claim"], {"lane": lane, "owner": owner, "mark": mark or "-infinity", "most": most}, prepare=False
        ).fetchall()


def open_call(connection: Connection, owner: UUID, keys: Mapping[UUID, str], *, validity: float) -> dict[UUID, Opened]:
    """Open a call about claimed messages, given with the keys of their addresses. Answers who may be in it: the others were
    cancelled, have expired, are suppressed, or are not ours any more; or our lease has run out, and they are back in the queue.
    `validity` (seconds) is the lane's.
    """
    rows = connection.execute(
        QUERIES["open"], {"owner": owner, "ids": list(keys), "keys": list(keys.values()), "validity": validity}
    ).fetchall()
    opened = {message_id: Opened(no, attempt) for message_id, state, no, attempt in rows if state == "sending"}
    ended = [message_id for message_id, state, _, _ in rows if state != "sending"]
    if ended:
        connection.execute(QUERIES["drop"], {"owner": owner, "ids": ended})
    if len(rows) < len(keys):
        release(connection, owner, keys.keys() - {row[0] for row in rows})
    return opened


def expire(connection: Connection, owner: UUID, ids: Collection[UUID], *, validity: float) -> set[UUID]:
    """End those claimed messages whose time is over. Answers which."""
    rows = connection.execute(QUERIES["expire"], {"owner": owner, "ids": list(ids), "validity": validity}).fetchall()
    ended = {row[0] for row in rows}
    if ended:
        connection.execute(QUERIES["drop"], {"owner": owner, "ids": list(ended)})
    return ended


def refuse(connection: Connection, owner: UUID, unfit: Sequence[tuple[UUID, str, str, str]]) -> None:
    """End claimed messages that cannot be made: id, state, reason, detail."""
    names = ("ids", "states", "reasons", "details")
    connection.execute(
        QUERIES["refuse"], {"owner": owner, **{name: [one[n] for one in unfit] for n, name in enumerate(names)}}
    )


def release(connection: Connection, owner: UUID, ids: Collection[UUID]) -> None:
    """Give claimed messages back to the queue."""
    connection.execute(QUERIES["release"], {"owner": owner, "ids": list(ids)})


def release_unknown(connection: Connection, lane: str, owner: UUID, held: Collection[UUID]) -> None:
    """Give back what was claimed for a lane and is not among what its threads hold: nobody would ever send it."""
    connection.execute(QUERIES["release_unknown"], {"lane": lane, "owner": owner, "held": list(held)})


def retract(connection: Connection, owner: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Close a call that was not made. Answers which messages are still ours."""
    rows = connection.execute(QUERIES["retract"], {"owner": owner, "ids": list(ids)}).fetchall()
    return {row[0] for row in rows}


def record(connection: Connection, owner: UUID, told: Sequence[Told], *, seconds: float | None) -> None:
    """Write what a call said. Twice is the same as once; an answer wins over the `unknown` of a sweeper that was faster."""
    rows = connection.execute(QUERIES["record"], _columns(owner, told, seconds)).fetchall()
    ours = {row[0] for row in rows}
    if late := [one for one in told if one.message_id not in ours]:
        connection.execute(QUERIES["record_late"], _columns(owner, late, seconds))


def sweep(connection: Connection, *, resend: Sequence[str]) -> int:
    """Take the messages of processes whose lease has run out. `resend`: lanes whose open calls are made once more. Answers how many
    messages were left behind.
    """
    with connection.transaction():
        connection.execute(QUERIES["bury"])
        lost = connection.execute(QUERIES["seize"]).fetchall()
        if not lost:
            return 0
        # A statement of its own: one that has waited for a claim still sees the message as it was before it waited.
        ids, owners, opened_ats = (list(column) for column in zip(*lost, strict=True))
        given = {"ids": ids, "owners": owners, "opened_ats": opened_ats, "resend": list(resend)}
        return len(connection.execute(QUERIES["sweep"], given).fetchall())


def _columns(owner: UUID, told: Sequence[Told], seconds: float | None) -> dict[str, Any]:
    return {
        "owner": owner,
        "seconds": seconds,
        "ids": [one.message_id for one in told],
        "nos": [one.opened.no for one in told],
        "attempts": [one.opened.attempt for one in told],
        "results": [one.result.kind.value for one in told],
        "reasons": [one.result.reason or None for one in told],
        "details": [one.result.detail for one in told],
        "provider_ids": [one.result.message_id for one in told],
        "states": [one.next.state for one in told],
        "next_attempts": [one.next.attempt for one in told],
        "tries": [one.next.tries for one in told],
        "delays": [one.next.delay for one in told],
    }
