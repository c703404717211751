"""The client on a real network: how often a request goes out, and what each way of not getting an answer is
called.
"""

import copy
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mailpipe.errors import ServiceError, TemplateError
from mailpipe.ses.answer import Answer, Kind
from mailpipe.ses.client import Account, Ses, connect
from mailpipe.ses.punctual import SlotMissed
from mailpipe.settings import Settings
from mailpipe.template import Content

ID = "010201234567abcd-00000000-1111-2222-3333-444444444444-000000"
ENTRY = {
    "Destination": {"ToAddresses": ["anna@example.com"]},
    "ReplacementTags": [{"Name": "seq", "Value": "1"}],
    "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": "{}"}},
    "ReplacementHeaders": [],
}
REQUEST: dict[str, Any] = {
    "FromEmailAddress": "news@example.com",
    "DefaultContent": {"Template": {"TemplateName": "t", "TemplateData": "{}"}},
    "BulkEmailEntries": [ENTRY, ENTRY],
    "ConfigurationSetName": "c",
}
ACCEPTED = {"BulkEmailEntryResults": [{"Status": "SUCCESS", "MessageId": ID}] * 2}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Behaviour = Callable[[socket.socket, Request], None]


class Server:
    """A TCP server that reads whole HTTP requests, keeps them, and lets `behave` do what it likes with the
    socket.
    """

    def __init__(self, behave: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self.behave = behave
        self.requests: list[Request] = []
        self.closed = threading.Semaphore(0)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            while (request := read_request(connection)) is not None:
                self.requests.append(request)
                self.behave(connection, request)
        connection.close()
        self.closed.release()

    def close(self) -> None:
        self._listener.close()
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def read_request(connection: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    method, path, _ = first.split(" ")
    return Request(method, path, headers, body)


def answering(
    status: int, body: object = b"", kind: str = "application/json", *, error: str | None = None
) -> Behaviour:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    typed = f"x-amzn-ErrorType: {error}\r\n" if error else ""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n{typed}\r\n"

    def behave(connection: socket.socket, request: Request) -> None:
        connection.sendall(head.encode() + raw)

    return behave


def reset(connection: socket.socket, request: Request) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def finish(connection: socket.socket, request: Request) -> None:
    connection.close()


def silent(connection: socket.socket, request: Request) -> None:
    connection.recv(1)


def head_then_reset(connection: socket.socket, request: Request) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    reset(connection, request)


def head_then_silent(connection: socket.socket, request: Request) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    silent(connection, request)


def cut_off(connection: socket.socket, request: Request) -> None:
    body = json.dumps(ACCEPTED).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[: len(body) // 2])
    connection.close()


def garbage(connection: socket.socket, request: Request) -> None:
    connection.sendall(b"\x00\x01\x02 no HTTP at all\r\n\r\n")
    connection.close()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no configuration, no proxy of the machine that runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(behave: Behaviour, **options: Any) -> Server:
        servers.append(Server(behave, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def client(endpoint: str | None, connections: int = 2) -> Ses:
    settings = Settings(home=Path("/"), var=Path("/"), connect_timeout=0.3, read_timeout=0.3)
    return connect(settings, endpoint=endpoint, connections=connections)


def kinds(answer: Answer) -> list[Kind]:
    return [result.kind for result in answer.results]


def test_an_accepted_call_brings_the_message_ids_and_takes_time(serve: Callable[..., Server]) -> None:
    server = serve(answering(200, ACCEPTED))
    answer = client(server.url).send(REQUEST)
    assert [(result.kind, result.message_id) for result in answer.results] == [(Kind.SENT, ID)] * 2
    assert (answer.halt, answer.blocked, answer.split) == (None, None, False)
    assert 0 < answer.seconds < 5
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v2/email/outbound-bulk-emails")
    assert json.loads(request.body) == REQUEST


FAULTS: list[tuple[Behaviour, Kind, str]] = [
    (silent, Kind.UNKNOWN, "read_timeout"),
    (reset, Kind.UNKNOWN, "connection_lost"),
    (finish, Kind.UNKNOWN, "connection_lost"),
    (garbage, Kind.UNKNOWN, "connection_lost"),
    (head_then_reset, Kind.UNKNOWN, "connection_lost"),
    (head_then_silent, Kind.UNKNOWN, "read_timeout"),
    (cut_off, Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b""), Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b"{"), Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b"[]"), Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b"null"), Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b"<html>hello</html>", "text/html"), Kind.UNKNOWN, "unreadable_answer"),
    (answering(200, b"\xff\xfe"), Kind.UNKNOWN, "unreadable_answer"),
    (
        answering(200, {"BulkEmailEntryResults": ACCEPTED["BulkEmailEntryResults"][:1]}),
        Kind.UNKNOWN,
        "unreadable_answer",
    ),
    (answering(204, b""), Kind.UNKNOWN, "unreadable_answer"),
    (answering(408, {}), Kind.UNKNOWN, "request_timeout"),
    (answering(500, {}), Kind.UNKNOWN, "server_error"),
    (answering(502, b"<html>", "text/html"), Kind.UNKNOWN, "server_error"),
    (answering(503, {"message": "x"}, error="ServiceUnavailableException"), Kind.UNKNOWN, "server_error"),
    (answering(504, b""), Kind.UNKNOWN, "server_error"),
    (answering(429, {"message": "x"}, error="TooManyRequestsException"), Kind.AGAIN, "account_throttled"),
    (answering(429, b"slow down", "text/plain"), Kind.AGAIN, "account_throttled"),
]


