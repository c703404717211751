"""What keeps time: `python -m benchmarks.schedule [--quick]`.

How long a look for due messages takes while millions wait, a tick of the sensors with 1,000 schedules and 100 campaigns, the API
with 5 million people pending and then with millions of due messages too, and the due instants of a million people in every zone of
the world. In full, a campaign is also sent by a real `mailpipe dev` with its daemon: seconds from the due time to the first
recorded answer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn

from benchmarks import ground
from benchmarks.ground import ROOT, Ground, say
from mailpipe import campaign, campaign_file, db, embedded_postgres, settings, stand_in
from mailpipe.db import Connection
from mailpipe.lanes import claims
from mailpipe.schedule import fire, launch, recurring, timing, zones
from mailpipe.schedule.spec import parse
from mailpipe.schedule.when import When
from mailpipe.ses import client
from mailpipe.web import app, serve

LOOKS = 50
SCHEDULES, CAMPAIGNS = 1_000, 100
PENDING_PEOPLE = 5_000_000
TOKEN = "benchmark-of-schedules-0123456789"
CAMPAIGN = {"segment": ground.SEGMENT, "template": ground.TEMPLATE, "sender": "Shop <news@mail.example.com>"}
AHEAD = 150.0
"""Seconds between making the campaign and its due time: the sensors freeze it, and launch two minutes ahead."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description="Ticks, looks and due times.")
    parser.add_argument("--quick", action="store_true", help="500,000 delayed messages, 200,000 people, no daemon")
    chosen = parser.parse_args()
    messages = 500_000 if chosen.quick else 5_000_000
    people = 200_000 if chosen.quick else 1_000_000
    with ground.make("schedule", connections=10) as base, base.database.connection() as connection:
        result: dict[str, Any] = {"pending": messages, "people": people}
        result |= _due_poll(connection, messages)
        result |= _zones(connection, people)
        with ground.provider(1000) as provider:
            ses = base.ses(provider, 1)
            base.create("pattern", ses, due_at=(datetime.now(UTC) + timedelta(days=30)).isoformat())
            ses.close()
        _plan(base, connection)
        result |= _tick(base, connection)
        result |= _api(base, connection, messages)
    if not chosen.quick:
        result |= _first_mail()
    ground.emit(result)


def _median(work: Callable[[], object], times: int = LOOKS) -> float:
    """Milliseconds."""
    took = []
    work()
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return round(statistics.median(took) * 1000, 2)


def _due_poll(connection: Connection, messages: int) -> dict[str, Any]:
    say(f"{messages:,} delayed messages, and looks for what is due")
    _messages(connection, messages, first="now() + interval '1 hour' + i * interval '1 second'")
    connection.execute("VACUUM (ANALYZE) mailpipe.outbox")
    owner = uuid4()
    claims.register(connection, owner, seconds=3600)
    return {"due_poll_ms": _median(lambda: claims.claim(connection, "normal", owner, mark=None, most=50))}


def _messages(connection: Connection, number: int, *, first: str) -> None:
    """Nothing but so many messages in the queue, a quarter in each lane, the i-th due at `first`."""
    connection.execute("TRUNCATE mailpipe.outbox")
    connection.execute(
        (
            "INSERT INTO mailpipe.outbox (lane, due_at, message_id)"
            f" SELECT (ARRAY['critical', 'high', 'normal', 'low'])[1 + i %% 4], {first}, gen_random_uuid()"
            " FROM generate_series(1, %s) i"
        ).encode(),
        (number,),
    )


