"""The ledger: leases chunks, opens calls, records answers, and sweeps up after workers that vanished.

This package alone changes `chunk`, `call` and `outcome`. Safety rests on two rules that are inside the statements (`steps.sql`):
a call is opened by a synchronous commit before it is made, and whoever was opened is never opened again by machine.
Leases and clocks decide only who goes on with the work.

`chunk` is what a worker holds, `steps` what it does, `answers` how an answer is written, `orders` what is decided about people
later, `sums` what all of it comes to.
"""

from mailpipe.ledger.answers import MAX_TRIES, pack_message_ids, unpack_message_ids
from mailpipe.ledger.chunk import Addressee, Answered, Lease, Opened, Unfit
from mailpipe.ledger.orders import call_sent, narrow, send_again, settle_unknown
from mailpipe.ledger.steps import (
    Opening,
    expire_leases,
    lease,
    open_calls,
    opening,
    people,
    record,
    refuse,
    release,
    renew,
    retract,
)
from mailpipe.ledger.sums import Counts, Due, SliceCounts, counts, next_due, slices

__all__ = [
    "MAX_TRIES",
    "Addressee",
    "Answered",
    "Counts",
    "Due",
    "Lease",
    "Opened",
    "Opening",
    "SliceCounts",
    "Unfit",
    "call_sent",
    "counts",
    "expire_leases",
    "lease",
    "narrow",
    "next_due",
    "open_calls",
    "opening",
    "pack_message_ids",
    "people",
    "record",
    "refuse",
    "release",
    "renew",
    "retract",
    "send_again",
    "settle_unknown",
    "slices",
    "unpack_message_ids",
]
