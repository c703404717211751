"""The people of a leased chunk on their way into calls."""

from __future__ import annotations

from collections import deque

from mailpipe.ledger import Lease
from mailpipe.message import Filled
from mailpipe.worker import _Chunk


def filled(seq: int) -> Filled:
    return Filled(seq, 1, f"person{seq}@mail.example.com", "{}", "<https://mail.example.com/u/1>")


def test_a_call_has_its_people_in_sending_order_whoever_was_brought_to_the_front() -> None:
    """The ledger looks from the first to the last of them for who is suppressed: another order would leave people out."""
    held = Lease(1, 0, 0, 1, 10, 1, "0" * 10, "one", "any")
    chunk = _Chunk(held, deque([[filled(seq) for seq in (5, 9, 2, 4, 1)]]), {})
    calls = [[one.seq for one in chunk.next_batch(size)] for size in (3, 2)]
    assert calls == [[2, 5, 9], [1, 4]]
    assert not chunk.todo
