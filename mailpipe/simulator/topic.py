"""An SNS topic of one HTTP subscriber: signs what SES would publish with a certificate of its own, and posts it.

It behaves as SNS does: the subscriber has to confirm first, a notification is tried again when it was not answered with 2xx (nor
with 4xx), some come twice, and their order is anybody's guess. Its certificate names sns.amazonaws.com but nobody signed it:
`certificate` is the file by which a test can believe it.
"""

import base64
import contextlib
import hashlib
import heapq
import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

_RETRY_S = 0.5
_TRIES = 100
_THREADS = 4
_TIMEOUT_S = 15
_SIGNED = ("Message", "MessageId", "SubscribeURL", "Subject", "Timestamp", "Token", "TopicArn", "Type")


class Signer:
    """Makes signed messages of one topic, with a key that is as old as the process."""

    def __init__(self, arn: str, version: str = "1") -> None:
        self.arn = arn
        self.version = version
        self._region = arn.split(":")[3]
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Not Amazon, a test of mailpipe")]))
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        name_of_file = hashlib.md5(self.certificate, usedforsecurity=False).hexdigest()
        self.certificate_url = f"https://sns.{self._region}.amazonaws.com/SimpleNotificationService-{name_of_file}.pem"

    def notification(self, message: str, **more: str) -> dict[str, str]:
        """A signed notification, as SNS posts it."""
        return self.sign(
            {"Type": "Notification", "MessageId": str(uuid.uuid4()), "TopicArn": self.arn, "Message": message, **more}
        )

    def confirmation(self, kind: str = "SubscriptionConfirmation") -> dict[str, str]:
        """What a new subscriber gets. The URL in it is nothing to be followed."""
        token = uuid.uuid4().hex
        return self.sign(
            {"Type": kind, "MessageId": str(uuid.uuid4()), "TopicArn": self.arn, "Token": token,
             "Message": f"You have chosen to subscribe to the topic {self.arn}.",
             "SubscribeURL": f"https://sns.{self._region}.amazonaws.com/?Action=ConfirmSubscription&Token={token}"}
        )  # fmt: skip

    def sign(self, message: dict[str, str]) -> dict[str, str]:
        stamped = {"Timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), **message}
        text = "".join(f"{name}\n{stamped[name]}\n" for name in _SIGNED if name in stamped)
        algorithm = hashes.SHA1() if self.version == "1" else hashes.SHA256()
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), algorithm)
        return {**stamped, "SignatureVersion": self.version, "Signature": base64.b64encode(signature).decode(),
                "SigningCertURL": self.certificate_url}  # fmt: skip


class Topic:
    """Posts to `url` from threads of its own, once it is confirmed. `duplicates` is a share of messages that come twice; two within
    `disorder_ms` may change places."""

    def __init__(
        self, arn: str, url: str, *, certificate: Path, duplicates: float = 0, disorder_ms: float = 0, seed: int = 0
    ) -> None:
        self.signer = Signer(arn)
        certificate.write_bytes(self.signer.certificate)
        self._url = urlsplit(url)
        self._duplicates = duplicates
        self._disorder_s = disorder_ms / 1000
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, int, dict[str, str]]] = []
        self._early: list[tuple[float, dict[str, str]]] = []
        self._condition = threading.Condition()
        self._confirmed = False
        self._closed = False
        confirmation = self.signer.confirmation()
        self._token = confirmation["Token"]
        self._put([(0.0, confirmation)])
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    def publish(self, lines: Iterable[str]) -> None:
        """Post these events, one message each, some of them twice."""
        made = [(self._chance.random() * self._disorder_s, {"line": line}) for line in lines]
        with self._condition:
            if not self._confirmed:
                self._early += made
                return
        self._put(made)

    def confirm(self, token: str) -> bool:
        """ConfirmSubscription: from now on notifications leave."""
        with self._condition:
            if token != self._token:
                return False
            self._confirmed = True
            early, self._early = self._early, []
        self._put(early)
        return True

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def __len__(self) -> int:
        """Messages that were not delivered yet."""
        return len(self._due) + len(self._early)

    def _put(self, made: Iterable[tuple[float, dict[str, str]]], tries: int = 0) -> None:
        now = time.monotonic()
        with self._condition:
            for delay, message in made:
                heapq.heappush(self._due, (now + delay, next(self._numbers), tries, message))
            self._condition.notify_all()

    def _work(self) -> None:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=_TIMEOUT_S)
        while (taken := self._take()) is not None:
            tries, message = taken
            if "line" in message:
                message = self.signer.notification(message["line"], Subject="Amazon SES Email Event Notification")
                if self._chance.random() < self._duplicates:
                    # The same SNS message again: it has the same id and signature.
                    self._put([(self._chance.random() * self._disorder_s, message)], tries)
            status = self._post(connection, message)
            if not 200 <= status < 500 and tries < _TRIES:
                self._put([(_RETRY_S, message)], tries + 1)

    def _take(self) -> tuple[int, dict[str, str]] | None:
        with self._condition:
            while not self._closed:
                if self._due:
                    at, _, tries, message = self._due[0]
                    if at <= time.monotonic():
                        heapq.heappop(self._due)
                        return tries, message
                    self._condition.wait(at - time.monotonic())
                else:
                    self._condition.wait(1.0)
        return None

    def _post(self, connection: http.client.HTTPConnection, message: dict[str, Any]) -> int:
        headers = {
            "Content-Type": "text/plain; charset=UTF-8",
            "User-Agent": "Amazon Simple Notification Service Agent",
            "x-amz-sns-message-type": message["Type"],
            "x-amz-sns-message-id": message["MessageId"],
            "x-amz-sns-topic-arn": message["TopicArn"],
        }
        try:
            connection.request("POST", self._url.path or "/", json.dumps(message).encode(), headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            with contextlib.suppress(OSError):
                connection.close()
            return 0
        return answer.status
