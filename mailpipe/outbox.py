"""The outbox: one mail for one person, from the caller's own transaction. It is sent exactly if that transaction commits.

Here is what callers do: enqueue, look, call off, order anew; and what events prove. How messages are taken and sent is told in
`lanes`; the same way in for SQL is the function `mailpipe.enqueue` of the schema.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
from psycopg.rows import class_row, dict_row

from mailpipe import address, campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import UserError
from mailpipe.lane import NAMES, LaneName
from mailpipe.schedule.when import parse_duration
from mailpipe.template import MissingVariable, Template

QUERIES = queries.beside(__file__)

State = Literal["pending", "sending", "sent", "failed", "unknown", "skipped", "expired", "cancelled", "dead"]
Key = Annotated[str, pydantic.Field(min_length=1, max_length=255)]
Seconds = Annotated[
    Annotated[float, pydantic.Field(ge=0, le=400 * 86_400)] | None,
    pydantic.BeforeValidator(parse_duration, json_schema_input_type=float | str | None),
]
REQUEUED = ("dead", "failed", "skipped", "unknown")
"""States from which a person may order a message anew."""
COUNTED = 2_000
"""Due messages of a lane that are counted one by one."""
_PAGES = 100
"""Pages of the queue that an estimate of more looks at. Twice as many take twice as long, 14 ms, and are hardly nearer to it."""
_UNFIT_FOR_SUBJECT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]").search


class MessageError(UserError):
    """A message cannot be enqueued, or not be moved as asked. `field` is what is wrong, or None."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text if field is None else f"{field}: {text}")
        self.field = field


class Conflict(UserError):
    """Another message was enqueued under this idempotency key. `message_id` is that one's."""

    def __init__(self, message_id: str) -> None:
        super().__init__(
            "idempotency_key: another message was enqueued under this key; the same key is for the same mail only"
        )
        self.message_id = message_id


