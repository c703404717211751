"""Login codes while a campaign runs at its full pace: `python -m benchmarks.lanes [--quick]`.

A campaign and `mailpipe lanes` run in processes of their own against the stand-in, which takes 80 ms for an answer and enforces its
rate in every sliding second. Meanwhile codes come one by one, then in a burst, with messages of the three other lanes and delayed
ones of all four; all of it beside millions of delayed messages. Times are those of the database: from the insert to the recorded
acceptance, so that waiting for the pace, the commits and the answer are in them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from benchmarks import ground
from benchmarks.ground import Ground, say
from mailpipe import campaign, outbox, pace, send
from mailpipe.db import Connection
from mailpipe.lane import NAMES
from mailpipe.lanes import claims
from mailpipe.outbox import MessageSpec
from mailpipe.pace import rule
from mailpipe.ses import client
from mailpipe.settings import Settings
from mailpipe.simulator.child import StandIn

KEY = "lanes"
LATENCY_MS = 80.0
BATCH = 1_000
LOOKS = 200
QUIET = 6.0
"""Seconds in which the campaign and idle lanes are alone."""
LATEST = 3.0
"""Seconds of the longest delay of the delayed messages that become due meanwhile."""
BURST_FROM = 2_000_000
"""The numbers of codes that come in bursts."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description="Login codes beside a campaign.")
    parser.add_argument("--quick", action="store_true", help="500,000 delayed messages, 15 s of traffic")
    parser.add_argument("--rate", type=float, default=600, help="recipients per second that the account allows")
    parser.add_argument("--seconds", type=float, default=60, help="length of the traffic")
    parser.add_argument("--delayed", type=int, default=None, help="delayed messages, 5 million if nothing is said")
    parser.add_argument("--burst", type=int, default=100, help="codes at one moment, three times")
    chosen = parser.parse_args()
    delayed = chosen.delayed or (500_000 if chosen.quick else 5_000_000)
    seconds = 15.0 if chosen.quick else chosen.seconds
    with ground.make("lanes", connections=6) as base, ground.provider(chosen.rate, LATENCY_MS) as stand_in:
        ses = base.ses(stand_in, 2)
        with base.database.connection() as connection:
            campaign.publish(connection, base.settings, ses, "login_code")
            result: dict[str, Any] = {"delayed_messages": delayed, "rate": chosen.rate, "latency_ms": LATENCY_MS}
            result |= _queue(connection, delayed)
            # Enough for chunks of 500 people, whatever the traffic takes: calls of 47 do not divide smaller ones well.
            ground.build(connection, max(50_000, round(chosen.rate * (seconds + 30))))
        base.create(KEY, ses)
        base.freeze(KEY)
        result |= _traffic(base, stand_in, seconds, chosen.burst)
        ses.close()
    ground.emit(result)


def _queue(connection: Connection, delayed: int) -> dict[str, Any]:
    """How fast messages come in, and how long a look for what is due takes while so many wait for their time."""
    owner = uuid4()
    claims.register(connection, owner, seconds=3600)
    first = _looks(connection, owner)
    own = min(delayed, 20_000)
    say(f"enqueueing {own:,} delayed messages in batches of {BATCH:,}, then {delayed - own:,} by one statement")
    begun = time.monotonic()
    for start in range(0, own, BATCH):
        outbox.enqueue_many(connection, [_code(start + number, delay=3600.0 + number) for number in range(BATCH)])
    rate = own / (time.monotonic() - begun)
    _fill(connection, delayed - own)
    last = _looks(connection, owner)
    # As a dump does: nothing that is deleted from here on can be cleaned up.
    with _snapshot(connection):
        outbox.enqueue_many(connection, [_code(number, lane="low") for number in range(BATCH * 5)])
        while claims.claim(connection, "low", owner, mark=None, most=500):
            pass
        held = _looks(connection, owner, lane="low")
    connection.execute(b"DELETE FROM mailpipe.outbox_claim; DELETE FROM mailpipe.lane_worker")
    connection.execute("DELETE FROM mailpipe.message WHERE due_at < clock_timestamp() + interval '1 minute'")
    return {
        "enqueue_per_second": round(rate),
        "due_poll_ms": round(statistics.median(last), 2),
        "due_poll_p99_ms": round(_percentile(last, 99), 2),
        "due_poll_empty_ms": round(statistics.median(first), 2),
        "due_poll_old_snapshot_ms": round(statistics.median(held), 2),
    }


