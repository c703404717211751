"""A sender dies while an SMTP server takes its mails: whom it had in hand is in doubt, and nobody gets a second mail."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace

import pytest
from aiosmtpd.smtp import SMTP

from tests.crash.conftest import PEOPLE
from tests.crash.harness import THREADS, Crash, _state
from tests.smtp_server import SmtpServer
from tests.support import wait_for


@pytest.mark.parametrize(("step", "takes"), [("RCPT", False), ("END", True)])
def test_killed_in_a_call_by_smtp_a_sender_doubles_and_loses_nobody(crash: Crash, step: str, takes: bool) -> None:
    world = crash.world
    settings = world.settings
    with SmtpServer() as smtp:
        world.settings = replace(settings, smtp_url=smtp.url())
        try:
            key = world.ready(adapter="smtp")

            def kill(_: SMTP) -> str | None:
                sender.signal(signal.SIGKILL)
                wait_for(lambda: _state(sender.pid) in (None, "Z"), "the sender to die")
                return None

            smtp.replies[step, "person77@"] = kill
            sender = crash.start(key)
            sender.wait_killed()
            smtp.replies.clear()
            in_hand = crash.in_flight(key)
            assert 1 <= len(in_hand) <= THREADS * 10
            crash.sweep(key)
            assert crash.of_state(key, "unknown") == in_hand
            crash.send(key)
        finally:
            world.settings = settings
    taken = Counter(one.recipients[0] for one in smtp.taken)
    assert set(taken.values()) == {1}, "somebody was mailed twice"
    assert ("person77@mail.example.com" in taken) == takes
    states = world.balance(key)
    assert states == {"sent": PEOPLE - len(in_hand), "unknown": len(in_hand)}
    seqs = {
        one.recipients[0]: int(str(one.message["X-Mailpipe-Tags"]).split("seq=")[1].split(";")[0]) for one in smtp.taken
    }
    assert crash.of_state(key, "sent") <= set(seqs.values()), "somebody is called sent and has nothing"
    assert set(seqs.values()) <= crash.of_state(key, "sent") | in_hand
