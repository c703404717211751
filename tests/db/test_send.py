"""A campaign from segment to report, in process, against a real PostgreSQL and the stand-in."""

from __future__ import annotations

import pytest

from mailpipe.send import End
from tests.support import World


@pytest.mark.parametrize("people", [0, 1, 49, 50, 51, 500, 501])
def test_everybody_gets_one_mail(world: World, people: int) -> None:
    """The numbers around a call and a chunk."""
    world.people(people)
    key = world.ready()
    outcome = world.send(key)
    assert outcome.end is End.COMPLETE
    assert world.keep_promises(key) == ({"sent": people} if people else {})
    assert world.campaign(key).state == "done"
