"""What a supervisor asks: does this process answer (`/healthz`), and should it get requests (`/readyz`)?"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import psycopg
import sqlalchemy
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mailpipe.db import Database, migrate
from mailpipe.errors import MailpipeError
from mailpipe.web.problem import RETRY_AFTER, Problem

PATIENCE = 3.0
"""Seconds that the database may take to answer before this process calls itself not ready."""


def routes(database: Database) -> list[Route]:
    async def alive(request: Request) -> PlainTextResponse:  # noqa: ARG001
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> PlainTextResponse:  # noqa: ARG001
        try:
            # A thread that hangs in the connection is left behind, not waited for.
            async with asyncio.timeout(PATIENCE):
                reason = await run_in_threadpool(_not_ready, database)
        except TimeoutError:
            reason = "the database does not answer"
        if reason is not None:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers={"Retry-After": RETRY_AFTER})
        return PlainTextResponse("ready\n")

    return [Route("/healthz", alive), Route("/readyz", ready)]


def _not_ready(database: Database) -> str | None:
    try:
        if not migrate.is_current_on(database.engine):
            return "the database has another schema than this version needs; run `mailpipe db upgrade`"
    except (MailpipeError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
        return "the database does not answer"
    return None
