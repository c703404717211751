"""Stand-ins for SES that were written by others, each as a process of its own on a free port, and people whose names
and cities are hard to render.

`aws-ses-v2-local` (npm) renders with real Handlebars and keeps headers; `ministack` (PyPI) answers with SES's typed
errors. `make test-contract` installs both; where one is missing its tests skip and say why. What our client must do
belongs in the tests, what our own stand-in does does not belong here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import boto3
import pytest

from mailpipe.links import Signer
from mailpipe.message import Letter, Recipient
from mailpipe.ses.client import Ses, connect
from mailpipe.ses.request import bulk_request, check_bulk
from mailpipe.settings import Settings
from mailpipe.template import Rendered, Template, load
from tests.support import wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SENDER = "Größe & Söhne <news@shop.example.com>"
CAMPAIGN = "spring-sale"
TOPIC = "marketing"
SIGNER = Signer("k1:a secret of the tests", "https://mail.example.com", "unsubscribe@mail.example.com")
ACCOUNT = {
    "DedicatedIpAutoWarmupEnabled": False,
    "Details": {
        "AdditionalContactEmailAddresses": [],
        "ContactLanguage": "EN",
        "MailType": "MARKETING",
        "ReviewDetails": {"CaseId": "1", "Status": "GRANTED"},
        "UseCaseDescription": "tests",
        "WebsiteURL": "https://shop.example.com",
    },
    "EnforcementStatus": "HEALTHY",
    "ProductionAccessEnabled": True,
    "SendingEnabled": True,
    "SendQuota": {"Max24HourSend": 1_000_000, "MaxSendRate": 600, "SentLast24Hours": 250},
    "SuppressionAttributes": {"SuppressedReasons": ["BOUNCE", "COMPLAINT"]},
}
"""What `aws-ses-v2-local` answers to GetAccount; it neither counts nor enforces any of it."""

AWKWARD = (
    """Anna & Söhne <b>"fett"</b> 'x' <script>alert(1)</script>""",
    "Nguyễn Thị Ánh 🎉",
    "مرحبا بالعالم",
    "日本語の名前",
    r"C:\new\table $& $1 \u0041 \"",
    "&amp; &lt;escaped already&gt;",
    "two\r\nlines\tand \u2028 a separator",
    "0",
)
"""Values that a renderer, an escaper or a JSON writer gets wrong."""
NAMES = ("first_name", "city", "offer")
"""The variables of the template."""
TAGS = ("{{first_name}}", "{{{city}}}", "{{#if city}}{{/each}}", "}} {{", r"\{{city}}")
"""Values that look like tags. A provider inserts them as they are."""

NODE = (20, 19)
"""The first Node in which `aws-ses-v2-local` starts: it loads an ES module with `require`."""
MINISTACK = ROOT / ".venv-contract" / "bin" / "ministack"
"""In an environment of its own, because it pins versions of botocore and graphql-core that we cannot use."""
START = 20.0
STOP = 10.0


def load_template(tmp_path: Path) -> Template:
    """A template with everything that ours can have: spaces in tags, HTML inserted as it is, a default."""
    home = tmp_path / "templates" / "contract"
    home.mkdir(parents=True)
    (home / "template.yaml").write_text(
        "description: For the contract tests\n"
        "variables:\n"
        "  first_name: {sample: Ana, default: friend}\n"
        "  city: {sample: Hanoi}\n"
        "  offer: {sample: <b>now</b>, html: true}\n"
    )
    (home / "subject.txt").write_text("{{ first_name }}, grüße aus {{city}}\n")
    (home / "body.html").write_text(
        '<p title="{{ city }}">Hello {{first_name}} of {{city}}</p>\n{{{offer}}}<p>{{offer}}</p>\n'
        '<a href="{{unsubscribe_url}}">Unsubscribe</a>\n'
    )
    (home / "body.txt").write_text("Hello {{first_name}} of {{ city }}:\n{{offer}}\n\n{{unsubscribe_url}}\n")
    return load(home.parent, "contract")


def person(seq: int, **variables: object) -> Recipient:
    """A recipient with an address and a user id of their own."""
    values = [variables.get(name) for name in NAMES]
    return Recipient(seq, str(1000 + seq), f"person{seq}@mail.example.com", "Asia/Ho_Chi_Minh", "vi-VN", values)


def people(template: Template, values: Sequence[str] = AWKWARD) -> list[Recipient]:
    """As many people as there are values; everybody has another value for each variable of the template."""
    return [
        person(
            seq,
            **{name: values[(seq + place) % len(values)] for place, name in enumerate(template.variables)},
        )
        for seq in range(1, len(values) + 1)
    ]


def make_request(template: Template, recipients: Sequence[Recipient], *, sender: str = SENDER) -> dict[str, Any]:
    """The request that a run would make for these people, checked as a run checks it."""
    letter = Letter(template, NAMES, SIGNER, campaign=CAMPAIGN, topic=TOPIC)
    made = bulk_request(
        sender=sender,
        template_name=template.version,
        configuration_set="mailpipe-marketing",
        entries=[letter.entry(one) for one in recipients],
        reply_to="Service <help@shop.example.com>",
    )
    check_bulk(made)
    return made


def preview(template: Template, recipient: Recipient) -> Rendered:
    """What we show to the people who approve a mail."""
    return template.render(
        dict(zip(NAMES, recipient.values, strict=True)), unsubscribe_url=SIGNER.url(recipient.user_id, TOPIC)
    )


def ask(url: str, method: str = "GET") -> Any:
    """The JSON of an inspection endpoint."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class AwsSesV2Local:
    """A running `aws-ses-v2-local`."""

    url: str
    ses: Ses

    def emails(self) -> list[dict[str, Any]]:
        """Every accepted mail, rendered, in the order of acceptance."""
        emails: list[dict[str, Any]] = ask(f"{self.url}/store")["emails"]
        return emails

    def templates(self) -> dict[str, Any]:
        templates: dict[str, Any] = ask(f"{self.url}/store")["templates"]
        return templates

    def mail(self, message_id: str) -> EmailMessage:
        """An accepted mail as nodemailer puts it on the wire, read by Python's parser."""
        eml = ask(f"{self.url}/get-emlContent?messageId={message_id}")
        mail = message_from_bytes(bytes(eml["body"]["data"]), policy=policy.default)
        assert isinstance(mail, EmailMessage)
        return mail


