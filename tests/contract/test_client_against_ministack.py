"""Our client against `ministack`: a Python server with SES's typed errors, verified identities and the sandbox. It keeps
neither headers nor tags, renders by replacing `{{key}}`, and enforces no rate or size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mailpipe import campaign
from mailpipe.errors import ServiceError, TemplateError
from mailpipe.send import End
from mailpipe.ses.answer import Kind
from mailpipe.ses.client import Account
from mailpipe.template import Content, Template
from tests.contract.conftest import Ministack, make_request, people, person, preview
from tests.support import World


@pytest.fixture
def shop(ministack: Ministack, template: Template) -> Ministack:
    """It, with the template and a verified sender."""
    ministack.verify("shop.example.com")
    ministack.ses.publish(template.version, template.published())
    return ministack


def test_a_call_is_accepted_with_a_message_id_for_everybody(shop: Ministack, template: Template) -> None:
    everybody = people(template)
    answer = shop.ses.send(make_request(template, everybody))
    assert {result.kind for result in answer.results} == {Kind.SENT}
    assert (answer.halt, answer.blocked, answer.split) == (None, None, False)
    stored = {message["MessageId"]: message["To"] for message in shop.messages()}
    assert [stored[str(result.message_id)] for result in answer.results] == [[one.email] for one in everybody]


def test_everybody_reads_what_the_preview_shows(shop: Ministack, template: Template) -> None:
    """A second renderer that is not ours, and knows nothing of Handlebars."""
    everybody = people(template)
    shop.ses.send(make_request(template, everybody))
    for one, message in zip(everybody, shop.messages(), strict=True):
        expected = preview(template, one)
        assert message["Subject"] == expected.subject
        assert (message["BodyHtml"], message["BodyText"]) == (expected.html, expected.text)


def test_a_template_that_it_does_not_know_stops_the_campaign(ministack: Ministack, template: Template) -> None:
    """NotFoundException: certainly not sent, nobody's fault, and hopeless to repeat."""
    ministack.verify("shop.example.com")
    answer = ministack.ses.send(make_request(template, people(template)))
    assert {(result.kind, result.reason) for result in answer.results} == {(Kind.AGAIN, "refused")}
    assert answer.halt == "SES does not know the template, the configuration set or the sender"
    assert ministack.messages() == []


def test_a_sender_that_is_not_verified_stops_the_campaign(ministack: Ministack, template: Template) -> None:
    """MessageRejected for the whole call; it is not looked for in halves, and no address is kept of the text."""
    ministack.ses.publish(template.version, template.published())
    answer = ministack.ses.send(make_request(template, people(template)))
    assert {(result.kind, result.reason) for result in answer.results} == {(Kind.AGAIN, "sender_not_verified")}
    assert answer.halt is not None
    assert "not verified" in answer.halt
    assert not answer.split
    details = {result.detail for result in answer.results}
    assert len(details) == 1
    assert "@" not in str(details)
    assert ministack.messages() == []


def test_the_sandbox_refuses_some_of_a_call(shop: Ministack, template: Template) -> None:
    """MESSAGE_REJECTED for entries: those who were accepted are sent, the others are pending, the campaign stops."""
    shop.leave_production()
    allowed = person(1, city="Huế", offer="x")._replace(email="success+1@simulator.amazonses.com")
    answer = shop.ses.send(make_request(template, [person(2, city="Huế", offer="x"), allowed]))
    assert [(result.kind, result.reason) for result in answer.results] == [
        (Kind.AGAIN, "sender_not_verified"),
        (Kind.SENT, ""),
    ]
    assert "@" not in str(answer.results[0].detail)
    assert answer.halt is not None
    assert [message["To"] for message in shop.messages()] == [["success+1@simulator.amazonses.com"]]


def test_a_bad_request_is_looked_for_in_halves_down_to_one_person(shop: Ministack, template: Template) -> None:
    """BadRequestException may be one entry's fault: a call of more people is split, a call of one fails that person."""
    for size, expected in ((2, (Kind.AGAIN, True)), (1, (Kind.FAILED, False))):
        request = make_request(template, [person(seq, city="Huế", offer="x") for seq in range(1, size + 1)])
        request["DefaultContent"] = {"Template": {"TemplateData": "{}"}}
        answer = shop.ses.send(request)
        assert {(result.kind, answer.split) for result in answer.results} == {expected}
        assert {result.reason for result in answer.results} == {"bad_request"}
        assert len(answer.results) == size
        assert answer.halt is None
    assert shop.messages() == []


def test_the_account_is_read(shop: Ministack, template: Template) -> None:
    account = Account(rate=14.0, daily_quota=50_000.0, sent_last_day=0.0, sending_enabled=True, production=True)
    assert shop.ses.account() == account
    everybody = people(template)
    shop.ses.send(make_request(template, everybody))
    assert shop.ses.account() == replace(account, sent_last_day=float(len(everybody)))
    shop.leave_production()
    assert not shop.ses.account().production


def test_a_template_is_published_twice_only_with_the_same_content(ministack: Ministack, template: Template) -> None:
    content = template.published()
    ministack.ses.publish(template.version, content)
    ministack.ses.publish(template.version, content)
    with pytest.raises(TemplateError, match=template.version):
        ministack.ses.publish(template.version, Content("Another subject", content.html, content.text))
    stored = ministack.operator.get_email_template(TemplateName=template.version)["TemplateContent"]
    assert stored == {"Subject": content.subject, "Html": content.html, "Text": content.text}


def test_the_switch_of_a_configuration_set_is_turned(ministack: Ministack) -> None:
    with pytest.raises(ServiceError, match="NotFoundException"):
        ministack.ses.set_sending("mailpipe-marketing", False)
    ministack.operator.create_configuration_set(ConfigurationSetName="mailpipe-marketing")
    for enabled in (False, True):
        ministack.ses.set_sending("mailpipe-marketing", enabled)
        stored = ministack.operator.get_configuration_set(ConfigurationSetName="mailpipe-marketing")
        assert stored["SendingOptions"] == {"SendingEnabled": enabled}


def test_a_campaign_waits_for_its_sender_and_then_reaches_everybody_once(world: World, ministack: Ministack) -> None:
    """Halted without failing anybody while the sender is not verified; resumed, it mails each person once."""
    elsewhere = replace(world, ses=ministack.ses, settings=replace(world.settings, ses_endpoint=ministack.url))
    elsewhere.people(20)
    key = elsewhere.ready()
    assert elsewhere.send(key).end is End.NOT_SENDING
    assert "not verified" in str(elsewhere.campaign(key).state_reason)
    assert Counter(state for state, _ in elsewhere.states(key).values()) == {"pending": 20}
    assert ministack.messages() == []
    ministack.verify("mail.example.com")
    with world.database.connection() as connection:
        campaign.resume(connection, key, actor="ben")
    assert elsewhere.send(key).end is End.COMPLETE
    assert Counter(elsewhere.states(key).values()) == {("sent", None): 20}
    reached = Counter(address for message in ministack.messages() for address in message["To"])
    assert reached == {f"person{number}@mail.example.com": 1 for number in range(1, 21)}
