"""What all benchmarks stand on: a throw-away PostgreSQL that makes every commit durable, the demo's lifelike audience, and a
campaign of the shipped segment and template. Nothing is measured here.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mailpipe import campaign, campaign_file, db, embedded_postgres, settings, snapshot
from mailpipe.db import Connection, Database, migrate
from mailpipe.demo import audience
from mailpipe.demo.audience import AudienceCounts, Shares
from mailpipe.ses import client
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings
from mailpipe.simulator.child import StandIn

ROOT = Path(__file__).parents[1]
SEGMENT, TEMPLATE = "active_opted_in", "flash_sale"
LIFELIKE = Shares()
_SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Ground:
    """A server of its own with an empty, migrated database; everything lies in `folder` and goes away with it."""

    folder: Path
    settings: Settings
    database: Database

    def create(self, key: str, ses: Ses, **fields: Any) -> None:
        """An approved campaign to everybody who is active and opted in."""
        spec = campaign_file.parse(
            {"key": key, "segment": SEGMENT, "template": TEMPLATE, "sender": "Shop <news@mail.example.com>", **fields},
            where="benchmark",
        )
        with self.database.connection() as connection:
            campaign.create(connection, self.settings, spec, author="ana")
            campaign.approve(connection, self.settings, ses, key, approver="ben")

    def freeze(self, key: str) -> snapshot.Snapshot:
        with self.database.connection() as connection:
            return snapshot.take(connection, self.settings, key)

    def campaign_id(self, key: str) -> int:
        with self.database.connection() as connection:
            return campaign.get(connection, key).campaign_id

    def ses(self, stand_in: StandIn, threads: int) -> Ses:
        return client.connect(self.settings, endpoint=stand_in.url, connections=threads)


@contextmanager
def provider(rate: float, latency_ms: float = 0.0) -> Iterator[StandIn]:
    """A stand-in that is as little as possible in the way of what is measured on the same machine.

    Its journal lies in memory where there is room: on PostgreSQL's disk a write of it waits for the server's flushes, which
    a provider elsewhere does not. It keeps no messages to be read back: walking through them stops it for tens of milliseconds.
    """
    roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 4e9
    where = _SHARED_MEMORY if roomy else None
    with (
        tempfile.TemporaryDirectory(prefix="mailpipe-provider-", dir=where) as folder,
        StandIn(Path(folder), rate=rate, latency_ms=latency_ms, keep_messages=1) as stand_in,
    ):
        yield stand_in


@contextmanager
def make(name: str, *, connections: int, postgres: Mapping[str, str] | None = None, **changes: Any) -> Iterator[Ground]:
    """A ground for one benchmark; `changes` replace fields of the settings, `postgres` settings of the server."""
    # Told to end, it still stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for variable in [variable for variable in os.environ if variable.startswith(("MAILPIPE_", "AWS_"))]:
        if variable != "MAILPIPE_PG_BIN":
            del os.environ[variable]
    # Not /dev/shm, where a commit that must reach the disk costs nothing.
    folder = Path(tempfile.mkdtemp(prefix=f"mailpipe-{name}-"))
    # Root's server runs as nobody, and keeps its data elsewhere if it cannot enter: they would outlive the folder.
    folder.chmod(0o755)
    var = folder / "var"
    try:
        embedded_postgres.ensure_running(var, settings=postgres)
        config = replace(settings.load({"MAILPIPE_HOME": str(ROOT), "MAILPIPE_VAR": str(var)}), **changes)
        url = db.url(config)
        migrate.upgrade(url)
        database = Database(url, pool_size=connections)
        try:
            yield Ground(folder, config, database)
        finally:
            database.close()
    finally:
        embedded_postgres.remove(var)
        shutil.rmtree(folder, ignore_errors=True)


def people(wanted: int, of: Callable[[AudienceCounts], int], shares: Shares = LIFELIKE) -> int:
    """The number of people to build, so that exactly `wanted` of them are of the kind that `of` counts."""
    number = round(wanted * wanted / max(1, of(audience.counts(wanted, shares))))
    for distance in range(1000):
        for candidate in (number - distance, number + distance):
            if candidate > 0 and of(audience.counts(candidate, shares)) == wanted:
                return candidate
    raise ValueError(f"no audience has exactly {wanted} of them")


def mailable(counts: AudienceCounts) -> int:
    """Who is mailed in the end: not those with an unusable address, nor those whose city the template misses."""
    return counts.recipients - counts.unusable - counts.without_city


def build(connection: Connection, number: int, shares: Shares = LIFELIKE) -> AudienceCounts:
    say(f"inventing {number:,} people")
    made = audience.build(connection, number, shares=shares)
    # What the first reader of new rows would otherwise write about them, and what autovacuum would do at some moment later.
    connection.execute(b"VACUUM (FREEZE, ANALYZE) users, mailpipe.suppression")
    return made


class PeakMemory:
    """The largest resident memory of this process while the context is open, in MB (Linux)."""

    def __init__(self) -> None:
        self.mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        page = resource.getpagesize()
        while not self._done.wait(0.25):
            self.mb = max(self.mb, int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6)


_STARTED = time.monotonic()


def say(text: str) -> None:
    """Progress, for people."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


def emit(result: Mapping[str, Any]) -> None:
    """The result: one line of JSON on stdout."""
    print(json.dumps(result), flush=True)
