"""Proves that a message came from one of our SNS topics: the order and the strictness of these checks are the promise.

A signature alone proves only that SNS made the message: anybody may let a topic of their own write to our address. So the topic
is asked first, and the certificate is fetched from the host of that topic's region and from nowhere else. Nothing of a message is
fetched or followed but that certificate; a subscription is confirmed by the API, never by the URL that it names.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import re
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from mailpipe.errors import SettingsError

MOST_BYTES = 256 * 1024
"""SNS's own limit of a message; longer bodies are not even parsed."""
OLDEST = timedelta(hours=2)
"""SNS tries for an hour at most. What is older is a replay, or comes from a queue (`poll`)."""
AHEAD = timedelta(minutes=15)

Type = Literal["Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"]

_SIGNED: Mapping[str, Sequence[str]] = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    "UnsubscribeConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
"""What is signed, in this order; a Subject only if there is one (SNS: verifying the signatures of Amazon SNS messages)."""
_topic = re.compile(
    r"arn:(aws|aws-cn|aws-us-gov):sns:([a-z]{2}(?:-[a-z]+)+-\d):(\d{12}):([A-Za-z0-9_-]{1,256})(?:\.fifo)?"
).fullmatch
_certificate_path = re.compile(r"/SimpleNotificationService-[0-9a-f]{32}\.pem").fullmatch
_SUBJECT = "sns.amazonaws.com"
_CERTIFICATES = 16
_CERTIFICATE_BYTES = 64 * 1024
_FORGET_FAILURE = 30.0
_TIMEOUT = 5.0


