"""An SQS queue of one name, in memory: what a topic of SNS would have put there. It speaks SQS's JSON protocol, as far as a reader
needs it: ReceiveMessage, DeleteMessageBatch, DeleteMessage, GetQueueAttributes.

A message that is received and not deleted comes back after the visibility timeout, and so it can come twice, as at SQS.
"""

import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from mailpipe.simulator.wire import Answer, ApiError, JsonObject, bad_request

CONTENT_TYPE = b"application/x-amz-json-1.0"
_MOST = 10


class _Held(NamedTuple):
    until: float
    message_id: str
    body: str


class Queue:
    """Messages that wait, and those in somebody's hands."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str]] = deque()
        self._held: dict[str, _Held] = {}
        self._numbers = itertools.count(1)
        self.deleted = 0

    def put(self, bodies: Iterable[str]) -> None:
        for body in bodies:
            self._waiting.append((f"sqs-{next(self._numbers)}", body))

    def __len__(self) -> int:
        """Messages that nobody has deleted."""
        return len(self._waiting) + len(self._held)

    def handle(self, operation: str, request: JsonObject) -> Answer:
        """One request; `operation` is the last part of its X-Amz-Target. Raises ApiError."""
        match operation:
            case "ReceiveMessage":
                return _answer(self._receive(request))
            case "DeleteMessage":
                self._delete(request.get("ReceiptHandle"))
                return _answer({})
            case "DeleteMessageBatch":
                return _answer(self._delete_batch(request.get("Entries") or []))
            case "GetQueueAttributes":
                return _answer({"Attributes": {"ApproximateNumberOfMessages": str(len(self._waiting)),
                                               "ApproximateNumberOfMessagesNotVisible": str(len(self._held))}})  # fmt: skip
        raise ApiError("com.amazonaws.sqs#UnsupportedOperation", f"The stand-in has no {operation}.")

    def _receive(self, request: JsonObject) -> JsonObject:
        most = int(request.get("MaxNumberOfMessages") or 1)
        if not 1 <= most <= _MOST:
            raise bad_request("MaxNumberOfMessages must be between 1 and 10.")
        self._return_late()
        until = time.monotonic() + float(request.get("VisibilityTimeout") or 30)
        messages: list[JsonObject] = []
        while self._waiting and len(messages) < most:
            message_id, body = self._waiting.popleft()
            handle = f"{message_id}/{next(self._numbers)}"
            self._held[handle] = _Held(until, message_id, body)
            md5 = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
            messages.append({"MessageId": message_id, "ReceiptHandle": handle, "MD5OfBody": md5, "Body": body})
        return {"Messages": messages} if messages else {}

    def _return_late(self) -> None:
        now = time.monotonic()
        # In the order of their reception, and mostly with the same timeout.
        for handle, held in list(itertools.islice(self._held.items(), 1_000)):
            if held.until > now:
                break
            del self._held[handle]
            self._waiting.append((held.message_id, held.body))

    def _delete(self, handle: object) -> None:
        if isinstance(handle, str) and self._held.pop(handle, None) is not None:
            self.deleted += 1

    def _delete_batch(self, entries: list[JsonObject]) -> JsonObject:
        if not 1 <= len(entries) <= _MOST:
            raise bad_request("A batch has 1 to 10 entries.")
        for entry in entries:
            self._delete(entry.get("ReceiptHandle"))
        return {"Successful": [{"Id": entry.get("Id")} for entry in entries], "Failed": []}


def _answer(value: JsonObject) -> Answer:
    return Answer(200, json.dumps(value).encode(), content_type=CONTENT_TYPE)
