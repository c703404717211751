"""What follows from an answer for one message. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mailpipe.lane import Lane, backoff
from mailpipe.ses.answer import Kind, Result

_LIMITED = {"account_throttled", "account_daily_quota_exceeded"}
"""Reasons that are the account's and not the message's: nothing is counted."""


@dataclass(frozen=True, slots=True)
class Next:
    """The state after a call; where it is `pending`, the attempt and the wait (seconds) of the next one. `tries` counts calls that
    certainly sent nothing."""

    state: str
    attempt: int
    tries: int
    delay: float = 0.0


def after(lane: Lane, result: Result, *, attempt: int, tries: int) -> Next:
    """What a message becomes whose `attempt` got this result, after `tries` calls that certainly sent nothing."""
    match result.kind:
        case Kind.SENT:
            return Next("sent", attempt, tries)
        case Kind.FAILED:
            return Next("failed", attempt, tries)
        case Kind.UNKNOWN:
            # Once only: whoever did not get two mails by now has another problem than a lost answer.
            if lane.unknown == "resend" and attempt == 1:
                return Next("pending", attempt + 1, tries)
            return Next("unknown", attempt, tries)
        case Kind.AGAIN if result.reason in _LIMITED:
            return Next("pending", attempt, tries)
        case _:
            if tries >= lane.retries:
                return Next("dead", attempt, tries + 1)
            return Next("pending", attempt, tries + 1, backoff(tries + 1))