class Refused(Exception):
    """The message is not believed. The text says why, without quoting it. `again`: it may be right, and is welcome later."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


@dataclass(frozen=True)
class Envelope:
    """A message of one of our topics. `token` confirms a subscription; it is not for logs."""

    type: Type
    message_id: str
    topic: str
    region: str
    message: str
    token: str | None = None


def topics(text: str) -> frozenset[str]:
    """`ARN,ARN` as a setting holds it.

    Raises:
        SettingsError: one of them is no ARN of a topic.
    """
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    for arn in found:
        if not _topic(arn):
            raise SettingsError(
                f"MAILPIPE_SNS_TOPICS: {arn!r} is no topic; expected arn:aws:sns:eu-west-1:123456789012:name"
            )
    return found


def versions(text: str) -> frozenset[str]:
    """`1,2` as a setting holds it.

    Raises:
        SettingsError: there is no such version.
    """
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not found or not found <= {"1", "2"}:
        raise SettingsError("MAILPIPE_SNS_SIGNATURES: expected 1,2 or 2")
    return found


class Verifier:
    """Believes messages of these topics. Safe to share between threads.

    `versions` are the signature versions that are accepted: 1 is RSA with SHA-1, which SNS uses unless the topic says 2 (SHA-256).
    `fetch` gets a certificate by its URL, which was checked before; only tests give another one.
    """

    def __init__(
        self,
        allowed: frozenset[str],
        *,
        versions: frozenset[str] = frozenset("12"),
        fetch: Callable[[str], bytes] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._allowed = allowed
        self._versions = versions
        self._now = now
        self._certificates = _Certificates(fetch or download)

    def verify(self, body: bytes, *, raw: bool = False) -> Envelope:
        """Prove one message. `raw`: it came with the header `x-amz-sns-rawdelivery: true`.

        Raises:
            Refused: it cannot be proved; nothing of it may be believed.
        """
        if raw:
            raise Refused(
                "raw message delivery is not signed, so nobody can tell who sent it: turn it off for this subscription"
                " (or subscribe a queue, and read that with `mailpipe events poll`)"
            )
        content = _parse(body)
        kind = content["Type"]
        region = self._region(content["TopicArn"])
        if content["SignatureVersion"] not in self._versions:
            raise Refused("a signature version that is not accepted here")
        key = self._certificates.get(_certificate_url(content["SigningCertURL"], content["TopicArn"], region))
        _check_signature(key, content)
        self._check_age(content["Timestamp"])
        return Envelope(
            kind, content["MessageId"], content["TopicArn"], region, content["Message"], content.get("Token")
        )

    def _region(self, arn: str) -> str:
        if arn not in self._allowed:
            raise Refused("a topic that is not in MAILPIPE_SNS_TOPICS")
        match = _topic(arn)
        assert match is not None
        return match[2]

    def _check_age(self, text: str) -> None:
        try:
            at = datetime.fromisoformat(text)
            age = self._now() - at
        except (ValueError, TypeError):
            raise Refused("a timestamp that cannot be read") from None
        if not -AHEAD < age < OLDEST:
            raise Refused("a message of another time: a replay, or a wrong clock")


class _Certificates:
    """Public keys by the URL of their certificate. One thread fetches, and who wants another unknown one waits; failures are
    remembered for a while. What is known is given at once: anybody can post a message that names one which does not exist.
    """

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch
        self._fetching = threading.Lock()
        self._known: OrderedDict[str, _Key] = OrderedDict()
        self._failed: dict[str, float] = {}

    def get(self, url: str) -> _Key:
        found = self._known.get(url)
        if found is None:
            with self._fetching:
                found = self._known.get(url) or self._load(url)
                self._known[url] = found
                while len(self._known) > _CERTIFICATES:
                    self._known.popitem(last=False)
        found.check_dates()
        return found

    def _load(self, url: str) -> _Key:
        if time.monotonic() < self._failed.get(url, 0):
            raise Refused("the signing certificate could not be fetched a moment ago", again=True)
        try:
            return _Key(self._fetch(url))
        except (OSError, http.client.HTTPException) as error:
            if len(self._failed) > _CERTIFICATES:
                self._failed.clear()
            self._failed[url] = time.monotonic() + _FORGET_FAILURE
            raise Refused(f"the signing certificate cannot be fetched ({type(error).__name__})", again=True) from error


class _Key:
    """The RSA key of a signing certificate."""

    def __init__(self, pem: bytes) -> None:
        # Only here: importing it takes longer than most commands.
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey  # noqa: PLC0415

        try:
            certificate = x509.load_pem_x509_certificate(pem)
        except ValueError:
            raise Refused("what was fetched is no certificate") from None
        names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        key = certificate.public_key()
        if [name.value for name in names] != [_SUBJECT] or not isinstance(key, RSAPublicKey):
            raise Refused("a signing certificate that is not SNS's")
        self._key = key
        self._dates = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    def check_dates(self) -> None:
        if not self._dates[0] <= datetime.now(UTC) <= self._dates[1]:
            raise Refused("a signing certificate that is not valid today")

    def check(self, signature: bytes, data: bytes, version: str) -> None:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15  # noqa: PLC0415

        try:
            # SHA-1 is what version 1 is made of; a topic can be told to sign with version 2.
            self._key.verify(signature, data, PKCS1v15(), hashes.SHA1() if version == "1" else hashes.SHA256())  # noqa: S303
        except InvalidSignature:
            raise Refused("the signature does not belong to the message") from None


def string_to_sign(content: Mapping[str, Any]) -> bytes:
    """What SNS signs of a message: names and values in byte order, each ended by a newline, the last one too."""
    pairs = [(name, content[name]) for name in _SIGNED[content["Type"]] if content.get(name) is not None]
    return "".join(f"{name}\n{value}\n" for name, value in pairs).encode()


def download(url: str, *, context: ssl.SSLContext | None = None) -> bytes:
    """The certificate at a URL, over verified TLS, without following anything. Raises OSError or HTTPException."""
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=_TIMEOUT, context=context or ssl.create_default_context()
    )
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise OSError(f"status {answer.status}")
        return answer.read(_CERTIFICATE_BYTES)
    finally:
        connection.close()


def _parse(body: bytes) -> dict[str, Any]:
    if len(body) > MOST_BYTES:
        raise Refused("a body that is longer than any message of SNS")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("a body that is not JSON") from None
    if not isinstance(content, dict):
        raise Refused("a body that is no SNS message")
    if "Type" not in content and isinstance(content.get("mail"), dict):
        raise Refused("an SES event without its SNS envelope: turn raw message delivery off, it is not signed")
    signed = _SIGNED.get(content["Type"]) if isinstance(content.get("Type"), str) else None
    if signed is None:
        raise Refused("a body that is no SNS message")
    needed = {*signed, "SignatureVersion", "Signature", "SigningCertURL"} - {"Subject"}
    if any(not isinstance(content.get(name), str) for name in needed):
        raise Refused("an SNS message in which a field is missing or is no text")
    if not isinstance(content.get("Subject"), str | None):
        raise Refused("an SNS message in which a field is missing or is no text")
    return content


def _certificate_url(url: str, arn: str, region: str) -> str:
    suffix = ".cn" if arn.startswith("arn:aws-cn:") else ""
    host = f"sns.{region}.amazonaws.com{suffix}"
    prefix = f"https://{host}"
    # Compared as text: a parser could be led to another host by user info, ports or backslashes.
    if not url.startswith(prefix) or not _certificate_path(url[len(prefix) :]):
        raise Refused("a signing certificate from another place than SNS in the topic's region")
    return url


def _check_signature(key: _Key, content: Mapping[str, Any]) -> None:
    try:
        signature = base64.b64decode(content["Signature"], validate=True)
        data = string_to_sign(content)
    except (binascii.Error, ValueError):
        raise Refused("a signature that cannot be read") from None
    key.check(signature, data, content["SignatureVersion"])