@pytest.mark.parametrize(("fault", "kind", "reason"), FAULTS)
def test_a_fault_is_one_request_on_the_wire_and_is_called_by_its_name(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, fault: Behaviour, kind: Kind, reason: str
) -> None:
    """Whatever the environment asks for: a second request could be a second mail."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    monkeypatch.setenv("AWS_RETRY_MODE", "legacy")
    server = serve(fault)
    answer = client(server.url).send(REQUEST)
    assert [(result.kind, result.reason) for result in answer.results] == [(kind, reason)] * 2
    assert answer.blocked == ("calls" if reason == "account_throttled" else None)
    [request] = server.requests
    assert request.headers["amz-sdk-request"] == "attempt=1; max=1"


@pytest.mark.parametrize(
    ("http", "error", "message", "expected"),
    [
        (400, "LimitExceededException", "Daily message quota exceeded.", (False, "quota", False)),
        (400, "LimitExceededException", "Too many of something", (True, None, False)),
        (400, "AccountSuspendedException", "x", (True, None, False)),
        (400, "SendingPausedException", "x", (True, None, False)),
        (400, "MailFromDomainNotVerifiedException", "x", (True, None, False)),
        (400, "MessageRejected", "Illegal content", (False, None, True)),
        (400, "MessageRejected", "Email address is not verified.", (True, None, False)),
        (404, "NotFoundException", "Template t does not exist", (True, None, False)),
        (400, "BadRequestException", "x", (False, None, True)),
        (400, "BadRequestException:http://internal.example.com/", "x", (False, None, True)),
        (403, "InvalidSignatureException", "x", (True, None, False)),
        (403, "ExpiredTokenException", "x", (True, None, False)),
    ],
)
def test_a_typed_refusal_keeps_everybody_pending(
    serve: Callable[..., Server],
    http: int,
    error: str,
    message: str,
    expected: tuple[bool, str | None, bool],
) -> None:
    answer = client(serve(answering(http, {"message": message}, error=error)).url).send(REQUEST)
    assert kinds(answer) == [Kind.AGAIN] * 2
    assert (answer.halt is not None, answer.blocked, answer.split) == expected


def test_a_redirect_is_not_followed_and_stops_the_campaign(serve: Callable[..., Server]) -> None:
    server = serve(answering(307, b""))
    answer = client(server.url).send(REQUEST)
    assert kinds(answer) == [Kind.UNKNOWN] * 2
    assert answer.halt is not None
    assert "redirect" in answer.halt
    assert len(server.requests) == 1


def test_a_refused_connection_carried_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = client(f"http://127.0.0.1:{port}").send(REQUEST)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "no_connection")] * 2
    assert answer.halt is None


def test_a_connection_that_is_not_made_in_time_carried_nothing() -> None:
    """A full backlog on Linux leaves the next connection without an answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        answer = client(f"http://127.0.0.1:{port}").send(REQUEST)
        for filler in fillers:
            filler.close()
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "no_connection")] * 2


