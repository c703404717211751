"""Mutants of the protocol: each takes one safeguard away, in the process that calls it and nowhere else.

They prove the harness: a crash test that does not catch them would not catch a mistake of ours either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mailpipe import ledger
from mailpipe.db import Connection
from mailpipe.lanes import claims
from mailpipe.ledger import Addressee, Answered, Lease, Opened, steps

ALL: dict[str, Callable[[], None]] = {}


def _mutant(change: Callable[[], None]) -> Callable[[], None]:
    ALL[change.__name__] = change
    return change


@_mutant
def expired_lease_is_sent_again() -> None:
    """What job queues do: work whose holder is silent goes back, also what was in an open call."""
    _edit("expire_leases", "finished = c.finished | c.opened", "finished = c.finished")
    _edit("expire_leases", "bit_count(c.finished | c.opened) = c.size", "bit_count(c.finished) = c.size")
    _edit("expire_leases", "unknown = c.unknown + bit_count(c.opened)", "unknown = c.unknown")
    _edit("expire_leases", "WHERE get_bit(d.opened, i) = 1", "WHERE false")


@_mutant
def no_fence_check() -> None:
    """A worker that has lost its lease writes on as if nothing had happened."""
    _edit("open", "AND c.owner = :owner AND c.fence = :fence AND c.leased_until > clock_timestamp()", "")
    for name in ("record", "retract", "refuse", "release"):
        _edit(name, "AND c.fence = :fence AND c.owner = :owner", "")


@_mutant
def marked_after_the_call() -> None:
    """Nothing is opened before the call: the statement's answer is used, its writes come with the record."""
    open_calls, record = ledger.open_calls, ledger.record
    asked: dict[tuple[int, ...], tuple[Sequence[Addressee], dict[str, Any]]] = {}

    def open_nothing(
        connection: Connection,
        held: Lease,
        calls: Sequence[Sequence[Addressee]],
        *,
        answered: Sequence[Answered] = (),
        **named: Any,
    ) -> tuple[Opened, ...] | None:
        if answered and not open_and_record(connection, held, answered):
            return None
        with connection.transaction(force_rollback=True):
            opened = open_calls(connection, held, calls, **named)
        for one, chosen in zip(opened or (), calls, strict=False):
            asked[one.seqs] = (chosen, named)
        return opened

    def open_and_record(connection: Connection, held: Lease, answered: Sequence[Answered]) -> bool:
        holding = True
        for one in answered:
            chosen, named = asked[one.opened.seqs]
            with connection.transaction():
                open_calls(connection, held, [chosen], **named)
                holding = record(connection, held, [one]) and holding
        return holding

    ledger.open_calls, ledger.record = open_nothing, open_and_record
    steps.record = open_and_record


@_mutant
def opened_by_an_asynchronous_commit() -> None:
    """The commit that opens a call is answered before it is on disk."""
    _edit(
        "open",
        "set_config('synchronous_commit', 'on', true) = 'on'",
        "set_config('synchronous_commit', 'off', true) = 'off'",
    )


def lost_message_is_sent_again() -> None:
    """What job queues do, for messages: the open call of a dead process is as good as none. Not in ALL: no campaign notices."""
    text = claims.QUERIES.texts["sweep"]
    changed = text.replace("ELSE 'unknown' END AS state", "ELSE 'pending' END AS state").replace(
        "m.attempt + CAST(m.state = 'sending' AND d.state = 'pending' AS integer)", "m.attempt"
    )
    if changed.count("m.attempt,") == text.count("m.attempt,") or "'unknown' END" in changed:
        raise LookupError("the mutant no longer fits the statement 'sweep'")
    claims.QUERIES.texts["sweep"] = changed


MESSAGES = {"lost_message_is_sent_again": lost_message_is_sent_again}


def _edit(name: str, old: str, new: str) -> None:
    text = steps.QUERIES.texts[name]
    if old not in text:
        raise LookupError(f"the mutant no longer fits the statement {name!r}: it has no {old!r}")
    steps.QUERIES.texts[name] = text.replace(old, new)
    steps._prepared.cache_clear()
