"""The API described in OpenAPI 3.1, put together from what stands beside the handlers and from the models that they use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import pydantic
from pydantic.json_schema import JsonSchemaMode
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mailpipe.web import problem

_in_path = re.compile(r"\{(\w+)\}").findall


class WrongField(pydantic.BaseModel):
    """One field that is wrong."""

    field: str
    detail: str


class ProblemDocument(pydantic.BaseModel):
    """An error (RFC 9457)."""

    title: str
    status: int
    detail: str
    field: str | None = None
    errors: list[WrongField] = []


@dataclass(frozen=True)
class Operation:
    """One thing that the API does. `answers` are statuses with what the body is; None: an error as ProblemDocument. `query` and
    `headers` are what may be given besides, with a description."""

    method: str
    path: str
    summary: str
    answers: Mapping[int, type | None]
    body: type[pydantic.BaseModel] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def routes(operations: Sequence[Operation], *, prefix: str) -> list[Route]:
    told = document(operations, prefix=prefix)

    async def show(request: Request) -> JSONResponse:  # noqa: ARG001
        return JSONResponse(told)

    return [Route("/openapi.json", show)]


def document(operations: Sequence[Operation], *, prefix: str) -> dict[str, Any]:
    """The whole description. Every operation may also answer 401, 500 and 503."""
    schemas, definitions = pydantic.TypeAdapter.json_schemas(
        [(kind, mode, pydantic.TypeAdapter(kind)) for kind, mode in _models(operations)],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(f"{prefix}{one.path}", {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mailpipe", "version": version("mailpipe")},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": definitions["$defs"],
        },
    }


def _models(operations: Sequence[Operation]) -> list[tuple[Any, JsonSchemaMode]]:
    """Every type of a body, each once, in the sense in which it is used."""
    found: dict[tuple[Any, JsonSchemaMode], None] = {(ProblemDocument, "serialization"): None}
    for one in operations:
        if one.body is not None:
            found[one.body, "validation"] = None
        for kind in one.answers.values():
            if kind is not None:
                found[kind, "serialization"] = None
    return list(found)


def _operation(one: Operation, schemas: Mapping[tuple[Any, JsonSchemaMode], Any]) -> dict[str, Any]:
    def content(kind: Any, mode: JsonSchemaMode, media_type: str) -> dict[str, Any]:
        return {"content": {media_type: {"schema": schemas[kind, mode]}}}

    answers: dict[int, type | None] = {401: None, 500: None, 503: None, **one.answers}
    places = [(name, "path", "") for name in _in_path(one.path)]
    places += [(name, "query", text) for name, text in one.query.items()]
    places += [(name, "header", text) for name, text in one.headers.items()]
    described: dict[str, Any] = {
        "summary": one.summary,
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}, "description": text}
            for name, place, text in places
        ],
        "responses": {
            str(status): {
                "description": HTTPStatus(status).phrase,
                **content(
                    ProblemDocument if kind is None else kind,
                    "serialization",
                    problem.MEDIA_TYPE if kind is None else "application/json",
                ),
            }
            for status, kind in sorted(answers.items())
        },
    }
    if one.body is not None:
        described["requestBody"] = {"required": True, **content(one.body, "validation", "application/json")}
    return described
