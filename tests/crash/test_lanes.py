"""A process of `mailpipe lanes` dies, or stands still for longer than its lease, at each step: no attempt twice, nobody lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.crash.harness import Crash
from tests.crash.program import Fault
from tests.messages import accepted, clean, enqueue, keep_promises, publish, spec, states
from tests.support import wait_for

LEASE = 1.5
EACH = 30
"""Messages of `critical`, which sends once more what is unknown, and of `high`, which holds it."""
KILLS = [
    Fault("claim", "after", nth=3),
    Fault("open_message", "after", nth=3),
    Fault("leave", "after", nth=3),
    Fault("call", "after", nth=3),
    Fault("record_message", "after", nth=3),
]
OPEN = {"open_message-after", "leave-after", "call-after"}
"""Where a call is open."""


@pytest.fixture(scope="module")
def published(_crash: Crash) -> str:
    _crash.server.start()
    return publish(_crash.world)


@pytest.fixture
def mail(crash: Crash, published: str) -> Iterator[Crash]:
    clean(crash.world)
    # A slot for each call, so that some are open and others wait when one dies.
    crash.world.stand_in.change(latency_ms=20)
    enqueue(
        crash.world,
        *(spec(number) for number in range(EACH)),
        *(spec(number, lane="high") for number in range(EACH)),
    )
    yield crash
    crash.end()


def in_call(crash: Crash) -> dict[str, str]:
    """Messages in an open call, and their lanes."""
    crash.wait_noticed()
    return dict(
        crash.world.execute(
            "SELECT CAST(message_id AS text), lane FROM mailpipe.outbox_claim WHERE opened_at IS NOT NULL"
        )
    )


def finish(crash: Crash, opened: dict[str, str]) -> None:
    """Another process does the rest; only who was in an open call may be unknown or get a second attempt."""
    other = crash.start("", lanes=("critical", "high"), lease=LEASE)
    working = "SELECT 1 FROM mailpipe.lane_worker WHERE pid = %(pid)s"
    wait_for(lambda: bool(crash.world.execute(working, {"pid": other.pid})), "the other process to begin")
    wait_for(lambda: not states(crash.world).keys() & {"pending", "sending"}, "everything to end", seconds=30)
    other.signal(signal.SIGTERM)
    other.wait_done()
    keep_promises(crash.world)
    rows = crash.world.execute("SELECT CAST(message_id AS text), lane, state, attempt FROM mailpipe.message")
    assert len(rows) == 2 * EACH
    journal = accepted(crash.world)
    for message_id, lane, state, attempt in rows:
        if message_id not in opened:
            assert (state, attempt) == ("sent", 1)
        elif lane == "critical":
            assert (state, attempt) == ("sent", 2)
        else:
            assert (state, attempt) == ("unknown", 1)
            assert journal[message_id, 2] == 0


@pytest.mark.parametrize("fault", KILLS, ids=lambda fault: f"{fault.step}-{fault.when}")
def test_killed_at_any_step_a_worker_doubles_and_loses_nothing(mail: Crash, fault: Fault) -> None:
    mail.start("", fault, lanes=("critical", "high"), lease=LEASE).wait_killed()
    opened = in_call(mail)
    assert opened or f"{fault.step}-{fault.when}" not in OPEN
    finish(mail, opened)


def test_an_answer_that_comes_after_the_lease_wins_and_opens_nothing(mail: Crash) -> None:
    """It stood still with an answer in its hands. The others had sent it once more, or called it unknown."""
    sleeper = mail.start("", Fault("call", "after", "stop", nth=2), lanes=("high",), lease=LEASE)
    sleeper.wait_stopped()
    opened = in_call(mail)
    finish(mail, opened)
    unknown = states(mail.world).get("unknown", 0)
    assert unknown
    sleeper.signal(signal.SIGCONT)
    wait_for(lambda: "unknown" not in states(mail.world), "the late answers", seconds=20)
    sleeper.signal(signal.SIGTERM)
    sleeper.wait_done()
    keep_promises(mail.world)
    assert states(mail.world) == {"sent": 2 * EACH}


def test_a_stop_loses_nothing_and_doubles_nothing(mail: Crash) -> None:
    worker = mail.start("", lanes=("critical", "high"), lease=LEASE)
    wait_for(lambda: "sent" in states(mail.world), "the first to be sent")
    worker.signal(signal.SIGTERM)
    worker.wait_done()
    assert not in_call(mail)
    finish(mail, {})


def test_a_worker_that_sends_again_what_was_in_a_call_is_caught(mail: Crash) -> None:
    """Without the safeguard the same fault doubles a mail: these tests are not blind."""
    mutant = "lost_message_is_sent_again"
    mail.start("", Fault("call", "after", nth=3), lanes=("critical", "high"), lease=LEASE).wait_killed()
    assert in_call(mail)
    mail.start("", lanes=("critical", "high"), lease=LEASE, mutant=mutant)
    wait_for(lambda: not states(mail.world).keys() & {"pending", "sending"}, "everything to end", seconds=30)
    assert max(accepted(mail.world).values()) == 2
