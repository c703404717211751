"""One vocabulary for what SES says. Event publishing, identity notifications, EventBridge and their envelopes become `Fact`s.

Pure: nothing here asks a database or the network. A fact is about one recipient of one mail; SES may tell of several at once.
Fields that we do not know are ignored, kinds and subtypes that we do not know are kept (SES adds some without notice).
What follows from a fact is decided in `ingest`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Any, Literal

Kind = Literal[
    "send",
    "delivery",
    "bounce",
    "complaint",
    "not_spam",
    "reject",
    "rendering_failure",
    "delivery_delay",
    "open",
    "click",
    "subscription",
    "other",
]
BounceClass = Literal["hard", "soft", "content", "provider_list", "unsubscribed", "policy"]

_KINDS: Mapping[str, Kind] = {
    "send": "send",
    "delivery": "delivery",
    "bounce": "bounce",
    "complaint": "complaint",
    "reject": "reject",
    # With a space in the event, and without one in the API's name of it.
    "renderingfailure": "rendering_failure",
    "deliverydelay": "delivery_delay",
    "open": "open",
    "click": "click",
    "subscription": "subscription",
}
_BLOCKS: Mapping[Kind, str] = {"rendering_failure": "failure", "delivery_delay": "deliveryDelay"}
_RECIPIENTS: Mapping[Kind, str] = {
    "delivery": "recipients",
    "bounce": "bouncedRecipients",
    "complaint": "complainedRecipients",
    "delivery_delay": "delayedRecipients",
}

_PROVIDER_LISTS = {"suppressed", "onaccountsuppressionlist", "ontenantsuppressionlist", "emailvalidationsuppressed"}
_CONTENT = {"messagetoolarge", "contentrejected", "attachmentrejected"}
# Bounces that say something about us, not about the mailbox: reputation, authentication, block lists, volume. Enhanced codes X.7.Z
# (RFC 3463, section 3.8) are about security and policy; texts, because many hosts say 5.0.0 or even 5.1.1 beside them.
_policy_status = re.compile(r"[45]\.7\.\d+").fullmatch
_policy_text = re.compile(
    r"\b[45]\.7\.\d{1,3}\b|polic(?:y|ies)|\bspam|reputation|blacklist|block ?list|spamhaus|dnsbl|\brbl\b|\bdmarc\b|\bspf\b|\bdkim\b"
    r"|blocked (?:using|ip|-)|host (?:was )?(?:blocked|rejected)|(?:rate|frequency) limit|too many (?:rec|mess|conn|conc)"
    r"|unauthenticated|\bptr\b",
    re.IGNORECASE,
).search
# ... unless the text says that there is nobody there: some hosts answer 5.7.1 to that too.
_nobody = re.compile(
    r"(?:user|recipient|mailbox|account|address)\b[^.;]{0,40}\b(?:unknown|not (?:exist|found)|disabled|does(?: not|n.t) exist)"
    r"|(?:unknown|no such|invalid|disabled) (?:user|recipient|mailbox|address)",
    re.IGNORECASE,
).search
_dressed = re.compile(r"[<>\"(),;\s]").search
_topic = re.compile(r"[a-z0-9_-]{1,32}").fullmatch


class Untranslatable(ValueError):
    """This is no event of SES. The text says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What happened to one recipient of one mail. Times are UTC; `accepted_at` is when SES took the mail.

    `campaign`, `seq`, `attempt` or `message`, `attempt` are our own tags, where the event has them. `detail` is SES's word for it
    (bounceSubType, complaintFeedbackType, delayType); `digest` is the same whenever SES tells the same thing again.
    `topics` are those that somebody left through SES's own subscription page.
    """

    kind: Kind
    at: datetime
    ses_id: str
    recipient: str
    digest: bytes
    accepted_at: datetime | None = None
    campaign: str | None = None
    seq: int | None = None
    attempt: int = 1
    message: str | None = None
    bounce: BounceClass | None = None
    detail: str | None = None
    link: str | None = None
    agent: str | None = None
    ip: str | None = None
    topics: tuple[str, ...] = ()


def unwrap(text: str) -> str:
    """The event inside an SNS envelope, as a queue gets it without raw delivery; anything else stays as it is.

    Proves nothing: a queue's own policy says who may write to it.

    Raises:
        Untranslatable: this is not JSON.
    """
    if '"Message"' not in text:
        return text
    envelope = _object(text)
    if envelope.get("Type") == "Notification" and isinstance(envelope.get("Message"), str):
        return str(envelope["Message"])
    return text


def facts(text: str) -> list[Fact]:
    """The facts of one event: one for each recipient that it is about.

    Raises:
        Untranslatable: this is no event of SES.
    """
    content = _object(text)
    if content.get("source") == "aws.ses" and isinstance(content.get("detail"), dict):
        content = content["detail"]  # EventBridge
    mail = content.get("mail")
    name = content.get("eventType") or content.get("notificationType")
    if not isinstance(mail, dict) or not isinstance(name, str):
        raise Untranslatable("not an SES event")
    kind = _KINDS.get(re.sub(r"[ _]", "", name).lower(), "other")
    block = content.get(_BLOCKS.get(kind, kind))
    block = block if isinstance(block, dict) else {}
    accepted_at = _time(mail.get("timestamp"))
    at = _time(block.get("timestamp")) or accepted_at or datetime.fromtimestamp(0, UTC)
    ses_id = _text(mail.get("messageId"))
    tags = mail.get("tags")
    told = [_translated(kind, name, block, one) for one in _told(kind, block, mail)]
    shared = {
        "at": at,
        "ses_id": ses_id,
        "accepted_at": accepted_at,
        **_ours(tags if isinstance(tags, dict) else {}),
        **_visit(kind, block),
    }
    distinct = _text(block.get("feedbackId")) or at.isoformat()
    made = []
    for recipient, kind_, more in told:
        key = "\0".join((name, ses_id, recipient.lower(), distinct, _text(block.get("link"))))
        digest = hashlib.blake2b(key.encode(errors="replace"), digest_size=16).digest()
        made.append(Fact(kind=kind_, recipient=recipient, digest=digest, **more, **shared))
    return made


def bounce_class(kind: str, subtype: str, recipients: Iterable[Mapping[str, Any]]) -> BounceClass:
    """What a bounce says: `hard` there is nobody, `soft` not now, `content` not this mail, `provider_list` SES did not even try,
    `unsubscribed` by SES's own list management, `policy` not from us.

    From bounceType and bounceSubType (SES: contents of event publishing) and, for `policy`, the host's own words.
    """
    subtype = subtype.lower()
    if subtype in _PROVIDER_LISTS:
        return "provider_list"
    if subtype == "unsubscribedrecipient":
        return "unsubscribed"
    if subtype in _CONTENT:
        return "content"
    for one in recipients:
        status, text = _text(one.get("status")), _text(one.get("diagnosticCode"))
        if (_policy_status(status) or _policy_text(text)) and not _nobody(text):
            return "policy"
    return "hard" if kind.lower() == "permanent" else "soft"


def _translated(
    kind: Kind, name: str, block: Mapping[str, Any], one: Mapping[str, Any]
) -> tuple[str, Kind, dict[str, Any]]:
    recipient = _bare(_text(one.get("emailAddress")))
    if kind == "bounce":
        subtype = _text(block.get("bounceSubType"))
        found = bounce_class(_text(block.get("bounceType")), subtype, [one])
        return recipient, kind, {"bounce": found, "detail": subtype or None}
    if kind == "complaint":
        said = _text(block.get("complaintFeedbackType"))
        if _text(block.get("complaintSubType")).lower() in _PROVIDER_LISTS:
            return recipient, "bounce", {"bounce": "provider_list", "detail": _text(block.get("complaintSubType"))}
        return recipient, "not_spam" if said == "not-spam" else kind, {"detail": said or None}
    if kind == "delivery_delay":
        return recipient, kind, {"detail": _text(block.get("delayType")) or None}
    if kind == "subscription":
        return recipient, kind, {"detail": _text(block.get("source")) or None, "topics": _left(block)}
    return recipient, kind, {"detail": name if kind == "other" else None}


def _told(kind: Kind, block: Mapping[str, Any], mail: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Whom an event is about. A complaint may list everybody whom its host knows: only those of this mail count."""
    destination: list[Mapping[str, Any]] = [
        {"emailAddress": one} for one in _list(mail.get("destination")) if isinstance(one, str)
    ]
    listed = _list(block.get(_RECIPIENTS.get(kind, "")))
    found: list[Mapping[str, Any]] = [
        one if isinstance(one, dict) else {"emailAddress": one} for one in listed if isinstance(one, dict | str)
    ]
    if not found:
        return destination or [{}]
    if kind == "complaint" and destination:
        sent_to = {_folded(one) for one in destination}
        return [one for one in found if _folded(one) in sent_to] or (destination if len(destination) == 1 else found)
    return found


