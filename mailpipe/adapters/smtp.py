"""Mail through an SMTP server: a relay, or a catcher such as Mailpit. Rendered and built here, one recipient a transaction.

A call is a few mails one after the other on one connection. Sorting replies is `smtp_reply`'s duty, the connection
`smtp_session`'s, the message `mime`'s.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Literal

from mailpipe.adapters import MOST
from mailpipe.adapters.mime import Renderer, Unfit, build, message_id
from mailpipe.adapters.pool import Pool
from mailpipe.adapters.protocol import Mail, wait
from mailpipe.adapters.smtp_session import Down, Server, Session
from mailpipe.address import parts
from mailpipe.ses.answer import Answer, Kind, Result, whole_call_refused


class SmtpAdapter:
    """One SMTP server."""

    name = "smtp"
    most = MOST["smtp"]

    def __init__(self, server: Server, *, context: ssl.SSLContext | None = None) -> None:
        trusting = context or ssl.create_default_context()
        self._pool = Pool(lambda: Session(server, trusting))
        self._renderer = Renderer()

    def shares(self, mail: Mail) -> Literal["all"]:  # noqa: ARG002
        """Each mail has a transaction of its own: they share no more than the connection."""
        return "all"

    def send(self, mails: Sequence[Mail], *, slot_at: float | None = None, lateness: float = 0.0) -> Answer:
        """Hand over one mail after the other. See `Adapter.send`."""
        results: dict[int, Result] = {}
        ready: list[tuple[int, _Ready]] = []
        for position, mail in enumerate(mails):
            try:
                ready.append((position, _Ready(mail, self._renderer)))
            except Unfit as unfit:
                results[position] = Result(Kind.FAILED, unfit.reason, str(unfit))
        halt = None
        since = time.monotonic()
        if ready:
            session = self._pool.take()
            try:
                session.open()
                since = wait(slot_at, lateness)
                halt = _converse(session, ready, results)
            except Down as down:
                halt = down.verdict.halt
                _leave_rest(ready, results, down.verdict.result)
            finally:
                self._pool.give(session)
        ordered = tuple(results[position] for position in range(len(mails)))
        return Answer(
            ordered,
            halt=halt or whole_call_refused(ordered, by="the SMTP server"),
            seconds=time.monotonic() - since,
        )

    def close(self) -> None:
        self._pool.close()


class _Ready:
    """A mail as the server takes it."""

    def __init__(self, mail: Mail, renderer: Renderer) -> None:
        self.identity = message_id()
        self.message = build(mail, renderer.render(mail), self.identity)
        self.sender = parts(mail.sender)[1]
        self.recipient = parts(mail.to)[1]


def _converse(session: Session, ready: Sequence[tuple[int, _Ready]], results: dict[int, Result]) -> str | None:
    """Hand the mails over until one of them loses the connection; those behind it did not leave. Answers why to halt.

    A server may close a connection between two mails, after a while or after so many: that costs a new connection, once a mail.
    """
    for position, one in ready:
        session.open()
        is_new = session.carried == 0
        verdict = session.deliver(one.sender, one.recipient, one.message)
        if verdict.closed and verdict.result.kind is Kind.AGAIN and verdict.halt is None and not is_new:
            session.open()
            verdict = session.deliver(one.sender, one.recipient, one.message)
        result = verdict.result
        results[position] = Result(Kind.SENT, message_id=one.identity) if result.kind is Kind.SENT else result
        if verdict.halt is not None or (verdict.closed and result.kind is Kind.AGAIN):
            _leave_rest(ready, results, Result(Kind.AGAIN, "not_sent", result.detail))
            return verdict.halt
    return None


def _leave_rest(ready: Sequence[tuple[int, _Ready]], results: dict[int, Result], result: Result) -> None:
    for position, _ in ready:
        results.setdefault(position, result)
