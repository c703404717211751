"""Our client and requests against `aws-ses-v2-local`: a Node server with real Handlebars, whose store shows every mail as
it was rendered. It enforces no limits, knows no configuration sets and names no error types.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from email.utils import parseaddr

import pytest

from mailpipe.errors import ServiceError
from mailpipe.send import End
from mailpipe.ses.answer import Kind
from mailpipe.ses.client import Account
from mailpipe.template import Template, list_templates, load
from tests.contract.conftest import (
    AWKWARD,
    HERE,
    ROOT,
    SENDER,
    SIGNER,
    TAGS,
    TOPIC,
    AwsSesV2Local,
    make_request,
    people,
    person,
    preview,
)
from tests.support import World

SHIPPED = ROOT / "assets" / "templates"


def published(stand_in: AwsSesV2Local, template: Template) -> Template:
    stand_in.ses.publish(template.version, template.published())
    return template


def test_the_lock_names_versions_and_not_where_they_come_from() -> None:
    assert "://" not in (HERE / "package-lock.json").read_text()


def test_what_is_published_is_what_it_stores(aws_ses_v2_local: AwsSesV2Local, template: Template) -> None:
    published(aws_ses_v2_local, template)
    content = template.published()
    stored = aws_ses_v2_local.templates()
    assert list(stored) == [template.version]
    assert stored[template.version]["TemplateContent"] == {
        "Subject": content.subject,
        "Html": content.html,
        "Text": content.text,
    }


@pytest.mark.parametrize("values", [AWKWARD, TAGS], ids=["awkward", "tags"])
def test_everybody_reads_what_the_preview_shows(
    aws_ses_v2_local: AwsSesV2Local, template: Template, values: tuple[str, ...]
) -> None:
    """Handlebars makes of our published template and data what our own preview makes of them, in all three parts."""
    everybody = people(published(aws_ses_v2_local, template), values)
    answer = aws_ses_v2_local.ses.send(make_request(template, everybody))
    assert [result.kind for result in answer.results] == [Kind.SENT] * len(everybody)
    emails = {email["destination"]["to"][0]: email for email in aws_ses_v2_local.emails()}
    for one in everybody:
        email, expected = emails[one.email], preview(template, one)
        assert email["subject"] == expected.subject
        assert email["body"]["html"] == expected.html
        assert email["body"]["text"] == expected.text


@pytest.mark.parametrize("name", [name for name in list_templates(SHIPPED) if not load(SHIPPED, name).transactional])
def test_the_templates_of_campaigns_in_the_repository_render_as_their_previews(
    aws_ses_v2_local: AwsSesV2Local, name: str
) -> None:
    template = published(aws_ses_v2_local, load(SHIPPED, name))
    everybody = people(template)
    answer = aws_ses_v2_local.ses.send(make_request(template, everybody))
    assert {result.kind for result in answer.results} == {Kind.SENT}
    for one, email in zip(everybody, aws_ses_v2_local.emails(), strict=True):
        expected = preview(template, one)
        assert (email["subject"], email["body"]) == (expected.subject, {"html": expected.html, "text": expected.text})


def test_html_in_a_value_is_text_in_the_mail(aws_ses_v2_local: AwsSesV2Local, template: Template) -> None:
    """The rendering is compared with fixed texts here, not with our preview."""
    published(aws_ses_v2_local, template)
    one = person(1, first_name="<i>Zoë</i>", city='"Łódź" & more', offer="<b>20%</b>")
    aws_ses_v2_local.ses.send(make_request(template, [one]))
    (email,) = aws_ses_v2_local.emails()
    url = SIGNER.url(one.user_id, TOPIC)
    assert email["subject"] == '<i>Zoë</i>, grüße aus "Łódź" & more'
    assert email["body"]["html"] == (
        '<p title="&quot;Łódź&quot; &amp; more">Hello &lt;i&gt;Zoë&lt;/i&gt; of &quot;Łódź&quot; &amp; more</p>\n'
        "<b>20%</b><p>&lt;b&gt;20%&lt;/b&gt;</p>\n"
        f'<a href="{url}">Unsubscribe</a>\n'
    )
    assert email["body"]["text"] == f'Hello <i>Zoë</i> of "Łódź" & more:\n<b>20%</b>\n\n{url}\n'


def test_the_unsubscribe_headers_come_out_as_one_click_asks(
    aws_ses_v2_local: AwsSesV2Local, template: Template
) -> None:
    """In its store, and in the mail that nodemailer makes of it: each header once, whole, and everybody's own."""
    everybody = people(published(aws_ses_v2_local, template))
    aws_ses_v2_local.ses.send(make_request(template, everybody))
    for one, email in zip(everybody, aws_ses_v2_local.emails(), strict=True):
        expected = SIGNER.headers(one.user_id, TOPIC)
        assert [(header["name"], header["value"]) for header in email["headers"]] == expected
        mail = aws_ses_v2_local.mail(email["messageId"])
        for name, value in expected:
            # nodemailer starts a long value on the next line; the space before it is part of that fold.
            assert [found.lstrip() for found in mail.get_all(name, [])] == [value]


