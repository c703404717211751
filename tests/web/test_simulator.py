"""The stand-in as a real child process, through boto3: what it accepts, journals, publishes and renders.

The helpers at the top serve the other files about the stand-in too.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from mailpipe.simulator.child import StandIn

GREETING = {"Subject": "Hello {{name}}", "Html": "<p>{{name}} of {{ city }}</p>", "Text": "{{{name}}}"}
ALL_STATUSES = (
    "MESSAGE_REJECTED",
    "MAIL_FROM_DOMAIN_NOT_VERIFIED",
    "CONFIGURATION_SET_NOT_FOUND",
    "TEMPLATE_NOT_FOUND",
    "ACCOUNT_SUSPENDED",
    "ACCOUNT_THROTTLED",
    "ACCOUNT_DAILY_QUOTA_EXCEEDED",
    "INVALID_SENDING_POOL_NAME",
    "ACCOUNT_SENDING_PAUSED",
    "CONFIGURATION_SET_SENDING_PAUSED",
    "INVALID_PARAMETER",
    "TRANSIENT_FAILURE",
    "FAILED",
)

_session = boto3.session.Session(aws_access_key_id="example", aws_secret_access_key="example", region_name="eu-west-1")


def ses_client(url: str, retries: dict[str, object] | None = None, read_timeout: float = 5) -> Any:
    """A boto3 client of the stand-in; without `retries` it makes one attempt on the wire."""
    config = Config(retries=retries or {"total_max_attempts": 1, "mode": "standard"}, read_timeout=read_timeout)
    return _session.client("sesv2", endpoint_url=url, config=config)


def entry(to: str, seq: int = 1, data: object = None, **members: object) -> dict[str, object]:
    """One bulk entry with the tags that mailpipe gives; `data` is encoded unless it is a string already."""
    text = data if isinstance(data, str) else json.dumps({"name": "Ana"} if data is None else data)
    tags = {"campaign": "spring", "seq": str(seq), "attempt": "1"}
    return {
        "Destination": {"ToAddresses": [to]},
        "ReplacementTags": [{"Name": name, "Value": value} for name, value in tags.items()],
        "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": text}},
        **members,
    }


def people(count: int, start: int = 1) -> list[dict[str, object]]:
    """`count` entries to different people."""
    return [entry(f"person{seq}@example.net", seq) for seq in range(start, start + count)]


def send(client: Any, entries: list[dict[str, object]], **members: object) -> list[dict[str, Any]]:
    """The results of one SendBulkEmail with the template `greeting`."""
    request: dict[str, object] = {
        "FromEmailAddress": "News <news@mail.example.com>",
        "ConfigurationSetName": "marketing",
        "DefaultContent": {"Template": {"TemplateName": "greeting", "TemplateData": '{"city": "Bonn"}'}},
        "BulkEmailEntries": entries,
    } | members
    results: list[dict[str, Any]] = client.send_bulk_email(**request)["BulkEmailEntryResults"]
    return results


def statuses(results: list[dict[str, Any]]) -> list[str]:
    return [result["Status"] for result in results]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`, within 10 seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
    pytest.fail(f"waited 10 s for {what}")


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One stand-in for this file, with the template `greeting`; tests look at their own messages only."""
    with StandIn(tmp_path_factory.mktemp("stand-in")) as stand_in:
        with closing(ses_client(stand_in.url)) as client:
            client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        yield stand_in


@pytest.fixture(scope="module")
def client(stand_in: StandIn) -> Iterator[Any]:
    with closing(ses_client(stand_in.url)) as client:
        yield client


def events_of(stand_in: StandIn, result: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in stand_in.events() if event["mail"]["messageId"] == result["MessageId"]]


