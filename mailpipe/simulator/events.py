"""SES events in the shapes that SES publishes (the same record that goes to SNS, Firehose or EventBridge), as
JSON lines.

Lines are put together from text, because encoding whole objects would take most of the stand-in's time at
20,000 recipients a second; every value that is not of our own making passes through the JSON encoder.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mailpipe.simulator.fates import Fate
from mailpipe.simulator.habits import Habits, Visit
from mailpipe.simulator.journal import AppendFile
from mailpipe.simulator.message import Envelope, Message
from mailpipe.simulator.templates import missing_variable_text
from mailpipe.simulator.wire import quote

Outlet = Callable[[Sequence[str]], None]
ACCOUNT_ID = "111122223333"
_OUTGOING_IP = "198.51.100.7"
_REPORTING_MTA = "b1-2.smtp-out.example.com"
_DELAY_S = 14 * 3600
_SHORTEST_DELIVERY_S = 0.005

_bounces: dict[Fate, tuple[str, str, str, str, str]] = {
    # bounceType, bounceSubType, action, status, diagnosticCode
    "bounce": ("Permanent", "General", "failed", "5.1.1", "smtp; 550 5.1.1 user unknown"),
    "soft_bounce": ("Transient", "MailboxFull", "failed", "4.2.2", "smtp; 452 4.2.2 mailbox full"),
    "suppressed": (
        "Permanent",
        "Suppressed",
        "failed",
        "5.1.1",
        "Amazon SES has suppressed sending to this address because it has a recent history of bouncing.",
    ),
    "account_suppressed": (
        "Permanent",
        "OnAccountSuppressionList",
        "failed",
        "5.1.1",
        "Amazon SES did not send the message: the address is on the suppression list for your account.",
    ),
}


class Events:
    """Writes Send at once and what follows it after `delivery_ms`, in the order of acceptance."""

    def __init__(
        self, path: Path, region: str, delivery_ms: float, habits: Habits, outlets: Sequence[Outlet] = ()
    ) -> None:
        """`outlets` get every line besides the file."""
        self._file = AppendFile(path)
        self._habits = habits
        self._outlets = outlets
        self._identity = f"arn:aws:ses:{region}:{ACCOUNT_ID}:identity/"
        self._delay = delivery_ms / 1000
        self._due: deque[tuple[float, list[str]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def write(self, envelope: Envelope, messages: Sequence[Message]) -> None:
        delivery_s = max(self._delay, _SHORTEST_DELIVERY_S)
        sent, delivered = _timestamp(envelope.at), _timestamp(envelope.at + delivery_s)
        took_ms = int(delivery_s * 1000)
        domain = quote(envelope.sender.rpartition("@")[2])
        head = (
            f'"timestamp":"{sent}","source":{quote(envelope.sender)},'
            f'"sourceArn":{quote(self._identity)[:-1]}{domain[1:]},'
            f'"sendingAccountId":"{ACCOUNT_ID}","headersTruncated":false,'
        )
        auto_tags = (
            f'"ses:operation":["{envelope.operation}"],"ses:from-domain":[{domain}],'
            f'"ses:source-ip":["192.0.2.1"],"ses:caller-identity":["mailpipe"]'
        )
        if envelope.configuration_set:
            auto_tags = f'"ses:configuration-set":["{envelope.configuration_set}"],' + auto_tags
        now: list[str] = []
        later: list[str] = []
        for message in messages:
            tags = "".join([f',"{name}":["{value}"]' for name, value in message.tags.items()])
            destination = ",".join([quote(recipient) for recipient in message.recipients])
            mail = (
                f'"mail":{{{head}"messageId":"{message.message_id}","destination":[{destination}],'
                f'"tags":{{{auto_tags}{tags}'
            )
            if message.missing:
                template = envelope.template.name if envelope.template else ""
                now.append(
                    f'{{"eventType":"Rendering Failure",{mail}}}}},'
                    f'"failure":{{"templateName":{quote(template)},'
                    f'"errorMessage":{quote(missing_variable_text(message.missing))}}}}}\n'
                )
                continue
            now.append(f'{{"eventType":"Send",{mail}}}}},"send":{{}}}}\n')
            for number, (recipient, fate) in enumerate(zip(message.recipients, message.fates, strict=True)):
                feedback_id = f"{message.message_id[:-6]}{number + 1:06d}"
                later.extend(
                    _outcome(fate, mail, quote(recipient), at=delivered, took_ms=took_ms, feedback_id=feedback_id)
                )
                if fate in ("delivery", "complaint", "delay"):
                    for visit in self._habits.of(recipient):
                        later.append(_visit(visit, mail, at=_timestamp(envelope.at + delivery_s + visit.after_s)))
        if self._delay:
            self._write(now)
            self._schedule(later)
        else:
            self._write(now + later)

    def _write(self, lines: Sequence[str]) -> None:
        self._file.append("".join(lines).encode())
        for outlet in self._outlets:
            outlet(lines)

    def _schedule(self, lines: list[str]) -> None:
        self._due.append((time.monotonic() + self._delay, lines))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._write_due)

    def _write_due(self) -> None:
        now = time.monotonic()
        lines: list[str] = []
        while self._due and self._due[0][0] <= now:
            lines += self._due.popleft()[1]
        self._write(lines)
        self._timer = None
        if self._due:
            self._timer = asyncio.get_running_loop().call_later(self._due[0][0] - now, self._write_due)

    def close(self) -> None:
        """Writes what is still due, then closes."""
        if self._timer is not None:
            self._timer.cancel()
        self._write([line for _, lines in self._due for line in lines])
        self._file.close()


def _outcome(fate: Fate, mail: str, recipient: str, *, at: str, took_ms: int, feedback_id: str) -> list[str]:
    """The events after Send for one recipient. `mail` lacks its last two braces; `recipient` is JSON."""
    bounce = _bounces.get(fate)
    if bounce is not None:
        kind, subtype, action, status, diagnostic = bounce
        text = (
            f'{{"eventType":"Bounce",{mail}}}}},"bounce":{{"bounceType":"{kind}","bounceSubType":"{subtype}",'
            f'"bouncedRecipients":[{{"emailAddress":{recipient},"action":"{action}","status":"{status}",'
            f'"diagnosticCode":"{diagnostic}"}}],"timestamp":"{at}","feedbackId":"{feedback_id}",'
            f'"reportingMTA":"dsn; {_REPORTING_MTA}"}}}}\n'
        )
        return [text]
    delivery = (
        f'{{"eventType":"Delivery",{mail},"ses:outgoing-ip":["{_OUTGOING_IP}"]}}}},'
        f'"delivery":{{"timestamp":"{at}","processingTimeMillis":{took_ms},'
        f'"recipients":[{recipient}],"smtpResponse":"250 2.0.0 OK",'
        f'"reportingMTA":"{_REPORTING_MTA}"}}}}\n'
    )
    if fate == "complaint":
        complaint = (
            f'{{"eventType":"Complaint",{mail}}}}},"complaint":{{"complaintSubType":null,'
            f'"complainedRecipients":[{{"emailAddress":{recipient}}}],"timestamp":"{at}",'
            f'"feedbackId":"{feedback_id}","userAgent":"ExampleFBL/1.0","complaintFeedbackType":"abuse",'
            f'"arrivalDate":"{at}"}}}}\n'
        )
        return [delivery, complaint]
    if fate == "delay":
        delay = (
            f'{{"eventType":"DeliveryDelay",{mail}}}}},'
            f'"deliveryDelay":{{"timestamp":"{at}","delayType":"MailboxFull",'
            f'"expirationTime":"{_timestamp(time.time() + _DELAY_S)}","reportingMTA":"{_OUTGOING_IP}",'
            f'"delayedRecipients":[{{"emailAddress":{recipient},"status":"4.2.2",'
            f'"diagnosticCode":"smtp; 452 4.2.2 mailbox full"}}]}}}}\n'
        )
        return [delay, delivery]
    return [delivery]


def _visit(visit: Visit, mail: str, *, at: str) -> str:
    where = f'"timestamp":"{at}","ipAddress":"{visit.ip}","userAgent":{quote(visit.agent)}'
    if visit.link is None:
        return f'{{"eventType":"Open",{mail}}}}},"open":{{{where}}}}}\n'
    return f'{{"eventType":"Click",{mail}}}}},"click":{{{where},"link":{quote(visit.link)},"linkTags":null}}}}\n'


def _timestamp(at: float) -> str:
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z"
