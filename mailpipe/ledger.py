"""The ledger: leases chunks, opens calls, records answers, and sweeps up after workers that vanished.

This module alone changes `chunk`, `call` and `outcome`. Safety rests on two rules that are inside the statements (`ledger.sql`):
a call is opened by a synchronous commit before it is made, and whoever was opened is never opened again by machine.
Leases and clocks decide only who goes on with the work. Waiting, calling and choosing whom to call next is `send`'s duty.
"""

from __future__ import annotations

import json
from binascii import unhexlify
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import starmap
from typing import Any, Protocol

from psycopg.rows import dict_row

from mailpipe import suppression
from mailpipe.db import Connection, queries
from mailpipe.db.prepared import Prepared
from mailpipe.message import Recipient
from mailpipe.ses.answer import Answer, Kind, Result

QUERIES = queries.beside(__file__)

MAX_TRIES = 5
"""A person whom SES refuses this often with TRANSIENT_FAILURE ends as `failed`."""

_ID_FORM = b"0000000000000000-00000000-0000-0000-0000-000000000000-000000\n"
_TO_ZERO = bytes.maketrans(b"123456789abcdef", b"0" * 15)
_NOT_MADE = Result(Kind.AGAIN, "not_made")
# By its own name: to reach it through its class takes longer than to compare it, and it is done fifty times a call.
_SENT = Kind.SENT
_NUMBERS = ["campaign_id", "chunk_no", "fence", "first_seq", "size", "no", "sent", "failed", "unknown", "first", "last"]
_RANGE = ["first_slice", "last_slice", "low"]
_TYPES: dict[str, type] = dict.fromkeys(_NUMBERS + _RANGE, int) | {
    "took": float,
    "seconds": float,
    "message_ids": bytes,
}
"""Of the parameters of a lease, an opening and a record, those that are not text."""
_PENDING = (Kind.RETRY, Kind.AGAIN)
_LETTERS = {Kind.SENT: "s", Kind.FAILED: "f", Kind.RETRY: "r", Kind.AGAIN: "a", Kind.UNKNOWN: "u"}


@dataclass(frozen=True, slots=True)
class Lease:
    """A chunk in the hands of one worker. `fence` grows with each lease: an older holder can write nothing any more.
    `template_version` is what the chunk's people get now."""

    campaign_id: int
    chunk_no: int
    slice: int
    first_seq: int
    size: int
    fence: int
    finished: str
    owner: str
    template_version: str

    def mask(self, seqs: Sequence[int]) -> str:
        """The bits of these people, as PostgreSQL writes a bit string."""
        bits = bytearray(b"0" * self.size)
        for seq in seqs:
            bits[seq - self.first_seq] = 49
        return bits.decode()

    @property
    def key(self) -> dict[str, Any]:
        return {
            "campaign_id": self.campaign_id,
            "chunk_no": self.chunk_no,
            "fence": self.fence,
            "owner": self.owner,
            "template_version": self.template_version,
            "first_seq": self.first_seq,
            "size": self.size,
        }


@dataclass(frozen=True, slots=True)
class Opened:
    """A call that the ledger holds as opened: `no` counts the chunk's requests (0: not known), `seqs` are the people to mail,
    `attempts` the number of the attempt for those whom somebody has ordered to mail again."""

    no: int
    seqs: tuple[int, ...]
    attempts: Mapping[int, int] = field(default_factory=dict)

    @property
    def people(self) -> frozenset[int]:
        return frozenset(self.seqs)


class Addressee(Protocol):
    """Somebody who is to be mailed."""

    @property
    def seq(self) -> int: ...
    @property
    def attempt(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unfit:
    """A person who is out before any call."""

    seq: int
    state: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True)
class Counts:
    """People of a campaign by state, and its chunks. The six states add up to `total`."""

    chunks: int
    total: int
    sent: int
    failed: int
    skipped: int
    unknown: int
    sending: int
    pending: int
    queued_chunks: int
    processing_chunks: int


@dataclass(frozen=True)
class SliceCounts:
    """People of one slice by state."""

    slice: int
    total: int
    sent: int
    failed: int
    skipped: int
    unknown: int
    sending: int
    pending: int

    @property
    def complete(self) -> bool:
        return self.pending == 0 and self.sending == 0


