"""Errors as programs read them: `application/problem+json` (RFC 9457), with the field where one is wrong.

What went wrong is said once, by whoever raised it; this module only finds the status and the form. No answer holds a traceback
or a value of the request.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import psycopg
import pydantic
import sqlalchemy
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mailpipe.errors import DatabaseUnavailable, MailpipeError, ServiceError, UserError, of_field
from mailpipe.ses.answer import without_addresses

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "5"
"""Seconds after which a client may ask again when a service behind us is away."""
_log = logging.getLogger(__name__)


class Problem(Exception):
    """An answer that is an error. `field` is the path of the wrong field (`to`, `variables.city`), `errors` are all wrong ones."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.errors = list(errors)
        self.headers = dict(headers or {})

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            document["field"] = self.field
        if self.errors:
            document["errors"] = self.errors
        return document

    def response(self) -> Response:
        return Response(
            json.dumps(self.document, ensure_ascii=False), self.status, media_type=MEDIA_TYPE, headers=self.headers
        )


def of_validation(error: pydantic.ValidationError) -> Problem:
    """All that a model found wrong: 400 when the text is no JSON at all, else 422 with a line for each field."""
    found = error.errors(include_url=False, include_input=False)
    errors = [{"field": ".".join(map(str, one["loc"])), "detail": _said(one)} for one in found]
    if found[0]["type"] == "json_invalid":
        return Problem(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {errors[0]['detail']}")
    first = errors[0]
    if not first["field"]:
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, first["detail"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{first['field']}: {first['detail']}{more}",
        field=first["field"],
        errors=errors,
    )


def _said(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such field; remove it or correct its name"
    if error["type"] == "missing":
        return "this field is required"
    return of_field(error).removeprefix("Invalid JSON: ")


def of_error(error: Exception) -> Problem:
    """The status of an error that the library or a service raised."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, error.detail, headers=error.headers)
    if isinstance(error, pydantic.ValidationError):
        return of_validation(error)
    if isinstance(error, UserError):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=getattr(error, "field", None))
    if isinstance(error, psycopg.DataError):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a text holds a character that cannot be kept (NUL); remove it")
    if isinstance(error, DatabaseUnavailable | psycopg.OperationalError | sqlalchemy.exc.OperationalError):
        return _away("the database cannot be reached at the moment; ask again")
    if isinstance(error, ServiceError):
        return _away("a service that is needed does not answer at the moment; ask again")
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of ours; it has been logged")


def _away(detail: str) -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": RETRY_AFTER})


async def answer(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the form of a Starlette handler
    """Any error as an answer. What is our fault or a service's goes to the log, without the values of the request."""
    problem = of_error(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Problem | HTTPException):
        place = "".join(traceback.format_tb(error.__traceback__)) if problem.status == 500 else ""
        _log.error("%s %s\n%s", type(error).__name__, _loggable(error), place)
    return problem.response()


def _loggable(error: Exception) -> str:
    """What may be kept of an error's text. One of PostgreSQL can hold a whole row, one of Python any value."""
    if isinstance(error, MailpipeError):
        return without_addresses(error) or ""
    if isinstance(error, psycopg.Error):
        return " ".join(filter(None, (error.sqlstate, error.diag.table_name, error.diag.constraint_name)))
    return ""


_ON_PURPOSE = (Problem, HTTPException, pydantic.ValidationError, UserError, ServiceError)
HANDLERS: dict[Any, Any] = dict.fromkeys((*_ON_PURPOSE, psycopg.Error, sqlalchemy.exc.SQLAlchemyError), answer)
"""The exception handlers of the application; what is none of these is answered by the outermost layer."""
