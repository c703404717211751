"""What the API of schedules takes and answers: its models, its description, and how a request is read."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import pydantic
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from mailpipe.schedule.overview import Entry, Place, Status, Type
from mailpipe.web.guard import body
from mailpipe.web.openapi import Operation, Parameter
from mailpipe.web.problem import Problem, of_validation

MOST = 64 * 1024
"""Bytes of a schedule."""
PAGE, LONGEST_PAGE = 50, 200
_ID_PATTERN = r"^([sc])([1-9][0-9]{0,8})$"
_id = re.compile(_ID_PATTERN).fullmatch


def _storable(value: Any) -> Any:
    """What a database can hold: no NUL and no half of a character anywhere."""
    if isinstance(value, str) and (
        "\0" in value or (not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value))
    ):
        raise PydanticCustomError("text", "holds a character that cannot be stored")
    if isinstance(value, dict):
        for name, one in value.items():
            _storable(name)
            _storable(one)
    if isinstance(value, list):
        for one in value:
            _storable(one)
    return value


Data = Annotated[dict[str, Any], pydantic.AfterValidator(_storable)]


class Asked(pydantic.BaseModel):
    """A new schedule: `cron` for one that recurs, or `time` for one campaign. `time` has an offset, or is a wall time in
    `timezone`, which may be `recipient`. `data` are the other fields of a schedule file or of a campaign file."""

    model_config = pydantic.ConfigDict(extra="forbid")

    time: datetime | None = None
    cron: str | None = None
    timezone: str | None = None
    data: Data

    @pydantic.model_validator(mode="after")
    def _one_of_both(self) -> Asked:
        if (self.time is None) == (self.cron is None):
            raise PydanticCustomError("one_of", "give either time or cron")
        return self


class Changed(pydantic.BaseModel):
    """What changes: of a schedule `cron`, `timezone` and other fields of its file in `data`; of a campaign `time` and
    `timezone`."""

    model_config = pydantic.ConfigDict(extra="forbid")

    time: datetime | None = None
    cron: str | None = None
    timezone: str | None = None
    data: Data = {}


class ScheduleLine(pydantic.BaseModel):
    """A schedule or a campaign. `cron` only of what recurs, `scheduled_at` only of the others."""

    id: str
    campaign_id: str | None
    type: Type
    cron: str | None = None
    scheduled_at: str | None = None
    next_run: datetime | None
    last_run: datetime | None
    status: Status
    pending_count: int


class FireLine(pydantic.BaseModel):
    """A fire: what the clocks show, the instant with the zone's offset, and the same in UTC."""

    slot: str
    local: str
    utc: str


class Preview(pydantic.BaseModel):
    """What a cron means, in words and as its next five fires. In the zones of the recipients: where they come first."""

    words: str
    timezone: str
    next: list[FireLine]


class QueueLine(pydantic.BaseModel):
    """People and messages that are not in a call yet, and those in an open one."""

    pending: int
    processing: int


class Queues(pydantic.BaseModel):
    """The lanes."""

    critical: QueueLine
    high: QueueLine
    normal: QueueLine
    low: QueueLine


class ScheduleList(pydantic.BaseModel):
    """A page; the header Link leads to the next one."""

    schedules: list[ScheduleLine]
    queue_snapshot: Queues


