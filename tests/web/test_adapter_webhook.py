"""Posts to a real HTTP server: what arrives, and what each way of not getting an answer means."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trustme

from mailpipe.adapters import signature
from mailpipe.adapters.protocol import Inline, Mail, Templated
from mailpipe.adapters.webhook import COMPRESSED, WebhookAdapter, target
from mailpipe.ses.answer import Answer, Kind
from mailpipe.ses.punctual import SlotMissed
from mailpipe.template import Template, Variable
from tests.support import wait_for

SECRET = "a throw-away secret of 32 letters"
AGAIN, FAILED, RETRY, SENT, UNKNOWN = Kind.AGAIN, Kind.FAILED, Kind.RETRY, Kind.SENT, Kind.UNKNOWN
TEMPLATE = Template(
    "hello",
    "Hello {{name}}",
    '<p>{{name}}</p><a href="{{unsubscribe_url}}">x</a>',
    "{{name}} {{unsubscribe_url}}",
    {"name": Variable("name", "Ana")},
)
URL = "https://unsubscribe.example.com/u/x"


@dataclass
class Post:
    headers: dict[str, str]
    body: bytes

    @property
    def mails(self) -> list[dict[str, Any]]:
        plain = gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body
        mails = json.loads(plain)["mails"]
        assert isinstance(mails, list)
        return mails


Behaviour = Callable[[BaseHTTPRequestHandler, Post], None]


@dataclass
class Receiver:
    """What came; `behave` answers."""

    behave: Behaviour
    posts: list[Post] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)
    closed: int = 0


def answer_with(status: int, results: Callable[[Post], object] | bytes, **headers: str) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler, post: Post) -> None:
        content = results if isinstance(results, bytes) else json.dumps({"results": results(post)}).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return behave


def take_all(post: Post) -> object:
    return [{"status": "sent", "id": f"theirs-{one['to']['address']}"} for one in post.mails]


taking = answer_with(200, take_all)


def taking_and_closing(handler: BaseHTTPRequestHandler, post: Post) -> None:
    """Take the mails and close the connection without having said so."""
    taking(handler, post)
    handler.close_connection = True


def hang_up(handler: BaseHTTPRequestHandler, post: Post) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Receiver, WebhookAdapter]]]:
    with ExitStack() as stack:

        def start(
            behave: Behaviour = taking,
            *,
            tls: bool = False,
            trust: bool = True,
            read_timeout: float = 5.0,
        ) -> tuple[Receiver, WebhookAdapter]:
            receiver = Receiver(behave)

            class Handler(BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def do_POST(self) -> None:
                    receiver.connections.add(id(self.connection))
                    body = self.rfile.read(int(self.headers["Content-Length"]))
                    receiver.posts.append(Post(dict(self.headers), body))
                    receiver.behave(self, receiver.posts[-1])

                def log_message(self, *_: object) -> None:
                    """Quiet."""

            class Server(ThreadingHTTPServer):
                daemon_threads = True

                def shutdown_request(self, request: Any) -> None:
                    super().shutdown_request(request)
                    receiver.closed += 1

                def handle_error(self, *_: object) -> None:
                    """A client that goes away is what some tests are about."""

            server = Server(("127.0.0.1", 0), Handler)
            context = ssl.create_default_context()
            if tls:
                authority = trustme.CA()
                if trust:
                    authority.configure_trust(context)
                inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                authority.issue_cert("127.0.0.1").configure_cert(inside)
                server.socket = inside.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}/hook?x=1"
            where = target(url, secret=SECRET, connect_timeout=5, read_timeout=read_timeout)
            return receiver, stack.enter_context(closing(WebhookAdapter(where, context=context)))

        yield start


Serve = Callable[..., tuple[Receiver, WebhookAdapter]]


def mails(*names: str) -> list[Mail]:
    return [
        Mail(
            sender="Shop, Inc. <news@mail.example.com>",
            to=f"{name}@mail.example.net",
            content=Templated(TEMPLATE, TEMPLATE.data({"name": f"<{name}>"}, unsubscribe_url=URL)),
            configuration_set="",
            headers=(("List-Unsubscribe", f"<{URL}>"),),
            tags={"campaign": "spring", "seq": str(number)},
        )
        for number, name in enumerate(names, 1)
    ]


def kinds(answer: Answer) -> list[Kind]:
    return [result.kind for result in answer.results]


def test_a_post_holds_what_each_person_shall_read(serve: Serve) -> None:
    receiver, adapter = serve()
    answer = adapter.send(mails("ana", "ben"))
    assert [(result.kind, result.message_id) for result in answer.results] == [
        (SENT, "theirs-ana@mail.example.net"),
        (SENT, "theirs-ben@mail.example.net"),
    ]
    [post] = receiver.posts
    assert signature.verify(SECRET, post.headers, post.body, now=time.time())
    ana = post.mails[0]
    assert ana.pop("id") != post.mails[1]["id"]
    assert ana == {
        "from": {"name": "Shop, Inc.", "address": "news@mail.example.com"},
        "to": {"name": "", "address": "ana@mail.example.net"},
        "reply_to": None,
        "subject": "Hello <ana>",
        "html": f'<p>&lt;ana&gt;</p><a href="{URL}">x</a>',
        "text": f"<ana> {URL}",
        "headers": [["List-Unsubscribe", f"<{URL}>"]],
        "tags": {"campaign": "spring", "seq": "1"},
    }


def test_large_bodies_are_compressed_and_small_ones_are_not(serve: Serve) -> None:
    receiver, adapter = serve()
    [small] = mails("ana")
    large = replace(small, content=Inline("Hello", "<p>" + "long " * COMPRESSED))
    for mail in (small, large):
        assert kinds(adapter.send([mail])) == [SENT]
    first, second = receiver.posts
    assert "Content-Encoding" not in first.headers
    assert second.headers["Content-Encoding"] == "gzip"
    assert len(second.body) < COMPRESSED
    assert second.mails[0]["html"].count("long") == COMPRESSED
    assert signature.verify(SECRET, second.headers, second.body, now=time.time())


@pytest.mark.parametrize("tls", [False, True])
def test_posts_of_one_thread_share_a_connection(serve: Serve, tls: bool) -> None:
    receiver, adapter = serve(tls=tls)
    for name in ("ana", "ben", "cem"):
        assert kinds(adapter.send(mails(name))) == [SENT]
    assert len(receiver.connections) == 1


def test_a_connection_that_the_receiver_has_closed_meanwhile_is_made_anew(serve: Serve) -> None:
    receiver, adapter = serve(answer_with(200, take_all, Connection="close"))
    for name in ("ana", "ben"):
        assert kinds(adapter.send(mails(name))) == [SENT]
    receiver.behave = taking_and_closing
    for name in ("cem", "dan"):
        assert kinds(adapter.send(mails(name))) == [SENT]
        wait_for(lambda: receiver.closed == len(receiver.posts), "the server to close")
    assert [post.mails[0]["to"]["address"].partition("@")[0] for post in receiver.posts] == ["ana", "ben", "cem", "dan"]


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    other, _ = serve()
    receiver, adapter = serve(answer_with(307, b"", Location="http://127.0.0.1:1/elsewhere"))
    answer = adapter.send(mails("ana", "ben"))
    assert kinds(answer) == [UNKNOWN, UNKNOWN]
    assert answer.halt is not None
    assert "redirect" in answer.halt
    assert (len(receiver.posts), other.posts) == (1, [])


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        (hang_up, UNKNOWN),
        (answer_with(200, b"nonsense"), UNKNOWN),
        (answer_with(200, lambda post: take_all(post)[:1]), UNKNOWN),  # type: ignore[index]
        (answer_with(500, b"{}"), UNKNOWN),
        (answer_with(429, b"{}"), AGAIN),
        (answer_with(403, b"{}"), AGAIN),
        (answer_with(200, b"{" + b" " * (2 << 20) + b"}"), UNKNOWN),
    ],
)
def test_what_is_not_a_clear_answer_leaves_doubt_and_is_not_asked_again(
    serve: Serve, behave: Behaviour, kind: Kind
) -> None:
    receiver, adapter = serve(behave)
    assert kinds(adapter.send(mails("ana", "ben"))) == [kind, kind]
    assert len(receiver.posts) == 1


def test_a_silent_receiver_is_given_up(serve: Serve) -> None:
    gate = threading.Event()

    def silent(handler: BaseHTTPRequestHandler, post: Post) -> None:
        gate.wait(5)

    _, adapter = serve(silent, read_timeout=0.2)
    answer = adapter.send(mails("ana"))
    assert [(result.kind, result.reason) for result in answer.results] == [(UNKNOWN, "read_timeout")]
    gate.set()


def test_a_certificate_that_nobody_vouches_for_stops_the_post(serve: Serve) -> None:
    receiver, adapter = serve(tls=True, trust=False)
    answer = adapter.send(mails("ana"))
    assert (kinds(answer), receiver.posts) == ([AGAIN], [])
    assert answer.halt is not None
    assert "certificate" in answer.halt


def test_a_receiver_that_is_away_got_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    adapter = WebhookAdapter(target(url, secret=SECRET, connect_timeout=1, read_timeout=1))
    answer = adapter.send(mails("ana", "ben"))
    assert [(result.kind, result.reason) for result in answer.results] == [(AGAIN, "no_connection")] * 2
    assert answer.halt is None


def test_a_mail_that_cannot_be_made_fails_alone(serve: Serve) -> None:
    receiver, adapter = serve()
    ana, ben, cem, dan = mails("ana", "ben", "cem", "dan")
    answer = adapter.send(
        [
            ana,
            replace(ben, content=Inline("a\r\nb", "x")),
            replace(cem, headers=(("Bcc", "x@mail.example.com"),)),
            replace(dan, to="nobody"),
        ]
    )
    assert kinds(answer) == [SENT, FAILED, FAILED, FAILED]
    assert [one["to"]["address"] for one in receiver.posts[0].mails] == ["ana@mail.example.net"]
    assert kinds(adapter.send([replace(dan, to="nobody")])) == [FAILED]
    assert len(receiver.posts) == 1


def test_a_missed_slot_posts_nothing(serve: Serve) -> None:
    receiver, adapter = serve()
    with pytest.raises(SlotMissed):
        adapter.send(mails("ana"), slot_at=time.monotonic() - 1, lateness=0.02)
    assert receiver.posts == []
    at = time.monotonic() + 0.1
    assert kinds(adapter.send(mails("ana"), slot_at=at, lateness=0.5)) == [SENT]
    assert time.monotonic() >= at
