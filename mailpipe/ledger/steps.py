"""A worker's steps on a chunk: lease, open a call, record its answer, give the chunk back; and what becomes of the chunks of
workers that vanished. Waiting, calling and choosing whom to call next is `worker`'s duty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from typing import Any

from mailpipe import suppression
from mailpipe.db import Connection, queries
from mailpipe.db.prepared import Prepared
from mailpipe.ledger import answers
from mailpipe.ledger.chunk import Addressee, Answered, Lease, Opened, Unfit
from mailpipe.message import Recipient
from mailpipe.ses.answer import Answer, Kind, Result

QUERIES = queries.beside(__file__)

_NOT_MADE = Result(Kind.AGAIN, "not_made")
_NUMBERS = [
    "campaign_id",
    "chunk_no",
    "fence",
    "first_seq",
    "size",
    "calls",
    "sent",
    "failed",
    "unknown",
    "first",
    "last",
]
_RANGE = ["first_slice", "last_slice", "low"]
_TYPES: dict[str, type] = dict.fromkeys(_NUMBERS + _RANGE, int) | {
    "seconds": float,
    "message_ids": list,
    "message_ids_text": list,
}
"""Of the parameters of a lease, an opening and a record, those that are not text."""


def lease(
    connection: Connection,
    campaign_id: int,
    slices: tuple[int, int],
    *,
    owner: str,
    seconds: float,
    low: int = 0,
) -> Lease | None:
    """Take the first free due chunk of these slices, from chunk `low` on; None when there is none, or nothing may be sent."""
    row = _prepared("lease").first(
        connection,
        {
            "campaign_id": campaign_id,
            "first_slice": slices[0],
            "last_slice": slices[1],
            "owner": owner,
            "seconds": seconds,
            "low": low,
        },
    )
    if row is None:
        return None
    chunk_no, slice_no, first_seq, size, fence, finished, version = (
        value.decode() for value in row if value is not None
    )
    numbers = int(chunk_no), int(slice_no), int(first_seq), int(size), int(fence)
    return Lease(campaign_id, *numbers, finished, owner, version)


def people(connection: Connection, held: Lease) -> list[Recipient]:
    """Who of a leased chunk has no final state yet, in sending order."""
    statement = QUERIES.filled("people", recipients=_recipients(held.campaign_id))
    rows = connection.execute(statement, held.key, binary=True).fetchall()
    if "1" in held.finished:
        rows = [row for row in rows if held.finished[row[0] - held.first_seq] == "0"]
    # Whose chunk nobody has had before, of them nothing is known.
    earlier = {} if held.fence == 1 else _earlier(connection, held)
    if not earlier:
        return list(starmap(Recipient, rows))
    return [Recipient._make((*row, *earlier.get(row[0], (0, 1)))) for row in rows]


def _earlier(connection: Connection, held: Lease) -> dict[int, tuple[int, int]]:
    """Counted refusals and attempt of those who have some."""
    return {seq: (tries, attempt) for seq, tries, attempt in connection.execute(QUERIES["earlier"], held.key)}


@dataclass(frozen=True)
class Opening:
    """The statement that opens a campaign's calls, with all that refuses one of its people inside. `scopes` and `topics` are
    written as PostgreSQL writes an array."""

    statement: Prepared
    scopes: str
    topics: str


def opening(campaign_id: int, topic: str, *, consent: str) -> Opening:
    """How calls of a campaign about `topic` are opened; `consent` is the team's condition of who may still be mailed."""
    statement = QUERIES.filled("open", consent=consent, recipients=_recipients(campaign_id))
    return Opening(
        Prepared(statement, _TYPES), answers.array(suppression.scopes(topic)), answers.array(suppression.topics(topic))
    )


def open_calls(
    connection: Connection,
    held: Lease,
    calls: Sequence[Sequence[Addressee]],
    *,
    opening: Opening,
    seconds: float,
    answered: Sequence[Answered] = (),
) -> tuple[Opened, ...] | None:
    """Open calls for these people, each in sending order; those suppressed or opted out by now are skipped instead. The answers to
    calls before are recorded with it, unless somebody in one had been refused before (`record` then tidies up after them).

    The commit of this is what allows the requests. None: the lease was lost or the campaign stopped. No call may be made then, and
    nothing is written, `answered` neither.
    """
    assert not any(one.tries for one in answered)
    seqs = [person.seq for chosen in calls for person in chosen]
    assert len(set(seqs)) == len(seqs), "somebody is in two calls"
    row = opening.statement.first(
        connection,
        {
            **held.key,
            **(answers.record_parameters(held, answered) if answered else answers.nothing_answered(held.size)),
            "calls": len(calls),
            "first": min(chosen[0].seq for chosen in calls),
            "last": max(chosen[-1].seq for chosen in calls),
            "asked": held.mask(seqs),
            "seconds": seconds,
            "scopes": opening.scopes,
            "topics": opening.topics,
        },
    )
    if row is None:
        return None
    refused = (row[1] or b"{}")[1:-1]
    gone = frozenset(map(int, refused.split(b","))) if refused else frozenset()
    first = int(row[0] or 0) - len(calls) + 1
    return tuple(_opened(first + i, chosen, gone) for i, chosen in enumerate(calls))


