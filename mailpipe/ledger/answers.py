"""An answer of the provider, as the statements of `steps` take it: bits, counters, codes, packed message ids, exceptions. Pure."""

from __future__ import annotations

import json
from binascii import unhexlify
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

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


def record_parameters(held: Lease, answered: Answered) -> dict[str, Any]:
    """The parameters of the statements that write an answer."""
    opened, seqs = answered.opened, answered.opened.seqs
    results = final_results(answered)
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
            (seq, resent(result))
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
        "exceptions": exceptions_json(exceptions, answered.tries, opened.attempts),
    }


def exceptions_json(
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


def final_results(answered: Answered) -> Sequence[Result]:
    """The results, those refused too often as failed."""
    tries = answered.tries
    if not tries:
        return answered.answer.results
    pairs = zip(answered.opened.seqs, answered.answer.results, strict=True)
    return [_after(result, tries.get(seq, 0)) for seq, result in pairs]


def cleared(answered: Answered) -> str | None:
    """Who was refused before and is sent now: nothing remains to be said about them. As PostgreSQL writes an array, or None."""
    if not answered.tries:
        return None
    pairs = zip(answered.opened.seqs, answered.answer.results, strict=True)
    return array([str(seq) for seq, result in pairs if result.kind is Kind.SENT and answered.tries.get(seq)])


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


def array(names: Sequence[str]) -> str:
    """Names of topics and scopes as PostgreSQL writes an array. A list would be written by psycopg for each call, in 14 µs."""
    return "{" + ",".join(names) + "}"
