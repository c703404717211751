"""A sender that is asked to stop, or killed again and again: who launches once more finishes the campaign, alone."""

from __future__ import annotations

import signal

from tests.crash.conftest import PEOPLE
from tests.crash.harness import CALL, THREADS, Crash
from tests.support import wait_for


def test_asked_to_stop_a_sender_leaves_nobody_unknown_and_no_chunk_in_its_hands(crash: Crash) -> None:
    key = crash.world.ready()
    crash.world.stand_in.change(latency_ms=150)
    sender = crash.start(key)
    wait_for(lambda: len(crash.accepted(key)) >= 3 * CALL, "some calls")
    sender.signal(signal.SIGTERM)
    sender.wait_done()
    assert "End.STOPPED" in sender.said()
    assert crash.leased(key) == 0
    assert set(crash.world.keep_promises(key)) == {"sent", "pending"}
    crash.world.stand_in.change(latency_ms=0)
    crash.send(key)
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}


def test_asked_to_stop_during_a_silence_of_the_provider_a_sender_waits_for_what_is_known(crash: Crash) -> None:
    """The answers come late, and are written all the same."""
    key = crash.world.ready()
    crash.world.stand_in.add_faults({"kind": "pause", "accept": True})
    sender = crash.start(key)
    wait_for(lambda: len(crash.accepted(key)) == THREADS * CALL, "every thread to be in a call")
    sender.signal(signal.SIGTERM)
    crash.world.stand_in.clear_faults()
    sender.wait_done()
    assert crash.world.keep_promises(key) == {"sent": THREADS * CALL, "pending": PEOPLE - THREADS * CALL}
    assert crash.leased(key) == 0


def test_killed_three_times_in_a_row_a_campaign_is_finished_by_the_fourth_launch_alone(crash: Crash) -> None:
    """Nobody sweeps: the last run waits for the leases of the dead, which run out within its horizon."""
    key = crash.world.ready()
    crash.world.stand_in.change(latency_ms=100)
    in_flight: set[int] = set()
    for _ in range(3):
        before = len(crash.accepted(key))
        sender = crash.start(key, horizon=20.0)
        wait_for(lambda least=before + CALL: len(crash.accepted(key)) >= least, "a call of this run")  # type: ignore[misc]
        sender.signal(signal.SIGKILL)
        sender.wait_killed()
        in_flight |= crash.in_flight(key)
    crash.world.stand_in.change(latency_ms=0)
    assert crash.leased(key) > 0
    crash.start(key, horizon=20.0).wait_done()
    states = crash.world.keep_promises(key)
    assert not states.get("pending") and not states.get("sending"), "somebody was left behind"
    assert crash.of_state(key, "unknown") <= in_flight
    assert len(in_flight) <= 3 * THREADS * CALL
    crash.settle(key)
