"""A sender dies, or stands still for longer than its lease, at each named step: nobody twice, nobody lost."""

from __future__ import annotations

import signal

import pytest

from tests.crash.conftest import PEOPLE
from tests.crash.harness import CALL, IN_WINDOWS, THREADS, Crash, Sender
from tests.crash.program import Fault
from tests.support import wait_for

NTH = 4
"""In the middle: some calls are answered by then, and others are open."""

KILLS = [
    Fault("start", "after"),
    Fault("lease", "before"),
    Fault("lease", "after", nth=NTH),
    Fault("people", "after", nth=2),
    Fault("take", "before", nth=NTH),
    Fault("take", "after", nth=NTH),
    Fault("open", "before", nth=NTH),
    Fault("opening", "after", nth=NTH),
    Fault("open", "after", nth=NTH),
    Fault("call", "before", nth=NTH),
    Fault("leave", "after", nth=NTH),
    Fault("call", "after", nth=NTH),
    Fault("record", "before", nth=NTH),
    Fault("record", "after", nth=NTH),
    Fault("release", "before", nth=2),
    Fault("release", "after", nth=2),
    Fault("settle", "after"),
    Fault("finish", "before"),
    Fault("finish", "after"),
]


OPEN = {"after-opening", "after-open", "before-call", "after-leave", "after-call", "before-record"}
"""Where the thread that is struck has a call open."""


def _name(fault: Fault) -> str:
    return f"{fault.when}-{fault.step}"


@pytest.mark.parametrize(
    ("fault", "threads"),
    [(fault, THREADS) for fault in KILLS]
    + [(fault, IN_WINDOWS) for fault in KILLS if fault.step not in ("start", "settle", "finish", "release")],
    ids=lambda value: _name(value) if isinstance(value, Fault) else str(value),
)
def test_killed_at_any_step_a_sender_doubles_and_loses_nobody(crash: Crash, fault: Fault, threads: int) -> None:
    key = crash.world.ready()
    if fault.step == "release":
        crash.refuse_last_calls(key)
    crash.start(key, fault, threads=threads).wait_killed()
    in_flight = crash.in_flight(key)
    assert len(in_flight) <= threads * CALL
    assert in_flight or _name(fault) not in OPEN
    crash.complete(key, in_flight)


@pytest.mark.parametrize("threads", [THREADS, IN_WINDOWS])
@pytest.mark.parametrize("accepted", [False, True], ids=["not-yet-accepted", "already-accepted"])
def test_killed_while_the_provider_works_on_its_calls(crash: Crash, accepted: bool, threads: int) -> None:
    """What the provider has accepted is unknown until its events tell; what it has not stays unknown."""
    key = crash.world.ready()
    crash.world.stand_in.add_faults(
        {"kind": "pause", "accept": True} if accepted else {"kind": "silence_before_accept"}
    )
    sender = crash.start(key, threads=threads)
    wait_for(lambda: len(crash.in_flight(key)) == threads * CALL, "every thread to be in a call")
    if accepted:
        wait_for(lambda: len(crash.accepted(key)) == threads * CALL, "the provider to accept them")
    sender.signal(signal.SIGKILL)
    sender.wait_killed()
    crash.world.stand_in.clear_faults()
    states = crash.complete(key, crash.in_flight(key))
    assert states.get("unknown", 0) == (0 if accepted else threads * CALL)


STALLS = [
    Fault("take", "after", "stop", nth=NTH),
    Fault("call", "after", "stop", nth=NTH),
    Fault("record", "before", "stop", nth=NTH),
]


def stalled(crash: Crash, key: str, fault: Fault) -> Sender:
    """A sender that stands still until its lease is over and another one has sent the rest. Its call's people are unknown."""
    sender = crash.start(key, fault, threads=1)
    sender.wait_stopped()
    crash.sweep(key)
    crash.send(key)
    crash.world.keep_promises(key)
    assert len(crash.of_state(key, "unknown")) == CALL
    return sender