def _looks(connection: Connection, owner: Any, lane: str = "critical") -> list[float]:
    """Looks that find nothing, in milliseconds, from a mark as a worker has it."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    times = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        claims.claim(connection, lane, owner, mark=row[0] - timedelta(seconds=2), most=10)
        times.append((time.perf_counter() - begun) * 1000)
    return times


def _fill(connection: Connection, number: int) -> None:
    for start in range(0, number, 250_000):
        connection.execute(
            "WITH made AS (INSERT INTO mailpipe.message (lane, email, subject, body_text, body_sha256, send_at, due_at)"
            " SELECT (ARRAY['critical', 'high', 'normal', 'low'])[1 + i %% 4], 'later' || i || '@mail.example.com', 'Later',"
            " 'A reminder', '', t.at, t.at FROM generate_series(1, %s) AS i, LATERAL (SELECT clock_timestamp() + interval '1 hour'"
            " + make_interval(secs => i) AS at) AS t RETURNING lane, due_at, message_id)"
            " INSERT INTO mailpipe.outbox SELECT lane, due_at, message_id FROM made",
            (min(250_000, number - start),),
        )


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(connection.info.dsn, password=connection.info.password) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM mailpipe.campaign")
        yield


def _traffic(base: Ground, stand_in: StandIn, seconds: float, burst: int) -> dict[str, Any]:
    url = base.database.url.render_as_string(hide_password=False)
    environment = {
        **os.environ,
        "MAILPIPE_HOME": str(base.settings.home),
        "MAILPIPE_VAR": str(base.settings.var),
        "MAILPIPE_DATABASE_URL": url,
        "MAILPIPE_SES_ENDPOINT": stand_in.url,
    }
    say("starting the lanes and the campaign")
    lanes = subprocess.Popen(
        [sys.executable, "-m", "mailpipe", "lanes"], env=environment, cwd=base.settings.home, stdout=sys.stderr
    )
    sender = multiprocessing.get_context("spawn").Process(target=_send, args=(base.settings, url, stand_in.url))
    sender.start()
    try:
        _wait_for_both(base)
        begun = time.time()
        time.sleep(QUIET)
        traffic = time.time()
        say("traffic")
        _send_messages(base, seconds, burst)
        ended = time.time()
        _wait_for_the_last(base)
    finally:
        for process in (lanes, sender):
            process.terminate()
        lanes.wait(30)
        sender.join(30)
    with base.database.connection() as connection:
        limits = pace.read(connection, base.campaign_id(KEY))
        rows = connection.execute(
            "SELECT lane, state, CAST(extract(epoch FROM finished_at - due_at) AS double precision), attempt,"
            " CAST(substring(email FROM '^code([0-9]+)@') AS bigint) FROM mailpipe.message WHERE state <> 'pending'"
        ).fetchall()
        # When the request left, not when its answer was recorded.
        delayed = connection.execute(
            "SELECT CAST(extract(epoch FROM min(c.at) - m.due_at) - min(c.seconds) AS double precision) FROM mailpipe.message m"
            " JOIN mailpipe.message_call c USING (message_id) WHERE m.idempotency_key LIKE 'later-%' GROUP BY m.message_id"
        ).fetchall()
    assert limits.campaign is not None
    # The reserve belongs to the lanes; what they borrow beyond it is missing in the campaign's part.
    limit = limits.campaign * (1 - limits.reserve_share)
    codes = {
        number: taken for lane, state, taken, _, number in rows if lane == "critical" and state == "sent" and number
    }
    alone = [taken for number, taken in codes.items() if number < BURST_FROM]
    misses = sum(state != "sent" or taken > base.settings.lanes[lane].sla for lane, state, taken, *_ in rows)
    journal = list(_journal(stand_in))
    before = sum(begun <= line["at"] < traffic for line in journal)
    during = [line for line in journal if traffic <= line["at"] < ended]
    mailed = sum(line["campaign"] == KEY for line in during)
    state = stand_in.state()
    return {
        "samples": len(codes),
        "burst": burst,
        "p50_ms": round(statistics.median(codes.values()) * 1000, 1),
        "p99_ms": round(_percentile(list(codes.values()), 99) * 1000, 1),
        "max_ms": round(max(codes.values()) * 1000, 1),
        "p50_one_by_one_ms": round(statistics.median(alone) * 1000, 1),
        "p99_one_by_one_ms": round(_percentile(alone, 99) * 1000, 1),
        "delayed_samples": len(delayed),
        "delayed_p99_ms": round(_percentile([late for (late,) in delayed], 99) * 1000, 1),
        "sla_misses": misses,
        "messages": len(rows),
        "resent": sum(row[3] > 1 for row in rows),
        "utilisation": round(mailed / (ended - traffic) / limit, 4),
        "utilisation_all_lanes": round(len(during) / (ended - traffic) / limits.campaign, 4),
        "utilisation_alone": round(before / (traffic - begun) / limit, 4),
        "campaign_rate": round(mailed / (ended - traffic), 1),
        "campaign_limit": limit,
        "max_in_any_second": state["max_in_any_second"],
        "throttled": state["throttled"],
    }


def _send(settings: Settings, url: str, endpoint: str) -> None:
    """The campaign, in a process of its own."""
    import signal  # noqa: PLC0415

    from sqlalchemy.engine import make_url  # noqa: PLC0415

    from mailpipe.db import Database  # noqa: PLC0415

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    database = Database(make_url(url), pool_size=20)
    ses = client.connect(settings, endpoint=endpoint, connections=20)
    send.run(database, settings, ses, KEY, stop=stop)
    database.close()


def _wait_for_both(base: Ground) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with base.database.connection() as connection:
            row = connection.execute(
                # The pace lets go of the reserve within this time, and changes the size of calls; see `mailpipe/pace/rule.py`.
                "SELECT EXISTS (SELECT FROM mailpipe.lane_worker WHERE started_at < clock_timestamp() - make_interval(secs => %s)),"
                " EXISTS (SELECT FROM mailpipe.call)",
                (rule.SETTLE + 3.0,),
            ).fetchone()
        if row == (True, True):
            return
        time.sleep(0.1)
    raise SystemExit("the lanes and the campaign did not start")


def _send_messages(base: Ground, seconds: float, burst: int) -> None:
    """Codes one by one at random moments, 15 a second; other lanes beside them, and half as many delayed messages of any lane;
    three times a burst of codes."""
    chance = random.Random(20261129)
    begun = time.monotonic()
    number, bursts = 1_000_000, [seconds / 4, seconds / 2, seconds * 3 / 4]
    with base.database.connection() as connection:
        at = 0.0
        while (at := at + chance.expovariate(15.0)) < seconds:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            if bursts and at > bursts[0]:
                bursts.pop(0)
                outbox.enqueue_many(
                    connection, [_code(BURST_FROM + 1_000_000 * len(bursts) + number + i) for i in range(burst)]
                )
            number += 1
            outbox.enqueue(connection, _code(number))
            if number % 12 == 0:
                lane = NAMES[1 + number // 12 % 3]
                outbox.enqueue(connection, _code(number, lane=lane))
            if number % 2 == 0 and at < seconds - LATEST:
                lane = NAMES[number // 2 % 4]
                outbox.enqueue(connection, _later(number, lane=lane, delay=chance.uniform(0.5, LATEST)))


def _wait_for_the_last(base: Ground) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with base.database.connection() as connection:
            if not any(depth.pending or depth.processing for depth in outbox.depths(connection).values()):
                return
        time.sleep(0.1)


def _code(number: int, *, lane: str = "critical", delay: float | None = None) -> MessageSpec:
    return MessageSpec(
        to=f"code{number}@mail.example.com",
        template="login_code",
        variables={"code": f"{number % 1_000_000:06d}"},
        lane=lane,  # type: ignore[arg-type]
        delay=delay,
        idempotency_key=f"login-{lane}-{number}-{delay}",
    )


def _later(number: int, *, lane: str, delay: float) -> MessageSpec:
    code = _code(number, lane=lane, delay=delay)
    return code.model_copy(update={"to": f"reminder{number}@mail.example.com", "idempotency_key": f"later-{number}"})


def _journal(stand_in: StandIn) -> Iterator[dict[str, Any]]:
    with stand_in.journal_file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    main()
