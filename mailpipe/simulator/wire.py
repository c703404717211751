"""What travels on the wire apart from the operations themselves: answers and SES's typed errors.

An operation returns an `Answer` or raises `ApiError`; `http` turns both into bytes on a connection.
"""

import json
from typing import Any, NamedTuple

JsonObject = dict[str, Any]

quote = json.JSONEncoder().encode
"""Encodes one string as JSON: the bound method skips the set-up that json.dumps repeats for every value."""


class ApiError(Exception):
    """A whole call refused. `kind` is the value of `x-amzn-ErrorType`, by which SDKs choose the exception
    class."""

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status


class Answer(NamedTuple):
    """One HTTP answer. `error_type` is sent as `x-amzn-ErrorType` when it is not empty."""

    status: int
    body: bytes
    error_type: str = ""
    content_type: bytes = b"application/json"


def bad_request(message: str) -> ApiError:
    return ApiError("BadRequestException", message)


def not_found(message: str) -> ApiError:
    return ApiError("NotFoundException", message, 404)


def json_answer(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


def error_answer(error: ApiError) -> Answer:
    return Answer(error.status, json.dumps({"message": error.message}).encode(), error.kind)


def members(body: bytes) -> JsonObject:
    """The JSON object of a request body; an empty body is an empty object. Raises ApiError."""
    if not body:
        return {}
    try:
        value = json.loads(body)
    except ValueError:
        raise ApiError("SerializationException", "The request body is not JSON.") from None
    if not isinstance(value, dict):
        raise ApiError("SerializationException", "The request body is not a JSON object.")
    return value


def text_member(request: JsonObject, name: str) -> str:
    """A required, non-empty string member. Raises ApiError."""
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{name} is required and must be a non-empty string.")
    return value


def flag_member(request: JsonObject, name: str) -> bool:
    """A boolean member. Absent means false, as SES reads it. Raises ApiError for anything that is not a
    boolean."""
    value = request.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false.")
    return value