def test_the_sender_is_readable_in_the_mail(aws_ses_v2_local: AwsSesV2Local, template: Template) -> None:
    """The name has umlauts and an ampersand; SES takes only ASCII, so it travels encoded (RFC 2047)."""
    published(aws_ses_v2_local, template)
    request = make_request(template, [person(1, city="Huế", offer="x")])
    assert request["FromEmailAddress"].isascii()
    aws_ses_v2_local.ses.send(request)
    (email,) = aws_ses_v2_local.emails()
    mail = aws_ses_v2_local.mail(email["messageId"])
    assert parseaddr(str(mail["From"])) == parseaddr(SENDER)
    assert parseaddr(str(mail["Reply-To"])) == ("Service", "help@shop.example.com")
    assert str(mail["To"]) == "person1@mail.example.com"


def test_answers_come_in_the_order_of_a_full_call(aws_ses_v2_local: AwsSesV2Local, template: Template) -> None:
    """50 entries; the message id of each is the one under which its own mail is stored."""
    published(aws_ses_v2_local, template)
    everybody = [person(seq, city="Huế", offer="x") for seq in range(1, 51)]
    answer = aws_ses_v2_local.ses.send(make_request(template, everybody))
    stored = {email["messageId"]: email["destination"]["to"] for email in aws_ses_v2_local.emails()}
    assert [stored[str(result.message_id)] for result in answer.results] == [[one.email] for one in everybody]
    assert answer.halt is None
    assert answer.blocked is None


def test_a_template_that_it_does_not_know_stops_the_campaign(
    aws_ses_v2_local: AwsSesV2Local, template: Template
) -> None:
    """Its 404 has no type; nobody is failed for it all the same, because nobody's mail was accepted."""
    answer = aws_ses_v2_local.ses.send(make_request(template, people(template)))
    assert {result.kind for result in answer.results} == {Kind.AGAIN}
    assert answer.halt is not None
    assert aws_ses_v2_local.emails() == []


def test_a_refusal_with_a_message_id_is_not_believed(aws_ses_v2_local: AwsSesV2Local, template: Template) -> None:
    """It puts a message id into refusals too. Whoever has one may have been mailed; the others of the call are sent."""
    published(aws_ses_v2_local, template)
    request = make_request(template, [person(seq, city="Huế", offer="x") for seq in (1, 2, 3)])
    content = request["BulkEmailEntries"][1]["ReplacementEmailContent"]
    content["ReplacementTemplate"]["ReplacementTemplateData"] = "{}"
    answer = aws_ses_v2_local.ses.send(request)
    assert [result.kind for result in answer.results] == [Kind.SENT, Kind.UNKNOWN, Kind.SENT]
    assert answer.results[1].reason == "refused_with_message_id"
    assert len(aws_ses_v2_local.emails()) == 2


def test_the_account_is_read(aws_ses_v2_local: AwsSesV2Local) -> None:
    assert aws_ses_v2_local.ses.account() == Account(
        rate=600.0, daily_quota=1_000_000.0, sent_last_day=250.0, sending_enabled=True, production=True
    )


def test_an_operation_that_it_does_not_have_is_a_service_error(aws_ses_v2_local: AwsSesV2Local) -> None:
    """The answer is a 404 of a web framework, not JSON."""
    with pytest.raises(ServiceError, match="PutConfigurationSetSendingOptions"):
        aws_ses_v2_local.ses.set_sending("mailpipe-marketing", False)


def test_a_campaign_reaches_everybody_once(world: World, aws_ses_v2_local: AwsSesV2Local) -> None:
    """From segment to report with this server as SES: everybody is `sent`, and its store holds each person once."""
    elsewhere = replace(
        world, ses=aws_ses_v2_local.ses, settings=replace(world.settings, ses_endpoint=aws_ses_v2_local.url)
    )
    elsewhere.people(120)
    for user_id, value in enumerate((*AWKWARD, *TAGS), 1):
        elsewhere.execute(
            "UPDATE users SET first_name = %(value)s, city = %(value)s WHERE user_id = %(user_id)s",
            {"value": value, "user_id": user_id},
        )
    key = elsewhere.ready()
    outcome = elsewhere.send(key)
    assert (outcome.end, outcome.accepted) == (End.COMPLETE, 120)
    assert Counter(elsewhere.states(key).values()) == {("sent", None): 120}
    assert elsewhere.campaign(key).state == "done"
    emails = aws_ses_v2_local.emails()
    reached = Counter(address for email in emails for address in email["destination"]["to"])
    assert reached == {f"person{number}@mail.example.com": 1 for number in range(1, 121)}
    template = load(elsewhere.settings.templates, "hello")
    assert list(aws_ses_v2_local.templates()) == [template.version]
    names = dict(elsewhere.execute("SELECT email, first_name FROM users"))
    for email in emails:
        url = email["headers"][0]["value"].removeprefix("<").removesuffix(">")
        values = {"first_name": names[email["destination"]["to"][0]], "city": "not in the subject"}
        assert email["subject"] == template.render(values, unsubscribe_url=url).subject
        assert f'href="{url}"' in email["body"]["html"]
    assert world.stand_in.journal() == []