def test_without_credentials_nothing_leaves_and_the_campaign_stops(serve: Callable[..., Server]) -> None:
    answer = client("http://ses.example.com").send(REQUEST)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "not_sent")] * 2
    assert answer.halt is not None
    assert "NoCredentialsError" in answer.halt


def test_a_request_that_cannot_be_written_down_never_leaves(serve: Callable[..., Server]) -> None:
    server = serve(answering(200, ACCEPTED))
    ses = client(server.url)
    assert kinds(ses.send(REQUEST)) == [Kind.SENT] * 2
    answer = ses.send({**REQUEST, "FromEmailAddress": object()})
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "not_sent")] * 2
    assert answer.halt is not None
    assert len(server.requests) == 1


def test_a_connection_that_was_closed_while_idle_costs_nobody(serve: Callable[..., Server]) -> None:
    def answer_and_close(connection: socket.socket, request: Request) -> None:
        answering(200, ACCEPTED)(connection, request)
        connection.close()

    server = serve(answer_and_close)
    ses = client(server.url, connections=1)
    for number in range(1, 4):
        assert kinds(ses.send(REQUEST)) == [Kind.SENT] * 2
        assert server.closed.acquire(timeout=5)
        assert len(server.requests) == number


def test_threads_share_a_client_and_keep_their_own_answers(serve: Callable[..., Server]) -> None:
    def by_sender(connection: socket.socket, request: Request) -> None:
        sender = json.loads(request.body)["FromEmailAddress"]
        (answering(200, ACCEPTED) if sender == "good" else reset)(connection, request)

    server = serve(by_sender)
    ses = client(server.url, connections=8)
    expected = {"good": Kind.SENT, "bad": Kind.UNKNOWN, "unmade": Kind.AGAIN}
    wrong: list[object] = []

    def run(sender: str) -> None:
        for _ in range(10):
            answer = ses.send({**REQUEST, "FromEmailAddress": object() if sender == "unmade" else sender})
            if kinds(answer) != [expected[sender]] * 2:
                wrong.append((sender, answer))

    threads = [threading.Thread(target=run, args=(sender,)) for sender in [*expected] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not wrong
    assert len(server.requests) == 40
    ses.close()
    assert kinds(ses.send({**REQUEST, "FromEmailAddress": "good"})) == [Kind.SENT] * 2


def test_a_stand_in_needs_no_credentials_and_no_proxy(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server = serve(answering(200, ACCEPTED))
    assert kinds(client(server.url).send(REQUEST)) == [Kind.SENT] * 2
    assert "Credential=stand-in/" in server.requests[0].headers["authorization"]


def test_credentials_that_are_configured_are_used_at_a_stand_in_too(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ownkey")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    server = serve(answering(200, ACCEPTED))
    assert kinds(client(server.url).send(REQUEST)) == [Kind.SENT] * 2
    assert "Credential=ownkey/" in server.requests[0].headers["authorization"]


def test_a_request_waits_for_its_slot_and_the_wait_is_no_answering_time(serve: Callable[..., Server]) -> None:
    arrived: list[float] = []

    def note(connection: socket.socket, request: Request) -> None:
        arrived.append(time.monotonic())
        answering(200, ACCEPTED)(connection, request)

    ses = client(serve(note).url)
    slot = time.monotonic() + 0.6
    answer = ses.send(REQUEST, at=slot, lateness=5)
    assert kinds(answer) == [Kind.SENT] * 2
    assert arrived[0] >= slot
    assert answer.seconds < 0.5


def test_a_request_may_be_written_over_once_it_is_built(serve: Callable[..., Server]) -> None:
    """It is told once, also when the slot is missed, and then whoever was written before is what leaves."""
    server = serve(answering(200, ACCEPTED))
    ses = client(server.url)
    request = copy.deepcopy(REQUEST)
    built = 0

    def write_over() -> None:
        nonlocal built
        built += 1
        for entry in request["BulkEmailEntries"]:
            entry["Destination"]["ToAddresses"][0] = f"other{built}@example.com"
        request["BulkEmailEntries"].clear()

    assert kinds(ses.send(request, at=time.monotonic() + 0.1, lateness=5, built=write_over)) == [Kind.SENT] * 2
    assert built == 1 and json.loads(server.requests[0].body) == REQUEST
    assert kinds(ses.send(REQUEST)) == [Kind.SENT] * 2
    assert built == 1, "the next call is not its business"
    with pytest.raises(SlotMissed):
        ses.send(copy.deepcopy(REQUEST), at=time.monotonic() - 1, lateness=0.02, built=write_over)
    assert built == 2


def test_what_is_to_be_done_once_a_request_is_built_is_done_for_a_single_mail_too_and_never_for_another(
    serve: Callable[..., Server],
) -> None:
    ses, told = client(serve(answering(200, {"MessageId": ID})).url), list[str]()
    mail = {"FromEmailAddress": "news@example.com", "Content": {"Simple": {"Subject": {"Data": "x"}}}}
    assert kinds(ses.send_single(mail, built=lambda: told.append("single"))) == [Kind.SENT]
    assert told == ["single"]

    def refuse(**_: object) -> None:
        raise ZeroDivisionError

    ses._sender.meta.events.register_first("request-created.sesv2.SendEmail", refuse)
    ses.send_single(mail, built=lambda: told.append("never built"))
    ses._sender.meta.events.unregister("request-created.sesv2.SendEmail", refuse)
    assert kinds(ses.send_single(mail)) == [Kind.SENT]
    assert told == ["single"]


def test_a_slot_that_is_over_is_not_used(serve: Callable[..., Server]) -> None:
    server = serve(answering(200, ACCEPTED))
    ses = client(server.url)
    with pytest.raises(SlotMissed):
        ses.send(REQUEST, at=time.monotonic() - 1, lateness=0.02)
    assert server.requests == []
    assert kinds(ses.send(REQUEST)) == [Kind.SENT] * 2
    assert len(server.requests) == 1


def test_a_slot_that_is_over_just_before_the_first_byte_is_not_used_either(serve: Callable[..., Server]) -> None:
    server = serve(answering(200, ACCEPTED))
    ses = client(server.url)
    latest = [time.monotonic() + 0.2]

    def be_busy(**_: object) -> None:
        while time.monotonic() <= latest[0] + 0.3:
            pass

    ses._sender.meta.events.register_last("before-send.sesv2.SendBulkEmail", be_busy)
    # A new connection takes as long as it takes.
    assert kinds(ses.send(REQUEST, at=latest[0], lateness=0.2)) == [Kind.SENT] * 2
    latest[0] = time.monotonic() + 0.5
    with pytest.raises(SlotMissed):
        ses.send(REQUEST, at=latest[0], lateness=0.2)
    assert len(server.requests) == 1
    assert kinds(ses.send(REQUEST)) == [Kind.SENT] * 2
    assert len(server.requests) == 2


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key, one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            str(folder / "key"),
            "-out",
            str(folder / "cert"),
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    path = folder / "both.pem"
    path.write_text((folder / "cert").read_text() + (folder / "key").read_text())
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_is_not_trusted_stops_before_the_request(
    serve: Callable[..., Server], tls: ssl.SSLContext
) -> None:
    server = serve(answering(200, ACCEPTED), tls=tls)
    answer = client(server.url).send(REQUEST)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "no_connection")] * 2
    assert answer.halt is not None
    assert "certificate" in answer.halt
    assert server.requests == []


def test_broken_tls_after_the_request_is_unknown(
    serve: Callable[..., Server], tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same class of exception as an untrusted certificate, and SES has the request."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))

    def raw_garbage(connection: socket.socket, request: Request) -> None:
        os.write(connection.fileno(), b"this is not TLS at all, is it?")
        connection.close()

    server = serve(raw_garbage, tls=tls)
    answer = client(server.url).send(REQUEST)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.UNKNOWN, "connection_lost")] * 2
    assert answer.results[0].detail == "SSLError"
    assert len(server.requests) == 1


