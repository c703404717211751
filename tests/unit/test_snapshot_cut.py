"""Cutting N recipients into slices and chunks: everybody once, in order, at the borders of full calls."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailpipe.snapshot import CALL, Cut, cut

PEOPLE = st.one_of(st.integers(0, 12_000), st.integers(0, 3_000_000))
SIZES = st.integers(100, 1000)


@given(PEOPLE, SIZES)
@example(0, 500)
@example(1, 500)
@example(49, 100)
@example(50, 100)
@example(51, 100)
@example(4999, 500)
@example(5000, 500)
@example(5001, 500)
@example(1_000_000, 500)
def test_chunks_cover_everybody_without_holes_or_overlap(people: int, size: int) -> None:
    pieces = list(cut(people, size))
    expected = 1
    for number, piece in enumerate(pieces):
        assert piece.chunk_no == number
        assert piece.first_seq == expected
        assert 1 <= piece.size <= size
        expected += piece.size
    assert expected == people + 1


@given(PEOPLE, SIZES)
def test_slices_come_in_order_and_begin_where_a_full_call_begins(people: int, size: int) -> None:
    pieces = list(cut(people, size))
    for before, after in pairwise(pieces):
        assert before.slice <= after.slice
        if before.slice != after.slice:
            assert (after.first_seq - 1) % CALL == 0
    assert all(0 <= piece.slice <= 99 for piece in pieces)


@given(st.integers(CALL * 100, 3_000_000), SIZES)
def test_slices_of_a_large_audience_differ_by_one_call_at_most(people: int, size: int) -> None:
    sizes = [0] * 100
    for piece in cut(people, size):
        sizes[piece.slice] += piece.size
    assert min(sizes) > 0
    assert max(sizes) - min(sizes[:-1]) <= CALL
    assert sizes[-1] > max(sizes) - 2 * CALL


@given(PEOPLE, SIZES)
def test_only_the_last_chunk_of_a_slice_is_not_full(people: int, size: int) -> None:
    for before, after in pairwise(cut(people, size)):
        assert before.size == size or before.slice != after.slice


def test_a_small_audience_is_spread_over_all_slices() -> None:
    assert list(cut(120, 500)) == [Cut(0, 0, 1, 50), Cut(1, 33, 51, 50), Cut(2, 66, 101, 20)]


@pytest.mark.parametrize("people", [0, 1, 50, 51])
def test_the_smallest_audiences(people: int) -> None:
    assert [piece.size for piece in cut(people, 500)] == [min(50, people - first) for first in range(0, people, 50)]


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=40), SIZES)
@example([10, 0, 90], 100)
@example([0, 50], 100)
def test_no_chunk_holds_people_who_are_due_at_different_times(groups: list[int], size: int) -> None:
    people = sum(groups)
    pieces = list(cut(people, size, groups))
    in_groups = [0] * len(groups)
    expected = 1
    for number, piece in enumerate(pieces):
        assert (piece.chunk_no, piece.first_seq) == (number, expected)
        assert 1 <= piece.size <= size
        expected += piece.size
        in_groups[piece.group] += piece.size
    assert in_groups == groups
    assert [piece.group for piece in pieces] == sorted(piece.group for piece in pieces)
    # The slices are those that the audience would have without groups.
    assert {piece.slice for piece in pieces} == {piece.slice for piece in cut(people, size)}