def _opened(no: int, chosen: Sequence[Addressee], gone: frozenset[int]) -> Opened:
    """A call for those of `chosen` who are not `gone`; without anybody it is none, and has no number."""
    left = [person for person in chosen if person.seq not in gone] if gone else chosen
    attempts = {person.seq: person.attempt for person in left if person.attempt > 1}
    return Opened(no if left else 0, tuple([person.seq for person in left]), attempts)


def record(connection: Connection, held: Lease, answered: Sequence[Answered]) -> bool:
    """Write what SES answered for each person of opened calls. Answers whether the chunk still belongs to the holder.

    An answer is never dropped: when the sweeper has already called the people `unknown`, it replaces that.
    """
    parameters = {**held.key, **answers.record_parameters(held, answered), "cleared": answers.cleared(answered)}
    row = _prepared("record").first(connection, parameters)
    if row is not None:
        return row[0] == b"leased"
    if len(answered) > 1:
        # What is true of one of them need not be true of the others.
        holding = [record(connection, held, [one]) for one in answered]
        return all(holding)
    _record_late(connection, answered[0], parameters)
    return False


def retract(connection: Connection, held: Lease, opened: Opened) -> None:
    """Take back a call that was opened and certainly not made: its people are pending again, as if SES had refused them all for
    the moment. That wins over `unknown` like any answer, and the call's row sees to it that it does so once.

    Without a number (its commit is in doubt) it is taken back only while the holder has the chunk: what cannot be told from the
    call of another holder stays `unknown`.
    """
    if opened.no:
        record(connection, held, [Answered(opened, Answer((_NOT_MADE,) * len(opened.seqs)))])
    else:
        connection.execute(QUERIES["retract"], {**held.key, "asked": held.mask(opened.seqs)})


def refuse(connection: Connection, held: Lease, unfit: Sequence[Unfit]) -> None:
    """Give people who cannot be mailed their final state, before any call."""
    connection.execute(
        QUERIES["refuse"],
        {
            **held.key,
            "final": held.mask([person.seq for person in unfit]),
            "seqs": [person.seq for person in unfit],
            "states": [person.state for person in unfit],
            "reasons": [person.reason for person in unfit],
            "details": [person.detail for person in unfit],
        },
    )


def release(connection: Connection, held: Lease, *, delay: float = 0) -> None:
    """Give a chunk back; with `delay` seconds it is not leased again before they have passed."""
    connection.execute(QUERIES["release"], {**held.key, "delay": delay})


def renew(connection: Connection, campaign_id: int, held: Sequence[Lease], *, seconds: float) -> int:
    """Prolong these leases where they are still held; one that has run out stays lost. Answers how many."""
    return connection.execute(
        QUERIES["renew"],
        {
            "campaign_id": campaign_id,
            "chunks": [one.chunk_no for one in held],
            "fences": [one.fence for one in held],
            "owners": [one.owner for one in held],
            "seconds": seconds,
        },
    ).rowcount


def expire_leases(connection: Connection, campaign_id: int | None = None) -> tuple[int, int]:
    """Free the chunks of silent workers. Answers how many, and how many people became `unknown`."""
    row = connection.execute(QUERIES["expire_leases"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def lock_chunk(connection: Connection, campaign_id: int, chunk_no: int) -> None:
    """Keep everybody else from a chunk until the transaction ends."""
    connection.execute(QUERIES["lock_chunk"], {"campaign_id": campaign_id, "chunk_no": chunk_no})


@cache
def _prepared(name: str) -> Prepared:
    return Prepared(QUERIES[name], _TYPES)


def _recipients(campaign_id: int) -> str:
    """The table of one campaign's recipients (`snapshot` makes it)."""
    return f"mailpipe.recipient_{campaign_id:d}"


def _lock_late(connection: Connection, parameters: dict[str, Any]) -> None:
    connection.execute(QUERIES["lock_campaign"], parameters)
    lock_chunk(connection, parameters["campaign_id"], parameters["chunk_no"])


def _record_late(connection: Connection, answered: Answered, parameters: dict[str, Any]) -> None:
    pairs = [
        (seq, answers.resent(result) if result.kind in (Kind.SENT, Kind.AGAIN) else result)
        for seq, result in zip(answered.opened.seqs, answers.final_results(answered), strict=True)
    ]
    parameters["exceptions"] = json.dumps(answers.exceptions(pairs, answered))
    with connection.transaction():
        _lock_late(connection, parameters)
        if connection.execute(QUERIES["keep_call"], parameters).fetchone() is not None:
            connection.execute(QUERIES["record_late"], parameters)