def _zones(connection: Connection, people: int) -> dict[str, Any]:
    """From staged people to numbered ones, without and with a due instant of their own; the difference is what time costs."""
    say(f"due instants of {people:,} people in {len(zones.every())} zones")
    rules = When.model_validate({"send_at": (datetime.now(UTC) + timedelta(days=3)).replace(tzinfo=None)})
    connection.execute(
        "CREATE UNLOGGED TABLE staged AS SELECT i AS place, CAST(i AS text) AS user_id,"
        " (CAST(%(zones)s AS text[]))[1 + i %% %(number)s] AS timezone FROM generate_series(1, %(people)s) i",
        {"zones": zones.every(), "number": len(zones.every()), "people": people},
    )
    connection.execute("ANALYZE staged")
    took: dict[str, list[float]] = {"plain": [], "timed": []}
    # Others may be busy on this machine: what the work itself takes shows in the better rounds.
    for _ in range(5):
        for kind, seconds in took.items():
            seconds.append(_numbering(connection, rules if kind == "timed" else None, people))
    plain, timed = min(took["plain"]), min(took["timed"])
    connection.execute("DROP TABLE staged")
    return {
        "zones_1m_ms": round((timed - plain) * 1000 * 1_000_000 / people),
        "numbering_with_zones_ms": round(timed * 1000),
    }


def _numbering(connection: Connection, rules: When | None, people: int) -> float:
    """Seconds to number the staged people, in the order of their due times if there are rules."""
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE TEMPORARY TABLE refused (place integer, reason text) ON COMMIT DROP")
        connection.execute("SELECT set_config('work_mem', '256MB', true)")
        begun = time.perf_counter()
        order = join = ""
        now = datetime.now(UTC)
        made = None
        if rules is not None:
            made = timing.stage(connection, rules, "staged", default_zone="UTC", due_at=now, now=now)
            assert made is not None
            order, join = made.order, made.join
        numbered = (
            f"SELECT row_number() OVER (ORDER BY {order}place) AS seq, place, timezone FROM staged AS person {join}"
        )
        connection.execute(f"CREATE TABLE numbered AS {numbered}".encode())
        if made is not None:
            made.measure(connection, "numbered")
            assert sum(made.sizes) == people
        return time.perf_counter() - begun


def _plan(base: Ground, connection: Connection) -> None:
    say(f"{SCHEDULES:,} schedules, {CAMPAIGNS} campaigns under way, {PENDING_PEOPLE:,} people pending")
    spec = parse(
        {"key": "series", "cron": "0 9 * * 1", "timezone": "Europe/Berlin", "campaign": CAMPAIGN}, where="benchmark"
    )
    recurring.create(connection, base.settings, spec, author="ana")
    connection.execute(
        "INSERT INTO mailpipe.schedule (key, cron_expression, timezone, next_slot, next_run_at, wake_at, spec, author)"
        " SELECT 'series-' || i, cron_expression, timezone, next_slot, next_run_at + i * interval '1 minute',"
        " wake_at + interval '1 year', spec, author FROM mailpipe.schedule, generate_series(2, %s) i",
        (SCHEDULES,),
    )
    chunks = PENDING_PEOPLE // 500 // CAMPAIGNS
    connection.execute(
        "WITH made AS (INSERT INTO mailpipe.campaign (key, state, spec, template_version, due_at, author, approver, approved_at)"
        " SELECT g.key || '-' || i, 'sending', g.spec, g.template_version, g.due_at, g.author, g.approver, g.approved_at"
        " FROM mailpipe.campaign g, generate_series(1, %(campaigns)s) i RETURNING campaign_id),"
        " due AS (INSERT INTO mailpipe.due SELECT m.campaign_id, now() + i * interval '1 hour', i, i, 10, NULL"
        " FROM made m, generate_series(1, 38) i)"
        " INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
        " SELECT m.campaign_id, i, i %% 100, 1 + i * 500, 500, now() + interval '1 day', repeat('0', 500)::varbit,"
        " repeat('0', 500)::varbit FROM made m, generate_series(0, %(chunks)s - 1) i",
        {"campaigns": CAMPAIGNS, "chunks": chunks},
    )
    connection.execute("VACUUM (ANALYZE) mailpipe.chunk, mailpipe.due, mailpipe.campaign, mailpipe.schedule")


