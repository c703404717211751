"""The demo: a flash sale to invented people, sent by Dagster runs to a stand-in with a journal of its own, and proved.

What it shows is the real thing: the same jobs, the same library. Only the people and the provider are invented.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from mailpipe import campaign, children, db, dev, reconcile, report, stand_in
from mailpipe.db import Database
from mailpipe.demo import agree, audience
from mailpipe.demo.agree import Agreement
from mailpipe.demo.audience import AudienceCounts
from mailpipe.errors import ServiceError, UserError
from mailpipe.feedback.ingest import ingest_lines
from mailpipe.ses import client
from mailpipe.settings import Settings
from mailpipe.stand_in import Running

AUTHOR, APPROVER = "ana", "ben"
OPT_OUT = 0.002
"""Share of the people who withdraw their consent while the campaign is being sent."""
_LOOK_EVERY = 0.5


class Stopped(Exception):
    """The demo was told to stop. The campaign stays as it is, and can go on; `key` is its name."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True)
class Plan:
    """What to show: `people` in the audience, `rate` in recipients per second, the provider's latency in milliseconds."""

    people: int
    rate: float
    latency_ms: float
    seed: int
    segment: str = "active_opted_in"
    template: str = "flash_sale"


@dataclass(frozen=True)
class Result:
    """What came out. `peak` is the most that the provider accepted within any second, `throttled` what it refused for
    the rate; `opted_out` people withdrew their consent while mail was being sent."""

    key: str
    audience: AudienceCounts
    progress: report.Progress
    reasons: list[report.Reason]
    events: dict[str, int]
    measured_rate: float | None
    peak: int
    throttled: int
    opted_out: int
    agreement: Agreement
    journal: Path


@dataclass(frozen=True)
class Screen:
    """Whom the demo tells: `say` a line, `watch` where the campaign stands."""

    say: Callable[[str], None]
    watch: Callable[[report.Progress], None]


def run(settings: Settings, plan: Plan, screen: Screen, *, stop: threading.Event) -> Result:
    """Send one campaign from an empty audience to the proof. The database has its schema already.

    Raises:
        UserError: Dagster is not there, or the database holds a `users` table that is not the demo's.
        ServiceError: a Dagster run failed; the text ends with its last lines.
        Stopped: `stop` was set.
    """
    dev.require(settings)
    if plan.people < audience.LEAST:
        raise UserError(f"{plan.people} people would not show every kind of end; take {audience.LEAST} or more")
    key = f"flash-sale-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    was_running = stand_in.stop(settings)
    running = stand_in.ensure_running(settings, run=key, rate=plan.rate, latency_ms=plan.latency_ms, seed=plan.seed)
    # Whatever the environment says, mail of the demo goes to its own stand-in.
    settings = replace(settings, ses_endpoint=running.url)
    database = db.connect(settings)
    try:
        return _Demo(settings, plan, screen, stop, key, running, database).run()
    finally:
        database.close()
        stand_in.stop(settings)
        if was_running:
            stand_in.ensure_running(settings)


@dataclass
class _Demo:
    settings: Settings
    plan: Plan
    screen: Screen
    stop: threading.Event
    key: str
    running: Running
    database: Database
    opted_out: int = 0

    def run(self) -> Result:
        env = children.dagster_environment(self.settings)
        with children.Group() as group:
            self.screen.say(f"inventing {self.plan.people:,} people")
            creating = self._start(group, env, "create_campaign", config=self._form())
            with self.database.connection() as connection:
                made = audience.build(connection, self.plan.people, self.plan.seed)
            self.screen.say(
                f"creating campaign {self.key}, approving it ({APPROVER}), freezing its audience, in Dagster runs"
            )
            self._finish(creating)
            self._approve()
            self._finish(self._start(group, env, "snapshot", tags={"dagster/partition": self.key}))
            slices = {
                "dagster/asset_partition_range_start": f"{self.key}|00",
                "dagster/asset_partition_range_end": f"{self.key}|99",
            }
            self.screen.say("sending, in one Dagster run over the slices 00..99")
            self._finish(self._start(group, env, "send", tags=slices), watch=True)
        counters = self._counters()
        # Ended, it has written every event.
        stand_in.stop(self.settings)
        return self._result(made, counters)

    def _start(
        self,
        group: children.Group,
        env: dict[str, str],
        job: str,
        *,
        tags: dict[str, str] | None = None,
        config: Path | None = None,
    ) -> children.Child:
        home = self.settings.home
        command = [
            sys.executable,
            "-m",
            "dagster",
            "job",
            "execute",
            "-f",
            str(home / "definitions.py"),
            "-d",
            str(home),
        ]
        command += ["-j", job, "--tags", json.dumps(tags or {})]
        command += ["-c", str(config)] if config else []
        return group.start(job, command, log=self.running.journal.with_name(f"{job}.log"), cwd=home, env=env)

    def _finish(self, child: children.Child, *, watch: bool = False) -> None:
        """Wait for a Dagster run, and watch the campaign meanwhile."""
        while child.process.poll() is None:
            if self.stop.is_set():
                raise Stopped(self.key)
            if watch:
                self._look()
            self.stop.wait(_LOOK_EVERY)
        if child.process.returncode != 0:
            # What was said, without the calls that led there: the log has them.
            said = [line for line in children.last_lines(child.log, 500) if line.strip() and not line.startswith(" ")]
            lines = "\n".join(said[-12:])
            raise ServiceError(f"the Dagster run of {child.name} failed; the end of {child.log}:\n{lines}")

    def _look(self) -> None:
        with self.database.connection() as connection:
            now = report.progress(connection, self.key)
            self.screen.watch(now)
            if now.sent and not self.opted_out:
                self.opted_out = audience.opt_out_some(connection, OPT_OUT, self.plan.seed)

    def _form(self) -> Path:
        fields = {
            "author": AUTHOR,
            "key": self.key,
            "segment": self.plan.segment,
            "template": self.plan.template,
            "sender": "Example Shop <sale@news.example.com>",
            "rate": self.plan.rate,
        }
        path = self.running.journal.with_name("create_campaign.yaml")
        path.write_text(yaml.safe_dump({"ops": {"create": {"config": fields}}}))
        return path

    def _approve(self) -> None:
        ses = client.connect(self.settings, endpoint=self.running.url, connections=1)
        try:
            with self.database.connection() as connection:
                campaign.approve(connection, self.settings, ses, self.key, approver=APPROVER)
        finally:
            ses.close()

    def _counters(self) -> dict[str, int]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.running.url}/_control/state", timeout=10) as answer:
            counters: dict[str, int] = json.load(answer)
        return counters

    def _result(self, made: AudienceCounts, counters: dict[str, int]) -> Result:
        self.screen.say("reading SES's events, and comparing its journal with the ledger, person by person")
        with self.running.events.open(encoding="utf-8") as lines:
            ingest_lines(self.database, lines)
        with self.database.connection() as connection:
            reconcile.run(connection, self.key)
            now = report.progress(connection, self.key)
            self.screen.watch(now)
            found = campaign.get(connection, self.key)
            return Result(
                key=self.key,
                audience=made,
                progress=now,
                reasons=report.reasons(connection, self.key),
                events=report.events(connection, found.campaign_id),
                measured_rate=report.measured_rate(connection, self.key),
                peak=counters["max_in_any_second"],
                throttled=counters["throttled"],
                opted_out=self.opted_out,
                agreement=agree.compare(self.database, self.key, self.running.journal),
                journal=self.running.journal,
            )
