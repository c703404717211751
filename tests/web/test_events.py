"""Events over real HTTP: posted by the stand-in's own topic, forged by us, and read from a queue."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailpipe import campaign, report, suppression
from mailpipe.db import Database
from mailpipe.errors import SettingsError
from mailpipe.feedback.poll import poll
from mailpipe.settings import load
from mailpipe.simulator.topic import Signer
from mailpipe.web.events import PATH
from tests.db.test_feedback import DELIVERY, HARD, told
from tests.ses_events import TOPIC
from tests.support import World, make_world, wait_for
from tests.web.conftest import Web, made_settings, serving

QUEUE = "http://127.0.0.1/111122223333/ses-events"


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(TOPIC)


@pytest.fixture
def events_web(database: Database, tmp_path: Path, signer: Signer) -> Iterator[Web]:
    """An application that believes the test's own topic."""
    certificate = tmp_path / "sns.pem"
    certificate.write_bytes(signer.certificate)
    config = replace(made_settings(tmp_path), sns_topics=TOPIC, sns_test_certificate=certificate)
    with serving(config, database) as running:
        yield running


def post(web: Web, message: Any, **headers: str) -> Any:
    text = message if isinstance(message, str) else json.dumps(message)
    return web.ask("POST", PATH, body=text, headers={"Content-Type": "text/plain; charset=UTF-8", **headers})


def kept(web: Web) -> int:
    with web.database.connection() as connection:
        row = connection.execute("SELECT count(*) FROM mailpipe.event").fetchone()
    assert row is not None
    return int(row[0])


def test_a_proved_event_is_on_disk_before_it_is_answered(events_web: Web, signer: Signer) -> None:
    message = signer.notification(told(HARD, "unknown", 1))
    for _ in range(8):
        assert post(events_web, message).status == 200
    assert kept(events_web) == 1
    with events_web.database.connection() as connection:
        assert suppression.find(connection, "person1@mail.example.com")[0].reason == "hard_bounce"


def test_a_forged_event_is_refused_for_good_and_nothing_of_it_is_kept(events_web: Web, signer: Signer) -> None:
    message = signer.notification(told(HARD, "unknown", 1))
    forged = [
        {**message, "Message": told(HARD, "unknown", 2)},
        {**message, "TopicArn": TOPIC + "x"},
        Signer(TOPIC).notification("{}"),
        {**message, "SigningCertURL": "https://evil.example/x.pem"},
        "no json",
        told(HARD, "unknown", 3),
    ]
    for one in forged:
        answer = post(events_web, one)
        assert answer.status == 403, "4xx: SNS does not come again"
        assert "person" not in answer.json()["detail"]
    answer = post(events_web, told(HARD, "unknown", 1), **{"x-amz-sns-rawdelivery": "true"})
    assert (answer.status, "raw message delivery" in answer.json()["detail"]) == (403, True)
    assert kept(events_web) == 0


def test_what_sns_sends_that_is_no_event_is_taken_and_forgotten(events_web: Web, signer: Signer) -> None:
    text = "Successfully validated SNS topic for Amazon SES event publishing."
    assert post(events_web, signer.notification(text)).status == 200
    assert post(events_web, signer.confirmation("UnsubscribeConfirmation")).status == 200
    assert kept(events_web) == 0


def test_many_at_once_share_transactions_and_all_are_kept(events_web: Web, signer: Signer) -> None:
    messages = [signer.notification(told(DELIVERY, "unknown", seq)) for seq in range(1, 101)]
    with ThreadPoolExecutor(16) as pool:
        statuses = [answer.status for answer in pool.map(lambda one: post(events_web, one), messages)]
    assert set(statuses) == {200}
    assert kept(events_web) == 100


def test_a_database_that_is_away_lets_sns_come_again(database: Database, tmp_path: Path, signer: Signer) -> None:
    certificate = tmp_path / "sns.pem"
    certificate.write_bytes(signer.certificate)
    config = replace(made_settings(tmp_path), sns_topics=TOPIC, sns_test_certificate=certificate)
    away = Database(database.url.set(host="127.0.0.1", port=1))
    with serving(config, away) as web:
        assert post(web, signer.notification(told(HARD, "unknown", 1))).status == 503
    with serving(replace(config, sns_topics=None), database) as web:
        answer = post(web, signer.notification("{}"))
    assert (answer.status, "MAILPIPE_SNS_TOPICS" in answer.json()["detail"]) == (503, True)


