"""Mail over SMTP, against a real server: what arrives, and what each fault at each step means for each person."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from mailpipe.adapters.protocol import Inline, Mail
from mailpipe.adapters.smtp import SmtpAdapter
from mailpipe.adapters.smtp_session import server
from mailpipe.errors import SettingsError
from mailpipe.ses.answer import Answer, Kind
from mailpipe.ses.punctual import SlotMissed
from tests.smtp_server import PASSWORD, USER, SmtpServer, drop, keep_and_drop

AGAIN, FAILED, RETRY, SENT, UNKNOWN = Kind.AGAIN, Kind.FAILED, Kind.RETRY, Kind.SENT, Kind.UNKNOWN
Serve = Callable[..., tuple[SmtpServer, SmtpAdapter]]


def mails(*names: str) -> list[Mail]:
    return [
        Mail(
            sender="Shop <news@mail.example.com>",
            to=f"Person, {name} <{name}@mail.example.net>",
            content=Inline(f"Hello {name}", f"<p>{name}</p>\n.\n..dots\n", f"{name}\n.\n.dot\n"),
            configuration_set="",
            tags={"campaign": "spring", "seq": str(number)},
        )
        for number, name in enumerate(names, 1)
    ]


def kinds(answer: Answer) -> list[Kind]:
    return [result.kind for result in answer.results]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(
            credentials: str = "", *, read_timeout: float = 5.0, **options: Any
        ) -> tuple[SmtpServer, SmtpAdapter]:
            running = stack.enter_context(SmtpServer(**options))
            where = server(running.url(credentials), password=None, connect_timeout=5, read_timeout=read_timeout)
            return running, stack.enter_context(closing(SmtpAdapter(where, context=running.trusting)))

        yield start


def test_each_mail_arrives_with_one_recipient_over_one_connection(serve: Serve) -> None:
    running, adapter = serve()
    for _ in range(2):
        answer = adapter.send(mails("ana", "ben", "cem"))
        assert kinds(answer) == [SENT] * 3
        assert answer.halt is None
    assert running.connections == 1
    assert [one.recipients for one in running.taken] == [
        [f"{name}@mail.example.net"] for name in ("ana", "ben", "cem") * 2
    ]
    assert {one.sender for one in running.taken} == {"news@mail.example.com"}
    message = running.taken[1].message
    assert message["To"] == '"Person, ben" <ben@mail.example.net>'
    assert message["X-Mailpipe-Tags"] == "campaign=spring; seq=2"
    body = message.get_body(("plain",))
    assert body is not None
    assert body.get_content() == "ben\r\n.\r\n.dot"
    ids = [str(one.message["Message-ID"]) for one in running.taken[3:]]
    assert ids == [f"<{result.message_id}@mail.example.com>" for result in answer.results]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_encrypted_and_logged_in(serve: Serve, security: str) -> None:
    running, adapter = serve(f"{USER}:throw-away%3Asecret%401@", security=security, login=True)
    assert kinds(adapter.send(mails("ana"))) == [SENT]
    [taken] = running.taken
    assert taken.encrypted
    assert taken.user == USER


def test_a_certificate_that_nobody_vouches_for_stops_before_anything_is_said(serve: Serve) -> None:
    for security in ("starttls", "tls"):
        running, _ = serve(f"{USER}:{PASSWORD[:3]}@", security=security, login=True)
        where = server(running.url(f"{USER}:x@"), password=None, connect_timeout=5, read_timeout=5)
        answer = SmtpAdapter(where, context=ssl.create_default_context()).send(mails("ana", "ben"))
        assert kinds(answer) == [AGAIN, AGAIN]
        assert answer.halt is not None
        assert "certificate" in answer.halt
        assert not running.taken


def test_a_refused_login_halts_and_tells_no_password(serve: Serve) -> None:
    running, adapter = serve(f"{USER}:wrong-secret@", security="starttls", login=True)
    answer = adapter.send(mails("ana", "ben"))
    assert kinds(answer) == [AGAIN, AGAIN]
    assert answer.halt is not None
    assert "535" in answer.halt
    assert "wrong-secret" not in repr(answer) + repr(vars(adapter))
    assert not running.taken


def test_a_server_without_encryption_or_login_is_not_talked_into_it(serve: Serve) -> None:
    running, _ = serve()
    for scheme, credentials, word in (("smtp+starttls", "", "STARTTLS"), ("smtp", "user:secret@", "login")):
        url = f"{scheme}://{credentials}127.0.0.1:{running.port}"
        where = server(url, password=None, connect_timeout=5, read_timeout=5)
        answer = SmtpAdapter(where).send(mails("ana"))
        assert (kinds(answer), running.taken) == ([AGAIN], [])
        assert answer.halt is not None
        assert word in answer.halt


def test_refusals_of_single_recipients_leave_the_others_alone(serve: Serve) -> None:
    running, adapter = serve(
        replies={
            ("RCPT", "gone"): "550 5.1.1 no such user gone@mail.example.net",
            ("RCPT", "later"): "450 4.2.1 come back later",
            ("DATA", "nodata"): "554 no",
            ("END", "spam"): "554 5.7.1 looks like spam",
            ("END", "full"): "452 4.2.2 mailbox full",
        }
    )
    answer = adapter.send(mails("ana", "gone", "later", "nodata", "spam", "full", "ben"))
    assert kinds(answer) == [SENT, FAILED, RETRY, FAILED, FAILED, RETRY, SENT]
    assert [result.reason for result in answer.results[1:6]] == [
        "recipient_refused",
        "deferred",
        "message_refused",
        "message_refused",
        "deferred",
    ]
    assert answer.results[1].detail == "550 5.1.1 no such user <address>"
    assert [one.recipients for one in running.taken] == [["ana@mail.example.net"], ["ben@mail.example.net"]]
    assert running.connections == 1


def test_a_call_that_is_refused_for_everybody_speaks_against_the_campaign(serve: Serve) -> None:
    _, adapter = serve(replies={("RCPT", "*"): "554 5.7.1 relaying denied"})
    answer = adapter.send(mails(*(f"p{number}" for number in range(10))))
    assert kinds(answer) == [FAILED] * 10
    assert answer.halt is not None
    assert "every one of 10" in answer.halt


def test_a_refused_sender_halts_and_fails_nobody(serve: Serve) -> None:
    running, adapter = serve(replies={("MAIL", "*"): "550 5.7.1 sender not allowed"})
    answer = adapter.send(mails("ana", "ben"))
    assert kinds(answer) == [AGAIN, AGAIN]
    assert answer.halt is not None
    assert "sender" in answer.halt
    assert running.tried == []


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA"])
def test_a_connection_that_is_lost_before_the_last_dot_sent_nothing(serve: Serve, step: str) -> None:
    word = "news" if step == "MAIL" else "ben"
    running, adapter = serve()
    assert kinds(adapter.send(mails("first"))) == [SENT]
    running.replies[step, word] = drop
    answer = adapter.send(mails("ana", "ben", "cem"))
    assert answer.halt is None
    sent = [] if step == "MAIL" else [SENT]
    assert kinds(answer) == sent + [AGAIN] * (3 - len(sent))
    assert len(running.taken) == 1 + len(sent)
    running.replies.clear()
    assert kinds(adapter.send(mails("ana", "ben", "cem"))) == [SENT] * 3


def test_a_connection_that_is_lost_after_the_last_dot_leaves_that_mail_alone_in_doubt(serve: Serve) -> None:
    for take in (True, False):
        running, adapter = serve()
        running.replies["END", "ben"] = keep_and_drop(running) if take else drop
        answer = adapter.send(mails("ana", "ben", "cem"))
        assert kinds(answer) == [SENT, UNKNOWN, SENT]
        assert answer.results[1].reason == "connection_lost"
        assert len(running.taken) == 2 + take
        assert running.tried.count("ben@mail.example.net") == 1


def test_a_server_that_closes_now_and_then_costs_a_connection_and_no_mail(serve: Serve) -> None:
    running, adapter = serve()
    turn = itertools.count(1)
    running.replies["MAIL", "*"] = lambda _: "421 4.3.2 enough" if next(turn) % 3 == 0 else None
    answer = adapter.send(mails(*(f"p{number}" for number in range(8))))
    assert kinds(answer) == [SENT] * 8
    assert running.connections > 1
    assert len({one.recipients[0] for one in running.taken}) == len(running.taken) == 8


def test_a_silent_server_is_given_up_and_means_doubt_only_after_the_last_dot(serve: Serve) -> None:
    gate = threading.Event()
    with scripted(
        lambda line, reply: reply("354 go on") if line == "DATA" else gate.wait(5) if line == "." else reply("250 OK")
    ) as url:
        where = server(url, password=None, connect_timeout=5, read_timeout=0.2)
        answer = SmtpAdapter(where).send(mails("ana"))
        assert [(result.kind, result.reason) for result in answer.results] == [(UNKNOWN, "read_timeout")]
        gate.set()
    gate.clear()
    with scripted(lambda line, reply: gate.wait(5) if line.startswith("rcpt") else reply("250 OK")) as url:
        where = server(url, password=None, connect_timeout=5, read_timeout=0.2)
        answer = SmtpAdapter(where).send(mails("ana", "ben"))
        assert [(result.kind, result.reason) for result in answer.results] == [
            (AGAIN, "no_connection"),
            (AGAIN, "not_sent"),
        ]
        gate.set()


@pytest.mark.parametrize(
    ("last", "kind"),
    [("nonsense", UNKNOWN), ("354 what", UNKNOWN), ("250 OK", SENT), ("421 bye", AGAIN), ("x" * 10_000, UNKNOWN)],
)
def test_only_a_clear_reply_to_the_last_dot_is_believed(last: str, kind: Kind) -> None:
    def behave(line: str, reply: Callable[[str], None]) -> None:
        reply("354 go on" if line == "DATA" else last if line == "." else "250 OK")

    with scripted(behave) as url:
        where = server(url, password=None, connect_timeout=5, read_timeout=5)
        adapter = SmtpAdapter(where)
        assert kinds(adapter.send(mails("ana"))) == [kind]
        adapter.close()


@pytest.mark.parametrize(("greeting", "halts"), [("554 no service", True), ("421 busy", False), ("450 not now", False)])
def test_a_greeting_that_refuses_sends_nothing(greeting: str, halts: bool) -> None:
    with scripted(lambda _, reply: reply("250 OK"), greeting=greeting) as url:
        where = server(url, password=None, connect_timeout=5, read_timeout=5)
        answer = SmtpAdapter(where).send(mails("ana", "ben"))
    assert kinds(answer) == [AGAIN, AGAIN]
    assert (answer.halt is not None) == halts


def test_a_server_that_is_away_sends_nothing_and_does_not_halt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    where = server(f"smtp://127.0.0.1:{port}", password=None, connect_timeout=1, read_timeout=1)
    answer = SmtpAdapter(where).send(mails("ana", "ben"))
    assert [(result.kind, result.reason) for result in answer.results] == [(AGAIN, "no_connection")] * 2
    assert answer.halt is None


def test_a_mail_that_cannot_be_made_fails_alone(serve: Serve) -> None:
    running, adapter = serve()
    ana, ben, cem, dan = mails("ana", "ben", "cem", "dan")
    answer = adapter.send(
        [
            ana,
            replace(ben, content=Inline("a\r\nBcc: x@mail.example.com", "x")),
            replace(cem, headers=(("Bcc", "x@mail.example.com"),)),
            replace(dan, to="dan@mail.example.net>\r\nRCPT TO:<x@mail.example.com"),
        ]
    )
    assert kinds(answer) == [SENT, FAILED, FAILED, FAILED]
    assert running.tried == ["ana@mail.example.net"]


def test_a_slot_is_waited_for_and_a_missed_one_sends_nothing(serve: Serve) -> None:
    running, adapter = serve()
    at = time.monotonic() + 0.15
    answer = adapter.send(mails("ana"), slot_at=at, lateness=0.5)
    assert kinds(answer) == [SENT]
    assert time.monotonic() >= at
    assert answer.seconds < 0.15 + 5
    with pytest.raises(SlotMissed):
        adapter.send(mails("ben"), slot_at=time.monotonic() - 1, lateness=0.02)
    assert running.tried == ["ana@mail.example.net"]
    assert kinds(adapter.send(mails("ben"))) == [SENT]
    assert running.connections == 1


def test_threads_share_an_adapter_and_no_connection(serve: Serve) -> None:
    running, adapter = serve()
    names = [[f"p{thread}-{number}" for number in range(5)] for thread in range(6)]
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda some: answers.append(adapter.send(mails(*some))), args=(some,)) for some in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [kinds(answer) for answer in answers] == [[SENT] * 5] * 6
    arrived = sorted(one.recipients[0] for one in running.taken)
    assert arrived == sorted(f"{name}@mail.example.net" for some in names for name in some)
    for one in running.taken:
        assert one.recipients[0] in one.message["To"]


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://mail.example.com", "smtps://"),
        ("smtp://", "host"),
        ("smtp://mail.example.com", "starttls"),
        ("smtps://mail.example.com:x", "URL"),
        ("smtps://user@mail.example.com", "MAILPIPE_SMTP_PASSWORD"),
        ("smtps://user:pa/ss@mail.example.com", "MAILPIPE_SMTP_URL"),
    ],
)
def test_unusable_urls_are_refused_without_being_quoted(url: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as refused:
        server(url, password=None, connect_timeout=1, read_timeout=1)
    assert "pa/ss" not in str(refused.value)
    assert "user@" not in str(refused.value) or "://user@mail" in str(refused.value)


def test_a_password_of_its_own_comes_before_that_of_the_url() -> None:
    found = server("smtps://user:one@mail.example.com", password="two", connect_timeout=1, read_timeout=1)
    assert (found.password, found.port) == ("two", 465)
    assert "two" not in repr(found)


@contextmanager
def scripted(behave: Callable[[str, Callable[[str], None]], object], *, greeting: str = "220 hello") -> Iterator[str]:
    """A server that answers line by line as `behave` says: for what no decent server does."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            inside = False

            def reply(text: str) -> None:
                connection.sendall(text.encode() + b"\r\n")

            try:
                reply(greeting)
                for raw in lines:
                    line = raw.decode().rstrip("\r\n")
                    if line == "QUIT":
                        return
                    if not inside or line == ".":
                        behave(line, reply)
                        inside = line == "DATA" or (inside and line != ".")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"smtp://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(5)
