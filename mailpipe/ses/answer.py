"""What the answer to a SendBulkEmail or SendEmail call, or the lack of one, means for each recipient and for the campaign.
Pure.

The question that decides everything is whether SES may have accepted the mail. Where that cannot be excluded
the person is `unknown`, and no machine sends again; `again` is only said where it certainly was not accepted.
Statuses and errors are those of the SES v2 service model; the sorting of transport errors was found by
injecting each fault into a client with one attempt.
"""

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from botocore import exceptions as boto


class Kind(StrEnum):
    """What became of one recipient of a call."""

    SENT = "sent"
    """SES accepted it and gave a message id."""
    FAILED = "failed"
    """SES refused this person's mail for good."""
    RETRY = "retry"
    """Certainly refused, for a reason that may pass: worth another try, and counted."""
    AGAIN = "again"
    """Certainly not sent, and not the person's fault: pending again, nothing counted."""
    UNKNOWN = "unknown"
    """SES may have accepted it."""


Block = Literal["rate", "calls", "quota"]
"""Which limit of the account was hit: recipients per second, calls per second, or recipients per 24 hours."""


class Result(NamedTuple):
    """One recipient's part. `reason` is a slug (empty when sent), `detail` SES's text without addresses."""

    kind: Kind
    reason: str = ""
    detail: str | None = None
    message_id: str | None = None


@dataclass(frozen=True)
class Answer:
    """The whole call, its results in the order of its entries.

    `halt` says why the campaign must stop and wait for a person. `blocked` says which limit of the account
    was hit. `split`: SES refused the whole call, perhaps for one entry; send it again in halves. `seconds` is
    how long it took.
    """

    results: tuple[Result, ...]
    halt: str | None = None
    blocked: Block | None = None
    split: bool = False
    seconds: float = 0.0

    @cached_property
    def kinds(self) -> list[Kind]:
        """What became of each, in the order of the entries."""
        return [result.kind for result in self.results]

    def count(self, kind: Kind) -> int:
        """How many people have got this answer."""
        return self.kinds.count(kind)


WHOLE_CALL = 10
"""From this many recipients on, a call whose every entry is refused for good speaks against the campaign."""

_SPELLINGS = {
    # The public API page and the service model differ in three names.
    "CONFIGURATION_SET_DOES_NOT_EXIST": "CONFIGURATION_SET_NOT_FOUND",
    "TEMPLATE_DOES_NOT_EXIST": "TEMPLATE_NOT_FOUND",
    "INVALID_PARAMETER_VALUE": "INVALID_PARAMETER",
}
_BLOCKING: Mapping[str, Block] = {"ACCOUNT_THROTTLED": "rate", "ACCOUNT_DAILY_QUOTA_EXCEEDED": "quota"}
_HALTING = {
    "ACCOUNT_SUSPENDED": "SES has suspended the account; see its console",
    "ACCOUNT_SENDING_PAUSED": "sending is paused for the SES account",
    "CONFIGURATION_SET_SENDING_PAUSED": "sending is paused for the SES configuration set",
    "CONFIGURATION_SET_NOT_FOUND": "the SES configuration set does not exist",
    "TEMPLATE_NOT_FOUND": "the published template does not exist at SES any more",
    "MAIL_FROM_DOMAIN_NOT_VERIFIED": "SES has not verified the MAIL FROM domain of the sender",
    "INVALID_SENDING_POOL_NAME": "the SES configuration set names a pool of addresses that does not exist",
}
_PERMANENT = {"INVALID_PARAMETER", "MESSAGE_REJECTED"}
# FAILED is "unable to process the request": refused without a reason that would make it permanent.
_PASSING = {"TRANSIENT_FAILURE", "FAILED"}
_REFUSED = _BLOCKING.keys() | _HALTING.keys() | _PERMANENT | _PASSING