def test_an_accepted_message_has_an_id_of_sess_form_and_a_line_in_the_journal(stand_in: StandIn, client: Any) -> None:
    before = time.time()
    header = {"Name": "List-Unsubscribe", "Value": "<https://shop.example.com/u/abc>"}
    [result] = send(client, [entry("ana@EXAMPLE.net", 41, ReplacementHeaders=[header])])
    assert result["Status"] == "SUCCESS"
    assert re.fullmatch(
        r"[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}-000000", result["MessageId"]
    )
    [line] = [line for line in stand_in.journal() if line["message_id"] == result["MessageId"]]
    assert before - 0.1 <= line.pop("at") <= time.time() + 0.1
    assert line == {
        "message_id": result["MessageId"],
        "to": "ana@example.net",
        "recipients": 1,
        "campaign": "spring",
        "seq": 41,
        "attempt": 1,
        "tags": {"campaign": "spring", "seq": "41", "attempt": "1"},
        "headers": ["List-Unsubscribe"],
        "outcome": "delivery",
        "operation": "SendBulkEmail",
        "template": "greeting",
        "configuration_set": "marketing",
        "from": "news@mail.example.com",
    }


def test_send_and_delivery_events_have_the_shape_that_ses_publishes(stand_in: StandIn, client: Any) -> None:
    [result] = send(client, [entry("ana@example.net", 42)])
    sent, delivered = events_of(stand_in, result)
    mail = sent["mail"]
    assert (sent["eventType"], sent["send"], delivered["eventType"]) == ("Send", {}, "Delivery")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", mail["timestamp"])
    assert mail["source"] == "news@mail.example.com"
    assert mail["sourceArn"] == "arn:aws:ses:eu-west-1:111122223333:identity/mail.example.com"
    assert mail["sendingAccountId"] == "111122223333"
    assert mail["destination"] == ["ana@example.net"]
    assert mail["tags"]["ses:configuration-set"] == ["marketing"]
    assert mail["tags"]["ses:operation"] == ["SendBulkEmail"]
    assert mail["tags"]["ses:from-domain"] == ["mail.example.com"]
    assert (mail["tags"]["campaign"], mail["tags"]["seq"], mail["tags"]["attempt"]) == (["spring"], ["42"], ["1"])
    assert delivered["mail"]["tags"]["ses:outgoing-ip"]
    assert delivered["delivery"]["recipients"] == ["ana@example.net"]
    assert delivered["delivery"]["timestamp"] >= mail["timestamp"]
    assert set(delivered["delivery"]) == {
        "timestamp",
        "processingTimeMillis",
        "recipients",
        "smtpResponse",
        "reportingMTA",
    }


@pytest.mark.parametrize(
    ("address", "events", "bounce"),
    [
        ("success@simulator.amazonses.com", ["Send", "Delivery"], None),
        ("ooto@simulator.amazonses.com", ["Send", "Delivery"], None),
        ("bounce+k1@simulator.amazonses.com", ["Send", "Bounce"], ("Permanent", "General")),
        ("suppressionlist@simulator.amazonses.com", ["Send", "Bounce"], ("Permanent", "Suppressed")),
        ("complaint+k1@simulator.amazonses.com", ["Send", "Delivery", "Complaint"], None),
        ("ana@bounce.example.com", ["Send", "Bounce"], ("Permanent", "General")),
        ("ana@softbounce.example.com", ["Send", "Bounce"], ("Transient", "MailboxFull")),
        ("ana@complaint.example.com", ["Send", "Delivery", "Complaint"], None),
        ("ana@delay.example.com", ["Send", "DeliveryDelay", "Delivery"], None),
    ],
)
def test_the_address_decides_what_becomes_of_the_mail(
    stand_in: StandIn, client: Any, address: str, events: list[str], bounce: tuple[str, str] | None
) -> None:
    [result] = send(client, [entry(address)])
    published = events_of(stand_in, result)
    assert [event["eventType"] for event in published] == events
    for event in published:
        if event["eventType"] == "Bounce":
            block = event["bounce"]
            assert (block["bounceType"], block["bounceSubType"]) == bounce
            assert [recipient["emailAddress"] for recipient in block["bouncedRecipients"]] == [address]
            assert block["feedbackId"] != result["MessageId"]
        if event["eventType"] == "Complaint":
            assert event["complaint"]["complainedRecipients"] == [{"emailAddress": address}]
            assert event["complaint"]["complaintFeedbackType"] == "abuse"
        if event["eventType"] == "DeliveryDelay":
            assert event["deliveryDelay"]["delayedRecipients"][0]["emailAddress"] == address


