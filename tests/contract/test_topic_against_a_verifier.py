"""What the stand-in's topic signs, against a verifier of SNS messages that others wrote (`aws-sns-verifier`, PyPI).

It runs in the environment of the contract tests. Only where it gets the certificate from is replaced: there is no SNS here.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from mailpipe.feedback.sns import Verifier
from mailpipe.simulator.topic import Signer
from tests.contract.conftest import ROOT

PYTHON = ROOT / ".venv-contract" / "bin" / "python"
TOPIC = "arn:aws:sns:eu-west-1:111122223333:ses-events"
PROGRAM = """
import json, sys
from cryptography import x509
from aws_sns_verifier import validator
given = json.load(sys.stdin)
validator._get_certificate = lambda url: x509.load_pem_x509_certificate(given["certificate"].encode())
told = []
for message in given["messages"]:
    try:
        validator.validate_sns_signature(message, given["topic"], auto_confirm_subscription=False)
        told.append(True)
    except Exception as error:
        told.append(False)
print(json.dumps(told))
"""


def theirs(signer: Signer, messages: list[dict[str, Any]]) -> list[bool]:
    if not PYTHON.exists():
        pytest.skip("aws-sns-verifier is not installed; `make test-contract` does it")
    given = {"certificate": signer.certificate.decode(), "messages": messages, "topic": TOPIC}
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM], input=json.dumps(given), capture_output=True, text=True, timeout=60, check=True
    )
    answer: list[bool] = json.loads(done.stdout.splitlines()[-1])
    return answer


def ours(signer: Signer, messages: list[dict[str, Any]]) -> list[bool]:
    verifier = Verifier(frozenset({TOPIC}), fetch=lambda _: signer.certificate)
    told = []
    for message in messages:
        try:
            verifier.verify(json.dumps(message).encode())
            told.append(True)
        except Exception:
            told.append(False)
    return told


@pytest.mark.parametrize("version", ["1", "2"])
def test_both_believe_and_disbelieve_the_same_messages(version: str) -> None:
    signer = Signer(TOPIC, version)
    notification = signer.notification(
        '{"eventType":"Send"}\n', Subject="Amazon SES Email Event Notification", UnsubscribeURL="https://x"
    )
    # It knows no notification without a subject; SES always gives one.
    plain = signer.notification("ünïcödé \n \u2028", Subject="s", UnsubscribeURL="https://x")
    confirmation = signer.confirmation()
    messages: list[dict[str, Any]] = [
        notification,
        plain,
        confirmation,
        {**notification, "Message": "other"},
        {**notification, "Subject": "other"},
        {**plain, "Subject": "changed"},
        {**confirmation, "Token": "other"},
        {**notification, "SignatureVersion": "1" if version == "2" else "2"},
        {**notification, "TopicArn": TOPIC + "x"},
        {
            **notification,
            "SigningCertURL": "https://evil.example/SimpleNotificationService-00000000000000000000000000000000.pem",
        },
        Signer(TOPIC, version).notification("{}", UnsubscribeURL="https://x"),
    ]
    assert theirs(signer, messages) == ours(signer, messages) == [True] * 3 + [False] * 8