@dataclass(frozen=True)
class Ministack:
    """A running `ministack`. `operator` is a plain boto3 client for what mailpipe never does."""

    url: str
    ses: Ses
    operator: Any

    def messages(self) -> list[dict[str, Any]]:
        """Every accepted mail, rendered."""
        by_account: dict[str, list[dict[str, Any]]] = ask(f"{self.url}/_ministack/ses/messages")["messages"]
        return [message for messages in by_account.values() for message in messages]

    def verify(self, identity: str) -> None:
        self.operator.create_email_identity(EmailIdentity=identity)

    def leave_production(self) -> None:
        """Put the account into the sandbox."""
        self.operator.put_account_details(
            MailType="MARKETING", WebsiteURL="https://shop.example.com", ProductionAccessEnabled=False
        )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, var=tmp_path / "var", connect_timeout=5.0, read_timeout=20.0)


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return load_template(tmp_path)


@pytest.fixture(scope="session")
def aws_ses_v2_local_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process for all tests. It refuses people whose data lack a key, which SES finds only after it has accepted."""
    program = HERE / "node_modules" / "aws-ses-v2-local" / "dist" / "cli.js"
    node = shutil.which("node")
    if node is None:
        pytest.skip("aws-ses-v2-local is not tested: node is not installed")
    if not program.is_file():
        pytest.skip("aws-ses-v2-local is not tested: it is not installed; `make test-contract` does that, with npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < NODE:
        pytest.skip(f"aws-ses-v2-local is not tested: it needs node {NODE[0]}.{NODE[1]} or newer, this is {version}")
    environment = {"AWS_SES_ACCOUNT": json.dumps(ACCOUNT), "AWS_SES_STRICT_TEMPLATE_RENDERING": "true"}
    command = [node, str(program), "--host", "127.0.0.1", "--port", "0"]
    with running(command, environment, tmp_path_factory.mktemp("aws-ses-v2-local")) as url:
        yield url


@pytest.fixture
def aws_ses_v2_local(aws_ses_v2_local_url: str, settings: Settings) -> Iterator[AwsSesV2Local]:
    """It, empty, and our client connected to it."""
    ask(f"{aws_ses_v2_local_url}/clear-store", "POST")
    ses = connect(settings, endpoint=aws_ses_v2_local_url, connections=4)
    yield AwsSesV2Local(aws_ses_v2_local_url, ses)
    ses.close()


@pytest.fixture(scope="session")
def ministack_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process for all tests, with SES as its only service."""
    program = str(MINISTACK) if MINISTACK.is_file() else shutil.which("ministack")
    if program is None:
        pytest.skip("ministack is not tested: it is not installed; `make test-contract` does that")
    folder = tmp_path_factory.mktemp("ministack")
    environment = {"GATEWAY_PORT": "0", "BIND_HOST": "127.0.0.1", "SERVICES": "ses", "TMPDIR": str(folder)}
    with running([program], environment, folder) as url:
        yield url


@pytest.fixture
def ministack(ministack_url: str, settings: Settings) -> Iterator[Ministack]:
    """It, empty, and our client connected to it."""
    ask(f"{ministack_url}/_ministack/reset", "POST")
    ses = connect(settings, endpoint=ministack_url, connections=4)
    operator = boto3.client(
        "sesv2",
        endpoint_url=ministack_url,
        region_name=settings.ses_region,
        aws_access_key_id="operator",
        aws_secret_access_key="operator",
    )
    yield Ministack(ministack_url, ses, operator)
    operator.close()
    ses.close()


@contextmanager
def running(command: Sequence[str], environment: dict[str, str], folder: Path) -> Iterator[str]:
    """Start a program that chooses a free port, wait until it says which, and end it whatever happens."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield f"http://127.0.0.1:{_port(process, log)}"
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    def announced() -> re.Match[str] | None:
        return re.search(r"running (?:at|on) http://[^:\s]+:(\d+)", log.read_text(), re.IGNORECASE)

    wait_for(lambda: announced() is not None or process.poll() is not None, f"{process.args!r}", seconds=START)
    found = announced()
    assert found is not None, f"{process.args!r} did not start:\n{log.read_text()[-2000:]}"
    return found[1]
