"""Messages and campaigns that leave another way than through SES: everybody gets their mail, once, with their own values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from mailpipe.lane import DEFAULTS
from tests.messages import clean, enqueue, publish, spec, states, wait_until, working
from tests.smtp_server import SmtpServer, keep_and_drop
from tests.support import World


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with SmtpServer() as running:
        yield running


def test_messages_of_a_lane_leave_by_smtp_and_each_person_reads_their_own(scene: World, smtp: SmtpServer) -> None:
    clean(scene)
    publish(scene)
    lanes = {
        name: replace(lane, least=2, most=4, poll=0.01, adapter="smtp", unknown="hold")
        for name, lane in DEFAULTS.items()
    }
    smtp.replies["RCPT", "person7@"] = "550 5.1.1 no such user"
    smtp.replies["END", "person8@"] = keep_and_drop(smtp)
    codes = enqueue(scene, *(spec(number) for number in range(1, 41)))
    orders = enqueue(scene, spec(99, subject="Your order", text="Thank you.", lane="normal"))
    before = len(scene.stand_in.journal())
    with working(scene, lanes=lanes, smtp_url=smtp.url()):
        wait_until(scene, sent=39, failed=1, unknown=1)
    assert len(scene.stand_in.journal()) == before
    assert all(len(one.recipients) == 1 for one in smtp.taken)
    read = {one.recipients[0]: one.message for one in smtp.taken}
    assert len(read) == len(smtp.taken) == 40
    for number, code in enumerate(codes, 1):
        if number == 7:
            continue
        message = read[f"person{number}@mail.example.com"]
        assert message["Subject"] == f"Your code {number:06d}"
        assert message["From"].addresses[0].addr_spec == "login@notify.example.com"
        assert message["X-Mailpipe-Tags"] == f"message={code.message_id}; attempt=1"
    assert read["person99@mail.example.com"]["Subject"] == "Your order"
    assert orders[0].created
    assert states(scene) == {"sent": 39, "failed": 1, "unknown": 1}