def _tick(base: Ground, connection: Connection) -> dict[str, Any]:
    """What both sensors do in one tick."""

    def tick() -> None:
        launch.wanted(connection, grace=base.settings.misfire_grace)
        launch.soonest(connection)
        fire.tick(connection, base.settings)
        fire.next_wake(connection)

    return {"tick_ms": _median(tick)}


def _api(base: Ground, connection: Connection, messages: int) -> dict[str, Any]:
    config = replace(base.settings, api_tokens=f"benchmark:{TOKEN}", unsubscribe_keys="k1:" + TOKEN)
    server = uvicorn.Server(serve.configuration(app.build(config, base.database)))
    listener = serve.listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        _until(lambda: server.started, 30)
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/api/v1/schedules"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ask(path: str = "") -> Any:
            request.full_url = url + path
            with opener.open(request, timeout=30) as answer:
                return json.load(answer)

        assert ask()["queue_snapshot"]["normal"]["pending"] == PENDING_PEOPLE
        took = {"api_ms": _median(ask), "api_campaigns_ms": _median(lambda: ask("?type=scheduled"))}
        say(f"{messages:,} messages that are due")
        _messages(connection, messages, first="now() - interval '1 hour' - i * interval '1 millisecond'")
        took["api_due_messages_ms"] = _median(ask)
        told = sum(lane["pending"] for lane in ask()["queue_snapshot"].values()) - PENDING_PEOPLE
        return {**took, "due_messages_told": told}
    finally:
        server.should_exit = True
        thread.join(20)


def _first_mail() -> dict[str, Any]:
    """A campaign that a real daemon freezes, launches and sends, all by itself."""
    say("a real daemon: its sensors freeze and send a campaign")
    with _dev() as (config, url):
        for sensor in ("due", "recurring"):
            _graphql(url, START, {"selector": {**REPOSITORY, "sensorName": sensor}})
        database = db.connect(config)
        ses = client.connect(config, endpoint=stand_in.endpoint(config), connections=1)
        due_at = datetime.now(UTC) + timedelta(seconds=AHEAD)
        with database.connection() as connection:
            spec = campaign_file.parse({"key": "on-time", **CAMPAIGN, "due_at": due_at}, where="benchmark")
            campaign.create(connection, config, spec, author="ana")
            campaign.approve(connection, config, ses, "on-time", approver="ben")
            say(f"due in {AHEAD:g} s")
            asked = "SELECT min(at) FROM mailpipe.call"
            _until(lambda: connection.execute(asked.encode()).fetchone() != (None,), AHEAD + 120)
            row = connection.execute(asked.encode()).fetchone()
        ses.close()
        database.close()
    assert row is not None
    return {"first_mail_seconds": round((row[0] - due_at).total_seconds(), 2)}


REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "mailpipe"}
START = """mutation($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) { __typename ... on PythonError { message } }
}"""


@contextmanager
def _dev() -> Iterator[tuple[settings.Settings, str]]:
    """`mailpipe dev` on data of its own; its settings, and where Dagster answers."""
    var = Path(tempfile.mkdtemp(prefix="mailpipe-schedule-"))
    var.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port, web_port = one.getsockname()[1], two.getsockname()[1]
    environ = {"MAILPIPE_HOME": str(ROOT), "MAILPIPE_VAR": str(var)}
    command = [sys.executable, "-m", "mailpipe", "dev", "--port", str(port), "--web-port", str(web_port)]
    output = var / "dev.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environ}, stdout=out, stderr=out, start_new_session=True
        )
    config = settings.load(environ)
    try:
        _until(lambda: b"Ctrl-C" in output.read_bytes() or process.poll() is not None, 120)
        if process.poll() is not None:
            raise SystemExit(output.read_text())
        yield config, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        stand_in.stop(config)
        embedded_postgres.remove(var)
        shutil.rmtree(var, ignore_errors=True)


def _graphql(url: str, query: str, variables: dict[str, Any]) -> Any:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        told = json.load(answer)
    if "errors" in told or "PythonError" in json.dumps(told):
        raise SystemExit(json.dumps(told))
    return told["data"]


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited for {seconds:g} s in vain")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
