"""The API described in OpenAPI 3.1, put together from what stands beside the handlers and from the models that they use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import pydantic
from pydantic.json_schema import JsonSchemaMode
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
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
class Parameter:
    """What is given beside the body: what it means, and which values it has, as a type of pydantic's."""

    text: str
    kind: Any = str


@dataclass(frozen=True)
class Operation:
    """One thing that the API does. `answers` are statuses with what the body is; None: an error as ProblemDocument, and for 204
    nothing at all. `places` are the parameters in `path`, in its order; `query` and `headers` may be given besides. `examples` are
    bodies by what they are for."""

    method: str
    path: str
    summary: str
    answers: Mapping[int, type | None]
    body: type[pydantic.BaseModel] | None = None
    places: Sequence[Parameter] = ()
    query: Mapping[str, Parameter] = field(default_factory=dict)
    headers: Mapping[str, Parameter] = field(default_factory=dict)
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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


def by_method(path: str, **methods: Callable[[Request], Awaitable[Response]]) -> Route:
    """One route for all that can be done at a path, so that an answer 405 names all of it in `Allow` (RFC 9110, 15.5.6)."""

    async def answer(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(methods))


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

    def answer(status: int, kind: type | None) -> dict[str, Any]:
        if status == HTTPStatus.NO_CONTENT:
            return {}
        if kind is None:
            return content(ProblemDocument, "serialization", problem.MEDIA_TYPE)
        return content(kind, "serialization", "application/json")

    answers: dict[int, type | None] = {401: None, 500: None, 503: None, **one.answers}
    parameters = [(name, "path", given) for name, given in zip(_in_path(one.path), one.places, strict=True)]
    parameters += [(name, "query", given) for name, given in one.query.items()]
    parameters += [(name, "header", given) for name, given in one.headers.items()]
    described: dict[str, Any] = {
        "summary": one.summary,
        "parameters": [
            {
                "name": name,
                "in": place,
                "required": place == "path",
                "schema": pydantic.TypeAdapter(given.kind).json_schema(),
                "description": given.text,
            }
            for name, place, given in parameters
        ],
        "responses": {
            str(status): {"description": HTTPStatus(status).phrase, **answer(status, kind)}
            for status, kind in sorted(answers.items())
        },
    }
    if one.body is not None:
        told = content(one.body, "validation", "application/json")
        if one.examples:
            told["content"]["application/json"]["examples"] = {
                name: {"value": value} for name, value in one.examples.items()
            }
        described["requestBody"] = {"required": True, **told}
    return described