def test_a_missing_variable_is_a_success_and_then_a_rendering_failure(stand_in: StandIn, client: Any) -> None:
    [result] = send(client, [entry("ana@example.net", data={"nickname": "Ana"})])
    assert result["Status"] == "SUCCESS"
    [event] = events_of(stand_in, result)
    assert event["eventType"] == "Rendering Failure"
    assert event["failure"] == {
        "templateName": "greeting",
        "errorMessage": "Attribute 'name' is not present in the rendering data.",
    }
    assert stand_in.message(result["MessageId"])["rendered"] is None


def test_a_message_can_be_read_back_as_the_person_would_see_it_with_nothing_escaped(
    stand_in: StandIn, client: Any
) -> None:
    [result] = send(client, [entry("ana@example.net", data={"name": '<b>Zoë & "Co"</b>'})])
    assert stand_in.message(result["MessageId"])["rendered"] == {
        "subject": 'Hello <b>Zoë & "Co"</b>',
        "html": '<p><b>Zoë & "Co"</b> of Bonn</p>',
        "text": '<b>Zoë & "Co"</b>',
    }


def test_replacement_data_wins_over_default_data_key_by_key(stand_in: StandIn, client: Any) -> None:
    [result] = send(client, [entry("ana@example.net", data={"name": "Ana", "city": "Rome"})])
    assert stand_in.message(result["MessageId"])["rendered"]["html"] == "<p>Ana of Rome</p>"


def test_replacement_headers_and_tags_replace_those_of_the_same_name(stand_in: StandIn, client: Any) -> None:
    def headers(**values: str) -> list[dict[str, str]]:
        return [{"Name": name.replace("_", "-"), "Value": value} for name, value in values.items()]

    template = {
        "TemplateName": "greeting",
        "TemplateData": '{"city": "Bonn"}',
        "Headers": headers(X_One="default", X_Two="default"),
    }
    [result] = send(
        client,
        [entry("ana@example.net", ReplacementHeaders=headers(x_one="own"))],
        DefaultContent={"Template": template},
        DefaultEmailTags=[{"Name": "campaign", "Value": "default"}, {"Name": "team", "Value": "growth"}],
    )
    message = stand_in.message(result["MessageId"])
    assert message["headers"] == [{"name": "X-Two", "value": "default"}, {"name": "x-one", "value": "own"}]
    assert message["tags"] == {"campaign": "spring", "team": "growth", "seq": "1", "attempt": "1"}


