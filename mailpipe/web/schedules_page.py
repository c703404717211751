"""`/schedules`: what comes, what waits and what is late, as one plain page for people. What it shows is `schedule.overview`'s duty.

A browser is let in with one of the API's tokens as the password, whatever the name; nothing can be changed here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pystache
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mailpipe.db import Connection, Database
from mailpipe.errors import UserError
from mailpipe.schedule import overview, recurring
from mailpipe.schedule.overview import Coming
from mailpipe.schedule.recurring import Schedule
from mailpipe.settings import Settings
from mailpipe.web.problem import Problem

_FOLDER = Path(__file__).with_name("pages")
_STYLE = (_FOLDER / "schedules.css").read_text(encoding="utf-8")
_TEMPLATE = pystache.parse((_FOLDER / "schedules.mustache").read_text(encoding="utf-8"))
_RENDERER = pystache.Renderer(missing_tags="strict")
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; style-src 'sha256-{_HASH}'"
}
_A_DAY = 12
"""Entries of a day that are shown; a day with more is no calendar any more."""
_SCHEDULES = 100


class Door:
    """Lets a browser through the gate of the API: its password is the token."""

    def __init__(self, gate: ASGIApp) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            token = _password(Headers(scope=scope).get("authorization", ""))
            if token is not None:
                scope = {**scope, "headers": list(scope["headers"])}
                MutableHeaders(scope=scope)["authorization"] = f"Bearer {token}"
        try:
            await self._gate(scope, receive, send)
        except Problem as problem:
            if problem.status == HTTPStatus.UNAUTHORIZED:
                problem.headers["WWW-Authenticate"] = 'Basic realm="mailpipe: the password is a token", charset="UTF-8"'
            raise


def _password(given: str) -> str | None:
    scheme, _, packed = given.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(packed.strip(), validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeError):
        return None


def routes(config: Settings, database: Database) -> list[Route]:
    def render() -> str:
        with database.connection() as connection:
            content = collect(connection, config)
        return str(_RENDERER.render(_TEMPLATE, {"style": _STYLE, **content}))

    async def show(request: Request) -> HTMLResponse:  # noqa: ARG001
        return HTMLResponse(await run_in_threadpool(render), headers=HEADERS)

    return [Route("/schedules", show, methods=["GET"])]


def collect(connection: Connection, config: Settings) -> dict[str, Any]:
    """What the page says, ready for its template."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    late = overview.late(connection, grace=config.misfire_grace)
    schedules = recurring.get_all(connection)
    days = overview.calendar(connection, now)
    return {
        "now": f"{now:%Y-%m-%d %H:%M}",
        "now_iso": now.isoformat(timespec="seconds"),
        "late": [
            {
                "what": one.what,
                "why": one.why,
                "since": f"{one.since:%a %d %b %H:%M}",
                "since_iso": one.since.isoformat(),
            }
            for one in late
        ],
        "has_late": bool(late),
        "queues": [
            {"lane": lane, "pending": f"{queue.pending:,}", "processing": f"{queue.processing:,}"}
            for lane, queue in overview.queues(connection).items()
        ],
        "days": [{"day": f"{day:%a %d %b}", "iso": day.isoformat(), **_items(found)} for day, found in days.items()],
        "recurring": [_recurring(one) for one in schedules[:_SCHEDULES]],
        "has_recurring": bool(schedules),
    }


def _items(found: Sequence[Coming]) -> dict[str, Any]:
    items = [
        {
            "at": f"{one.at:%H:%M}",
            "at_iso": one.at.isoformat(timespec="seconds"),
            "what": one.what,
            "detail": ", ".join(part for part in (one.local, one.detail) if part),
        }
        for one in found[:_A_DAY]
    ]
    more = len(found) - len(items)
    return {"items": items, "has_items": bool(items), "more": more or ""}


def _recurring(found: Schedule) -> dict[str, str]:
    try:
        words = found.spec.compiled(minimum=0).words
    except UserError as error:
        words = str(error)
    return {
        "key": found.key,
        "state": found.state,
        "words": words,
        "cron": found.cron_expression,
        "zone": found.timezone,
        "next": f"{found.next_run_at:%a %d %b %H:%M} UTC" if found.is_active and found.next_run_at else "",
    }
