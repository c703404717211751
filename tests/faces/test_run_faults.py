"""Runs that are killed, cancelled, launched twice, beside each other, without a daemon or a code server, and by two daemons: the
journal decides.

Real processes: webserver, daemon and code server with the checkout's `dagster.yaml`, the storage in PostgreSQL, and one process for
each run. What people do in the UI is done through its API.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from mailpipe import campaign, children, dev
from mailpipe.schedule import recurring
from mailpipe.schedule.spec import parse
from tests.conftest import admin
from tests.support import World, wait_for

CHECKOUT = Path(__file__).parents[2]
RANGE = "dagster/asset_partition_range_"
THREADS = 4
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "mailpipe"}
LAUNCH = """mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
AGAIN = """mutation($params: ReexecutionParams!) {
  launchRunReexecution(reexecutionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
CANCEL = """mutation($run: String!) {
  terminateRun(runId: $run) { __typename ... on TerminateRunFailure { message } ... on PythonError { message } }
}"""
ADD = """mutation($repository: RepositorySelector!, $key: String!) {
  addDynamicPartition(repositorySelector: $repository, partitionsDefName: "campaign", partitionKey: $key) { __typename }
}"""
LOGS = """query($run: ID!) { logsForRun(runId: $run) {
  ... on EventConnection { events { ... on MessageEvent { message } } } } }"""
BACKFILL = """mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } }
}"""
SENSOR = """mutation($sensor: SensorSelector!) {
  startSensor(sensorSelector: $sensor) { __typename ... on Sensor { sensorState { id } } }
}"""
STOP_SENSOR = """mutation($id: String!) { stopSensor(id: $id) { __typename } }"""
RUNS = """query($tag: ExecutionTag!) { runsOrError(filter: {tags: [$tag]}) { ... on Runs { results { runId } } } }"""
LOOK = """query($run: ID!) { runOrError(runId: $run) { ... on Run { status tags { key value } } } }"""

pytestmark = pytest.mark.timeout(240)


@dataclass
class Stage:
    """Dagster as it runs in production, around a world."""

    world: World
    environment: dict[str, str]
    workspace: Path
    folder: Path
    port: int
    code_server: tuple[str, ...]
    group: children.Group = field(default_factory=children.Group)

    def start(self, name: str, *command: str) -> children.Child:
        return self.group.start(
            name,
            [sys.executable, "-m", *command],
            log=self.folder / f"{name}.log",
            cwd=self.folder,
            env=self.environment,
        )

    def start_daemon(self, name: str = "daemon") -> children.Child:
        return self.start(name, "dagster._daemon", "run", "-w", str(self.workspace))

    def start_code_server(self) -> None:
        self.start("code-server", *self.code_server)
        listens = partial(dev._listens, int(self.code_server[-1]))
        wait_for(lambda: listens() or bool(self.group.ended()), "the code server", seconds=60)

    def kill(self, name: str, *, but: int | None = None) -> None:
        """Kill a child and the processes that it has started, but one."""
        (child,) = [child for child in self.group.children if child.name == name]
        for pid in {child.process.pid, *_below(child.process.pid)} - {but}:
            os.kill(pid, signal.SIGKILL)
        child.process.wait()
        self.group.children.remove(child)

    def output(self) -> str:
        lines = (f"{log.name}: {line}" for log in self.folder.glob("*.log") for line in children.last_lines(log, 8))
        return "\n".join(lines)

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        address = f"http://127.0.0.1:{self.port}/graphql"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            told = json.load(answer)
        assert "errors" not in told, told
        return told["data"]

    def ready(self, **fields: Any) -> str:
        key = self.world.ready(**fields)
        self.ask(ADD, repository=REPOSITORY, key=key)
        return key

    def launch(self, key: str, first: int = 0, last: int = 99) -> str:
        """Launch `send` over a range of slices; answers the run."""
        tags = {f"{RANGE}start": f"{key}|{first:02d}", f"{RANGE}end": f"{key}|{last:02d}"}
        params = {
            "selector": {**REPOSITORY, "jobName": "send"},
            "runConfigData": {},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": name, "value": value} for name, value in tags.items()]},
        }
        return self._run(self.ask(LAUNCH, params=params)["launchRun"])

    def backfill(self, key: str) -> str:
        """What "Materialize missing partitions" does; answers the backfill."""
        params = {
            "assetSelection": [{"path": ["deliveries"]}],
            "partitionNames": [f"{key}|{number:02d}" for number in range(100)],
        }
        told = self.ask(BACKFILL, params=params)["launchPartitionBackfill"]
        assert told["__typename"] == "LaunchBackfillSuccess", told
        return str(told["backfillId"])

    @contextmanager
    def sensor(self, name: str) -> Iterator[None]:
        """A sensor that is turned on."""
        told = self.ask(SENSOR, sensor={**REPOSITORY, "sensorName": name})["startSensor"]
        assert told["__typename"] == "Sensor", told
        yield
        self.ask(STOP_SENSOR, id=told["sensorState"]["id"])

    def runs(self, key: str, value: str) -> list[str]:
        """The runs that have a tag."""
        return [run["runId"] for run in self.ask(RUNS, tag={"key": key, "value": value})["runsOrError"]["results"]]

    def execute_again(self, run: str) -> str:
        """What the button "Re-execute all" does."""
        params = {"parentRunId": run, "strategy": "ALL_STEPS"}
        return self._run(self.ask(AGAIN, params=params)["launchRunReexecution"])

    @staticmethod
    def _run(told: dict[str, Any]) -> str:
        assert told["__typename"] == "LaunchRunSuccess", told
        return str(told["run"]["runId"])

    def cancel(self, run: str) -> None:
        told = self.ask(CANCEL, run=run)["terminateRun"]
        assert told["__typename"] == "TerminateRunSuccess", told

    def look(self, run: str) -> tuple[str, dict[str, str]]:
        """Status and tags of a run."""
        found = self.ask(LOOK, run=run)["runOrError"]
        return str(found["status"]), {tag["key"]: tag["value"] for tag in found["tags"]}

    def wait_for(self, run: str, *statuses: str) -> str:
        wait_for(lambda: self.look(run)[0] in {*statuses, "SUCCESS", "FAILURE", "CANCELED"}, f"{statuses}", seconds=90)
        status, _ = self.look(run)
        assert status in statuses, f"the run is {status}\n{self.output()}"
        return status

    def process(self, run: str) -> int:
        """The process of a run, as Dagster names it in the run's log."""
        events = self.ask(LOGS, run=run)["logsForRun"]["events"]
        found = {number for event in events for number in re.findall(r"\(pid: (\d+)\)", event.get("message", ""))}
        (process,) = found
        return int(process)

    def workers(self, key: str) -> set[int]:
        """The processes that hold chunks of a campaign at this moment."""
        rows = self.world.execute(
            "SELECT DISTINCT owner FROM mailpipe.chunk WHERE state = 'leased' AND campaign_id = %(id)s",
            {"id": self.world.campaign(key).campaign_id},
        )
        return {int(owner.split(":")[1]) for (owner,) in rows}

    def wait_for_sent(self, key: str, people: int) -> None:
        wait_for(lambda: self.world.progress(key).sent >= people, f"{people} sent", seconds=60)


