"""SES message ids are packed into 24 bytes each and come back as they were, whatever SES makes of them."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.ledger import pack_message_ids, unpack_message_ids

REAL = st.builds(
    lambda head, tail: f"{head:016x}-{UUID(int=tail)}-000000", st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1)
)
ANY = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=70)


@given(st.lists(REAL, max_size=50))
def test_ids_of_the_known_form_take_24_bytes_each(ids: list[str]) -> None:
    packed, text = pack_message_ids(ids)
    assert text is None
    assert packed is None if not ids else packed is not None and len(packed) == 24 * len(ids)
    assert unpack_message_ids(packed, text) == ids


@given(st.lists(st.one_of(REAL, ANY), max_size=50))
def test_ids_of_any_form_come_back_as_they_were(ids: list[str]) -> None:
    assert unpack_message_ids(*pack_message_ids(ids)) == ids


@pytest.mark.parametrize(
    "strange",
    [
        "0100018F1A2B3C4D-01234567-89ab-4def-8123-456789abcdef-000000",  # capitals
        "0100018f1a2b3c4d-01234567-89ab-4def-8123-456789abcdef-000001",
        "0100018f1a2b3c4d-0123456789ab-4def-8123-456789abcdef--000000",
        "0100018f1a2b3c4g-01234567-89ab-4def-8123-456789abcdef-000000",
        "short",
    ],
)
def test_one_strange_id_makes_the_whole_call_text(strange: str) -> None:
    good = "0100018f1a2b3c4d-01234567-89ab-4def-8123-456789abcdef-000000"
    assert pack_message_ids([good, strange]) == (None, f"{good} {strange}")