def _folded(one: Mapping[str, Any]) -> str:
    return _bare(_text(one.get("emailAddress"))).lower()


def _bare(text: str) -> str:
    """The address in `Name <address>`."""
    # The parser takes half of the time of an event, and nearly all addresses are bare.
    return parseaddr(text)[1] if _dressed(text) else text


def _ours(tags: Mapping[str, Any]) -> dict[str, Any]:
    campaign, seq, message = _tag(tags, "campaign"), _number(_tag(tags, "seq"), 2**31), _tag(tags, "message")
    attempt = 1 if _tag(tags, "attempt") is None else _number(_tag(tags, "attempt"), 2**15)
    if attempt is None:
        return {}
    if campaign is not None and seq is not None:
        return {"campaign": campaign, "seq": seq, "attempt": attempt}
    return {} if message is None else {"message": message, "attempt": attempt}


def _visit(kind: Kind, block: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("open", "click"):
        return {}
    return {
        "agent": _text(block.get("userAgent")),
        "ip": _text(block.get("ipAddress")) or None,
        "link": _text(block.get("link")) or None,
    }


def _left(block: Mapping[str, Any]) -> tuple[str, ...]:
    preferences = block.get("newTopicPreferences")
    if not isinstance(preferences, dict):
        return ()
    if preferences.get("unsubscribeAll") is True:
        return ("marketing",)
    # The published examples spell the field in both ways.
    statuses = _list(preferences.get("topicSubscriptionStatus")) or _list(
        preferences.get("topicDefaultSubscriptionStatus")
    )
    return tuple(
        name
        for one in statuses
        if isinstance(one, dict) and _text(one.get("subscriptionStatus")).lower() == "optout"
        and _topic(name := _text(one.get("topicName")).lower())
    )  # fmt: skip


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _tag(tags: Mapping[str, Any], name: str) -> str | None:
    values = tags.get(name)
    return values[0] if isinstance(values, list) and values and isinstance(values[0], str) else None


def _number(text: str | None, below: int) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return number if 0 < (number := int(text)) < below else None


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise Untranslatable("not JSON") from None
    if not isinstance(content, dict):
        raise Untranslatable("not an SES event")
    return content


def _text(value: object) -> str:
    """What PostgreSQL can keep of a text: no NUL, no half of a surrogate pair."""
    if not isinstance(value, str):
        return ""
    return (value if value.isascii() else storable(value)).replace("\0", "")


def storable(text: str) -> str:
    """The same text with a question mark for what is no character: JSON can spell half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