def test_another_trust_root_is_for_stand_ins_alone(tmp_path: Path) -> None:
    production = {
        "MAILPIPE_DATABASE_URL": "postgresql://mail@db.example.com/mail",
        "MAILPIPE_PUBLIC_URL": "https://u.example.com",
    }
    with pytest.raises(SettingsError, match="MAILPIPE_SNS_TEST_CERTIFICATE"):
        load({**production, "MAILPIPE_HOME": str(tmp_path), "MAILPIPE_SNS_TEST_CERTIFICATE": "/tmp/x.pem"})


def test_the_stand_in_s_topic_confirms_and_delivers_late_twice_and_in_disorder(
    database: Database, tmp_path: Path
) -> None:
    """The whole way: a campaign is sent, SNS posts what became of it, and the report says so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    certificate = tmp_path / "sns.pem"
    options = {"sns_url": f"http://127.0.0.1:{port}{PATH}", "sns_certificate": certificate, "sns_duplicates": 0.5}
    with make_world(database, tmp_path, sns_disorder_ms=200, **options) as world:
        config = replace(made_settings(tmp_path), sns_topics=TOPIC, sns_test_certificate=certificate)
        with serving(replace(config, ses_endpoint=world.stand_in.url), database, port=port):
            key = send_to_every_fate(world)
            wait_for(lambda: told_of(world, key).get("delivery") == 38, "the deliveries", seconds=60)
            wait_for(lambda: world.stand_in.state()["unposted"] == 0, "the rest", seconds=60)
            wait_for(lambda: told_of(world, key).get("click") == 1, "the last click", seconds=60)
            assert told_of(world, key) == {
                "send": 40, "delivery": 38, "bounce": 2, "hard_bounce": 1, "soft_bounce": 1, "complaint": 1, "delivery_delay": 1,
                "open": 2, "click": 1,
            }  # fmt: skip


def send_to_every_fate(world: World) -> str:
    world.people(40)
    for seq, domain in enumerate(("bounce", "complaint", "delay", "softbounce", "clicker", "mpp"), 1):
        world.execute(
            "UPDATE users SET email = %(to)s WHERE user_id = %(seq)s",
            {"to": f"person{seq}@{domain}.example.com", "seq": seq},
        )
    key = world.ready()
    world.send(key)
    return key


def told_of(world: World, key: str) -> dict[str, int]:
    with world.database.connection() as connection:
        return report.events(connection, campaign.get(connection, key).campaign_id)


@pytest.mark.parametrize("raw", [True, False])
def test_a_queue_is_read_raw_and_wrapped_and_emptied_only_of_what_is_on_disk(
    database: Database, tmp_path: Path, raw: bool
) -> None:
    with make_world(database, tmp_path, sqs=True, sqs_raw=raw) as world:
        world.people(30)
        key = world.ready()
        world.send(key)
        world.stand_in.enqueue(["no event", told(HARD, key, 1)])
        assert world.stand_in.state()["queued"] == 62
        world.execute("ALTER TABLE mailpipe.event_mask RENAME TO gone")
        with pytest.raises(Exception, match="event_mask"):
            take_all(world)
        assert world.stand_in.state()["queued"] == 62
        world.execute("ALTER TABLE mailpipe.gone RENAME TO event_mask")
        world.stand_in.enqueue([told(HARD, key, 1)])
        done = take_all(world)
        assert told_of(world, key).get("hard_bounce") == 1
        assert done.read >= 1


def take_all(world: World) -> Any:
    return poll(
        world.database, world.settings, QUEUE, endpoint=world.stand_in.url, stop=threading.Event(), once=True, readers=2
    )


def test_the_command_empties_a_queue_and_says_what_it_took(database: Database, tmp_path: Path) -> None:
    with make_world(database, tmp_path, sqs=True) as world:
        world.people(20)
        key = world.ready()
        world.send(key)
        environ = {
            "MAILPIPE_DATABASE_URL": database.url.render_as_string(hide_password=False), "MAILPIPE_VAR": str(tmp_path),
            "MAILPIPE_SES_ENDPOINT": world.stand_in.url, "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1", "PATH": os.environ["PATH"],
        }  # fmt: skip
        command = [sys.executable, "-m", "mailpipe", "events", "poll", "--queue-url", QUEUE, "--once", "--json"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        told = json.loads(done.stdout)
        assert (told["read"], told["folded"], told["malformed"]) == (40, 40, 0)
        assert world.stand_in.state()["queued"] == 0
        assert told_of(world, key) == {"send": 20, "delivery": 20}