_CAMPAIGN = {"segment": "engaged_30d", "template": "flash_sale", "sender": "Example Shop <news@news.example.com>"}
_NEWS = {"key": "weekly-news", "campaign": _CAMPAIGN, "missed": "latest"}
_ID = Parameter(
    "s and the number of a schedule, or c and that of a campaign", Annotated[str, pydantic.Field(pattern=_ID_PATTERN)]
)
OPERATIONS = [
    Operation(
        "GET",
        "/schedules",
        "List schedules and campaigns",
        answers={200: ScheduleList, 422: None},
        query={
            "type": Parameter("Only of this type", Type),
            "status": Parameter("Only with this status", Status),
            "limit": Parameter(
                f"Entries of a page; {PAGE} if it is not given", Annotated[int, pydantic.Field(ge=1, le=LONGEST_PAGE)]
            ),
            "cursor": Parameter("Where the page begins, from the header Link of the one before"),
        },
    ),
    Operation(
        "POST",
        "/schedules",
        "Create a schedule or a campaign",
        answers={201: ScheduleLine, 400: None, 413: None, 415: None, 422: None},
        body=Asked,
        examples={
            "every Monday": {
                "cron": "0 9 * * mon",
                "timezone": "Europe/Berlin",
                "data": _NEWS,
            },
            "once, at an instant": {"time": "2030-12-24T10:00:00+01:00", "data": {"key": "christmas", **_CAMPAIGN}},
            "once, by the clocks of each person": {
                "time": "2030-01-01T10:00:00",
                "timezone": "recipient",
                "data": {"key": "new-year", **_CAMPAIGN},
            },
        },
    ),
    Operation(
        "POST",
        "/schedules:preview",
        "Say when a schedule would fire, and record nothing",
        answers={200: Preview, 400: None, 408: None, 413: None, 415: None, 422: None},
        body=Asked,
        examples={"every Monday": {"cron": "0 9 * * mon", "timezone": "Europe/Berlin", "data": _NEWS}},
    ),
    Operation("GET", "/schedules/{id}", "Show one", answers={200: ScheduleLine, 404: None}, places=[_ID]),
    Operation(
        "PATCH",
        "/schedules/{id}",
        "Change when or what",
        answers={200: ScheduleLine, 400: None, 404: None, 409: None, 413: None, 415: None, 422: None},
        body=Changed,
        examples={
            "a schedule": {"cron": "0 10 * * tue", "data": {"missed": "skip"}},
            "a campaign": {"time": "2030-12-24T11:00:00+01:00"},
        },
        places=[_ID],
    ),
    Operation("DELETE", "/schedules/{id}", "End it for good", answers={204: None, 404: None, 409: None}, places=[_ID]),
    *(
        Operation(
            "POST",
            f"/schedules/{{id}}/{verb}",
            told,
            answers={200: ScheduleLine, 404: None, 409: None, 422: None},
            places=[_ID],
        )
        for verb, told in (("pause", "Pause it"), ("resume", "Let it go on"), ("run-now", "Fire or send at once"))
    ),
]


def written(entry: Entry) -> dict[str, Any]:
    """An entry as it is answered: what recurs has a cron, the others have a time."""
    left_out = "scheduled_at" if entry.type == "recurring" else "cron"
    line = ScheduleLine(**vars(entry))
    return line.model_dump(mode="json", exclude={left_out})


def place_of(name: str) -> Place:
    match = _id(name)
    if match is None:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such schedule", field="id")
    return Place("s" if match[1] == "s" else "c", int(match[2]))


def packed(place: Place) -> str:
    return base64.urlsafe_b64encode(f"{place.kind}{place.number}".encode()).decode().rstrip("=")


def unpacked(cursor: str) -> Place:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        return place_of(text)
    except (binascii.Error, UnicodeError, ValueError, Problem):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "cursor: take it from the header Link", field="cursor") from None


def when(time: datetime | None, timezone: str | None) -> dict[str, Any]:
    """The fields of a campaign that say when: an instant, or a wall time in a zone."""
    if time is not None and time.tzinfo is not None:
        if timezone is not None:
            detail = "time has an offset, so it needs no timezone; leave out one of them"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, field="timezone")
        return {"due_at": time, "send_at": None, "timezone": "recipient"}
    if timezone is None:
        detail = "time has no offset; give one, or a timezone (`recipient`: that of each person)"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, field="timezone")
    return {"send_at": time, "due_at": None, "timezone": timezone}


def checked(model: Any, given: dict[str, Any], *, own: tuple[str, ...]) -> Any:
    """The model of these fields. Those that are not the request's `own` came in `data`, and are named so."""
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        problem = of_validation(error)

        def named(field: str) -> str:
            if field in ("due_at", "send_at"):
                return "time"
            return field if not field or field.split(".", maxsplit=1)[0] in own else f"data.{field}"

        errors = [{**one, "field": named(one["field"])} for one in problem.errors]
        raise Problem(problem.status, problem.detail, field=named(problem.field or ""), errors=errors) from None


async def read(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`")
    return await body(request, most=MOST)
