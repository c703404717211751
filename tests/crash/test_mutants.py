"""The harness proves itself: take a safeguard of the protocol away, and the same faults double somebody's mail.

Each scenario is the shortest chain of faults in which one safeguard alone stands between a person and a second mail. All sending
is done by processes of the harness, so that a mutant sweeps up in its own way too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.crash import mutants
from tests.crash.conftest import PEOPLE
from tests.crash.harness import CALL, Crash, Sender
from tests.crash.program import Fault

NTH = 3
CHUNK = 50
"""People of a chunk of a small campaign: each slice holds one full call of SES."""
HORIZON = 60.0
"""Seconds. The second sender waits for the lease of the first."""

Scenario = Callable[[Crash, str, str | None], None]


def _ends(sender: Sender, mutant: str | None) -> None:
    """A mutant may fail of its own contradictions; the protocol as it is may not."""
    code = sender.wait()
    assert code == 0 or mutant is not None, f"the sender failed with {code}:\n{sender.said()}"


def dies_in_a_call(crash: Crash, key: str, mutant: str | None) -> None:
    """A sender dies with the answer in its hands; another one takes over."""
    crash.start(key, Fault("call", "after", nth=NTH), mutant=mutant, threads=1).wait_killed()
    _ends(crash.start(key, mutant=mutant, horizon=HORIZON), mutant)


def wakes_to_take_a_call_back(crash: Crash, key: str, mutant: str | None) -> None:
    """A sender loses its connection when it opens a call, and stalls before it takes that back. Meanwhile another one has leased
    the chunk and opened the same people's call; the taking back must not touch that."""
    faults = Fault("opening", "before", "cut"), Fault("retract", "before", "stop")
    first = crash.start(key, *faults, mutant=mutant, threads=1)
    first.wait_stopped()
    # It works all other chunks before that of the first comes back.
    here = Fault("call", "after", "stop", nth=(PEOPLE - CHUNK) // CALL + 1)
    second = crash.start(key, here, mutant=mutant, horizon=HORIZON, threads=1)
    second.wait_stopped()
    first.signal(signal.SIGCONT)
    _ends(first, mutant)
    second.signal(signal.SIGCONT)
    _ends(second, mutant)
    _ends(crash.start(key, mutant=mutant, horizon=HORIZON), mutant)


def loses_the_server_in_a_call(crash: Crash, key: str, mutant: str | None) -> None:
    """The server dies, with all that is not on its disk, while a call is open; it comes back, and the sender goes on."""
    sender = crash.start(key, Fault("call", "after", "stop", nth=NTH), mutant=mutant, threads=1)
    sender.wait_stopped()
    crash.server.kill()
    crash.server.start()
    sender.signal(signal.SIGCONT)
    _ends(sender, mutant)
    _ends(crash.start(key, mutant=mutant, horizon=HORIZON), mutant)


CATCHES: dict[str, Scenario] = {
    "expired_lease_is_sent_again": dies_in_a_call,
    "no_fence_check": wakes_to_take_a_call_back,
    "marked_after_the_call": dies_in_a_call,
    "opened_by_an_asynchronous_commit": loses_the_server_in_a_call,
}


def test_every_mutant_has_its_scenario() -> None:
    assert CATCHES.keys() == mutants.ALL.keys()


@pytest.mark.parametrize("mutant", CATCHES)
def test_without_its_safeguard_the_protocol_doubles_mail_and_is_caught(crash: Crash, mutant: str) -> None:
    key = crash.world.ready()
    CATCHES[mutant](crash, key, mutant)
    assert crash.duplicates(key) >= CALL
    with pytest.raises(AssertionError, match="mailed twice"):
        crash.world.keep_promises(key)


@pytest.mark.parametrize("scenario", dict.fromkeys(CATCHES.values()), ids=lambda scenario: scenario.__name__)
def test_the_protocol_as_it_is_survives_the_same_faults(crash: Crash, scenario: Scenario) -> None:
    key = crash.world.ready()
    scenario(crash, key, None)
    assert crash.duplicates(key) == 0
    assert crash.settle(key) == {"sent": PEOPLE}