def test_the_account_is_read(serve: Callable[..., Server]) -> None:
    quota = {"Max24HourSend": 50_000.0, "MaxSendRate": 14.0, "SentLast24Hours": 7.0}
    server = serve(answering(200, {"SendQuota": quota, "SendingEnabled": True, "ProductionAccessEnabled": True}))
    ses = client(server.url)
    assert ses.account() == Account(14.0, 50_000.0, 7.0, sending_enabled=True, production=True)
    server.behave = answering(200, {"SendQuota": quota})
    assert ses.account() == Account(14.0, 50_000.0, 7.0, sending_enabled=False, production=False)
    assert {(request.method, request.path) for request in server.requests} == {("GET", "/v2/email/account")}


@pytest.mark.parametrize("body", [b"", {}, {"SendQuota": {"MaxSendRate": 1}}, b"<html>"])
def test_an_account_that_cannot_be_read_is_an_error(serve: Callable[..., Server], body: object) -> None:
    with pytest.raises(ServiceError, match="SES GetAccount: the answer has no send quota"):
        client(serve(answering(200, body)).url).account()


def test_an_error_of_ses_keeps_its_code_and_loses_its_addresses(serve: Callable[..., Server]) -> None:
    refusal = answering(403, {"message": "User boss@example.com may not"}, error="AccessDeniedException")
    with pytest.raises(ServiceError, match=r"^SES GetAccount: AccessDeniedException: User <address> may not$"):
        client(serve(refusal).url).account()
    with pytest.raises(ServiceError, match=r"SES GetAccount: .*timeout"):
        client(serve(silent).url).account()


