"""Reading what SES publishes: every shape and kind, several recipients, and nothing that breaks on what we do not know."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.feedback.translate import Untranslatable, bounce_class, facts, unwrap
from tests.ses_events import COMPLAINED, SHAPES, EventShape, event, notification, wrapped

AT = datetime(2026, 3, 2, 9, 0, 2, 640_000, UTC)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("carrier", ["publishing", "notification", "eventbridge", "sns"])
def test_every_kind_is_read_in_every_shape(shape: EventShape, carrier: str) -> None:
    """Event publishing says `eventType`, identity notifications say `notificationType` and hold no tags."""
    content = notification(shape) if carrier == "notification" else event(shape, campaign="flash-sale", seq=17)
    text = json.dumps(content)
    if carrier == "eventbridge":
        text = json.dumps({"source": "aws.ses", "detail-type": "Email", "detail": content})
    if carrier == "sns":
        text = unwrap(wrapped(text + "\n"))
    (found,) = facts(text)
    assert (found.kind, found.bounce, found.recipient) == (shape.kind, shape.bounce, "ana@shop.example.com")
    assert found.accepted_at == datetime(2026, 3, 2, 9, 0, 0, 101_000, UTC)
    assert found.at == (AT if shape.block_has_time else found.accepted_at)
    bound = (None, None) if carrier == "notification" else ("flash-sale", 17)
    assert (found.campaign, found.seq) == bound


def test_an_event_tells_its_attempt_or_its_message() -> None:
    (found,) = facts(json.dumps(event(SHAPES[0], campaign="x", seq=5, attempt=2)))
    assert (found.campaign, found.seq, found.attempt, found.message) == ("x", 5, 2, None)
    (found,) = facts(json.dumps(event(SHAPES[0], tags={"message": ["0190-a"], "attempt": ["3"]})))
    assert (found.campaign, found.attempt, found.message) == (None, 3, "0190-a")


@pytest.mark.parametrize(
    "tags",
    [None, {}, {"campaign": ["x"]}, {"seq": ["1"]}, {"campaign": [], "seq": ["1"]}, {"campaign": ["x"], "seq": ["one"]},
     {"campaign": ["x"], "seq": ["0"]}, {"campaign": ["x"], "seq": ["-4"]}, {"campaign": ["x"], "seq": ["99999999999"]},
     {"campaign": ["x"], "seq": ["²"]}, {"campaign": [7], "seq": ["1"]}, {"campaign": ["x"], "seq": ["1"], "attempt": ["0"]},
     {"campaign": ["x"], "seq": ["1"], "attempt": ["many"]}, ["campaign"]],
)  # fmt: skip
def test_tags_that_are_not_ours_bind_nobody(tags: Any) -> None:
    (found,) = facts(json.dumps(event(SHAPES[0], tags=tags)))
    assert (found.campaign, found.message) == (None, None)


def test_a_bounce_of_several_recipients_is_a_fact_about_each() -> None:
    content = event(SHAPES[2], recipients=["Ana <ana@shop.example.com>", "ben@shop.example.com"])
    found = facts(json.dumps(content))
    assert [one.recipient for one in found] == ["ana@shop.example.com", "ben@shop.example.com"]
    assert found[0].digest != found[1].digest


def test_a_complaint_that_lists_a_whole_domain_is_about_those_of_this_mail() -> None:
    content = event(COMPLAINED, recipients=["x@shop.example.com", "ANA@shop.example.com", "y@shop.example.com"])
    assert [one.recipient for one in facts(json.dumps(content))] == ["ANA@shop.example.com"]
    content = event(COMPLAINED, recipients=["someone@shop.example.com", "other@shop.example.com"])
    assert [one.recipient for one in facts(json.dumps(content))] == ["ana@shop.example.com"]


def test_not_spam_is_no_complaint_and_a_listed_address_is_no_complaint_either() -> None:
    content = event(COMPLAINED)
    content["complaint"]["complaintFeedbackType"] = "not-spam"
    assert facts(json.dumps(content))[0].kind == "not_spam"
    content["complaint"] |= {"complaintFeedbackType": None, "complaintSubType": "OnAccountSuppressionList"}
    found = facts(json.dumps(content))[0]
    assert (found.kind, found.bounce) == ("bounce", "provider_list")


def test_the_digest_is_the_same_for_the_same_event_and_for_no_other() -> None:
    texts = [json.dumps(event(shape, campaign="c", seq=seq)) for shape in SHAPES for seq in (1, 2)]
    digests = {facts(text)[0].digest for text in texts}
    assert digests == {facts(json.dumps(json.loads(text), indent=1))[0].digest for text in texts}
    assert len(digests) == len(SHAPES) * 2
    click = next(shape for shape in SHAPES if shape.kind == "click")
    other = event(click)
    other["click"]["link"] = "https://shop.example.com/other"
    assert facts(json.dumps(event(click)))[0].digest != facts(json.dumps(other))[0].digest


@pytest.mark.parametrize(
    ("kind", "subtype", "status", "text", "expected"),
    [
        ("Permanent", "General", "5.1.1", "smtp; 550 5.1.1 no such user", "hard"),
        ("Permanent", "NoEmail", "", "", "hard"),
        ("Permanent", "SomethingNew", "", "", "hard"),
        ("Permanent", "General", "5.0.0", "smtp; 550 : User unknown", "hard"),
        ("Permanent", "General", "5.7.1", "smtp; 550 5.7.1 550 User Unknown: somebody", "hard"),
        ("Permanent", "General", "5.7.26", "smtp; 550-5.7.26 This mail has been blocked, the sender is unauthenticated", "policy"),
        ("Permanent", "General", "5.0.0", "smtp; 554 Mail rejected for policy reasons.", "policy"),
        ("Permanent", "General", "5.1.1", "SMTP; 550 5.7.1 IP address blacklisted by recipient", "policy"),
        ("Transient", "General", "4.7.650", "smtp; 451 4.7.650 rate limited due to IP reputation", "policy"),
        ("Transient", "MailboxFull", "4.2.2", "smtp; 452 4.2.2 mailbox full", "soft"),
        ("Transient", "CustomTimeoutExceeded", "", "", "soft"),
        ("Transient", "MessageTooLarge", "5.3.4", "", "content"),
        ("Transient", "ContentRejected", "", "smtp; 550 spam", "content"),
        ("Undetermined", "Undetermined", "", "", "soft"),
        ("", "", "", "", "soft"),
        ("Permanent", "Suppressed", "5.1.1", "Amazon SES has suppressed sending to this address", "provider_list"),
        ("Permanent", "OnAccountSuppressionList", "", "", "provider_list"),
        ("Permanent", "OnTenantSuppressionList", "", "", "provider_list"),
        ("Permanent", "UnsubscribedRecipient", "", "", "unsubscribed"),
    ],
)  # fmt: skip
def test_bounces_are_told_apart(kind: str, subtype: str, status: str, text: str, expected: str) -> None:
    assert bounce_class(kind, subtype, [{"status": status, "diagnosticCode": text}]) == expected


def test_ses_own_unsubscribe_tells_its_topics() -> None:
    shape = next(shape for shape in SHAPES if shape.kind == "subscription")
    content = event(shape)
    content["subscription"]["newTopicPreferences"] = {
        "unsubscribeAll": False,
        "topicSubscriptionStatus": [
            {"topicName": "Offers", "subscriptionStatus": "OptOut"},
            {"topicName": "news", "subscriptionStatus": "OptIn"},
            {"topicName": "no topic of ours!", "subscriptionStatus": "OptOut"},
        ],
    }
    assert facts(json.dumps(content))[0].topics == ("offers",)
    content["subscription"]["newTopicPreferences"]["unsubscribeAll"] = True
    assert facts(json.dumps(content))[0].topics == ("marketing",)


@pytest.mark.parametrize(
    "broken", ["", "x", "[]", "null", "{}", '{"mail": 7}', '{"eventType": "Send"}', '{"mail": {}}', "[" * 100_000]
)
def test_what_is_no_event_is_said_to_be_none(broken: str) -> None:
    with pytest.raises(Untranslatable):
        facts(unwrap(broken))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_an_event_or_is_not(content: Any) -> None:
    with contextlib.suppress(Untranslatable):
        facts(json.dumps(content))


@given(st.sampled_from(SHAPES), st.data())
def test_an_event_with_anything_in_its_fields_is_read(shape: EventShape, data: st.DataObject) -> None:
    content = event(shape, campaign="c", seq=1)
    odd = st.none() | st.integers() | st.text() | st.lists(st.none() | st.text(), max_size=3)
    for part in (content["mail"], *(value for value in content.values() if isinstance(value, dict))):
        for name in list(part):
            if data.draw(st.booleans()):
                part[name] = data.draw(odd)
    for found in facts(json.dumps(content)):
        assert found.at.tzinfo is not None
        found.recipient.encode()


def test_half_a_surrogate_pair_and_nul_do_not_reach_the_database() -> None:
    text = json.dumps(event(SHAPES[2], recipients=["\ud800a\0@shop.example.com"]))
    assert all("\0" not in one.recipient and one.recipient.encode() for one in facts(text))
