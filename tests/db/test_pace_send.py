"""Campaigns under the pace's limits: the day's share, one recipient a call, and what people see of it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from click.testing import CliRunner

from mailpipe import pace
from mailpipe.cli import main
from mailpipe.send import End
from tests.support import World, wait_for


def with_settings(scene: World, **changes: object) -> World:
    return replace(scene, settings=scene.with_settings(**changes))


def test_single_operation_sends_the_same_ledger_one_recipient_a_call(scene: World) -> None:
    scene.people(30)
    key = scene.ready()
    alone = with_settings(scene, ses_operation="single")
    assert alone.send(key).end is End.COMPLETE
    assert scene.keep_promises(key) == {"sent": 30}
    # A call that missed its slot on a busy machine is recorded too, as not made.
    calls = scene.execute(
        "SELECT count(*) FILTER (WHERE accepted = 1), max(bit_count(positions)) FROM mailpipe.call WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id},
    )
    assert calls == [(30, 1)]


def test_a_campaign_stops_at_the_share_of_marketing_and_says_until_when(scene: World) -> None:
    scene.people(100)
    key = scene.ready(chunk_size=100)
    quota = scene.stand_in.state()["sent_last_24_hours"] + 100
    scene.stand_in.change(daily_quota=quota)
    share = with_settings(scene, marketing_share=30 / quota)
    stop = threading.Event()
    sender = threading.Thread(target=share.send, args=(key,), kwargs={"stop": stop, "accept_plan": True})
    sender.start()
    try:
        wait_for(
            lambda: scene.progress(key).sent == 30 and scene.progress(key).waiting is not None, "the share to be met"
        )
        found = scene.progress(key)
    finally:
        stop.set()
        sender.join()
    assert found.waiting is not None and found.waiting.startswith("waiting for quota until 2")
    assert found.eta_minutes is not None and found.eta_minutes > 0.5, "the wait counts"
    assert scene.keep_promises(key) == {"sent": 30, "pending": 70}
    assert scene.stand_in.state()["throttled"] == 0, "SES was not asked for what is over"


def test_what_was_handed_over_is_what_ses_has_counted(scene: World) -> None:
    scene.people(120)
    key = scene.ready()
    before = scene.stand_in.state()["sent_last_24_hours"]
    scene.stand_in.change(daily_quota=1_000_000)
    scene.stand_in.add_faults({"kind": "throttle_entries", "positions": [0, 2], "count": 1})
    assert scene.send(key).end is End.COMPLETE
    with scene.database.connection() as connection:
        day = pace.read(connection).day
    assert scene.stand_in.state()["sent_last_24_hours"] - before == 120
    assert 120 <= day.used_by_marketing <= 170, "at most the last call's rest is counted too much"


def test_a_provider_s_limit_holds_while_the_others_go_first(scene: World) -> None:
    scene.people(60)
    # No domain of a real provider: their first label is what tells.
    scene.execute("UPDATE users SET email = 'person' || user_id || '@gmail.example.com' WHERE user_id % 3 = 0")
    key = scene.ready()
    assert with_settings(scene, provider_rates={"gmail": 16.0}).send(key).end is End.COMPLETE
    assert scene.keep_promises(key) == {"sent": 60}
    lines = sorted((line["at"], "@gmail." in line["to"]) for line in scene.journal(key))
    gmail = [at for at, of_gmail in lines if of_gmail]
    assert len(gmail) == 20
    assert all(gmail[i + 16] - gmail[i] > 0.95 for i in range(4)), "no second has more than 16 of them"
    assert max(at for at, of_gmail in lines if not of_gmail) < gmail[-1]


def test_a_person_looks_at_the_pace_and_limits_it(scene: World) -> None:
    environment = {
        "MAILPIPE_HOME": str(scene.settings.home),
        "MAILPIPE_VAR": str(scene.settings.var),
        "MAILPIPE_DATABASE_URL": scene.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": scene.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
    }

    def run(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(main, ["pace", *arguments, "--json"], env=environment)
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.output)
        return found

    assert run()["rate"] is None
    assert run("--limit", "300") == run() | {"rate": 300.0, "ordered": 300.0, "recipients_of_a_call": 50}
    assert run("--no-limit")["rate"] is None
    assert CliRunner().invoke(main, ["pace", "--limit", "0"], env=environment).exit_code == 2
    told = CliRunner().invoke(main, ["pace", "--limit", "300"], env=environment).stdout
    assert "rate, recipients/s" in told and "ordered with --limit" in told
    assert "24 h" not in told, "without a quota nothing is counted"


def test_a_limit_of_calls_that_nobody_knows_is_found_while_the_campaign_goes_on(scene: World) -> None:
    """The account allows 12 calls of 50 a second, and in truth no more than 4."""
    scene.people(700)
    key = scene.ready(chunk_size=100)
    scene.stand_in.change(rate=600, call_rate=4)
    ended = threading.Event()
    waits: list[str] = []

    def watch() -> None:
        while not ended.wait(0.02):
            waits.append(scene.progress(key).waiting or "")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert scene.send(key).end is End.COMPLETE
    finally:
        ended.set()
        watcher.join()
    assert scene.keep_promises(key) == {"sent": 700}
    assert any(text.startswith("waiting for rate until 2") for text in waits)
    burned = scene.execute(
        "SELECT count(*) FROM mailpipe.outcome WHERE campaign_id = %(id)s", {"id": scene.campaign(key).campaign_id}
    )
    assert burned == [(0,)], "nobody failed, and no attempt was counted"
    with scene.database.connection() as connection:
        limits = pace.read(connection)
        # Halved at each refusal; on a machine that makes its calls late one of them is enough.
        assert limits.call_rate is not None and 2 < limits.call_rate < 6.5
        assert limits.call_size == 50 and limits.ease == 1, "the rate by recipients is another limit"
        connection.execute("UPDATE mailpipe.pace SET call_rate_at = call_rate_at - interval '50 s'")
        later = pace.read(connection).call_rate
        assert later is not None and later > limits.call_rate + 0.9, "it grows slowly again"