@dataclass(frozen=True, slots=True)
class Due:
    """Seconds until a chunk may be leased (negative: it may be now): `pending`, the next one that is free; `freed`, the next one
    whose holder's lease ends if they stay silent. None: there is none."""

    pending: float | None
    freed: float | None

    @property
    def soonest(self) -> float | None:
        return min((seconds for seconds in (self.pending, self.freed) if seconds is not None), default=None)


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
    return Opening(Prepared(statement, _TYPES), _array(suppression.scopes(topic)), _array(suppression.topics(topic)))


def _array(names: Sequence[str]) -> str:
    """Names of topics and scopes as PostgreSQL writes an array. A list would be written by psycopg for each call, in 14 µs."""
    return "{" + ",".join(names) + "}"


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to an opened call, to be recorded. `tries` gives the earlier counted refusals of people who have some."""

    opened: Opened
    answer: Answer
    tries: Mapping[int, int] = field(default_factory=dict)


def open_call(
    connection: Connection,
    held: Lease,
    chosen: Sequence[Addressee],
    *,
    opening: Opening,
    seconds: float,
    answered: Answered | None = None,
) -> Opened | None:
    """Open a call for these people, in sending order; those suppressed or opted out by now are skipped instead. An answer to the
    call before is recorded with it, unless somebody in it had been refused before (`record` then tidies up after them).

    The commit of this is what allows the request. None: the lease was lost or the campaign stopped. No call may be made then, and
    nothing is written, `answered` neither.
    """
    assert answered is None or not answered.tries
    seqs = [person.seq for person in chosen]
    attempts = {person.seq: person.attempt for person in chosen if person.attempt > 1}
    row = opening.statement.first(
        connection,
        {
            **held.key,
            **(_nothing_answered(held.size) if answered is None else _record_parameters(held, answered)),
            "first": seqs[0],
            "last": seqs[-1],
            "asked": held.mask(seqs),
            "seconds": seconds,
            "scopes": opening.scopes,
            "topics": opening.topics,
        },
    )
    if row is None:
        return None
    no, refused = int(row[0] or 0), (row[1] or b"{}")[1:-1]
    if refused:
        gone = set(map(int, refused.split(b",")))
        seqs = [seq for seq in seqs if seq not in gone]
        attempts = {seq: attempt for seq, attempt in attempts.items() if seq not in gone}
    return Opened(no, tuple(seqs), attempts)


def record(connection: Connection, held: Lease, answered: Answered) -> bool:
    """Write what SES answered for each person of an opened call. Answers whether the chunk still belongs to the holder.

    An answer is never dropped: when the sweeper has already called the people `unknown`, it replaces that.
    """
    parameters = {**held.key, **_record_parameters(held, answered), "cleared": _cleared(answered)}
    row = _prepared("record").first(connection, parameters)
    if row is None:
        _record_late(connection, answered, parameters)
    return row is not None and row[0] == b"leased"


def retract(connection: Connection, held: Lease, opened: Opened) -> None:
    """Take back a call that was opened and certainly not made: its people are pending again, as if SES had refused them all for
    the moment. That wins over `unknown` like any answer, and the call's row sees to it that it does so once.

    Without a number (its commit is in doubt) it is taken back only while the holder has the chunk: what cannot be told from the
    call of another holder stays `unknown`.
    """
    if opened.no:
        record(connection, held, Answered(opened, Answer((_NOT_MADE,) * len(opened.seqs))))
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


def settle_unknown(
    connection: Connection, campaign_id: int, chunk_no: int, told: Sequence[tuple[int, str, str, int]]
) -> int:
    """Let events speak: (seq, sent|failed, reason, attempt) of one chunk. Answers how many people changed their state.

    `attempt` is the one that the person was at when this was decided: people of whom it is no longer true stay as they are.
    """
    with connection.transaction():
        connection.execute(QUERIES["lock_chunk"], {"campaign_id": campaign_id, "chunk_no": chunk_no})
        row = connection.execute(
            QUERIES["settle_unknown"],
            {
                "campaign_id": campaign_id,
                "chunk_no": chunk_no,
                "seqs": [seq for seq, _, _, _ in told],
                "states": [state for _, state, _, _ in told],
                "reasons": [reason for _, _, reason, _ in told],
                "attempts": [attempt for _, _, _, attempt in told],
            },
        ).fetchone()
    return 0 if row is None else int(row[0])


def send_again(connection: Connection, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    """Make `unknown` people pending again, as a new attempt; None: all of them. Answers whom it concerned, by seq.

    Only for a person's order, inside its transaction: `campaign.lock` comes before, the record of the order with it.
    """
    return _resolve(connection, "send_again", campaign_id, seqs)


def call_sent(connection: Connection, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    """Count `unknown` people as sent, on a person's word; otherwise as `send_again`."""
    return _resolve(connection, "call_sent", campaign_id, seqs)


