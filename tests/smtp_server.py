"""A real SMTP server (aiosmtpd) that keeps what it took and can be told to misbehave."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any, Self

import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "mailpipe", "throw-away:secret@1"


@dataclass
class Taken:
    """A message that the server has accepted."""

    sender: str
    recipients: list[str]
    content: bytes
    encrypted: bool
    user: str | None

    @property
    def message(self) -> EmailMessage:
        return BytesParser(policy=policy.SMTP).parsebytes(self.content)


Reply = str | Callable[[SMTP], str | None]


@dataclass
class SmtpServer:
    """`replies` gives an answer other than 250 by command and a word that its argument holds (an address; `*` for all). A
    callable gets the protocol, and can lose the connection.
    """

    security: str = "plain"
    login: bool = False
    replies: dict[tuple[str, str], Reply] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    connections: int = 0
    tried: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        authority = trustme.CA()
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        tls = self._tls if self.security == "tls" else None
        self._server = await self._loop.create_server(self.make, "127.0.0.1", 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def url(self, credentials: str = "") -> str:
        scheme = {"plain": "smtp", "starttls": "smtp+starttls", "tls": "smtps"}[self.security]
        return f"{scheme}://{credentials}127.0.0.1:{self.port}"

    def make(self) -> SMTP:
        self.connections += 1
        return _Protocol(
            _Handler(self),
            hostname="stand-in.example.com",
            loop=self._loop,
            tls_context=self._tls if self.security == "starttls" else None,
            require_starttls=self.security == "starttls",
            auth_require_tls=False,
            authenticator=_authenticate,
        )

    def answer(self, command: str, argument: str, protocol: SMTP) -> str | None:
        for (wanted, word), reply in self.replies.items():
            if wanted == command and (word == "*" or word in argument):
                return reply if isinstance(reply, str) else reply(protocol)
        return None


def _authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    fits = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=fits, handled=False, auth_data=USER)


class _Protocol(SMTP):
    async def smtp_DATA(self, arg: str) -> None:
        recipients = " ".join(self.envelope.rcpt_tos) if self.envelope is not None else ""
        reply = self.event_handler.owner.answer("DATA", recipients, self)
        if reply is not None:
            await self.push(reply)
            return
        await super().smtp_DATA(arg)


class _Handler:
    def __init__(self, owner: SmtpServer) -> None:
        self.owner = owner

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        reply = self.owner.answer("MAIL", address, server)
        if self.owner.login and not session.authenticated:
            return "530 5.7.0 authentication required"
        if reply is None:
            envelope.mail_from = address
        return reply or "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.owner.tried.append(address)
        reply = self.owner.answer("RCPT", address, server)
        if reply is None:
            envelope.rcpt_tos.append(address)
        return reply or "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        reply = self.owner.answer("END", " ".join(envelope.rcpt_tos), server)
        if reply is None:
            assert isinstance(envelope.content, bytes)
            assert envelope.mail_from is not None
            self.owner.taken.append(
                Taken(
                    envelope.mail_from,
                    list(envelope.rcpt_tos),
                    envelope.content,
                    session.ssl is not None or self.owner.security == "tls",
                    session.auth_data if session.authenticated else None,
                )
            )
        return reply or "250 OK queued"


def drop(protocol: SMTP) -> str:
    """Lose the connection instead of answering."""
    assert isinstance(protocol.transport, asyncio.Transport)
    protocol.transport.abort()
    return "250 never arrives"


def keep_and_drop(owner: SmtpServer) -> Callable[[SMTP], str]:
    """Take the message, then lose the connection: the client cannot know."""

    def reply(protocol: SMTP) -> str:
        envelope = protocol.envelope
        assert envelope is not None
        assert isinstance(envelope.content, bytes)
        assert envelope.mail_from is not None
        owner.taken.append(Taken(envelope.mail_from, list(envelope.rcpt_tos), envelope.content, False, None))
        return drop(protocol)

    return reply
