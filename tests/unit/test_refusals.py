"""When single refused people mean that SES refuses everybody: bad people may stand side by side."""

from __future__ import annotations

import pytest

from mailpipe.job import HOPELESS_CALLS, Refusals

A_CALL, ANOTHER = (0, 1), (7, 3_501)


def test_while_nobody_was_accepted_a_few_are_enough() -> None:
    refusals = Refusals()
    assert [refusals.alone(A_CALL) for _ in range(HOPELESS_CALLS)] == [False] * (HOPELESS_CALLS - 1) + [True]


def test_once_somebody_was_accepted_a_whole_call_of_bad_people_is_believed() -> None:
    refusals = Refusals()
    refusals.accepted()
    assert not any(refusals.alone(A_CALL) for _ in range(50))


@pytest.mark.parametrize("before", [True, False])
def test_people_of_a_second_call_tell_that_it_is_not_theirs(before: bool) -> None:
    refusals = Refusals()
    if before:
        refusals.accepted()
    calls = [A_CALL] * (HOPELESS_CALLS - 1) + [ANOTHER]
    assert [refusals.alone(call) for call in calls] == [False] * (HOPELESS_CALLS - 1) + [True]


def test_anybody_who_is_accepted_in_between_begins_the_count_anew() -> None:
    refusals = Refusals()
    for number in range(10):
        assert not any(refusals.alone((number, i)) for i in range(HOPELESS_CALLS - 1))
        refusals.accepted()
