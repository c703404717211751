"""An answer of the provider, as the statements of `steps` take it: bits, counters, codes, packed message ids, exceptions. Pure."""

from __future__ import annotations

import json
from binascii import unhexlify
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mailpipe.ledger.chunk import Answered, Lease
from mailpipe.ses.answer import Kind, Result

MAX_TRIES = 5
"""A person whom SES refuses this often with TRANSIENT_FAILURE ends as `failed`."""

_ID_FORM = b"0000000000000000-00000000-0000-0000-0000-000000000000-000000\n"
_TO_ZERO = bytes.maketrans(b"123456789abcdef", b"0" * 15)
# By its own name: to reach it through its class takes longer than to compare it, and it is done fifty times a call.
_SENT = Kind.SENT
_PENDING = (Kind.RETRY, Kind.AGAIN)
_LETTERS = {Kind.SENT: "s", Kind.FAILED: "f", Kind.RETRY: "r", Kind.AGAIN: "a", Kind.UNKNOWN: "u"}


@lru_cache(maxsize=1000)
def nothing_answered(size: int) -> dict[str, Any]:
    """The parameters of an opening without an answer to record."""
    zero = "0" * size
    return {
        "nos": None,
        "took": None,
        "positions": None,
        "accepted": None,
        "codes": None,
        "message_ids": None,
        "message_ids_text": None,
        "answered": zero,
        "final": zero,
        "sent": 0,
        "failed": 0,
        "unknown": 0,
        "exceptions": None,
    }


def record_parameters(held: Lease, answered: Sequence[Answered]) -> dict[str, Any]:
    """The parameters of the statements that write answers."""
    rows = [_row(one) for one in answered]
    seqs = [seq for row in rows for seq in row.seqs]
    back = {seq for row in rows for seq in row.back}
    told = [one for row in rows for one in row.exceptions]
    asked = held.mask(seqs)
    return {
        "nos": array(row.no for row in rows),
        "took": array(row.took for row in rows),
        "positions": array([asked] if len(rows) == 1 else [held.mask(row.seqs) for row in rows]),
        "accepted": array(row.accepted for row in rows),
        "codes": array(row.codes or "NULL" for row in rows),
        "message_ids": [row.message_ids for row in rows],
        "message_ids_text": [row.message_ids_text for row in rows],
        "answered": asked,
        "final": held.mask([seq for seq in seqs if seq not in back]) if back else asked,
        "sent": sum(row.accepted for row in rows),
        "failed": sum(row.failed for row in rows),
        "unknown": sum(row.unknown for row in rows),
        "exceptions": json.dumps(told) if told else None,
    }


class _Row(NamedTuple):
    """What is written of one answered call: a row of `call`, whom it has left pending (`back`), and who is an exception."""

    no: int
    took: float
    seqs: tuple[int, ...]
    accepted: int
    failed: int
    unknown: int
    codes: str | None
    message_ids: bytes | None
    message_ids_text: bytes | None
    back: Sequence[int]
    exceptions: Sequence[dict[str, Any]]


def _row(answered: Answered) -> _Row:
    opened, seqs = answered.opened, answered.opened.seqs
    results = final_results(answered)
    kinds = [result.kind for result in results]
    # By places: nearly everybody was accepted, and this is done for each call.
    others = [i for i, kind in enumerate(kinds) if kind is not _SENT]
    ids = [result.message_id or "" for result in results]
    codes = None
    told: list[tuple[int, Result]] = []
    if others:
        letters = ["s"] * len(kinds)
        for i in others:
            letters[i] = _LETTERS[kinds[i]]
        codes = "".join(letters)
        ids = [one for one, kind in zip(ids, kinds, strict=True) if kind is _SENT]
        told = [(seqs[i], results[i]) for i in others if kinds[i] is not Kind.AGAIN]
    if opened.attempts:
        told += [
            (seq, resent(result))
            for seq, result in zip(seqs, results, strict=True)
            if seq in opened.attempts and result.kind is _SENT
        ]
    packed, text = pack_message_ids(ids)
    return _Row(
        no=opened.no,
        took=answered.answer.seconds,
        seqs=seqs,
        accepted=len(ids),
        failed=kinds.count(Kind.FAILED) if others else 0,
        unknown=kinds.count(Kind.UNKNOWN) if others else 0,
        codes=codes,
        message_ids=packed,
        message_ids_text=None if text is None else text.encode(),
        back=[seqs[i] for i in others if kinds[i] in _PENDING],
        exceptions=exceptions(told, answered) if told else (),
    )


def exceptions(told: Sequence[tuple[int, Result]], answered: Answered) -> Sequence[dict[str, Any]]:
    """What becomes of people. It travels as JSON: psycopg takes 14 µs to write a list, and it would be six of them."""
    tries, attempts = answered.tries, answered.opened.attempts
    return [
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


def final_results(answered: Answered) -> Sequence[Result]:
    """The results, those refused too often as failed."""
    tries = answered.tries
    if not tries:
        return answered.answer.results
    pairs = zip(answered.opened.seqs, answered.answer.results, strict=True)
    return [_after(result, tries.get(seq, 0)) for seq, result in pairs]


def cleared(answered: Sequence[Answered]) -> str | None:
    """Who was refused before and is sent now: nothing remains to be said about them. As PostgreSQL writes an array, or None."""
    if not any(one.tries for one in answered):
        return None
    return array(
        seq
        for one in answered
        for seq, result in zip(one.opened.seqs, one.answer.results, strict=True)
        if result.kind is Kind.SENT and one.tries.get(seq)
    )


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


def resent(result: Result) -> Result:
    """As the row of somebody says it who was ordered to be mailed again: it stays, so that the attempt remains visible."""
    return Result(result.kind, "resend")


def array(items: Iterable[str | float]) -> str:
    """Numbers, or texts that need no quotes, as PostgreSQL writes an array. psycopg takes 14 µs to write a list."""
    return "{" + ",".join(map(str, items)) + "}"