class MessageSpec(pydantic.BaseModel):
    """What is to be sent: a published template with its variables, or subject and text or HTML of its own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    to: Annotated[str, pydantic.Field(min_length=3, max_length=320, description="One address")]
    template: Annotated[
        str | None, pydantic.Field(min_length=1, max_length=64, description="A published template, or its version")
    ] = None
    variables: Annotated[dict[str, Any], pydantic.Field(description="Values of the template's variables")] = {}
    subject: Annotated[str | None, pydantic.Field(min_length=1, max_length=900)] = None
    text: Annotated[str | None, pydantic.Field(min_length=1, max_length=200_000)] = None
    html: Annotated[str | None, pydantic.Field(min_length=1, max_length=400_000)] = None
    lane: Annotated[LaneName, pydantic.Field(description="How urgent it is")] = "normal"
    sender: Annotated[str | None, pydantic.Field(description="Empty: MAILPIPE_TRANSACTIONAL_SENDER")] = None
    reply_to: str | None = None
    idempotency_key: Annotated[Key | None, pydantic.Field(description="The same key again is the same mail")] = None
    send_at: Annotated[datetime | None, pydantic.Field(description="Not before this instant, with offset")] = None
    delay: Annotated[Seconds, pydantic.Field(description="Not before so many seconds from now; or 24h, 30m")] = None
    cancel_key: Annotated[Key | None, pydantic.Field(description="By which it can be called off")] = None
    expires_in: Annotated[
        Seconds, pydantic.Field(description="Not later than so many seconds after it is due; empty: the lane's")
    ] = None

    @pydantic.field_validator("to")
    @classmethod
    def _usable(cls, value: str) -> str:
        try:
            return address.send_form(value)
        except address.AddressError as error:
            raise ValueError("not an address that can receive mail") from error

    @pydantic.field_validator("sender", "reply_to")
    @classmethod
    def _usable_mailbox(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                address.mailbox(value)
            except address.AddressError as error:
                raise ValueError("expected an address such as Shop <login@notify.example.com>") from error
        return value

    @pydantic.field_validator("send_at")
    @classmethod
    def _needs_offset(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs an offset, for example 2026-11-27T09:00:00+01:00")
        try:
            return None if value is None else value.astimezone(UTC)
        except OverflowError:
            raise ValueError("lies outside of the years 1 to 9999") from None

    @pydantic.field_validator("variables")
    @classmethod
    def _real_numbers(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False, default=str)
        except ValueError:
            raise ValueError("NaN and Infinity are no values of JSON") from None
        return value

    @pydantic.field_validator("subject")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and _UNFIT_FOR_SUBJECT(value):
            raise ValueError("a subject is one line without control characters")
        return value

    @pydantic.model_validator(mode="after")
    def _one_content(self) -> MessageSpec:
        inline = (self.subject, self.text, self.html)
        if self.template is not None and any(part is not None for part in inline):
            raise ValueError("give a template, or subject and text or html, not both")
        if self.template is None and (self.subject is None or (self.text is None and self.html is None)):
            raise ValueError("give a template, or a subject and text or html")
        if self.template is None and self.variables:
            raise ValueError("variables belong to a template")
        if self.send_at is not None and self.delay is not None:
            raise ValueError("give send_at or delay, not both")
        return self

    def body_sha256(self) -> bytes:
        """A hash of all that was asked for but the key."""
        asked = self.model_dump(mode="json", exclude={"idempotency_key"}, exclude_none=True)
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message is in the outbox. `created` is false when it was there already, under the same key."""

    message_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call about a message whose end is known: when it was opened, by which process, and what came of it. Times in UTC,
    `seconds` from request to answer."""

    no: int
    attempt: int
    owner: UUID
    opened_at: datetime
    at: datetime
    seconds: float | None
    result: str
    reason: str | None
    detail: str | None
    provider_id: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """What is known of a message; without the address, the content and the variables. Times in UTC.

    `attempt` counts the times that the provider may have accepted it, `tries` the calls that certainly sent nothing and count.
    """

    message_id: str
    lane: str
    state: State
    reason: str | None
    detail: str | None
    template: str | None
    template_version: str | None
    idempotency_key: str | None
    cancel_key: str | None
    created_at: datetime
    send_at: datetime
    due_at: datetime
    expires_at: datetime | None
    attempt: int
    tries: int
    finished_at: datetime | None
    provider_id: str | None
    events: Mapping[str, str]
    calls: Sequence[Call] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: times in ISO 8601, calls as a list of objects."""
        told = {name: _plain(value) for name, value in asdict(self).items()}
        told["calls"] = [{name: _plain(value) for name, value in asdict(call).items()} for call in self.calls]
        return told


@dataclass(frozen=True, slots=True)
class Depth:
    """The queue of one lane: due and waiting, in somebody's hands, and since when the oldest of both is due."""

    pending: int
    processing: int
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True)
class Fact:
    """One event of the provider about one message. `kind` as in `event.Kind`."""

    message_id: str
    kind: str
    attempt: int
    at: datetime


def parse(content: Mapping[str, Any]) -> MessageSpec:
    """Read a message as programs write it.

    Raises:
        MessageError: a field is wrong; `field` names it.
    """
    try:
        return MessageSpec.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        raise MessageError(first["msg"].removeprefix("Value error, "), field) from None


def enqueue(connection: Connection, spec: MessageSpec) -> Accepted:
    """Put a message into the outbox, in the transaction that `connection` is in.

    Raises:
        MessageError: the template was never published, or a variable without default has no value.
        Conflict: another message has this idempotency key.
    """
    return enqueue_many(connection, [spec])[0]


