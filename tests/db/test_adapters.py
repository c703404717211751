"""Messages and campaigns that leave another way than through SES: everybody gets their mail, once, with their own values."""

from __future__ import annotations

import gzip
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import pytest
from aiosmtpd.smtp import SMTP

from mailpipe import campaign, plan, settings
from mailpipe.errors import SettingsError
from mailpipe.lane import DEFAULTS
from mailpipe.links import Signer
from mailpipe.schedule import recurring
from mailpipe.schedule.spec import parse
from mailpipe.send import End
from tests.messages import clean, enqueue, publish, spec, states, wait_until, working
from tests.smtp_server import SmtpServer, drop, keep_and_drop
from tests.support import World


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with SmtpServer() as running:
        yield running


def test_messages_of_a_lane_leave_by_smtp_and_each_person_reads_their_own(scene: World, smtp: SmtpServer) -> None:
    clean(scene)
    publish(scene)
    lanes = {
        name: replace(lane, least=2, most=4, poll=0.01, adapter="smtp", unknown="hold")
        for name, lane in DEFAULTS.items()
    }
    smtp.replies["RCPT", "person7@"] = "550 5.1.1 no such user"
    smtp.replies["END", "person8@"] = keep_and_drop(smtp)
    codes = enqueue(scene, *(spec(number) for number in range(1, 41)))
    orders = enqueue(scene, spec(99, subject="Your order", text="Thank you.", lane="normal"))
    before = len(scene.stand_in.journal())
    with working(scene, lanes=lanes, smtp_url=smtp.url()):
        wait_until(scene, sent=39, failed=1, unknown=1)
    assert len(scene.stand_in.journal()) == before
    assert all(len(one.recipients) == 1 for one in smtp.taken)
    read = {one.recipients[0]: one.message for one in smtp.taken}
    assert len(read) == len(smtp.taken) == 40
    for number, code in enumerate(codes, 1):
        if number == 7:
            continue
        message = read[f"person{number}@mail.example.com"]
        assert message["Subject"] == f"Your code {number:06d}"
        assert message["From"].addresses[0].addr_spec == "login@notify.example.com"
        assert message["X-Mailpipe-Tags"] == f"message={code.message_id}; attempt=1"
    assert read["person99@mail.example.com"]["Subject"] == "Your order"
    assert orders[0].created
    assert states(scene) == {"sent": 39, "failed": 1, "unknown": 1}


def test_a_campaign_by_smtp_reaches_everybody_once_with_their_own_words(scene: World, smtp: SmtpServer) -> None:
    scene.people(400)
    scene.execute("UPDATE users SET first_name = 'A & <b>' || chr(10) || 'x' WHERE user_id = 11")
    smtp.replies["RCPT", "person5@"] = "550 5.1.1 no such user"
    smtp.replies["END", "person6@"] = "554 5.7.1 refused"
    smtp.replies["END", "person7@"] = keep_and_drop(smtp)
    smtp.replies["RCPT", "person8@"] = drop_once()
    world = replace(scene, settings=scene.with_settings(smtp_url=smtp.url(), unsubscribe_mailto="u@mail.example.com"))
    key = world.ready(adapter="smtp", reply_to="help@mail.example.com")
    outcome = world.send(key)
    assert (outcome.end, outcome.accepted) == (End.COMPLETE, 397)
    assert world.balance(key) == {"sent": 397, "failed": 2, "unknown": 1}
    assert world.campaign(key).state == "done"
    assert world.journal(key) == []

    sent = {
        (str(seq), email): state
        for seq, email, state in world.execute(
            "SELECT d.seq, d.email, d.state FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s",
            {"key": key},
        )
    }
    taken: Counter[str] = Counter()
    version = world.campaign(key).template_version
    assert version is not None
    with world.database.connection() as connection:
        template = campaign.published_template(connection, version)
    signer = Signer(settings.unsubscribe_keys(world.settings), world.settings.public_url, "u@mail.example.com")
    names = dict(world.execute("SELECT email, ARRAY[CAST(user_id AS text), first_name, city] FROM users"))
    for one in smtp.taken:
        [address] = one.recipients
        user_id, first_name, city = names[address]
        message = one.message
        assert message["To"] == address
        assert message["Reply-To"] == "help@mail.example.com"
        tags = dict(tag.split("=") for tag in str(message["X-Mailpipe-Tags"]).split("; "))
        assert (tags["campaign"], tags["attempt"]) == (key, "1")
        assert sent[tags["seq"], address] in ("sent", "unknown")
        headers = signer.headers(user_id, "marketing")
        assert [(name, str(message[name])) for name, _ in headers] == headers
        expected = template.render(
            {"first_name": first_name, "city": city}, unsubscribe_url=signer.url(user_id, "marketing")
        )
        assert message["Subject"] == " ".join(expected.subject.split())
        for kind, part in (("html", expected.html), ("plain", expected.text)):
            body = message.get_body((kind,))
            assert body is not None
            assert body.get_content().split() == part.split()
        taken[tags["seq"]] += 1
    assert set(taken.values()) == {1}
    assert taken.keys() == {seq for (seq, _), state in sent.items() if state in ("sent", "unknown")}


