"""Mails through the adapter of SES, against the stand-in: what shares a call, what becomes of each mail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailpipe.adapters.protocol import Inline, Mail, Templated, divide
from mailpipe.adapters.ses import SesAdapter
from mailpipe.ses.answer import Answer, Kind
from mailpipe.ses.client import Ses, connect
from mailpipe.ses.punctual import SlotMissed
from mailpipe.settings import Settings
from mailpipe.simulator.child import StandIn
from mailpipe.template import Template, Variable

TEMPLATE = Template(
    "code", "Your code {{code}}", "<p>Code {{code}}</p>", "Code {{code}}", {"code": Variable("code", "123456")}
)
SENDER = "Bank <login@mail.example.com>"


def templated(number: int, **changes: object) -> Mail:
    data = TEMPLATE.data({"code": str(number)}, unsubscribe_url="https://unsubscribe.example.com/u/x")
    mail = Mail(
        sender=SENDER,
        to=f"person{number}@mail.example.net",
        content=Templated(TEMPLATE, data),
        configuration_set="mailpipe-marketing",
        headers=(("X-Number", str(number)),),
        tags={"message": f"m{number}", "attempt": "1"},
    )
    return replace(mail, **changes)  # type: ignore[arg-type]


def inline(number: int) -> Mail:
    return templated(number, content=Inline("Hello \N{PARTY POPPER}", "<p>Hi</p>", "Hi"))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("stand-in")) as running:
        yield running


@pytest.fixture(scope="module")
def ses(stand_in: StandIn) -> Iterator[Ses]:
    settings = Settings(home=Path("/"), var=Path("/"), connect_timeout=2, read_timeout=5)
    client = connect(settings, endpoint=stand_in.url, connections=2)
    client.publish(TEMPLATE.version, TEMPLATE.published())
    yield client
    client.close()


def kinds(answer: Answer) -> list[Kind]:
    return [result.kind for result in answer.results]


def accepted(stand_in: StandIn, answer: Answer) -> dict[str, dict[str, object]]:
    ids = {result.message_id for result in answer.results}
    return {line["to"]: line for line in stand_in.journal() if line["message_id"] in ids}


def test_mails_of_one_template_share_a_call_and_each_has_one_recipient(ses: Ses, stand_in: StandIn) -> None:
    answer = SesAdapter(ses).send([templated(number) for number in range(5)])
    assert kinds(answer) == [Kind.SENT] * 5
    lines = accepted(stand_in, answer)
    assert sorted(lines) == [f"person{number}@mail.example.net" for number in range(5)]
    for number in range(5):
        line = lines[f"person{number}@mail.example.net"]
        assert (line["operation"], line["recipients"]) == ("SendBulkEmail", 1)
        assert line["tags"] == {"message": f"m{number}", "attempt": "1"}
        assert line["headers"] == ["X-Number"]


def test_the_single_operation_sends_the_same_mail_by_send_email(ses: Ses, stand_in: StandIn) -> None:
    adapter = SesAdapter(ses, operation="single")
    assert adapter.most == 1
    answer = adapter.send([templated(7)])
    assert kinds(answer) == [Kind.SENT]
    [line] = accepted(stand_in, answer).values()
    assert (line["operation"], line["template"], line["to"]) == (
        "SendEmail",
        TEMPLATE.version,
        "person7@mail.example.net",
    )
    assert (line["tags"], line["headers"]) == ({"message": "m7", "attempt": "1"}, ["X-Number"])


def test_content_of_its_own_leaves_by_send_email_without_any_template(ses: Ses, stand_in: StandIn) -> None:
    answer = SesAdapter(ses).send([inline(8)])
    assert kinds(answer) == [Kind.SENT]
    [line] = accepted(stand_in, answer).values()
    assert (line["operation"], line["template"], line["tags"]) == ("SendEmail", "", {"message": "m8", "attempt": "1"})
    rendered = stand_in.message(str(line["message_id"]))["rendered"]
    assert rendered == {"subject": "Hello \N{PARTY POPPER}", "html": "<p>Hi</p>", "text": "Hi"}


def test_one_unusable_mail_fails_alone(ses: Ses, stand_in: StandIn) -> None:
    mails = [
        templated(1),
        templated(2, to="nobody"),
        templated(3, headers=(("X-Bad", "a\r\nBcc: b"),)),
        templated(4),
        templated(5, tags={"message": "not allowed"}),
    ]
    answer = SesAdapter(ses).send(mails)
    assert kinds(answer) == [Kind.SENT, Kind.FAILED, Kind.FAILED, Kind.SENT, Kind.FAILED]
    assert {result.reason for result in answer.results if result.kind is Kind.FAILED} == {"invalid_mail"}
    assert "nobody" not in repr(answer)
    assert sorted(accepted(stand_in, answer)) == ["person1@mail.example.net", "person4@mail.example.net"]


def test_a_call_of_nothing_but_unusable_mails_is_not_made(ses: Ses, stand_in: StandIn) -> None:
    before = len(stand_in.journal())
    for mail in (
        templated(1, sender="nobody"),
        templated(1, content=Inline("", "<p>x</p>")),
        templated(1, content=Inline("x")),
    ):
        assert kinds(SesAdapter(ses).send([mail])) == [Kind.FAILED]
    assert len(stand_in.journal()) == before


def test_a_missed_slot_sends_nothing(ses: Ses, stand_in: StandIn) -> None:
    before = len(stand_in.journal())
    for mail in (templated(1), inline(1)):
        with pytest.raises(SlotMissed):
            SesAdapter(ses).send([mail], slot_at=time.monotonic() - 1, lateness=0.02)
    assert len(stand_in.journal()) == before


def test_calls_hold_only_what_can_share_one(ses: Ses) -> None:
    other = "Shop <shop@mail.example.com>"
    mails = [templated(1), inline(2), templated(3), templated(4, sender=other), inline(5), templated(6)]
    assert divide(SesAdapter(ses), mails) == [[0, 2, 5], [1], [3], [4]]
    assert divide(SesAdapter(ses), mails, most=2) == [[0, 2], [1], [3], [4], [5]]
    assert divide(SesAdapter(ses, operation="single"), mails) == [[0], [1], [2], [3], [4], [5]]