def test_an_inline_template_needs_no_stored_one(stand_in: StandIn, client: Any) -> None:
    inline = {"TemplateContent": {"Subject": "S {{name}}", "Text": "T"}}
    [result] = send(client, [entry("ana@example.net")], DefaultContent={"Template": inline})
    assert stand_in.message(result["MessageId"])["rendered"] == {"subject": "S Ana", "text": "T", "html": None}


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "Missing final '@domain'."),
        ("ana", "Missing final '@domain'."),
        ("@example.net", "Missing local name."),
        ("ana@", "Missing domain."),
        ("a na@example.net", "Local address contains control or whitespace."),
        ("ana\n@example.net", "Local address contains control or whitespace."),
        (".ana@example.net", "Local address starts with dot."),
        ("ana.@example.net", "Local address ends with dot."),
        ("a..na@example.net", "Local address contains dot-dot."),
        ("a(na@example.net", "Local address contains illegal character."),
        ("zoë@example.net", "Local address contains non-ASCII characters."),
        ("a" * 65 + "@example.net", "Local address is longer than 64 characters."),
        ("ana@exämple.net", "Domain contains non-ASCII characters."),
        ("ana@exa mple.net", "Domain contains control or whitespace."),
        ("ana@example..net", "Domain contains dot-dot."),
        ("ana@-example.net", "Domain contains illegal character."),
        ("Zoë <ana@example.net>", "Address contains a display name that is not 7-bit ASCII."),
    ],
)
def test_a_bad_address_fails_its_own_entry_alone(stand_in: StandIn, client: Any, address: str, reason: str) -> None:
    accepted = stand_in.state()["accepted"]
    results = send(client, [entry("ana@example.net"), entry(address, 2), entry("bo@example.net", 3)])
    assert statuses(results) == ["SUCCESS", "INVALID_PARAMETER", "SUCCESS"]
    assert results[1]["Error"] == reason
    assert "MessageId" not in results[1]
    assert stand_in.state()["accepted"] == accepted + 2


@pytest.mark.parametrize(
    "members",
    [
        {"ReplacementTags": [{"Name": "mail", "Value": "ana@example.net"}]},
        {"ReplacementTags": [{"Name": "a b", "Value": "x"}]},
        {"ReplacementTags": [{"Name": "a", "Value": "x" * 257}]},
        {"ReplacementTags": [{"Name": "a", "Value": ""}]},
        {"ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": "{"}}},
        {"ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": "[]"}}},
        {"Destination": {}},
        {"Destination": {"ToAddresses": [f"p{n}@example.net" for n in range(51)]}},
    ],
)
def test_a_bad_field_of_one_person_fails_that_entry_alone(client: Any, members: dict[str, Any]) -> None:
    results = send(client, [entry("ana@example.net", **members), entry("bo@example.net", 2)])
    assert statuses(results) == ["INVALID_PARAMETER", "SUCCESS"]


def test_display_names_quoted_locals_and_all_kinds_of_recipients_are_taken(stand_in: StandIn, client: Any) -> None:
    destination = {
        "ToAddresses": ["Ana <ana@example.net>"],
        "CcAddresses": ['"b o"@example.net'],
        "BccAddresses": ["cy@example.net"],
    }
    accepted = stand_in.state()["accepted"]
    [result] = send(client, [entry("", Destination=destination)])
    assert stand_in.state()["accepted"] == accepted + 3
    [line] = [line for line in stand_in.journal() if line["message_id"] == result["MessageId"]]
    assert line["to"] == 'ana@example.net, "b o"@example.net, cy@example.net'
    assert line["recipients"] == 3


LONG_HEADER = [{"Name": "X-Long", "Value": "x" * 991}]


@pytest.mark.parametrize(
    ("entries", "members"),
    [
        (people(51), {}),
        ([], {}),
        ([entry("ana@example.net", ReplacementHeaders=[{"Name": "X: Y", "Value": "v"}])], {}),
        ([entry("ana@example.net", ReplacementHeaders=[{"Name": "X" * 127, "Value": "v"}])], {}),
        ([entry("ana@example.net", ReplacementHeaders=[{"Name": "X", "Value": "a\r\nBcc: b"}])], {}),
        ([entry("ana@example.net", ReplacementHeaders=[{"Name": "X", "Value": "Zoë"}])], {}),
        ([entry("ana@example.net", ReplacementHeaders=LONG_HEADER)], {}),
        ([entry("ana@example.net", ReplacementHeaders=[{"Name": f"X{n}", "Value": "v"} for n in range(16)])], {}),
        ([entry("ana@example.net", data={"name": "é" * 131_072})], {}),
        (people(1), {"FromEmailAddress": "news"}),
        (people(1), {"ReplyToAddresses": ["nobody"]}),
        (people(1), {"ConfigurationSetName": "spaces are wrong"}),
        (people(1), {"DefaultEmailTags": [{"Name": "a", "Value": "b@c"}]}),
        (people(1), {"DefaultContent": {"Template": {"TemplateName": "greeting", "TemplateData": "{"}}}),
        (people(1), {"DefaultContent": {"Template": {}}}),
        (people(1), {"DefaultContent": {}}),
    ],
)
def test_what_the_service_model_constrains_refuses_the_whole_call(
    stand_in: StandIn, client: Any, entries: list[dict[str, Any]], members: dict[str, Any]
) -> None:
    accepted = stand_in.state()["accepted"]
    with pytest.raises(client.exceptions.BadRequestException):
        send(client, entries, **members)
    assert stand_in.state()["accepted"] == accepted