CONTENT = Content(subject="Hello {{name}}", html="<p>{{name_html}}</p>\n", text="{{name}}\n")
STORED = {"Subject": "Hello {{name}}", "Html": "<p>{{name_html}}</p>\r\n", "Text": "{{name}}"}


def publishing(created: Behaviour, stored: object) -> Behaviour:
    def behave(connection: socket.socket, request: Request) -> None:
        answer = (
            created if request.method == "POST" else answering(200, {"TemplateName": "t-1", "TemplateContent": stored})
        )
        answer(connection, request)

    return behave


def test_a_template_is_published_once_and_again_with_the_same_content(serve: Callable[..., Server]) -> None:
    server = serve(publishing(answering(200, {}), None))
    client(server.url).publish("t-1", CONTENT)
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v2/email/templates")
    assert json.loads(request.body) == {
        "TemplateName": "t-1",
        "TemplateContent": {"Subject": CONTENT.subject, "Html": CONTENT.html, "Text": CONTENT.text},
    }
    exists = answering(400, {"message": "exists"}, error="AlreadyExistsException")
    server.behave = publishing(exists, STORED)
    client(server.url).publish("t-1", CONTENT)
    assert [(request.method, request.path) for request in server.requests[1:]] == [
        ("POST", "/v2/email/templates"),
        ("GET", "/v2/email/templates/t-1"),
    ]


@pytest.mark.parametrize("stored", [{**STORED, "Html": "<p>other</p>"}, {"Subject": STORED["Subject"]}, None])
def test_another_content_under_the_name_is_refused(serve: Callable[..., Server], stored: object) -> None:
    exists = answering(400, {"message": "exists"}, error="AlreadyExistsException")
    with pytest.raises(TemplateError, match="SES holds another content"):
        client(serve(publishing(exists, stored)).url).publish("t-1", CONTENT)


def test_a_template_that_ses_refuses_is_an_error_of_the_service(serve: Callable[..., Server]) -> None:
    refusal = answering(400, {"message": "bad"}, error="BadRequestException")
    with pytest.raises(ServiceError, match="SES CreateEmailTemplate: BadRequestException: bad"):
        client(serve(refusal).url).publish("t-1", CONTENT)


def test_the_switch_of_a_configuration_set_travels_as_a_boolean(serve: Callable[..., Server]) -> None:
    server = serve(answering(200, {}))
    ses = client(server.url)
    ses.set_sending("marketing", False)
    ses.set_sending("marketing", True)
    assert [json.loads(request.body) for request in server.requests] == [
        {"SendingEnabled": False},
        {"SendingEnabled": True},
    ]
    assert server.requests[0].path == "/v2/email/configuration-sets/marketing/sending"
    not_boolean: Any = "false"
    with pytest.raises(ServiceError):
        ses.set_sending("marketing", not_boolean)
    assert len(server.requests) == 2