def enqueue_many(connection: Connection, specs: Sequence[MessageSpec]) -> list[Accepted]:
    """Put messages into the outbox, all or none; answers in their order. Thousands at once are fastest.

    Raises:
        As `enqueue`; the text of a MessageError about one of many says which one.
    """
    versions = {name: _published(connection, name) for name in {spec.template for spec in specs} if name is not None}
    rows = [_row(versions, spec, number if len(specs) > 1 else None) for number, spec in enumerate(specs)]
    if not rows:
        return []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    with connection.transaction():
        kept = {row[0] for row in connection.execute(QUERIES["enqueue"], columns)}
        known: dict[str, tuple[UUID, bytes]] = {}
        if len(kept) < len(rows):
            keys = [row["idempotency_keys"] for row in rows if row["message_ids"] not in kept]
            found = connection.execute(QUERIES["by_key"], {"idempotency_keys": keys})
            known = {key: (message_id, body) for key, message_id, body in found}
        answers = []
        for row in rows:
            if row["message_ids"] in kept:
                answers.append(Accepted(str(row["message_ids"]), True))
                continue
            message_id, body = known[row["idempotency_keys"]]
            if body != row["bodies"]:
                raise Conflict(str(message_id))
            answers.append(Accepted(str(message_id), False))
    return answers


def get(connection: Connection, message_id: str) -> Message | None:
    """A message with its calls; None: there is none."""
    asked = _uuid(message_id)
    with connection.cursor(row_factory=dict_row) as cursor:
        found = None if asked is None else cursor.execute(QUERIES["get"], {"message_id": asked}).fetchone()
    if found is None:
        return None
    with connection.cursor(row_factory=class_row(Call)) as cursor:
        calls = cursor.execute(QUERIES["calls"], {"message_id": asked}).fetchall()
    return Message(**{**found, "message_id": str(asked)}, calls=calls)


def of_state(
    connection: Connection, state: State, *, lane: LaneName | None = None, most: int = 1000
) -> list[dict[str, Any]]:
    """Messages in a state, the ones that have been in it longest first; looks through all messages."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(QUERIES["of_state"], {"state": state, "lane": lane, "most": most}).fetchall()
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def cancel(connection: Connection, message_id: str) -> bool:
    """Call off a message that is in no call yet. False: it is too late, or there is none."""
    asked = _uuid(message_id)
    if asked is None:
        return False
    return connection.execute(QUERIES["cancel"], {"message_id": asked}).fetchone() is not None


def cancel_by_key(connection: Connection, cancel_key: str) -> int:
    """Call off all messages under this key that are in no call yet. Answers how many."""
    row = connection.execute(QUERIES["cancel_by_key"], {"cancel_key": cancel_key}).fetchone()
    assert row is not None
    return int(row[0])


def requeue(connection: Connection, message_id: str, *, actor: str, reason: str) -> Message:
    """Send a message that has ended without being sent once more, on a person's order, which `audit` keeps.

    One that is `unknown` is sent as a new attempt: whoever has it already gets it twice. Its validity begins anew.

    Raises:
        MessageError: there is none, it is in another state, or nobody says why.
    """
    if not reason.strip():
        raise MessageError("say why; it is kept for ever", "reason")
    with connection.transaction():
        found = get(connection, message_id)
        if found is None:
            raise MessageError("there is no such message", "message_id")
        if found.state not in REQUEUED:
            raise MessageError(
                f"the message is {found.state}; only one that is {', '.join(REQUEUED)} can be sent again", "message_id"
            )
        row = connection.execute(QUERIES["requeue"], {"message_id": UUID(message_id), "state": found.state}).fetchone()
        if row is None:
            raise MessageError("the message was moved by somebody else just now; look again", "message_id")
        detail = {
            "message": found.message_id,
            "was": found.state,
            "send_at": found.send_at.isoformat(),
            "attempt": row[0],
            "reason": reason,
        }
        campaign.note(connection, None, actor=actor, action="requeue_message", detail=detail)
        again = get(connection, message_id)
    assert again is not None
    return again


def hold(connection: Connection, *, before: datetime | None) -> int:
    """Make `unknown` what is due, or in a call, in a database that was restored: the newer one may have sent it. Answers how many.

    `before`: what was enqueued later than this is new, and is left alone; None: nobody knows, so all of it is held.
    """
    return connection.execute(QUERIES["hold"], {"before": before}).rowcount


def depths(connection: Connection) -> dict[str, Depth]:
    """How full each lane is now. Delayed messages count from when they are due. Up to COUNTED due messages of a lane are counted;
    of more of them two digits are known, from a sample."""
    with connection.transaction():
        connection.execute(QUERIES["from_the_front"])
        rows = connection.execute(QUERIES["depths"], {"lanes": list(NAMES), "most": COUNTED + 1}).fetchall()
    estimated: dict[str, int] = {}
    if any(pending > COUNTED for _, pending, _, _ in rows):
        estimated = {lane: two_digits(of) for lane, of in connection.execute(QUERIES["estimate"], {"pages": _PAGES})}
    return {
        lane: Depth(max(pending, estimated.get(lane, 0)) if pending > COUNTED else pending, processing, age)
        for lane, pending, processing, age in rows
    }


def two_digits(number: int) -> int:
    """1234567 -> 1200000."""
    return round(number, 2 - len(str(number)))


def settle(connection: Connection, facts: Iterable[Fact]) -> int:
    """Keep what the provider's events say, and let it change the states that it proves wrong. Nobody is mailed for it.

    Answers how many messages changed their state. Facts about messages that we do not know are passed over; any order and any
    number of times come to the same.
    """
    first: dict[tuple[UUID, str, int], datetime] = {}
    for fact in facts:
        asked = _uuid(fact.message_id)
        if asked is not None:
            key = (asked, fact.kind, fact.attempt)
            first[key] = min(fact.at, first.get(key, fact.at))
    if not first:
        return 0
    row = connection.execute(
        QUERIES["settle"],
        {
            "message_ids": [message_id for message_id, _, _ in first],
            "kinds": [kind for _, kind, _ in first],
            "attempts": [attempt for _, _, attempt in first],
            "ats": list(first.values()),
        },
    ).fetchone()
    assert row is not None
    return int(row[1])


def new_id() -> UUID:
    """An id that grows with time (UUID version 7, RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds << 80 | int.from_bytes(os.urandom(10))) & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62
    )


