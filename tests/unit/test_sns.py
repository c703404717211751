"""What proves that a message is from one of our topics, and everything that tries to look like it."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from mailpipe.errors import SettingsError
from mailpipe.feedback import sns
from mailpipe.feedback.sns import Refused, Verifier
from mailpipe.simulator.topic import Signer

TOPIC = "arn:aws:sns:eu-west-1:111122223333:ses-events"
CHINA = "arn:aws-cn:sns:cn-north-1:111122223333:ses-events"


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(TOPIC)


@pytest.fixture
def verifier(signer: Signer) -> Verifier:
    return Verifier(frozenset({TOPIC}), fetch=lambda _: signer.certificate)


def verify(verifier: Verifier, message: Any, **options: Any) -> sns.Envelope:
    return verifier.verify(json.dumps(message).encode(), **options)


def noting(fetched: list[str]) -> Callable[[str], bytes]:
    def fetch(url: str) -> bytes:
        fetched.append(url)
        return b""

    return fetch


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("text", ["{}", "ends with a newline\n", "ünïcödé \u2028 and \\n and \t", ""])
def test_what_our_topic_signed_is_believed(signer: Signer, verifier: Verifier, version: str, text: str) -> None:
    signer.version = version
    for message in (
        signer.notification(text),
        signer.notification(text, Subject="Amazon SES Email Event Notification"),
    ):
        found = verify(verifier, message)
        assert (found.type, found.message, found.topic, found.region) == ("Notification", text, TOPIC, "eu-west-1")
    for kind in ("SubscriptionConfirmation", "UnsubscribeConfirmation"):
        message = signer.confirmation(kind)
        found = verify(verifier, message)
        assert (found.type, found.token) == (kind, message["Token"])
    signer.version = "1"


@pytest.mark.parametrize(
    "field", ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type", "SignatureVersion"]
)
def test_a_changed_field_is_noticed(signer: Signer, field: str) -> None:
    other = "arn:aws:sns:eu-west-1:111122223333:other"
    verifier = Verifier(frozenset({TOPIC, other}), fetch=lambda _: signer.certificate)
    message = signer.notification("{}", Subject="s")
    changed = {"TopicArn": other, "Type": "SubscriptionConfirmation", "SignatureVersion": "2",
               "Timestamp": (datetime.now(UTC) - timedelta(seconds=5)).isoformat()}  # fmt: skip
    verify(verifier, message)
    with pytest.raises(Refused):
        verify(
            verifier, {**message, "Token": "t", "SubscribeURL": "u", field: changed.get(field, message[field] + "x")}
        )


def test_a_field_that_was_not_signed_cannot_be_smuggled_in(signer: Signer, verifier: Verifier) -> None:
    with pytest.raises(Refused, match="signature"):
        verify(verifier, {**signer.notification("{}"), "Subject": "added"})


def test_the_right_signature_of_another_topic_is_refused_before_anything_is_fetched(signer: Signer) -> None:
    fetched: list[str] = []
    verifier = Verifier(frozenset({"arn:aws:sns:eu-west-1:999999999999:ses-events"}), fetch=noting(fetched))
    with pytest.raises(Refused, match="MAILPIPE_SNS_TOPICS"):
        verify(verifier, signer.notification("{}"))
    assert fetched == []


@pytest.mark.parametrize(
    "url",
    [
        "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-{h}.pem",
        "https://evil.example/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com@evil.example/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com:443/SimpleNotificationService-{h}.pem",
        "https://evil.example\\@sns.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com\\@evil.example/SimpleNotificationService-{h}.pem",
        "https://sns.s3-us-west-2.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.execute-api.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://s3.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem\n",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem?x",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem#x",
        "https://sns.eu-west-1.amazonaws.com/x/../SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com//SimpleNotificationService-{h}.pem",
        "https://SNS.eu-west-1.amazonaws.com/SimpleNotificationService-{h}.pem",
        "https://sns.eu-west-1.amazonaws.com.cn/SimpleNotificationService-{h}.pem",
        "http://169.254.169.254/latest/meta-data",
        "",
    ],
)
def test_a_certificate_from_anywhere_else_is_not_even_fetched(signer: Signer, url: str) -> None:
    fetched: list[str] = []
    verifier = Verifier(frozenset({TOPIC}), fetch=noting(fetched))
    with pytest.raises(Refused, match="from another place"):
        verify(verifier, {**signer.notification("{}"), "SigningCertURL": url.replace("{h}", "0" * 32)})
    assert fetched == []


def test_in_china_the_host_is_that_of_china() -> None:
    signer = Signer(CHINA)
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return signer.certificate

    verifier = Verifier(frozenset({CHINA}), fetch=fetch)
    with pytest.raises(Refused, match="from another place"):
        verify(verifier, signer.notification("{}"))
    url = f"https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-{'0' * 32}.pem"
    assert verify(verifier, {**signer.notification("{}"), "SigningCertURL": url}).region == "cn-north-1"
    assert fetched == [url]


def test_somebody_else_s_certificate_proves_nothing(signer: Signer, verifier: Verifier) -> None:
    with pytest.raises(Refused, match="signature"):
        verify(verifier, Signer(TOPIC).notification("{}"))


def test_a_certificate_is_fetched_once_and_a_failure_is_not_repeated_at_once(signer: Signer) -> None:
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        if len(fetched) == 1:
            raise TimeoutError
        return signer.certificate

    verifier = Verifier(frozenset({TOPIC}), fetch=fetch)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            verify(verifier, signer.notification("{}"))
        assert refused.value.again, "SNS shall try again"
    assert len(fetched) == 1
    fresh = Verifier(frozenset({TOPIC}), fetch=fetch)
    for _ in range(3):
        verify(fresh, signer.notification("{}"))
    assert len(fetched) == 2


def test_a_certificate_that_nobody_can_fetch_keeps_no_message_of_a_known_one_waiting(signer: Signer) -> None:
    """Anybody may post a message that names one."""
    asked, done = threading.Event(), threading.Event()

    def fetch(url: str) -> bytes:
        if url.endswith(f"{'9' * 32}.pem"):
            asked.set()
            done.wait(10)
            raise TimeoutError
        return signer.certificate

    verifier = Verifier(frozenset({TOPIC}), fetch=fetch)
    verify(verifier, signer.notification("{}"))
    url = f"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{'9' * 32}.pem"
    with ThreadPoolExecutor(2) as pool:
        forged = pool.submit(verify, verifier, {**signer.notification("{}"), "SigningCertURL": url})
        try:
            assert asked.wait(10)
            pool.submit(verify, verifier, signer.notification("{}")).result(timeout=5)
            assert not forged.done()
        finally:
            done.set()
        with pytest.raises(Refused):
            forged.result()


@pytest.mark.parametrize("pem", [b"", b"<html>", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_proves_nothing(signer: Signer, pem: bytes) -> None:
    with pytest.raises(Refused, match="no certificate"):
        verify(Verifier(frozenset({TOPIC}), fetch=lambda _: pem), signer.notification("{}"))


def test_a_certificate_of_another_name_proves_nothing(signer: Signer) -> None:
    pem = trustme.CA().cert_pem.bytes()
    with pytest.raises(Refused, match="not SNS's"):
        verify(Verifier(frozenset({TOPIC}), fetch=lambda _: pem), signer.notification("{}"))


@pytest.mark.parametrize(("hours", "good"), [(0, True), (1, True), (2.01, False), (-1, False), (24 * 400, False)])
def test_a_replay_of_another_time_is_refused(signer: Signer, hours: float, good: bool) -> None:
    verifier = Verifier(
        frozenset({TOPIC}), fetch=lambda _: signer.certificate, now=lambda: datetime.now(UTC) + timedelta(hours=hours)
    )
    if good:
        verify(verifier, signer.notification("{}"))
    else:
        with pytest.raises(Refused, match="another time"):
            verify(verifier, signer.notification("{}"))


def test_version_2_can_be_demanded(signer: Signer) -> None:
    strict = Verifier(frozenset({TOPIC}), versions=sns.versions("2"), fetch=lambda _: signer.certificate)
    with pytest.raises(Refused, match="version"):
        verify(strict, signer.notification("{}"))


def test_raw_delivery_is_refused_and_says_what_to_do(signer: Signer, verifier: Verifier) -> None:
    with pytest.raises(Refused, match="raw message delivery"):
        verify(verifier, signer.notification("{}"), raw=True)
    with pytest.raises(Refused, match="raw message delivery"):
        verify(verifier, {"eventType": "Send", "mail": {}})


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"{}", b"[" * 100_000, b'{"Type": 7}', b'{"Type": "Notification"}', b"\xff\xfe", b" " * 300_000],
)
def test_what_is_no_message_of_sns_is_refused(verifier: Verifier, body: bytes) -> None:
    with pytest.raises(Refused):
        verifier.verify(body)


@pytest.mark.parametrize("signature", ["", "x", "ä", "AAAA", "A" * 344])
def test_what_is_no_signature_is_refused(signer: Signer, verifier: Verifier, signature: str) -> None:
    with pytest.raises(Refused):
        verify(verifier, {**signer.notification("{}"), "Signature": signature})


def test_no_refusal_quotes_the_message(signer: Signer, verifier: Verifier) -> None:
    message = {**signer.notification("ana@shop.example.com"), "MessageId": "secret-id"}
    with pytest.raises(Refused) as refused:
        verify(verifier, message)
    assert "ana" not in str(refused.value) and "secret" not in str(refused.value)


def test_settings_that_name_no_topic_or_no_version_are_refused() -> None:
    assert sns.topics(f" {TOPIC}, {CHINA} ") == {TOPIC, CHINA}
    for text in ("ses-events", "arn:aws:sqs:eu-west-1:111122223333:q", f"{TOPIC};{CHINA}"):
        with pytest.raises(SettingsError, match="MAILPIPE_SNS_TOPICS"):
            sns.topics(text)
    with pytest.raises(SettingsError, match="MAILPIPE_SNS_SIGNATURES"):
        sns.versions("3")


@pytest.fixture
def https(tmp_path: Path) -> Iterator[Callable[[int, str], tuple[str, ssl.SSLContext]]]:
    """A real HTTPS server that answers with a status and a Location."""
    authority = trustme.CA()
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(status: int, location: str) -> tuple[str, ssl.SSLContext]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", "3")
                self.end_headers()
                self.wfile.write(b"pem")

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        return f"https://localhost:{server.server_port}/x.pem", trusting

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_certificate_is_downloaded_over_verified_tls_and_no_redirect_is_followed(
    https: Callable[[int, str], tuple[str, ssl.SSLContext]],
) -> None:
    url, trusting = https(200, "")
    assert sns.download(url, context=trusting) == b"pem"
    with pytest.raises(ssl.SSLCertVerificationError):
        sns.download(url)
    elsewhere, trusting = https(302, url)
    with pytest.raises(OSError, match="302"):
        sns.download(elsewhere, context=trusting)