def test_fifty_entries_and_fifteen_headers_are_the_most_that_is_taken(client: Any) -> None:
    headers = [{"Name": f"X{n}", "Value": "v" * 900} for n in range(15)]
    entries = [entry(f"p{n}@example.net", n, ReplacementHeaders=headers) for n in range(50)]
    results = send(client, entries)
    assert statuses(results) == ["SUCCESS"] * 50
    assert len({result["MessageId"] for result in results}) == 50


def test_an_unknown_template_fails_every_entry_in_bulk_and_the_call_for_one_mail(client: Any) -> None:
    missing = {"TemplateName": "nowhere", "TemplateData": "{}"}
    results = send(client, people(2), DefaultContent={"Template": missing})
    assert statuses(results) == ["TEMPLATE_NOT_FOUND"] * 2
    with pytest.raises(client.exceptions.NotFoundException):
        client.send_email(
            FromEmailAddress="news@mail.example.com",
            Destination={"ToAddresses": ["ana@example.net"]},
            Content={"Template": missing},
        )


def test_a_hard_bounce_puts_the_address_on_the_suppression_list(stand_in: StandIn, client: Any) -> None:
    [first] = send(client, [entry("twice@bounce.example.com")])
    listed = client.get_suppressed_destination(EmailAddress="twice@bounce.example.com")
    assert listed["SuppressedDestination"]["Reason"] == "BOUNCE"
    [second] = send(client, [entry("twice@bounce.example.com")])
    subtypes = [events_of(stand_in, result)[1]["bounce"]["bounceSubType"] for result in (first, second)]
    assert subtypes == ["General", "OnAccountSuppressionList"]


def test_one_mail_can_be_sent_from_a_template_from_content_and_raw(stand_in: StandIn, client: Any) -> None:
    contents: list[dict[str, Any]] = [
        {"Template": {"TemplateName": "greeting", "TemplateData": '{"name": "Ana", "city": "Bonn"}'}},
        {"Simple": {"Subject": {"Data": "Code 123"}, "Body": {"Text": {"Data": "{{as it is}}"}}}},
    ]
    rendered = []
    for content in contents:
        answer = client.send_email(
            FromEmailAddress="news@mail.example.com",
            Destination={"ToAddresses": ["ana@example.net"]},
            Content=content,
            EmailTags=[{"Name": "kind", "Value": "otp"}],
        )
        message = stand_in.message(answer["MessageId"])
        assert (message["operation"], message["tags"]) == ("SendEmail", {"kind": "otp"})
        rendered.append(message["rendered"])
    assert rendered == [
        {"subject": "Hello Ana", "html": "<p>Ana of Bonn</p>", "text": "Ana"},
        {"subject": "Code 123", "html": None, "text": "{{as it is}}"},
    ]
    raw = b"From: news@mail.example.com\r\nTo: Bo <bo@example.net>\r\nSubject: Hi\r\n\r\nHi\r\n"
    answer = client.send_email(Content={"Raw": {"Data": raw}})
    assert stand_in.message(answer["MessageId"])["to"] == ["bo@example.net"]
    assert [line["seq"] for line in stand_in.journal() if line["message_id"] == answer["MessageId"]] == [None]


