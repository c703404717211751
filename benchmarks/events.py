"""Events of SES: how many one core takes in from a queue, and what a burst of them costs a sender beside it.

    python -m benchmarks.events [--events 60000] [--rate 500] [--seconds 40] [--quick]

Real HTTP to the stand-in's queue, a real database that makes commits durable. The reader is a process of its own, tied to one core
where the system can do that. A sender at a fixed pace is measured alone, then with a burst of events at three times its rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks import ground
from benchmarks.ground import Ground, say
from mailpipe import send
from mailpipe.db import Database
from mailpipe.feedback.poll import poll, step_back
from mailpipe.settings import Settings
from mailpipe.simulator.child import StandIn

QUEUE = "http://127.0.0.1/111122223333/ses-events"
BURST = 3
"""Events a second for each recipient a second: a send, a delivery and now and then something else, all at once."""
_FEED = 0.1


@dataclass(frozen=True)
class Reading:
    """What a reader did: events, the seconds of the clock, and those of its processor."""

    events: int
    seconds: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description="Events taken in from a queue.")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--rate", type=float, default=500, help="recipients per second of the sender")
    parser.add_argument("--seconds", type=float, default=40, help="how long the sender is measured, each time")
    parser.add_argument("--quick", action="store_true", help="20,000 events, 12 seconds")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.events, chosen.seconds = 20_000, 12.0
    needed = max(chosen.events // 2, int(chosen.rate * chosen.seconds * 1.2))
    with ground.make("events", connections=8, rate=chosen.rate, threads=6) as base:
        with base.database.connection() as connection:
            ground.build(connection, ground.people(needed, ground.mailable))
        with tempfile.TemporaryDirectory(prefix="mailpipe-queue-") as folder, ground.provider(100_000, 50) as provider:
            ses = base.ses(provider, 6)
            with StandIn(Path(folder), sqs=True) as queue:
                for key in ("told", "alone", "beside"):
                    base.create(key, ses)
                    base.freeze(key)
                reading = _ingest(base, queue, chosen.events)
                say(f"{reading.events:,} events in {reading.seconds:.1f} s, {reading.cpu_seconds:.1f} s of one core")
                alone = _sent(base, ses, "alone", chosen.seconds)
                with _burst(base, queue, "beside", chosen.rate * BURST, chosen.seconds) as burst:
                    beside = _sent(base, ses, "beside", chosen.seconds)
                say(
                    f"sender: {alone:.1f}/s alone, {beside:.1f}/s beside {burst.events:,} events in {burst.seconds:.1f} s"
                )
            ses.close()
    ground.emit(
        {
            "benchmark": "events",
            "events_per_second": round(reading.events / reading.seconds),
            "events_per_core_second": round(reading.events / reading.cpu_seconds),
            "sender_alone": round(alone, 1),
            "sender_beside_burst": round(beside, 1),
            "burst_events_per_second": round(burst.events / burst.seconds),
            "sender_slowdown": round(max(0.0, 1 - beside / alone), 3),
        }
    )


def lines(key: str, first: int, people: int) -> Iterator[str]:
    """A send and a delivery for each of these people, and something else for a few, as SES publishes them."""
    now = datetime.now(UTC)
    accepted = (now - timedelta(seconds=9)).isoformat(timespec="milliseconds")
    for seq in range(first, first + people):
        mail = {
            "timestamp": accepted, "source": "news@mail.example.com", "sendingAccountId": "111122223333",
            "headersTruncated": False, "sourceArn": "arn:aws:ses:eu-west-1:111122223333:identity/mail.example.com",
            "destination": [f"p{seq}@mail.example.com"],
            "messageId": f"0102019a{seq:08x}-5f0c2a44-{seq % 65536:04x}-4f6b-9a55-{seq:012x}-000000",
            "tags": {"ses:operation": ["SendBulkEmail"], "ses:configuration-set": ["mailpipe-marketing"],
                     "ses:from-domain": ["mail.example.com"], "ses:source-ip": ["192.0.2.1"], "campaign": [key], "seq": [str(seq)],
                     "attempt": ["1"]},
        }  # fmt: skip
        at = (now - timedelta(seconds=seq % 8)).isoformat(timespec="milliseconds")
        delivery = {"timestamp": at, "processingTimeMillis": 900, "recipients": mail["destination"],
                    "smtpResponse": "250 2.0.0 OK", "reportingMTA": "b1-2.smtp-out.example.com"}  # fmt: skip
        yield json.dumps({"eventType": "Send", "mail": mail, "send": {}})
        if seq % 100:
            yield json.dumps({"eventType": "Delivery", "mail": mail, "delivery": delivery})
        else:
            bounce = {"bounceType": "Permanent", "bounceSubType": "General", "timestamp": at, "feedbackId": f"f{seq}",
                      "bouncedRecipients": [{"emailAddress": f"p{seq}@mail.example.com", "status": "5.1.1"}]}  # fmt: skip
            yield json.dumps({"eventType": "Bounce", "mail": mail, "bounce": bounce})


def _ingest(base: Ground, queue: StandIn, events: int) -> Reading:
    told = list(lines("told", 1, events // 2))
    for start in range(0, len(told), 2_000):
        queue.enqueue(told[start : start + 2_000])
    with _reader(base, queue, once=True) as reader:
        pass
    return reader.reading


def _sent(base: Ground, ses: object, key: str, seconds: float) -> float:
    """Recipients a second that a run at the fixed pace hands over."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    outcome = send.run(base.database, base.settings, ses, key, stop=stop, accept_plan=True)  # type: ignore[arg-type]
    timer.cancel()
    return outcome.accepted / outcome.seconds


