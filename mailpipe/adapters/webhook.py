"""Mail handed to a program of one's own over HTTP: one signed post of JSON for a call, one result for each mail.

`webhook_answer` says what an answer means, `signature` how a post is signed. Mails are rendered here; the receiver gets what the
person shall read.
"""

from __future__ import annotations

import gzip
import http.client
import json
import select
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from mailpipe import header
from mailpipe.adapters import MOST, signature
from mailpipe.adapters.mime import Renderer, Unfit, message_id
from mailpipe.adapters.pool import Pool
from mailpipe.adapters.protocol import Mail, wait
from mailpipe.adapters.webhook_answer import of_loss, of_response
from mailpipe.address import AddressError, parts
from mailpipe.errors import SettingsError
from mailpipe.ses.answer import Answer, Kind, Result
from mailpipe.settings import is_near

COMPRESSED = 8_192
"""Bytes from which on a body is compressed: smaller ones gain nothing."""
_LONGEST = 1 << 20
"""Bytes of an answer; 50 results take a hundredth of it."""
_SHORTEST_SECRET = 32


@dataclass(frozen=True)
class Target:
    """Where posts go. Times are in seconds."""

    host: str
    port: int
    path: str
    tls: bool
    secret: str = field(repr=False)
    connect_timeout: float = 5.0
    read_timeout: float = 60.0


def target(url: str, *, secret: str | None, connect_timeout: float, read_timeout: float) -> Target:
    """The receiver of MAILPIPE_WEBHOOK_URL.

    Raises:
        SettingsError: it is no https URL (http where it is this machine), or there is no secret. No text holds either.
    """
    try:
        found = urlsplit(url)
        host, port = found.hostname, found.port
    except ValueError:
        raise SettingsError("MAILPIPE_WEBHOOK_URL: is not a URL such as https://mail.example.com/hand-over") from None
    if found.scheme not in ("http", "https") or not host or found.username or found.fragment or not url.isascii():
        raise SettingsError("MAILPIPE_WEBHOOK_URL: expected https://host/path in ASCII, without a user and without #")
    if any(character <= " " for character in url):
        raise SettingsError("MAILPIPE_WEBHOOK_URL: holds a space or a control character")
    if found.scheme == "http" and not is_near(host):
        raise SettingsError("MAILPIPE_WEBHOOK_URL: must be https:// where the receiver is not on this machine")
    if not secret or len(secret) < _SHORTEST_SECRET:
        raise SettingsError(f"MAILPIPE_WEBHOOK_SECRET: give a secret of at least {_SHORTEST_SECRET} characters")
    path = (found.path or "/") + (f"?{found.query}" if found.query else "")
    tls = found.scheme == "https"
    return Target(host, port or (443 if tls else 80), path, tls, secret, connect_timeout, read_timeout)


class WebhookAdapter:
    """One receiver."""

    name = "webhook"
    most = MOST["webhook"]

    def __init__(self, target: Target, *, context: ssl.SSLContext | None = None) -> None:
        self._target = target
        trusting = context or ssl.create_default_context()
        self._pool = Pool(lambda: _Line(target, trusting))
        self._renderer = Renderer()

    def shares(self, mail: Mail) -> Literal["all"]:  # noqa: ARG002
        """A post may hold any mails: each is complete in itself."""
        return "all"

    def send(self, mails: Sequence[Mail], *, slot_at: float | None = None, lateness: float = 0.0) -> Answer:
        """Make one post. See `Adapter.send`."""
        results: dict[int, Result] = {}
        ready: dict[int, dict[str, Any]] = {}
        for position, mail in enumerate(mails):
            try:
                ready[position] = self._entry(mail)
            except Unfit as unfit:
                results[position] = Result(Kind.FAILED, unfit.reason, str(unfit))
        answer = self._post(list(ready.values()), slot_at, lateness) if ready else Answer(())
        results.update(zip(ready, answer.results, strict=True))
        return replace(answer, results=tuple(results[position] for position in range(len(mails))))

    def close(self) -> None:
        self._pool.close()

    def _entry(self, mail: Mail) -> dict[str, Any]:
        rendered = self._renderer.render(mail)
        try:
            header.check(mail.headers)
            header.check_subject(rendered.subject)
            return {
                "id": message_id(),
                "from": _person(mail.sender),
                "to": _person(mail.to),
                "reply_to": _person(mail.reply_to) if mail.reply_to else None,
                "subject": rendered.subject,
                "html": rendered.html or None,
                "text": rendered.text or None,
                "headers": [list(pair) for pair in mail.headers],
                "tags": dict(mail.tags),
            }
        except (header.HeaderError, AddressError) as error:
            raise Unfit("invalid_mail", str(error)) from None

    def _post(self, entries: list[dict[str, Any]], slot_at: float | None, lateness: float) -> Answer:
        body = json.dumps({"version": 1, "mails": entries}, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "mailpipe"}
        if len(body) >= COMPRESSED:
            body = gzip.compress(body, compresslevel=5, mtime=0)
            headers["Content-Encoding"] = "gzip"
        headers |= signature.headers(self._target.secret, body, at=time.time())
        identities = [str(entry["id"]) for entry in entries]
        line = self._pool.take()
        left = False
        since = time.monotonic()
        try:
            line.open()
            since = wait(slot_at, lateness)
            left = True
            status, answered = line.post(self._target.path, body, headers)
            answer = of_response(status, answered, identities)
        except ssl.SSLCertVerificationError:
            line.close()
            answer = of_loss(ConnectionError(), len(entries), left=left)
            answer = replace(answer, halt="the TLS certificate of the webhook is not trusted")
        except (OSError, http.client.HTTPException) as error:
            line.close()
            answer = of_loss(error, len(entries), left=left)
        finally:
            self._pool.give(line)
        return replace(answer, seconds=time.monotonic() - since)


class _Line:
    """One connection. Used by one thread at a time."""

    def __init__(self, target: Target, context: ssl.SSLContext) -> None:
        self._target = target
        self._context = context
        self._connection: http.client.HTTPConnection | None = None
        self.used = time.monotonic()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> None:
        """Connect; nothing when that is done already and the other side has not closed it since."""
        if self._connection is not None and not _has_news(self._connection.sock):
            return
        self.close()
        where = self._target
        if where.tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                where.host, where.port, timeout=where.connect_timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(where.host, where.port, timeout=where.connect_timeout)
        # A connection that is lost while a post is on its way must not be made anew behind our back.
        connection.auto_open = 0
        self._connection = connection
        connection.connect()
        connection.sock.settimeout(where.read_timeout)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer. What is longer than any answer is cut, and so unreadable."""
        assert self._connection is not None
        self._connection.request("POST", path, body=body, headers=headers)
        response = self._connection.getresponse()
        answered = response.read(_LONGEST)
        self.used = time.monotonic()
        if response.will_close or not response.isclosed():
            self.close()
        return response.status, answered

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _has_news(connection: socket.socket | None) -> bool:
    """Whether something has come on a connection on which nothing is asked: it was closed, as a rule."""
    if connection is None:
        return True
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(0))


def _person(mailbox: str) -> dict[str, str]:
    name, address = parts(mailbox)
    return {"name": header.clean_name(name), "address": address}