def test_a_template_of_a_campaign_by_smtp_is_kept_and_never_goes_to_ses(scene: World) -> None:
    scene.people(1)
    (scene.settings.templates / "hello" / "subject.txt").write_text("Only by SMTP, {{first_name}}\n")
    key = scene.create(adapter="smtp")
    scene.approve(key)
    version = scene.campaign(key).template_version
    assert version is not None
    with scene.database.connection() as connection:
        kept = campaign.published_template(connection, version)
    assert kept.subject == "Only by SMTP, {{first_name}}"
    series = parse(
        {
            "key": "by-smtp",
            "cron": "0 9 * * *",
            "timezone": "UTC",
            "campaign": {
                "segment": "everybody",
                "template": "hello",
                "sender": "news@mail.example.com",
                "adapter": "smtp",
            },
        },
        where="test",
    )
    with scene.database.connection() as connection:
        recurring.create(connection, scene.settings, series, author="ana")
        recurring.approve(connection, scene.settings, scene.ses, "by-smtp", approver="ben")
    assert version not in known_at_ses(scene)
    scene.approve(scene.create())
    assert version in known_at_ses(scene)


def test_a_campaign_whose_adapter_has_no_settings_stays_as_it_is(scene: World) -> None:
    scene.people(1)
    key = scene.ready(adapter="webhook")
    with pytest.raises(SettingsError, match="MAILPIPE_WEBHOOK_URL"):
        scene.send(key)
    assert scene.campaign(key).state == "approved"


def test_a_campaign_by_smtp_keeps_its_own_rate_and_knows_nothing_of_the_account_of_ses(
    scene: World, smtp: SmtpServer
) -> None:
    scene.people(120)
    scene.stand_in.change(rate=1, daily_quota=1)
    scene.execute("UPDATE mailpipe.pace SET blocked_until = now() + interval '60 s', blocked_reason = 'quota'")
    world = replace(scene, settings=scene.with_settings(smtp_url=smtp.url()))
    key = world.ready(adapter="smtp", rate=100)
    with world.database.connection() as connection:
        made = plan.of(connection, key)
    assert (made.rate, made.call_size, made.calls, made.problems) == (100, 10, 12, ())
    outcome = world.send(key)
    assert (outcome.end, outcome.accepted) == (End.COMPLETE, 120)
    assert outcome.seconds > 1.0, "12 calls of 10 at 100 a second"
    assert world.execute("SELECT coalesce(pg_sequence_last_value('mailpipe.pace_account'), 1)") == [(1,)]
    assert world.execute("SELECT count(*) FROM mailpipe.pace_claim WHERE campaign_id <> 0") == [(0,)]


def test_a_campaign_by_webhook_hands_over_each_person_once(scene: World) -> None:
    scene.people(130)
    with Receiver() as receiver:
        receiver.refused.add("person3@mail.example.com")
        world = replace(
            scene,
            settings=scene.with_settings(webhook_url=receiver.url, webhook_secret="throw-away secret of 32 letters."),
        )
        key = world.ready(adapter="webhook")
        assert world.send(key).end is End.COMPLETE
    assert world.balance(key) == {"sent": 129, "failed": 1}
    assert sorted(Counter(receiver.handed_over).items()) == sorted(
        (f"person{number}@mail.example.com", 1) for number in range(1, 131)
    )


def known_at_ses(world: World) -> set[str]:
    found = world.ses._admin.list_email_templates(PageSize=100)["TemplatesMetadata"]
    return {one["TemplateName"] for one in found}


class Receiver:
    """A receiver of posts that remembers to whom the mails were."""

    def __init__(self) -> None:
        self.handed_over: list[str] = []
        self.refused: set[str] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                people = [one["to"]["address"] for one in json.loads(body)["mails"]]
                owner.handed_over += people
                results = [{"status": "failed" if one in owner.refused else "sent"} for one in people]
                answer = json.dumps({"results": results}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def drop_once() -> Callable[[SMTP], str | None]:
    """Lose the connection the first time, and be well from then on."""
    left = [drop]

    def reply(protocol: SMTP) -> str | None:
        return left.pop()(protocol) if left else None

    return reply