class _burst:  # noqa: N801 - used like a function
    """A reader at work on a queue that is fed at so many events a second, while the context is open."""

    def __init__(self, base: Ground, queue: StandIn, key: str, rate: float, seconds: float) -> None:
        self._reader = _reader(base, queue, once=False)
        self._told = list(lines(key, 1, int(rate * seconds / 2)))
        self._step = int(rate * _FEED)
        self._queue = queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def _feed(self) -> None:
        due = time.monotonic()
        for start in range(0, len(self._told), self._step):
            self._queue.enqueue(self._told[start : start + self._step])
            due += _FEED
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return

    def __enter__(self) -> _burst:
        self._reader.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.__exit__()

    @property
    def events(self) -> int:
        return self._reader.reading.events

    @property
    def seconds(self) -> float:
        return self._reader.reading.seconds


class _reader:  # noqa: N801 - used like a function
    """`mailpipe events poll` in a process of its own; leaving the context waits for its end, or (not `once`) stops it."""

    def __init__(self, base: Ground, queue: StandIn, *, once: bool) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._once = once
        self._pipe, theirs = spawn.Pipe()
        self._stop = spawn.Event()
        self._process = spawn.Process(
            target=_read,
            args=(
                base.database.url.render_as_string(hide_password=False),
                base.settings,
                queue.url,
                once,
                theirs,
                self._stop,
            ),
        )

    def __enter__(self) -> _reader:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._once:
            self._stop.set()
        self.reading = Reading(**self._pipe.recv())
        self._process.join()


def _read(url: str, config: Settings, endpoint: str, once: bool, pipe: Pipe, stop: Event) -> None:
    from mailpipe.db import parse_url  # noqa: PLC0415

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    step_back()
    database = Database(parse_url(url).set(drivername="postgresql+psycopg"), pool_size=6)
    told = threading.Event()

    def wait() -> None:
        stop.wait()
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    pipe.send("ready")
    start, cpu = time.monotonic(), time.process_time()
    done = poll(database, config, QUEUE, endpoint=endpoint, stop=told, once=once)
    pipe.send(asdict(Reading(done.read, time.monotonic() - start, time.process_time() - cpu)))
    database.close()


if __name__ == "__main__":
    main()