@pytest.fixture(scope="module")
def _stage(_scene: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("dagster")
    settings = replace(
        _scene.settings,
        home=CHECKOUT,
        database_url=_scene.database.url.render_as_string(hide_password=False),
        dagster_database=f"dagster_faults_{os.getpid()}",
    )
    environment = children.dagster_environment(settings) | {
        # Segments and templates are the world's; what is Dagster's is the checkout's.
        "MAILPIPE_HOME": str(_scene.settings.home),
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_THREADS": str(THREADS),
        # What a killed worker held is free again after four seconds.
        "MAILPIPE_LEASE": "4",
        "MAILPIPE_CONNECT_TIMEOUT": "1",
        "MAILPIPE_READ_TIMEOUT": "2",
    }
    workspace, code_server = dev._one_code_server(settings)
    stage = Stage(_scene, environment, workspace, folder, dev._any_port(), code_server)
    with stage.group:
        stage.start_code_server()
        stage.start_daemon()
        arguments = ("-h", "127.0.0.1", "-p", str(stage.port), "-w", str(workspace))
        stage.start("webserver", "dagster_webserver", *arguments)
        url = f"http://127.0.0.1:{stage.port}/server_info"
        wait_for(lambda: dev._answers(url) or bool(stage.group.ended()), "the webserver", seconds=60)
        assert stage.group.ended() is None, stage.output()
        yield stage
    with admin(_scene.database.url) as connection:
        connection.execute(f'DROP DATABASE "{settings.dagster_database}" WITH (FORCE)'.encode())


@pytest.fixture
def stage(_stage: Stage, scene: World) -> Stage:
    return _stage


def test_dagster_notices_dead_runs_and_never_resumes_one_by_itself() -> None:
    """Above 0, a user's stop would not reach the send; and a retry would go over the whole range again."""
    given = yaml.safe_load((CHECKOUT / "dagster.yaml").read_text())
    assert given["run_monitoring"]["enabled"] is True
    assert given["run_monitoring"]["max_resume_run_attempts"] == 0
    assert given["run_retries"]["enabled"] is False


def test_a_killed_run_is_executed_again_over_its_whole_range(stage: Stage) -> None:
    stage.world.people(2_000)
    key = stage.ready(chunk_size=100, rate=400.0)
    killed = stage.launch(key)
    stage.wait_for_sent(key, 400)
    (process,) = stage.workers(key)
    os.kill(process, signal.SIGKILL)
    stage.wait_for(killed, "FAILURE")
    assert stage.world.progress(key).pending > 0, "it was killed in the middle"

    again = stage.execute_again(killed)
    stage.wait_for(again, "SUCCESS")
    _, tags = stage.look(again)
    assert (tags[f"{RANGE}start"], tags[f"{RANGE}end"]) == (f"{key}|00", f"{key}|99")
    assert tags["mailpipe/end"] == "complete"
    people = stage.world.keep_promises(key)
    assert people["sent"] + people.get("unknown", 0) == 2_000
    assert people.get("unknown", 0) <= THREADS * 50, "nobody but those in calls that were open"


def test_runs_over_the_same_people_at_once_of_which_two_are_stopped(stage: Stage) -> None:
    """The same range twice and a part of it beside. One is cancelled in the UI, one gets SIGTERM; the third ends the work."""
    world = stage.world
    world.people(3_000)
    key = stage.ready(chunk_size=100, rate=300.0)
    due(stage, key, "3 minutes")
    cancelled, part, survivor = stage.launch(key), stage.launch(key, 30, 99), stage.launch(key)
    runs = (cancelled, part, survivor)
    # They wait for the due time, within their horizon.
    wait_for(lambda: all("mailpipe/campaign" in stage.look(run)[1] for run in runs), "three runs", seconds=90)
    due(stage, key, "0 s")
    stage.wait_for_sent(key, 200)
    wait_for(lambda: len(stage.workers(key)) > 1, "two runs at work")
    processes = {run: stage.process(run) for run in runs}
    stage.cancel(cancelled)
    os.kill(processes[part], signal.SIGTERM)
    stage.wait_for(cancelled, "CANCELED")
    stage.wait_for(part, "CANCELED", "FAILURE")
    assert {stage.look(run)[1]["mailpipe/end"] for run in (cancelled, part)} == {"stopped"}, "the send itself has ended"
    assert stage.workers(key) <= {processes[survivor]}, "chunks are given back"
    progress = world.progress(key)
    assert progress.unknown == 0
    assert progress.pending > 0, "they were stopped in the middle"
    stage.wait_for(survivor, "SUCCESS")
    assert world.keep_promises(key) == {"sent": 3_000}, "nobody twice, nobody lost, nobody unknown"


def due(stage: Stage, key: str, distance: str) -> None:
    stage.world.execute(
        "UPDATE mailpipe.chunk SET due_at = now() + CAST(%(distance)s AS interval) WHERE campaign_id = %(id)s",
        {"id": stage.world.campaign(key).campaign_id, "distance": distance},
    )


def test_a_run_outlives_daemon_and_code_server_and_what_is_queued_meanwhile_is_launched_later(stage: Stage) -> None:
    world = stage.world
    world.people(2_000)
    key = stage.ready(chunk_size=100, rate=400.0)
    run = stage.launch(key)
    stage.wait_for_sent(key, 200)
    stage.kill("daemon")
    queued = stage.launch(key)
    stage.kill("code-server", but=stage.process(run))
    assert world.progress(key).pending > 0, "they were killed in the middle"
    stage.wait_for(run, "SUCCESS")
    assert world.progress(key).pending == 0
    assert stage.look(queued)[0] == "QUEUED"
    stage.start_code_server()
    stage.start_daemon()
    stage.wait_for(queued, "SUCCESS")
    assert stage.look(queued)[1]["mailpipe/accepted"] == "0"
    assert world.keep_promises(key) == {"sent": 2_000}


def test_two_daemons_beside_each_other_send_once(stage: Stage) -> None:
    """Dagster asks for one daemon. Here two look at the same sensors, the same queue and the same backfill, while a run of a sensor
    sends beside a run of a backfill, and a schedule fires whose campaign nobody but the daemons makes, freezes and sends."""
    world = stage.world
    world.people(1_000)
    key = stage.ready(chunk_size=100, rate=20.0)
    with world.database.connection() as connection:
        # Somebody has started it, and died.
        campaign.start(connection, key, actor="ana")
    with stage.sensor("resume"):
        wait_for(lambda: len(stage.workers(key)) > 0, "the run of the sensor", seconds=60)
        backfill = stage.backfill(key)
        # One that has just started looks at once.
        stage.start_daemon("second-daemon")
        fired = fires_now(world)
        with stage.sensor("recurring"), stage.sensor("due"):
            wait_for(lambda: len(stage.workers(key)) > 1, "the run of the backfill beside it", seconds=60)
            assert world.progress(key).pending > 0
            with world.database.connection() as connection:
                campaign.change(connection, world.settings, world.ses, key, actor="ana", rate=5_000)
            runs = {*stage.runs("dagster/backfill", backfill), *stage.runs("mailpipe/cause", "resume")}
            assert len(runs) > 1
            for run in runs:
                stage.wait_for(run, "SUCCESS")
            wait_for(lambda: state(world, fired) == "done", f"the end of {fired}", seconds=90)
    stage.kill("second-daemon")
    assert world.keep_promises(key) == {"sent": 1_000}
    assert world.keep_promises(fired) == {"sent": 1_000}
    assert world.execute("SELECT state, count(*) FROM mailpipe.occurrence GROUP BY state") == [("made", 1)]


def fires_now(world: World) -> str:
    """A schedule of every hour that somebody has approved, and that fires in this minute; answers the key of its campaign."""
    now = datetime.now(UTC)
    sender = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}
    spec = parse(
        {"key": "hourly", "cron": f"{now.minute} * * * *", "timezone": "UTC", "campaign": sender}, where="test"
    )
    with world.database.connection() as connection:
        recurring.create(connection, world.settings, spec, author="ana")
        recurring.approve(connection, world.settings, world.ses, "hourly", approver="ben")
    # As if it had been made an hour ago.
    world.execute(
        "UPDATE mailpipe.schedule SET next_slot = next_slot - interval '1 hour',"
        " next_run_at = next_run_at - interval '1 hour', wake_at = wake_at - interval '1 hour' WHERE key = 'hourly'"
    )
    return f"hourly-{now:%Y%m%d-%H%M}"


def state(world: World, key: str) -> str | None:
    rows = world.execute("SELECT state FROM mailpipe.campaign WHERE key = %(key)s", {"key": key})
    return str(rows[0][0]) if rows else None


def _below(process: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [*found, *(below for child in found for below in _below(child))]
