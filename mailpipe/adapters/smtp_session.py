"""One connection to an SMTP server: opened, encrypted, logged in, used for one mail after the other.

The conversation is led command by command, because what a lost connection means depends on the command that was on its way.
`smtp_reply` says what; which mails go where is decided in `smtp`.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from mailpipe.adapters.smtp_reply import Step, Verdict, is_good, of_loss, of_reply
from mailpipe.errors import SettingsError
from mailpipe.ses.answer import Kind, Result
from mailpipe.settings import is_near

_SCHEMES: dict[str, tuple[Literal["plain", "starttls", "tls"], int]] = {
    "smtp": ("plain", 25),
    "smtp+starttls": ("starttls", 587),
    "smtps": ("tls", 465),
}


@dataclass(frozen=True)
class Server:
    """Where mail is handed over, and how. Times are in seconds."""

    host: str
    port: int
    security: Literal["plain", "starttls", "tls"]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout: float = 5.0
    read_timeout: float = 60.0


def server(url: str, *, password: str | None, connect_timeout: float, read_timeout: float) -> Server:
    """The server of MAILPIPE_SMTP_URL: `smtp://`, `smtp+starttls://` or `smtps://`, then `user:password@` if it asks for a login,
    the host, and a port if it is not 25, 587 or 465. `password` is used instead of the one in the URL.

    Raises:
        SettingsError: it is none of these; mail or a password would cross a network in the clear. No text holds the URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(
            "MAILPIPE_SMTP_URL: is not a URL such as smtp+starttls://user@mail.example.com:587"
        ) from None
    if parts.scheme not in _SCHEMES or not host:
        raise SettingsError(
            f"MAILPIPE_SMTP_URL: expected {', '.join(f'{scheme}://' for scheme in _SCHEMES)} and a host"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise SettingsError(
            "MAILPIPE_SMTP_URL: ends with the host or port; a special character of the password is %-encoded"
        )
    security, usual = _SCHEMES[parts.scheme]
    if security == "plain" and not is_near(host):
        raise SettingsError(
            "MAILPIPE_SMTP_URL: smtp:// is for a server on this machine or a container beside it; use smtp+starttls:// or smtps://"
        )
    user = unquote(parts.username) if parts.username else None
    secret = password or (unquote(parts.password) if parts.password else None)
    if (user is None) != (secret is None):
        raise SettingsError("MAILPIPE_SMTP_URL: a login needs both a user in the URL and MAILPIPE_SMTP_PASSWORD")
    return Server(host, port or usual, security, user, secret, connect_timeout, read_timeout)


class Down(Exception):
    """There is no connection; certainly nothing was sent. `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.result.reason)
        self.verdict = verdict


class Session:
    """One connection. Used by one thread at a time."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._smtp: smtplib.SMTP | None = None
        self.carried = 0
        """Mails that this connection has taken or refused since it was opened."""
        self.used = time.monotonic()

    @property
    def is_open(self) -> bool:
        return self._smtp is not None

    def open(self) -> None:
        """Connect, encrypt, log in; nothing when that is done already.

        Raises:
            Down: the server is away or refuses.
        """
        if self._smtp is not None:
            return
        self.carried = 0
        step = Step.CONNECT
        try:
            self._smtp = self._connect()
            step = Step.LOGIN
            self._log_in(self._smtp)
        except Down:
            self.close()
            raise
        except smtplib.SMTPResponseException as error:
            self.close()
            text = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
            raise Down(of_reply(step, error.smtp_code, text)) from None
        except ssl.SSLCertVerificationError:
            self.close()
            raise _down("the TLS certificate of the SMTP server is not trusted") from None
        except (OSError, smtplib.SMTPException) as error:
            self.close()
            raise Down(of_loss(step, _cause(error))) from None

    def deliver(self, sender: str, recipient: str, message: bytes) -> Verdict:
        """One transaction with one recipient. `message` is complete, its lines ending in CRLF. Never raises for what the other
        side does; a verdict that is `closed` has closed the connection.
        """
        smtp = self._smtp
        assert smtp is not None
        options = [f"size={len(message)}"] if smtp.has_extn("size") else []
        step = Step.SENDER

        def hand_over() -> tuple[int, bytes]:
            # Everything but the last line, and only then the last line: what fails before it was not handed over.
            nonlocal step
            smtp.send(message.replace(b"\r\n.", b"\r\n.."))
            step = Step.END
            smtp.send(b".\r\n")
            return smtp.getreply()

        commands: tuple[tuple[Step, Callable[[], tuple[int, bytes]]], ...] = (
            (Step.SENDER, lambda: smtp.mail(sender, options)),
            (Step.RECIPIENT, lambda: smtp.rcpt(recipient)),
            (Step.DATA, lambda: smtp.docmd("DATA")),
            (Step.DATA, hand_over),
        )
        verdict = Verdict(Result(Kind.SENT))
        try:
            for step, command in commands:
                code, text = command()
                if not is_good(step, code):
                    verdict = of_reply(step, code, text)
                    break
        except (OSError, smtplib.SMTPException) as error:
            verdict = of_loss(step, _cause(error))
        self.used = time.monotonic()
        self.carried += 1
        if verdict.closed:
            self.close()
        elif step in (Step.RECIPIENT, Step.DATA) and verdict.result.kind is not Kind.SENT:
            self._reset()
        return verdict

    def close(self) -> None:
        """Say goodbye, without waiting for the answer, and close."""
        smtp, self._smtp = self._smtp, None
        if smtp is not None:
            with suppress(OSError, smtplib.SMTPException):
                smtp.putcmd("QUIT")
            smtp.close()

    def _connect(self) -> smtplib.SMTP:
        server = self._server
        where = (server.host, server.port, "localhost")
        smtp: smtplib.SMTP
        if server.security == "tls":
            smtp = smtplib.SMTP_SSL(*where, timeout=server.connect_timeout, context=self._context)
        else:
            smtp = smtplib.SMTP(*where, timeout=server.connect_timeout)
        assert smtp.sock is not None
        # The last line of a message must not wait for the acknowledgement of the others: 40 ms a mail.
        smtp.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # An address literal (RFC 5321, section 4.1.3): looking for this machine's name can take seconds, and it may have none.
        address = smtp.sock.getsockname()[0]
        smtp.local_hostname = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        return smtp

    def _log_in(self, smtp: smtplib.SMTP) -> None:
        smtp.ehlo_or_helo_if_needed()
        if self._server.security == "starttls":
            if not smtp.has_extn("starttls"):
                raise _down("the SMTP server offers no STARTTLS")
            code, text = smtp.starttls(context=self._context)
            if code != 220:
                raise smtplib.SMTPResponseException(code, text)
            smtp.ehlo_or_helo_if_needed()
        if self._server.user is not None and self._server.password is not None:
            try:
                smtp.login(self._server.user, self._server.password)
            except (smtplib.SMTPResponseException, smtplib.SMTPServerDisconnected):
                raise
            except smtplib.SMTPException:
                raise _down("the SMTP server offers no login that mailpipe knows") from None
        assert smtp.sock is not None
        smtp.sock.settimeout(self._server.read_timeout)

    def _reset(self) -> None:
        assert self._smtp is not None
        try:
            code, _ = self._smtp.rset()
        except (OSError, smtplib.SMTPException):
            code = 0
        if code != 250:
            self.close()


def _down(halt: str) -> Down:
    return Down(Verdict(Result(Kind.AGAIN, "no_connection", halt), halt=halt, closed=True))


def _cause(error: BaseException) -> BaseException:
    """smtplib tells of a time-out as of a lost connection, in the first argument or the context."""
    return next((one for one in (error, error.__cause__, error.__context__) if isinstance(one, TimeoutError)), error)