_RATE_CODES = {
    "TooManyRequestsException",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestLimitExceeded",
    "SlowDown",
    "429",
}
_HALTING_CODES = {
    "AccountSuspendedException": "SES has suspended the account; see its console",
    # A paused configuration set can show up under this name too; GetAccount tells the two apart.
    "SendingPausedException": "sending is paused for the SES account or the configuration set",
    "MailFromDomainNotVerifiedException": "SES has not verified the MAIL FROM domain of the sender",
    "NotFoundException": "SES does not know the template, the configuration set or the sender",
    "LimitExceededException": "a limit of the SES account was reached",
    "RequestExpired": "SES found the request too old; the clock of this machine is wrong",
    "RequestTimeTooSkewed": "SES found the request too old or too new; the clock of this machine is wrong",
}
_SPLIT_CODES = {"BadRequestException": "bad_request", "MessageRejected": "message_rejected"}
SPLIT_REASONS = frozenset(_SPLIT_CODES.values())
"""Why SES refuses a call as a whole, perhaps for one of its entries."""

_NEVER_CONNECTED = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
# Credentials that come over the network (STS, instance metadata) can be missing for a moment.
_MAY_PASS = (
    boto.ClientError,
    boto.ConnectionError,
    boto.CredentialRetrievalError,
    boto.HTTPClientError,
    boto.MetadataRetrievalError,
)
_unverified = re.compile(r"not verified|not authorized|unverified", re.IGNORECASE).search
_daily = re.compile(r"\bdaily\b|24.hour", re.IGNORECASE).search
_sending_rate = re.compile(r"\bsend(?:ing)? rate\b", re.IGNORECASE).search
_rate = re.compile(r"\brate\b", re.IGNORECASE).search
_address = re.compile(r"""(?:"[^"]*"|[^\s<>"'=:,;()])+@[^\s<>"',;()]+""")
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_MAX_DETAIL = 300


def of_response(response: Mapping[str, Any], size: int) -> Answer:
    """What a 2xx answer to a call of `size` recipients says.

    A truncated or empty body raises nothing in botocore, the list is just absent: everybody is unknown then.
    Statuses that we do not know are `sent` if they bring a message id, else unknown.
    """
    entries = response.get("BulkEmailEntryResults")
    if not isinstance(entries, list) or len(entries) != size:
        return _all(size, Result(Kind.UNKNOWN, "unreadable_answer"))
    statuses = [_status(entry) for entry in entries]
    results = tuple(_of_entry(entry, status) for entry, status in zip(entries, statuses, strict=True))
    halt = next((_HALTING[status] for status in statuses if status in _HALTING), None)
    if halt is None and any(result.reason == "sender_not_verified" for result in results):
        halt = _NOT_VERIFIED
    halt = halt or whole_call_refused(results, by="SES")
    limits = {_BLOCKING[status] for status in statuses if status in _BLOCKING}
    return Answer(results, halt=halt, blocked="quota" if "quota" in limits else "rate" if limits else None)


def whole_call_refused(results: Sequence[Result], *, by: str) -> str | None:
    """Why a call speaks against the campaign: every entry of a large one is refused for good."""
    if len(results) < WHOLE_CALL or any(result.kind is not Kind.FAILED for result in results):
        return None
    reasons = ", ".join(sorted({result.reason for result in results}))
    return f"{by} refused every one of {len(results)} recipients of a call: {reasons}"


def of_single_response(response: Mapping[str, Any]) -> Answer:
    """What a 2xx answer to SendEmail says: there is a message id, or nobody knows. Refusals are errors of the call."""
    message_id = response.get("MessageId")
    if isinstance(message_id, str) and message_id:
        return Answer((Result(Kind.SENT, message_id=message_id),))
    return _all(1, Result(Kind.UNKNOWN, "unreadable_answer"))


def of_exception(error: BaseException, size: int, *, left: bool) -> Answer:
    """What an exception of the client says about a call of `size` recipients.

    `left` tells whether the request was handed to the network (botocore's `before-send` was reached): before
    that, nobody can have got anything, whatever the exception is.
    """
    name = type(error).__name__
    if not left:
        passes = isinstance(error, _MAY_PASS)
        halt = None if passes else f"the request could not be made ({name}); nothing was sent"
        return _again(size, "not_sent", name, halt=halt)
    if isinstance(error, boto.ClientError):
        return _of_client_error(error, size)
    if isinstance(error, _NEVER_CONNECTED):
        return _again(size, "no_connection", name)
    if isinstance(error, boto.SSLError):
        # Only a refused certificate proves that nothing was sent: an SSLError can also follow a complete
        # request.
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _chain(error)):
            return _again(size, "no_connection", name, halt="the TLS certificate of the SES endpoint is not trusted")
        return _all(size, Result(Kind.UNKNOWN, "connection_lost", name))
    if isinstance(error, boto.ReadTimeoutError):
        return _all(size, Result(Kind.UNKNOWN, "read_timeout", name))
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | OSError):
        return _all(size, Result(Kind.UNKNOWN, "connection_lost", name))
    return _all(size, Result(Kind.UNKNOWN, "unreadable_answer", name))