def test_one_mail_with_bad_fields_is_refused(client: Any) -> None:
    simple = {"Simple": {"Subject": {"Data": "S"}, "Body": {"Text": {"Data": "T"}}}}
    template = {"Template": {"TemplateName": "greeting", "TemplateData": "{"}}
    good = {"ToAddresses": ["ana@example.net"]}
    for destination, content in [
        ({"ToAddresses": ["ana@"]}, simple),
        ({}, simple),
        (good, {}),
        (good, simple | template),
        (good, template),
    ]:
        with pytest.raises(client.exceptions.BadRequestException):
            client.send_email(FromEmailAddress="news@mail.example.com", Destination=destination, Content=content)


def test_with_rendering_the_journal_holds_the_hashes_of_what_was_read(tmp_path: Path) -> None:
    with StandIn(tmp_path, render=True) as stand_in, closing(ses_client(stand_in.url)) as client:
        client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        send(client, [entry("ana@example.net"), entry("bo@example.net", 2, data={})])
        rendered, failed = stand_in.journal()
    assert rendered["subject_sha256"] == hashlib.sha256(b"Hello Ana").hexdigest()
    assert rendered["html_sha256"] == hashlib.sha256(b"<p>Ana of Bonn</p>").hexdigest()
    assert rendered["text_sha256"] == hashlib.sha256(b"Ana").hexdigest()
    assert (failed["outcome"], "html_sha256" in failed) == ("rendering_failure", False)


def test_shares_of_fates_are_met_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    outcomes = []
    for folder in ("one", "two"):
        with (
            StandIn(tmp_path / folder, bounce_rate=0.2, complaint_rate=0.1, seed=7) as stand_in,
            closing(ses_client(stand_in.url)) as client,
        ):
            client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
            for start in range(0, 500, 50):
                send(client, people(50, start))
            outcomes.append([line["outcome"] for line in stand_in.journal()])
    assert outcomes[0] == outcomes[1]
    assert 60 < outcomes[0].count("bounce") < 140
    assert 20 < outcomes[0].count("complaint") < 80


def test_later_events_wait_for_the_delivery_time_and_none_is_lost_when_it_stops(tmp_path: Path) -> None:
    with StandIn(tmp_path, delivery_ms=60_000) as stand_in, closing(ses_client(stand_in.url)) as client:
        client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        send(client, people(3))
        assert [event["eventType"] for event in stand_in.events()] == ["Send"] * 3
        assert stand_in.stop() == 0
        assert [event["eventType"] for event in stand_in.events()] == ["Send"] * 3 + ["Delivery"] * 3


def test_an_event_is_written_once_its_delivery_time_has_come(tmp_path: Path) -> None:
    with StandIn(tmp_path, delivery_ms=50) as stand_in, closing(ses_client(stand_in.url)) as client:
        client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        send(client, people(1))
        send(client, people(1, start=2))
        events = wait_for(lambda: len(stand_in.events()) == 4 and stand_in.events(), "the deliveries")
    deliveries = [event for event in events if event["eventType"] == "Delivery"]
    assert [event["delivery"]["processingTimeMillis"] for event in deliveries] == [50, 50]


def test_a_request_that_is_not_the_operations_shape_gets_a_typed_refusal(stand_in: StandIn) -> None:
    for body in (b"{", b"[]", b'{"BulkEmailEntries": [7]}', b'{"BulkEmailEntries": [{"Destination": 7}]}'):
        request = urllib.request.Request(f"{stand_in.url}/v2/email/outbound-bulk-emails", body, method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=5)
        with caught.value as answer:
            assert answer.code == 400
            assert answer.headers["x-amzn-ErrorType"] in ("SerializationException", "BadRequestException")
            assert json.load(answer)["message"]


def test_an_operation_that_the_stand_in_lacks_says_so(client: Any) -> None:
    with pytest.raises(ClientError, match="no such operation"):
        client.list_email_identities()
