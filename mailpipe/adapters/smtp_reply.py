"""What a reply of an SMTP server, or the lack of one, means for the mail in hand and for the campaign. Pure.

A mail is handed over by the dot that ends its data, and by nothing before it: a server that lost the connection before must not
deliver (RFC 5321, section 4.2.5 and 3.9.1). From that dot on only its reply tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from mailpipe.ses.answer import Kind, Result, without_addresses


class Step(Enum):
    """Where in the conversation a reply belongs; the value says it in a sentence."""

    CONNECT = "the connection"
    LOGIN = "the greeting, the encryption or the login"
    SENDER = "the sender"
    RECIPIENT = "the recipient"
    DATA = "the start of the message"
    END = "the message"


@dataclass(frozen=True)
class Verdict:
    """What became of the mail. `halt` says why nothing at all can leave; `closed` that the connection is not to be used again."""

    result: Result
    halt: str | None = None
    closed: bool = False


_EXPECTED = {Step.CONNECT: 2, Step.LOGIN: 2, Step.SENDER: 2, Step.RECIPIENT: 2, Step.DATA: 3, Step.END: 2}
_REASONS = {Step.RECIPIENT: "recipient_refused", Step.DATA: "message_refused", Step.END: "message_refused"}
# Command not implemented, bad sequence, authentication required, mechanism too weak, credentials invalid, encryption required.
_CONVERSATION = {502, 503, 530, 534, 535, 538}
_TOO_LARGE = 552
_CLOSING = 421
# A server that is asked too much: "454 Throttling failure: Maximum sending rate exceeded" (SES), enhanced code 4.7.28 (Gmail).
_throttled = re.compile(r"throttl|\brate\b|too many|\b4\.7\.28\b", re.IGNORECASE).search


def is_good(step: Step, code: int) -> bool:
    """Whether the conversation goes on, or, at its END, the server has taken the mail."""
    return code // 100 == _EXPECTED[step]


def of_reply(step: Step, code: int, text: bytes) -> Verdict:
    """What a reply that is not the wanted one says (RFC 5321, section 4.2.1).

    4yz: refused for now, 5yz: for good. 421 is about the connection, and what concerns greeting, login or sender is about
    everybody: nobody's attempt is counted, and nobody is failed for it.
    """
    words = " ".join(text.decode("utf-8", "replace").split())
    detail = without_addresses(f"{code} {words}")
    if code == _CLOSING:
        return Verdict(Result(Kind.AGAIN, "service_closing", detail), closed=True)
    if code // 100 == 4:
        if step in (Step.CONNECT, Step.LOGIN) or _throttled(words):
            return Verdict(Result(Kind.AGAIN, "deferred", detail), closed=step in (Step.CONNECT, Step.LOGIN))
        return Verdict(Result(Kind.RETRY, "deferred", detail))
    if code // 100 != 5:
        return _unreadable(step, detail)
    if code == _TOO_LARGE and step in (Step.SENDER, Step.DATA, Step.END):
        return Verdict(Result(Kind.FAILED, "too_large", detail))
    if step in _REASONS and code not in _CONVERSATION:
        return Verdict(Result(Kind.FAILED, _REASONS[step], detail))
    halt = f"the SMTP server refuses {step.value} ({detail})"
    return Verdict(Result(Kind.AGAIN, "refused", detail), halt=halt, closed=True)


def of_loss(step: Step, error: BaseException) -> Verdict:
    """What it means that the connection was lost, fell silent or became unreadable at this step."""
    name = type(error).__name__
    if step is not Step.END:
        return Verdict(Result(Kind.AGAIN, "no_connection", name), closed=True)
    reason = "read_timeout" if isinstance(error, TimeoutError) else "connection_lost"
    return Verdict(Result(Kind.UNKNOWN, reason, name), closed=True)


def _unreadable(step: Step, detail: str | None) -> Verdict:
    kind = Kind.UNKNOWN if step is Step.END else Kind.AGAIN
    return Verdict(Result(kind, "unreadable_answer", detail), closed=True)