def narrow(connection: Connection, campaign_id: int) -> int:
    """Skip whoever is pending and not in the temporary table `kept (user_id)`. Answers how many people that were.

    Only for a person's order, inside its transaction, which holds the lock of a campaign that is not sending.
    """
    row = connection.execute(QUERIES["narrow"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return int(row[0])


def counts(connection: Connection, campaign_id: int) -> Counts:
    """People by state; a sum over the chunks, never kept beside them."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(QUERIES["counts"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return Counts(**{name: int(value) for name, value in row.items()})


def slices(connection: Connection, campaign_id: int, between: tuple[int, int] = (0, 99)) -> dict[int, SliceCounts]:
    """People by state for every slice of the range, also for those that hold nobody."""
    found = {number: SliceCounts(number, 0, 0, 0, 0, 0, 0, 0) for number in range(between[0], between[1] + 1)}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(
            QUERIES["slices"],
            {"campaign_id": campaign_id, "first_slice": between[0], "last_slice": between[1]},
        ):
            found[row["slice"]] = SliceCounts(**{name: int(value) for name, value in row.items()})
    return found


def next_due(connection: Connection, campaign_id: int, between: tuple[int, int]) -> Due:
    """When the next chunk of these slices may be leased."""
    row = connection.execute(
        QUERIES["next_due"], {"campaign_id": campaign_id, "first_slice": between[0], "last_slice": between[1]}
    ).fetchone()
    assert row is not None
    return Due(*(None if seconds is None else float(seconds) for seconds in row))


def pack_message_ids(ids: Sequence[str]) -> tuple[bytes | None, str | None]:
    """SES message ids (16 hex digits, a UUID, `-000000`) as 24 bytes each; as text if one of them has another form."""
    if not ids:
        return None, None
    # All of them at once: 6 µs for fifty, 20 one by one.
    text = ("\n".join(ids) + "\n").encode("ascii", "replace")
    if text.translate(_TO_ZERO) != _ID_FORM * len(ids) or text.count(b"-000000\n") != len(ids):
        return None, " ".join(ids)
    packed = bytearray(unhexlify(text.translate(None, b"-\n")))
    for length in (27, 26, 25):
        del packed[24::length]
    return bytes(packed), None


def unpack_message_ids(packed: bytes | None, text: str | None) -> list[str]:
    """The inverse of `pack_message_ids`."""
    if packed is None:
        return text.split(" ") if text else []
    found = []
    for start in range(0, len(packed), 24):
        digits = packed[start : start + 24].hex()
        parts = (digits[:16], digits[16:24], digits[24:28], digits[28:32], digits[32:36], digits[36:])
        found.append("-".join(parts) + "-000000")
    return found


def _after(result: Result, tries: int) -> Result:
    """A refusal that counts becomes final when it has happened often enough."""
    if result.kind is Kind.RETRY and tries + 1 >= MAX_TRIES:
        return Result(Kind.FAILED, result.reason, result.detail)
    return result


def _resent(result: Result) -> Result:
    """As the row of somebody says it who was ordered to be mailed again: it stays, so that the attempt remains visible."""
    return Result(result.kind, "resend")


def _resolve(connection: Connection, name: str, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    parameters: dict[str, Any] = {"campaign_id": campaign_id, "seqs": None if seqs is None else list(seqs)}
    chunks = [row[0] for row in connection.execute(QUERIES["lock_unknown"], parameters)]
    return [row[0] for row in connection.execute(QUERIES[name], {**parameters, "chunks": chunks})]


@cache
def _prepared(name: str) -> Prepared:
    return Prepared(QUERIES[name], _TYPES)


def _recipients(campaign_id: int) -> str:
    """The table of one campaign's recipients (`snapshot` makes it)."""
    return f"mailpipe.recipient_{campaign_id:d}"


@lru_cache(maxsize=1000)
def _nothing_answered(size: int) -> dict[str, Any]:
    """The parameters of a call that is opened without an answer to record."""
    zero = "0" * size
    return {
        "no": None,
        "took": 0.0,
        "answered": zero,
        "final": zero,
        "sent": 0,
        "failed": 0,
        "unknown": 0,
        "codes": None,
        "message_ids": None,
        "message_ids_text": None,
        "exceptions": None,
    }


def _record_parameters(held: Lease, answered: Answered) -> dict[str, Any]:
    opened, seqs = answered.opened, answered.opened.seqs
    results = _results(answered)
    kinds = [result.kind for result in results]
    # By places: nearly everybody was accepted, and this is done for each call.
    others = [i for i, kind in enumerate(kinds) if kind is not _SENT]
    asked = final = held.mask(seqs)
    ids = [result.message_id or "" for result in results]
    codes = None
    exceptions: list[tuple[int, Result]] = []
    if others:
        letters = ["s"] * len(kinds)
        for i in others:
            letters[i] = _LETTERS[kinds[i]]
        codes = "".join(letters)
        ids = [one for one, kind in zip(ids, kinds, strict=True) if kind is _SENT]
        if back := {i for i in others if kinds[i] in _PENDING}:
            final = held.mask([seq for i, seq in enumerate(seqs) if i not in back])
        exceptions = [(seqs[i], results[i]) for i in others if kinds[i] is not Kind.AGAIN]
    if opened.attempts:
        exceptions += [
            (seq, _resent(result))
            for seq, result in zip(seqs, results, strict=True)
            if seq in opened.attempts and result.kind is _SENT
        ]
    packed, text = pack_message_ids(ids)
    return {
        "no": opened.no,
        "took": answered.answer.seconds,
        "answered": asked,
        "final": final,
        "sent": len(ids),
        "failed": kinds.count(Kind.FAILED) if others else 0,
        "unknown": kinds.count(Kind.UNKNOWN) if others else 0,
        "codes": codes,
        "message_ids": packed,
        "message_ids_text": text,
        "exceptions": _exceptions(exceptions, answered.tries, opened.attempts),
    }


def _exceptions(
    told: Sequence[tuple[int, Result]], tries: Mapping[int, int], attempts: Mapping[int, int]
) -> str | None:
    """What becomes of people, as JSON: psycopg takes 14 µs to write a list, and it would be six of them."""
    if not told:
        return None
    return json.dumps(
        [
            {
                "seq": seq,
                "state": result.kind,
                "reason": result.reason,
                "detail": result.detail,
                "tries": tries.get(seq, 0) + (result.kind is Kind.RETRY),
                "attempt": attempts.get(seq, 1),
            }
            for seq, result in told
        ]
    )


def _results(answered: Answered) -> Sequence[Result]:
    """The results, those refused too often as failed."""
    tries = answered.tries
    if not tries:
        return answered.answer.results
    pairs = zip(answered.opened.seqs, answered.answer.results, strict=True)
    return [_after(result, tries.get(seq, 0)) for seq, result in pairs]


def _cleared(answered: Answered) -> str | None:
    """Who was refused before and is sent now: nothing remains to be said about them. As PostgreSQL writes an array, or None."""
    if not answered.tries:
        return None
    pairs = zip(answered.opened.seqs, answered.answer.results, strict=True)
    return _array([str(seq) for seq, result in pairs if result.kind is Kind.SENT and answered.tries.get(seq)])


def _lock_late(connection: Connection, parameters: dict[str, Any]) -> None:
    connection.execute(QUERIES["lock_campaign"], parameters)
    connection.execute(QUERIES["lock_chunk"], parameters)


def _record_late(connection: Connection, answered: Answered, parameters: dict[str, Any]) -> None:
    pairs = [
        (seq, _resent(result) if result.kind in (Kind.SENT, Kind.AGAIN) else result)
        for seq, result in zip(answered.opened.seqs, _results(answered), strict=True)
    ]
    parameters["exceptions"] = _exceptions(pairs, answered.tries, answered.opened.attempts)
    with connection.transaction():
        _lock_late(connection, parameters)
        if connection.execute(QUERIES["keep_call"], parameters).fetchone() is not None:
            connection.execute(QUERIES["record_late"], parameters)
