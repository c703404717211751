"""`mailpipe dev` as a real process: it ends on request, with everything it started, also in the middle of a send."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mailpipe import campaign, campaign_file, db, embedded_postgres, report, settings, snapshot, stand_in
from mailpipe.db import Database
from mailpipe.ses import client
from mailpipe.settings import Settings
from tests.support import wait_for

ROOT = Path(__file__).parents[2]
LAUNCH = """mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
ADD = """mutation($repository: RepositorySelector!, $key: String!) {
  addDynamicPartition(repositorySelector: $repository, partitionsDefName: "campaign", partitionKey: $key) { __typename }
}"""
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "mailpipe"}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@dataclass
class Dev:
    """A running `mailpipe dev`."""

    process: subprocess.Popen[bytes]
    pid: int
    settings: Settings
    url: str
    web: str
    output: Path

    def graphql(self, query: str, variables: dict[str, Any]) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def wait_for_end(self, seconds: float = 60.0) -> int:
        wait_for(lambda: self.process.poll() is not None, "its end", seconds=seconds)
        return int(self.process.returncode)

    def leftovers(self) -> list[str]:
        """Every living process that knows of this `var`, by its command line or its environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.settings.var) in text and folder.name not in (str(self.process.pid), str(os.getpid())):
                found.append(f"{folder.name}: {text[:200]!r}")
        return found


@pytest.fixture(scope="module")
def var() -> Iterator[Path]:
    """Where it keeps everything: the first start makes its databases, the others find them."""
    var = Path(tempfile.mkdtemp(prefix="mailpipe-dev-"))
    yield var
    embedded_postgres.remove(var)
    shutil.rmtree(var, ignore_errors=True)


@pytest.fixture
def dev(var: Path) -> Iterator[Dev]:
    """`mailpipe dev`, started in the background of a non-interactive shell, which makes it ignore SIGINT at first."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port, web_port = one.getsockname()[1], two.getsockname()[1]
    environ = {**os.environ, "MAILPIPE_HOME": str(ROOT), "MAILPIPE_VAR": str(var)}
    output = var / "dev.out"
    with output.open("wb") as out:
        # The shell tells the number of its background job, and ends as it does.
        script = (
            f'"{sys.executable}" -m mailpipe dev --port {port} --web-port {web_port} & echo $! > "{var}/pid"; wait $!'
        )
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True
        )
    config = settings.load({"MAILPIPE_HOME": str(ROOT), "MAILPIPE_VAR": str(var)})
    try:
        wait_for(lambda: b"Ctrl-C" in output.read_bytes() or process.poll() is not None, "its start", seconds=100)
        assert process.poll() is None, output.read_text()
        yield Dev(
            process,
            int((var / "pid").read_text()),
            config,
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{web_port}",
            output,
        )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        stand_in.stop(config)


@pytest.mark.timeout(240)
def test_a_send_is_ended_gracefully_and_no_process_is_left(dev: Dev) -> None:
    """SIGTERM while a Dagster run sends: answers are recorded, chunks given back, every process is gone."""
    database = db.connect(dev.settings)
    key = _ready_campaign(dev, database)
    assert dev.graphql(ADD, {"repository": REPOSITORY, "key": key}) is not None
    tags = {
        "dagster/asset_partition_range_start": f"{key}|00",
        "dagster/asset_partition_range_end": f"{key}|99",
    }
    params = {
        "selector": {**REPOSITORY, "jobName": "send"},
        "runConfigData": {},
        "mode": "default",
        "executionMetadata": {"tags": [{"key": name, "value": value} for name, value in tags.items()]},
    }
    launched = dev.graphql(LAUNCH, {"params": params})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    wait_for(lambda: _progress(database, key).sent > 20, "20 sent", seconds=60)
    database.close()

    assert len(dev.leftovers()) > 4, "the look at the processes does not see them"
    os.kill(dev.pid, signal.SIGTERM)
    assert dev.wait_for_end() == 0, dev.output.read_text()
    assert dev.leftovers() == []
    assert stand_in.find(dev.settings) is None
    assert embedded_postgres.status(dev.settings.var) is None

    database = db.connect(dev.settings)
    now = _progress(database, key)
    database.close()
    assert (now.state, now.sending, now.unknown, now.processing_chunks) == ("sending", 0, 0, 0)
    assert 20 < now.sent < now.total


@pytest.mark.timeout(200)
def test_ctrl_c_ends_it_too_although_the_shell_had_it_ignored(dev: Dev) -> None:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{dev.web}/readyz", timeout=30) as answer:
        assert answer.read() == b"ready\n"
    os.kill(dev.pid, signal.SIGINT)
    assert dev.wait_for_end() == 0, dev.output.read_text()
    assert dev.leftovers() == []


@pytest.mark.timeout(200)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_killed_it_takes_dagster_with_it(dev: Dev) -> None:
    """What outlives it on purpose is the database and the stand-in, which the next one finds again."""
    os.kill(dev.pid, signal.SIGKILL)
    wait_for(lambda: not [one for one in dev.leftovers() if "dagster" in one], "the end of Dagster", seconds=30)
    assert stand_in.find(dev.settings) is not None


def _ready_campaign(dev: Dev, database: Database) -> str:
    """An approved campaign to the small audience that `dev` made, slow enough to be met in the middle."""
    spec = campaign_file.parse(
        {
            "key": "slow",
            "segment": "active_opted_in",
            "template": "flash_sale",
            "sender": "Shop <news@mail.example.com>",
            "rate": 50,
        },
        where="test",
    )
    ses = client.connect(dev.settings, endpoint=stand_in.endpoint(dev.settings), connections=1)
    with database.connection() as connection:
        campaign.create(connection, dev.settings, spec, author="ana")
        campaign.approve(connection, dev.settings, ses, spec.key, approver="ben")
        snapshot.take(connection, dev.settings, spec.key)
    ses.close()
    return spec.key


def _progress(database: Database, key: str) -> report.Progress:
    with database.connection() as connection:
        return report.progress(connection, key)
