"""Who may use the API: `Authorization: Bearer TOKEN` (RFC 6750), with the tokens of MAILPIPE_API_TOKENS.

Tokens have names, so that one can be taken back and so that the access log can say who asked. What a named client may do is the
same for all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mailpipe.errors import SettingsError
from mailpipe.web.problem import Problem

MIN_TOKEN = 32
"""Characters of a token: 128 bits even when it is made of hexadecimal digits."""
CLIENT = "mailpipe.client"
"""Where the ASGI scope holds the name of the token."""

_name = re.compile(r"[A-Za-z0-9_-]{1,32}").fullmatch
_characters = re.compile(r"[A-Za-z0-9._~+/=-]+").fullmatch


def parse(text: str) -> dict[str, str]:
    """`name:token,name:token` -> tokens by name.

    Raises:
        SettingsError: one of them cannot be used; no text holds a token.
    """
    tokens: dict[str, str] = {}
    for number, part in enumerate(text.split(","), 1):
        name, colon, token = part.strip().partition(":")
        where = f"MAILPIPE_API_TOKENS: token {number}"
        if not colon or not _name(name):
            raise SettingsError(f"{where}: expected `name:token`, the name being 1 to 32 of letters, digits, - and _")
        if len(token) < MIN_TOKEN or not _characters(token):
            raise SettingsError(
                f"{where} ({name}): needs at least {MIN_TOKEN} of letters, digits and ._~+/=-;"
                " `openssl rand -hex 32` makes a good one"
            )
        if name in tokens:
            raise SettingsError(f"{where}: the name {name} occurs twice")
        tokens[name] = token
    return tokens


class Gate:
    """Lets only requests with a known token through to `app`. Without any tokens it lets nobody through."""

    def __init__(self, app: ASGIApp, *, tokens: Mapping[str, str]) -> None:
        self._app = app
        self._digests = {name: _digest(token) for name, token in tokens.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[CLIENT] = self._client(Headers(scope=scope).getlist("authorization"))
        await self._app(scope, receive, send)

    def _client(self, given: list[str]) -> str:
        """The name of the token. Raises Problem."""
        if not self._digests:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "the API is closed: MAILPIPE_API_TOKENS is not set where this runs"
            )
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        digest = _digest(token.strip())
        # All are compared, each in constant time: how long it takes tells nothing about any of them.
        known = [name for name, one in self._digests.items() if hmac.compare_digest(one, digest)]
        if scheme.lower() != "bearer" or not known:
            error = ', error="invalid_token"' if given else ""
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "send the header `Authorization: Bearer TOKEN` with one of the tokens of MAILPIPE_API_TOKENS",
                headers={"WWW-Authenticate": f'Bearer realm="mailpipe"{error}'},
            )
        return known[0]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
