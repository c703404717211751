"""The API of messages: enqueue, look, call off. What a message is and what becomes of it is `outbox`'s and `lanes`' duty."""

from __future__ import annotations

from http import HTTPStatus
from uuid import UUID

import pydantic
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mailpipe import outbox
from mailpipe.db import Database
from mailpipe.outbox import Conflict, Key, MessageSpec
from mailpipe.web.guard import body
from mailpipe.web.openapi import Operation, Parameter, by_method
from mailpipe.web.problem import Problem

MOST = 1024 * 1024
"""Bytes of one message: SES takes 500 KB for a mail without attachments, and JSON may write a character in six."""
KEY_HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"


class CancelSpec(pydantic.BaseModel):
    """Which messages to call off."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    cancel_key: Key


class AcceptedMessage(pydantic.BaseModel):
    """A message is in the outbox; `href` is where to look at it."""

    message_id: str
    href: str


class Cancelled(pydantic.BaseModel):
    """How many messages will not be sent."""

    cancelled: int


_ID = Parameter("The id of the message", UUID)
OPERATIONS = [
    Operation(
        "POST",
        "/messages",
        "Enqueue one mail for one person",
        body=MessageSpec,
        answers={202: AcceptedMessage, **dict.fromkeys((400, 408, 409, 413, 415, 422))},
        headers={KEY_HEADER: Parameter("The same key again is the same mail, and the same answer", Key)},
        examples={
            "a code, at once": {
                "to": "ana@example.com",
                "subject": "Your code is 314159",
                "text": "Your code is 314159.",
                "lane": "critical",
                "expires_in": "5m",
            },
            "a reminder, later": {
                "to": "ana@example.com",
                "subject": "Your basket",
                "html": "<p>Something is left in your basket.</p>",
                "lane": "low",
                "delay": "24h",
                "cancel_key": "basket-4711",
            },
        },
    ),
    Operation(
        "GET", "/messages/{message_id}", "Look at a message", answers={200: outbox.Message, 404: None}, places=[_ID]
    ),
    Operation(
        "DELETE",
        "/messages/{message_id}",
        "Call off a message that is in no call yet",
        answers={200: outbox.Message, 404: None, 409: None},
        places=[_ID],
    ),
    Operation(
        "POST",
        "/messages:cancel",
        "Call off all messages under a key that are in no call yet",
        body=CancelSpec,
        examples={"reminders of one basket": {"cancel_key": "basket-4711"}},
        answers={200: Cancelled, **dict.fromkeys((400, 408, 413, 415, 422))},
    ),
]


def routes(database: Database, *, prefix: str) -> list[Route]:
    """`prefix` is the path before these routes, for the addresses in answers."""

    async def create(request: Request) -> JSONResponse:
        spec = keyed(
            MessageSpec.model_validate_json(await _json(request), strict=True), request.headers.get(KEY_HEADER)
        )
        accepted = await run_in_threadpool(enqueue, spec)
        href = f"{prefix}/messages/{accepted.message_id}"
        headers = {"Location": href} | ({} if accepted.created else {REPLAYED: "true"})
        answer = AcceptedMessage(message_id=accepted.message_id, href=href)
        return JSONResponse(answer.model_dump(), HTTPStatus.ACCEPTED, headers=headers)

    def enqueue(spec: MessageSpec) -> outbox.Accepted:
        try:
            with database.transaction() as connection:
                return outbox.enqueue(connection, spec)
        except Conflict as error:
            raise Problem(HTTPStatus.CONFLICT, str(error), field="idempotency_key") from error

    async def show(request: Request) -> JSONResponse:
        return JSONResponse((await run_in_threadpool(find, request.path_params["message_id"])).to_json())

    def find(message_id: str) -> outbox.Message:
        with database.connection() as connection:
            found = outbox.get(connection, message_id)
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, "there is no such message", field="message_id")
        return found

    async def cancel(request: Request) -> JSONResponse:
        return JSONResponse((await run_in_threadpool(call_off, request.path_params["message_id"])).to_json())

    def call_off(message_id: str) -> outbox.Message:
        with database.transaction() as connection:
            outbox.cancel(connection, message_id)
        found = find(message_id)
        if found.state != "cancelled":
            raise Problem(
                HTTPStatus.CONFLICT,
                f"it is too late: the message is {found.state}; only one that is pending can be called off",
            )
        return found

    async def cancel_all(request: Request) -> JSONResponse:
        asked = CancelSpec.model_validate_json(await _json(request))
        return JSONResponse(Cancelled(cancelled=await run_in_threadpool(call_off_all, asked.cancel_key)).model_dump())

    def call_off_all(cancel_key: str) -> int:
        with database.transaction() as connection:
            return outbox.cancel_by_key(connection, cancel_key)

    return [
        Route("/messages", create, methods=["POST"]),
        Route("/messages:cancel", cancel_all, methods=["POST"]),
        by_method("/messages/{message_id}", GET=show, DELETE=cancel),
    ]


def keyed(spec: MessageSpec, header: str | None) -> MessageSpec:
    """The same message under the key of the header, which may be in quotation marks, as drafts of that header want it.

    Raises:
        Problem: the key cannot be used, or the body has another one.
    """
    if header is None:
        return spec
    key = header[1:-1] if len(header) > 1 and header[0] == header[-1] == '"' else header
    if not 1 <= len(key) <= 255:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{KEY_HEADER}: expected 1 to 255 characters", field=KEY_HEADER)
    if spec.idempotency_key not in (None, key):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"idempotency_key: the header {KEY_HEADER} says another one; give one of them",
            field="idempotency_key",
        )
    return spec.model_copy(update={"idempotency_key": key})


async def _json(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`")
    return await body(request, most=MOST)