def without_addresses(text: object) -> str | None:
    """A text of SES that may be kept: one line, at most 300 characters, addresses masked. None when nothing
    is left.
    """
    line = _control.sub(" ", str(text or "")[:2000]).strip()
    return _address.sub("<address>", line)[:_MAX_DETAIL] or None


_NOT_VERIFIED = "SES has not verified the sender (in the sandbox: nor the recipients)"


def _status(entry: object) -> str:
    status = str(entry.get("Status") or "").upper() if isinstance(entry, Mapping) else ""
    return _SPELLINGS.get(status, status)


def _of_entry(entry: object, status: str) -> Result:
    fields: Mapping[str, object] = entry if isinstance(entry, Mapping) else {}
    message_id = fields.get("MessageId")
    has_id = isinstance(message_id, str) and message_id != ""
    if has_id and status not in _REFUSED:
        return Result(Kind.SENT, message_id=str(message_id))
    detail = without_addresses(fields.get("Error"))
    reason = status.lower()
    if has_id:
        return Result(Kind.UNKNOWN, "refused_with_message_id", detail or reason)
    if status in _BLOCKING or status in _HALTING:
        return Result(Kind.AGAIN, reason, detail)
    if status in _PASSING:
        return Result(Kind.RETRY, reason, detail)
    if status in _PERMANENT:
        if status == "MESSAGE_REJECTED" and _unverified(detail or ""):
            return Result(Kind.AGAIN, "sender_not_verified", detail)
        return Result(Kind.FAILED, reason, detail)
    if status == "SUCCESS":
        return Result(Kind.UNKNOWN, "no_message_id", detail)
    return Result(Kind.UNKNOWN, "unrecognised_status", detail or without_addresses(status))


def _of_client_error(error: boto.ClientError, size: int) -> Answer:
    """A typed error. 4xx was refused before anything was accepted, except 408; all others prove nothing."""
    response: Mapping[str, Any] = error.response
    http = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code") or http)
    text = str(response.get("Error", {}).get("Message") or "")
    detail = without_addresses(f"{code}: {text}" if text else code)
    if http == 408:
        return _all(size, Result(Kind.UNKNOWN, "request_timeout", detail))
    if not isinstance(http, int) or not 400 <= http < 500:
        reason = "server_error" if isinstance(http, int) and http >= 500 else "unreadable_answer"
        redirected = isinstance(http, int) and 300 <= http < 400
        halt = "the SES endpoint answers with a redirect; is its address right?" if redirected else None
        return _all(size, Result(Kind.UNKNOWN, reason, detail), halt=halt)
    limited = code == "LimitExceededException" and (_daily(text) or _rate(text))
    if code in _RATE_CODES or http == 429 or limited:
        # Over the sending rate SES says `Maximum sending rate exceeded.`; other words come from the limit of calls.
        limit: Block = "quota" if _daily(text) else "calls" if text and not _sending_rate(text) else "rate"
        return _again(size, "account_daily_quota_exceeded" if limit == "quota" else "account_throttled", detail, limit)
    if code in _SPLIT_CODES and not (code == "MessageRejected" and _unverified(text)):
        if size > 1:
            return Answer((Result(Kind.AGAIN, _SPLIT_CODES[code], detail),) * size, split=True)
        return Answer((Result(Kind.FAILED, _SPLIT_CODES[code], detail),))
    if code == "MessageRejected":
        return _again(size, "sender_not_verified", detail, halt=_NOT_VERIFIED)
    return _again(size, "refused", detail, halt=_HALTING_CODES.get(code, f"SES refused the request: {detail}"))


def _all(size: int, result: Result, *, halt: str | None = None) -> Answer:
    return Answer((result,) * size, halt=halt)


def _again(
    size: int, reason: str, detail: str | None, blocked: Block | None = None, *, halt: str | None = None
) -> Answer:
    return Answer((Result(Kind.AGAIN, reason, detail),) * size, halt=halt, blocked=blocked)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
