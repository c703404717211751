"""What the answer of a webhook, or the lack of one, means for each mail and for the campaign. Pure.

    200 {"results": [{"status": "sent", "id": "abc"}, {"status": "failed", "reason": "unknown_user"}, {"status": "retry"}]}

One result for each mail of the post, in their order. As with SES, only a 4xx answer (but 408) proves that nothing was taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from mailpipe.ses.answer import Answer, Kind, Result, whole_call_refused, without_addresses

_STATUSES = {"failed": Kind.FAILED, "retry": Kind.RETRY, "again": Kind.AGAIN}
# Bad request, too large, not processable: what one of the mails can be the cause of.
_SPLIT = {400, 413, 422}
_slug = re.compile(r"[a-z0-9_]{1,40}").fullmatch
_id = re.compile(r"[!-~]{1,200}").fullmatch


def of_response(status: int, body: bytes, identities: Sequence[str]) -> Answer:
    """What a complete answer says; `identities` are ours for the mails, kept where the receiver gives no `id` of its own."""
    size = len(identities)
    if 200 <= status < 300:
        return _of_results(body, identities)
    detail = f"HTTP {status}"
    if status == 408 or not 400 <= status < 500:
        reason = "server_error" if status >= 500 else "request_timeout" if status == 408 else "unreadable_answer"
        halt = "the webhook answers with a redirect; is its address right?" if 300 <= status < 400 else None
        return Answer((Result(Kind.UNKNOWN, reason, detail),) * size, halt=halt)
    if status == 429:
        return Answer((Result(Kind.AGAIN, "throttled", detail),) * size)
    if status in _SPLIT:
        if size > 1:
            return Answer((Result(Kind.AGAIN, "bad_request", detail),) * size, split=True)
        return Answer((Result(Kind.FAILED, "bad_request", detail),))
    return Answer((Result(Kind.AGAIN, "refused", detail),) * size, halt=f"the webhook refuses the post ({detail})")


def of_loss(error: BaseException, size: int, *, left: bool) -> Answer:
    """What it means that the connection could not be made, or was lost. `left` tells whether the post may have left."""
    name = type(error).__name__
    if not left:
        return Answer((Result(Kind.AGAIN, "no_connection", name),) * size)
    reason = "read_timeout" if isinstance(error, TimeoutError) else "connection_lost"
    return Answer((Result(Kind.UNKNOWN, reason, name),) * size)


def _of_results(body: bytes, identities: Sequence[str]) -> Answer:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    entries = document.get("results") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) != len(identities):
        return Answer((Result(Kind.UNKNOWN, "unreadable_answer"),) * len(identities))
    results = tuple(_of_entry(entry, identity) for entry, identity in zip(entries, identities, strict=True))
    return Answer(results, halt=whole_call_refused(results, by="the webhook"))


def _of_entry(entry: object, identity: str) -> Result:
    fields: Mapping[str, object] = entry if isinstance(entry, dict) else {}
    status = fields.get("status")
    if status == "sent":
        given = fields.get("id")
        return Result(Kind.SENT, message_id=given if isinstance(given, str) and _id(given) else identity)
    kind = _STATUSES.get(status) if isinstance(status, str) else None
    if kind is None:
        return Result(Kind.UNKNOWN, "unrecognised_status", without_addresses(status))
    reason = fields.get("reason")
    if isinstance(reason, str) and _slug(reason):
        return Result(kind, reason, without_addresses(fields.get("detail")))
    return Result(
        kind, "refused" if kind is Kind.FAILED else "deferred", without_addresses(reason or fields.get("detail"))
    )
