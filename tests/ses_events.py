"""Events of SES in the shapes that its documentation shows, with values of our own."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ACCEPTED = "2026-03-02T09:00:00.101Z"
AT = "2026-03-02T09:00:02.640Z"
TOPIC = "arn:aws:sns:eu-west-1:111122223333:ses-events"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class EventShape:
    """One kind of event: what SES calls it, the block it comes with, and what we make of it."""

    name: str
    block_name: str
    block: dict[str, Any]
    kind: str
    bounce: str | None = None
    listed: str | None = None

    @property
    def block_has_time(self) -> bool:
        return "timestamp" in self.block


def _bounce(kind: str, subtype: str, status: str, text: str) -> dict[str, Any]:
    recipient = {"emailAddress": "ana@shop.example.com", "action": "failed", "status": status, "diagnosticCode": text}
    return {"bounceType": kind, "bounceSubType": subtype, "bouncedRecipients": [recipient], "timestamp": AT,
            "feedbackId": f"0102018d-{subtype}", "reportingMTA": "dsn; b1-2.smtp-out.example.com"}  # fmt: skip


COMPLAINED = EventShape(
    "Complaint",
    "complaint",
    {"complaintSubType": None, "complainedRecipients": [{"emailAddress": "ana@shop.example.com"}], "timestamp": AT,
     "feedbackId": "0102018d-feed-2", "userAgent": "ExampleFBL/1.0", "complaintFeedbackType": "abuse", "arrivalDate": AT},
    "complaint",
    listed="complainedRecipients",
)  # fmt: skip
SHAPES = (
    EventShape("Send", "send", {}, "send"),
    EventShape("Delivery", "delivery", {"timestamp": AT, "processingTimeMillis": 2539, "recipients": ["ana@shop.example.com"],
               "smtpResponse": "250 2.0.0 OK", "reportingMTA": "b1-2.smtp-out.example.com"}, "delivery", listed="recipients"),
    EventShape("Bounce", "bounce", _bounce("Permanent", "General", "5.1.1", "smtp; 550 5.1.1 user unknown"), "bounce", "hard",
               listed="bouncedRecipients"),
    EventShape("Bounce", "bounce", _bounce("Transient", "MailboxFull", "4.2.2", "smtp; 452 4.2.2 mailbox full"), "bounce", "soft",
               listed="bouncedRecipients") ,
    COMPLAINED,
    EventShape("Reject", "reject", {"reason": "Bad content"}, "reject"),
    EventShape("Open", "open", {"timestamp": AT, "ipAddress": "203.0.113.9", "userAgent": "Mozilla/5.0 (X11)"}, "open"),
    EventShape("Click", "click", {"timestamp": AT, "ipAddress": "203.0.113.9", "userAgent": "Mozilla/5.0 (X11)",
               "link": "https://shop.example.com/spring", "linkTags": {"slot": ["hero"]}}, "click"),
    EventShape("Rendering Failure", "failure", {"templateName": "spring", "errorMessage": "attribute city missing"},
               "rendering_failure"),
    EventShape("DeliveryDelay", "deliveryDelay", {"timestamp": AT, "delayType": "MailboxFull", "expirationTime": AT,
               "reportingMTA": "198.51.100.7", "delayedRecipients": [{"emailAddress": "ana@shop.example.com", "status": "4.2.2",
               "diagnosticCode": "smtp; 452 4.2.2 mailbox full"}]}, "delivery_delay", listed="delayedRecipients"),
    EventShape("Subscription", "subscription", {"contactList": "main", "timestamp": AT, "source": "UnsubscribeHeader",
               "newTopicPreferences": {"unsubscribeAll": False, "topicSubscriptionStatus": []},
               "oldTopicPreferences": {"unsubscribeAll": False, "topicSubscriptionStatus": []}}, "subscription"),
)  # fmt: skip
"""Every kind of event publishing."""


def shape(name: str, bounce: str | None = None) -> EventShape:
    return next(one for one in SHAPES if one.name == name and bounce in (None, one.bounce))


def event(
    of: EventShape,
    *,
    campaign: str | None = None,
    seq: int | None = None,
    attempt: int = 1,
    tags: Any = (),
    recipients: Sequence[str] = (),
    to: str = "ana@shop.example.com",
    ses_id: str | None = None,
    accepted: str = ACCEPTED,
    at: str | None = None,
) -> dict[str, Any]:
    """An event as event publishing has it, for one person of a campaign, or with the tags that are given."""
    if tags == ():
        tags = {"ses:operation": ["SendBulkEmail"], "ses:caller-identity": ["mailpipe"]}
        if campaign is not None:
            tags |= {"campaign": [campaign], "seq": [str(seq)], "attempt": [str(attempt)]}
    mail = {
        "timestamp": accepted, "source": "news@shop.example.com", "sendingAccountId": "111122223333",
        "sourceArn": "arn:aws:ses:eu-west-1:111122223333:identity/shop.example.com",
        "messageId": ses_id or f"0102018d-{campaign}-{seq}-{attempt}", "destination": [to], "headersTruncated": False,
    }  # fmt: skip
    if tags is not None:
        mail["tags"] = tags
    block = copy.deepcopy(of.block)
    if at is not None and "timestamp" in block:
        block["timestamp"] = at
    if of.listed is not None:
        named = list(recipients) or [to]
        first = block[of.listed][0]
        block[of.listed] = [{**first, "emailAddress": one} if isinstance(first, dict) else one for one in named]
    return {"eventType": of.name, "mail": mail, of.block_name: block}


def notification(of: EventShape, **fields: Any) -> dict[str, Any]:
    """The same as an identity notification: another name for its type, and no tags."""
    content = event(of, **fields, tags=None)
    return {"notificationType": content.pop("eventType"), **content}


def wrapped(message: str, *, topic: str = TOPIC) -> str:
    """In an SNS envelope as a queue gets it."""
    return json.dumps(
        {"Type": "Notification", "MessageId": f"sns-{next(_numbers)}", "TopicArn": topic, "Message": message,
         "Subject": "Amazon SES Email Event Notification", "Timestamp": "2026-03-02T09:00:03.000Z", "SignatureVersion": "1",
         "Signature": "none", "SigningCertURL": "none", "UnsubscribeURL": "none"}
    )  # fmt: skip
