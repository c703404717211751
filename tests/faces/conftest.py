"""The faces in one process: the door's definitions, a Dagster instance that forgets, and settings that lead to the scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import AssetKey, DagsterInstance

import definitions
from assets.partitions import CAMPAIGN_SLICES, CAMPAIGNS
from tests.support import World

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
DELIVERIES = AssetKey("deliveries")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Dagster calls parameters beta that the faces rest on; `assets/__init__.py` says which. Other warnings stay errors."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Parameter `(backfill_policy|owners)`"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Specifying a partitions_def on an AssetCheckSpec"))


@dataclass
class Faces:
    """Launches jobs as the UI does, and reads what it would show."""

    instance: DagsterInstance
    world: World

    def run(
        self, job: str, config: dict[str, Any] | None = None, *, tags: dict[str, str] | None = None, **options: Any
    ) -> dg.ExecuteInProcessResult:
        """Run a job here; `config` is that of its one op."""
        found = definitions.defs.resolve_job_def(job)
        op = found.graph.node_defs[0].name if config is not None else ""
        return found.execute_in_process(
            instance=self.instance,
            run_config={"ops": {op: {"config": config}}} if config is not None else None,
            raise_on_error=False,
            tags=tags,
            **options,
        )

    def send(self, first: str, last: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Run `send` over a range of `campaign|slice`, as a backfill does."""
        return self.run("send", {"wait_seconds": 0.0, **config}, tags={RANGE_START: first, RANGE_END: last})

    def register(self, *keys: str) -> None:
        self.instance.add_dynamic_partitions(str(CAMPAIGNS.name), list(keys))

    def ready(self, **fields: Any) -> str:
        """A campaign that may be sent, and its partition."""
        key = self.world.ready(**fields)
        self.register(key)
        return key

    def colours(self, key: str) -> dict[str, str]:
        """The colour of each slice of a campaign: MATERIALIZED, FAILED, IN_PROGRESS or missing."""
        wanted = [f"{key}|{number:02d}" for number in range(100)]
        found = self.instance.get_status_by_partition(DELIVERIES, wanted, CAMPAIGN_SLICES) or {}
        return {name.rsplit("|", 1)[1]: status.value if status else "missing" for name, status in found.items()}

    def failure(self, result: dg.ExecuteInProcessResult) -> str:
        """Why a run failed, in the words that the UI shows."""
        assert not result.success
        for event in result.all_events:
            if event.is_step_failure:
                data = event.step_failure_data
                assert data.user_failure_data is not None, data.error
                assert data.error is not None
                assert data.error.cause is None, "a person's mistake needs no traceback of ours"
                return str(data.user_failure_data.description)
        raise AssertionError("no step failed")

    def everything_written(self) -> str:
        """All events that Dagster keeps, as one text."""
        runs = self.instance.get_runs()
        events = [str(entry) for run in runs for entry in self.instance.all_logs(run.run_id)]
        return "\n".join([*events, *(str(run.tags) for run in runs)])


@pytest.fixture
def faces(scene: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faces]:
    """The faces on a scene, found through the environment as in a deployment."""
    settings = scene.settings
    for name, value in {
        "HOME": settings.home,
        "VAR": settings.var,
        "DATABASE_URL": scene.database.url.render_as_string(hide_password=False),
        "SES_ENDPOINT": settings.ses_endpoint,
        "THREADS": settings.threads,
        "ALLOW_UNSAFE_DURABILITY": 1,
    }.items():
        monkeypatch.setenv(f"MAILPIPE_{name}", str(value))
    with DagsterInstance.ephemeral() as instance:
        yield Faces(instance, scene)
