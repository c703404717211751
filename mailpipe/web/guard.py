"""What holds for every request: its size and patience, headers of the answer, the access log, and who the client is.

The access log names the route, never the path: a path may hold the token of an unsubscribe link. It holds no address of a
person or of a machine either.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mailpipe.web import problem
from mailpipe.web.auth import CLIENT
from mailpipe.web.problem import Problem

MAX_BODY = 2 * 1024 * 1024
"""Bytes of a request that anything takes; most routes take less."""
BODY_SECONDS = 30.0
"""For a whole body to arrive: a client that drips bytes holds a connection, not a worker, but not for ever."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    # Links hold tokens, which no other site shall see.
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_access = logging.getLogger("mailpipe.web.access")


async def body(request: Request, *, most: int = MAX_BODY) -> bytes:
    """The whole body, of at most so many bytes.

    Raises:
        Problem: 413 when it is larger, 408 when it does not arrive within BODY_SECONDS.
    """
    too_large = Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {most:,} bytes", headers={"Connection": "close"}
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    return b"".join(parts)


class Outside:
    """The outermost layer: headers on every answer, an answer to every error, and a line of the access log for each request."""

    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self._app = app
        self._headers = {**HEADERS, **({"Strict-Transport-Security": "max-age=31536000"} if https else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception as error:
            # Not left to the server, whose log would hold the error's text, and that may hold an address.
            response = await problem.answer(Request(scope), error)
            if not status:
                await response(scope, receive, send_with_headers)
        finally:
            _access.info(
                "%s %s %s %.1f ms %s",
                scope["method"],
                _route(scope),
                status or "gone",
                (time.monotonic() - started) * 1000,
                scope.get(CLIENT, "-"),
            )


def _route(scope: Scope) -> str:
    """The pattern of the route that took the request, such as /u/{token}."""
    route = scope.get("route")
    if route is None:
        return "(no route)"
    return f"{scope.get('root_path', '')}{'/*' if isinstance(route, Mount) else route.path}"


def client(request: Request, *, proxies: int) -> str:
    """Who asks, behind so many proxies of ours: an IPv4 address, or the /64 of an IPv6 one.

    Each proxy appends who came to it to X-Forwarded-For. Only the last `proxies` entries are ours; what stands before them was
    written by the client and may be invented.
    """
    came = [] if request.client is None else [request.client.host]
    if proxies:
        forwarded = [one.strip() for line in request.headers.getlist("x-forwarded-for") for one in line.split(",")]
        came = forwarded[-proxies:] or came
    try:
        found = ipaddress.ip_address(came[0])
    except (IndexError, ValueError):
        return "unknown"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


class Buckets:
    """A token bucket for each client: `burst` requests at once, then `rate` a second. For one process; for the event loop alone.

    Only the last MOST clients are remembered, so that invented ones cannot fill the memory.
    """

    MOST = 10_000

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, *, now: float | None = None) -> float:
        """Take one; answers 0.0, or the seconds to wait when there is none (nothing is taken then)."""
        wait = self.wait(key, now=now)
        if not wait:
            level, at = self._levels[key]
            self._levels[key] = (level - 1, at)
        return wait

    def wait(self, key: str, *, now: float | None = None) -> float:
        """Seconds until there is one; takes nothing."""
        now = time.monotonic() if now is None else now
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        self._levels[key] = (level, now)
        if len(self._levels) > self.MOST:
            self._levels.popitem(last=False)
        return 0.0 if level >= 1 else (1 - level) / self._rate