@pytest.mark.parametrize("fault", STALLS, ids=_name)
def test_stalled_for_longer_than_its_lease_a_sender_sends_nothing_more_when_it_wakes(
    crash: Crash, fault: Fault
) -> None:
    """Its answer wins over `unknown`; else it writes nothing. After `take` it has the answer of its call before, which would have
    been written together with the next opening."""
    key = crash.world.ready()
    sender = stalled(crash, key, fault)
    accepted, states, unknown = crash.accepted(key), crash.world.states(key), crash.of_state(key, "unknown")
    sender.signal(signal.SIGCONT)
    sender.wait_done()
    crash.world.keep_promises(key)
    assert crash.accepted(key) == accepted, "something has left after the lease"
    assert crash.world.states(key) == states | dict.fromkeys(unknown, ("sent", None))
    crash.settle(key)


@pytest.mark.parametrize("step", ["open", "leave"])
def test_whoever_was_to_leave_after_the_lease_is_not_sent_by_the_stalled_sender_and_not_lost(
    crash: Crash, step: str
) -> None:
    """It has missed its slot and knows that nothing has left: that wins over `unknown` too, and the next run mails them. It looks
    at the clock for the last time when the request is ready to be written."""
    key = crash.world.ready()
    sender = stalled(crash, key, Fault(step, "after", "stop", nth=NTH))
    accepted, unknown = crash.accepted(key), crash.of_state(key, "unknown")
    sender.signal(signal.SIGCONT)
    sender.wait_done()
    assert crash.accepted(key) == accepted, "something has left after the lease"
    assert crash.world.keep_promises(key) == {"sent": PEOPLE - CALL, "pending": CALL}
    assert crash.of_state(key, "pending") == unknown
    crash.send(key)
    assert crash.settle(key) == {"sent": PEOPLE}


def test_stalled_in_the_middle_of_a_late_answer_a_sender_loses_its_chunk_all_the_same(crash: Crash) -> None:
    """It has lost its lease, has locked the chunk to write its answer, and stops. The server ends a transaction that is left lying;
    the answer is written when the sender wakes up."""
    key = crash.world.ready()
    faults = Fault("call", "after", "stop", nth=NTH), Fault("locked", "after", "stop")
    sender = crash.start(key, *faults, threads=1, standstill=1.5)
    sender.wait_stopped()
    wait_for(lambda: crash.leased(key, "leased_until < clock_timestamp()") == 1, "the lease to run out")
    crash.sweep(key)
    sender.signal(signal.SIGCONT)
    sender.wait_stopped()
    with crash.world.database.connection() as connection:
        connection.execute("SET statement_timeout = '30s'")
        # Waits for the lock, until the server has ended the transaction that holds it.
        connection.execute("SELECT FROM mailpipe.campaign FOR UPDATE")
    assert crash.of_state(key, "unknown")
    sender.signal(signal.SIGCONT)
    sender.wait_done()
    assert crash.world.keep_promises(key).keys() <= {"sent", "pending"}
    crash.settle(key)


@pytest.mark.parametrize("part", ["stage", "tidy", "attach"])
def test_a_snapshot_that_is_killed_leaves_nothing(crash: Crash, part: str) -> None:
    key = crash.world.create()
    crash.world.approve(key)
    crash.start(key, Fault("freeze", "after", part=part), snapshot=True).wait_killed()
    campaign_id = crash.world.campaign(key).campaign_id
    rows = "SELECT (SELECT count(*) FROM mailpipe.snapshot WHERE campaign_id = %(id)s), to_regclass(%(table)s)"
    named = {"id": campaign_id, "table": f"mailpipe.recipient_{campaign_id}"}
    # Reads only what is committed: that the dead one's transaction may not be rolled back yet does not matter.
    assert crash.world.execute(rows, named) == [(0, None)]
    assert crash.world.execute("SELECT count(*) FROM mailpipe.chunk WHERE campaign_id = %(id)s", named) == [(0,)]
    assert crash.world.freeze(key).recipients == PEOPLE
    crash.send(key)
    assert crash.world.keep_promises(key) == {"sent": PEOPLE}