def _row(versions: Mapping[str, Template | None], spec: MessageSpec, number: int | None) -> dict[str, Any]:
    version = None
    if spec.template is not None:
        template = versions[spec.template]
        if template is None:
            raise MessageError(
                f"{spec.template!r} was never published; run `mailpipe template publish {spec.template}`",
                _field("template", number),
            )
        if not template.transactional:
            raise MessageError(
                f"{template.name} is for campaigns: it has an unsubscribe link. A template for messages says"
                " `transactional: true` in its template.yaml",
                _field("template", number),
            )
        version = template.version
        try:
            template.data(spec.variables, unsubscribe_url=None)
        except MissingVariable as error:
            raise MessageError("has no value and no default", _field(f"variables.{error.name}", number)) from None
    return {
        "message_ids": new_id(),
        "lanes": spec.lane,
        "emails": spec.to,
        "senders": spec.sender,
        "reply_tos": spec.reply_to,
        "template_versions": version,
        "variables": json.dumps(spec.variables, ensure_ascii=False, default=str),
        "subjects": spec.subject,
        "texts": spec.text,
        "htmls": spec.html,
        "idempotency_keys": spec.idempotency_key,
        "bodies": spec.body_sha256(),
        "cancel_keys": spec.cancel_key,
        "send_ats": spec.send_at,
        "delays": spec.delay or 0.0,
        "expires_ins": spec.expires_in,
    }


def _published(connection: Connection, name: str) -> Template | None:
    """The latest published version of a template, or the one of exactly this name."""
    row = connection.execute(QUERIES["latest_template"], {"name": name}).fetchone()
    if row is None:
        return None
    version: str = row[0]
    if version not in _templates:
        _templates[version] = campaign.published_template(connection, version)
    return _templates[version]


_templates: dict[str, Template] = {}
"""Those that this process has met. A version never changes, so it is never forgotten."""


def _field(name: str, number: int | None) -> str:
    return name if number is None else f"[{number}].{name}"


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, UUID) else value
