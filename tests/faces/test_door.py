"""The door: it loads alone, from anywhere, quickly and without a server, and everything behind it says what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance
from dagster_postgres import PostgresEventLogStorage
from sqlalchemy.engine import URL

import definitions
from assets.segments import RESERVED
from mailpipe import settings

CHECKOUT = Path(definitions.__file__).parent
SEGMENTS = sorted(path.stem for path in (CHECKOUT / "assets" / "segments").glob("*.sql"))
JOBS = [
    "approve_campaign",
    "cancel_campaign",
    "create_campaign",
    "decide_experiment",
    "judge_gate",
    "learn_engagement",
    "pause_campaign",
    "reconcile",
    "report",
    "resume_campaign",
    "send",
    "snapshot",
    "sync_suppression",
    "tidy_events",
]
LOAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import definitions
heavy = [name for name in ("pandas", "pyarrow") if name in sys.modules]
keys = [spec.key.to_user_string() for spec in definitions.defs.resolve_all_asset_specs()]
print(json.dumps({"heavy": heavy, "assets": keys}))
"""


def run(*command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=100, check=False
    )


def test_it_loads_in_a_fresh_interpreter_from_another_folder_without_a_server(tmp_path: Path) -> None:
    """Deprecations of Python are errors there too; the database's address leads nowhere."""
    loaded = run(
        *(sys.executable, "-W", "error::DeprecationWarning", "-c", LOAD, str(CHECKOUT)),
        cwd=tmp_path,
        MAILPIPE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing",
        MAILPIPE_SES_ENDPOINT="http://127.0.0.1:1",
    )
    assert loaded.returncode == 0, loaded.stderr
    said = json.loads(loaded.stdout)
    assert sorted(said["assets"]) == sorted([*SEGMENTS, *RESERVED])
    assert said["heavy"] == [], "imported by every run and every tick, needed by few"


def test_the_workspace_is_valid_from_another_folder(tmp_path: Path) -> None:
    valid = run(
        *(sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(CHECKOUT / "workspace.yaml")),
        cwd=tmp_path,
        DAGSTER_HOME=str(tmp_path),
        DAGSTER_DISABLE_TELEMETRY="1",
    )
    assert valid.returncode == 0, valid.stderr
    assert "Validation successful for code location mailpipe" in valid.stdout + valid.stderr


def test_a_broken_segment_does_not_close_the_door(tmp_path: Path) -> None:
    folder = tmp_path / "assets" / "segments"
    folder.mkdir(parents=True)
    (folder / "good.sql").write_text(
        "-- title: A\n-- owner: team:growth\n-- description: B\nSELECT user_id, email FROM users\n"
    )
    (folder / "bad.sql").write_text("SELECT 1\n")
    loaded = run(sys.executable, "-c", LOAD, str(CHECKOUT), cwd=tmp_path, MAILPIPE_HOME=str(tmp_path))
    assert loaded.returncode == 0, loaded.stderr
    assert sorted(json.loads(loaded.stdout)["assets"]) == sorted(["bad", "good", *RESERVED])
    assert f"{folder / 'bad.sql'}:1:" in loaded.stderr


def test_imports_go_one_way(tmp_path: Path) -> None:
    kept = run(
        *(
            str(Path(sys.executable).with_name("lint-imports")),
            "--config",
            str(CHECKOUT / "pyproject.toml"),
            "--no-cache",
        ),
        cwd=CHECKOUT,
    )
    assert kept.returncode == 0, kept.stdout


def test_everything_has_its_description_and_its_owner() -> None:
    for spec in definitions.defs.resolve_all_asset_specs():
        assert spec.description, spec.key
        assert spec.owners, spec.key
        assert spec.kinds, spec.key
        assert spec.group_name in ("segments", "campaigns", "engagement")
    repository = definitions.defs.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    assert sorted(job.name for job in jobs) == JOBS
    for job in jobs:
        assert job.description, job.name
    for sensor in repository.sensor_defs:
        assert sensor.description, sensor.name
    for schedule in repository.schedule_defs:
        assert schedule.description, schedule.name


def test_nothing_launches_itself_that_sends() -> None:
    """Four sensors run by themselves; the one that launches a job launches `reconcile`."""
    sensors = {sensor.name: sensor for sensor in definitions.defs.get_repository_def().sensor_defs}
    assert {name for name, sensor in sensors.items() if sensor.default_status is dg.DefaultSensorStatus.RUNNING} == {
        "breaker",
        "campaigns",
        "experiments",
        "reconcile",
    }
    assert {target.job_name for sensor in sensors.values() for target in sensor.targets} == {
        "reconcile",
        "send",
        "snapshot",
    }
    schedules = definitions.defs.get_repository_def().schedule_defs
    assert {one.job_name for one in schedules} == {"tidy_events", "sync_suppression", "learn_engagement"}
    assert all(one.default_status is dg.DefaultScheduleStatus.RUNNING for one in schedules)
    for spec in definitions.defs.resolve_all_asset_specs():
        assert spec.automation_condition is None


def test_every_run_is_one_process() -> None:
    """Else an interrupt would not reach the send, and imports would be paid twice."""
    for job in definitions.defs.get_repository_def().get_all_jobs():
        assert job.executor_def.name == "in_process", job.name


def test_the_instance_keeps_its_storage_in_postgresql_and_its_files_under_var(
    database_url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = database_url.set(drivername="postgresql+psycopg2")
    monkeypatch.setenv("MAILPIPE_DAGSTER_URL", storage.render_as_string(hide_password=False))
    monkeypatch.setenv("MAILPIPE_DAGSTER_VAR", str(tmp_path))
    with DagsterInstance.from_config(str(CHECKOUT)) as instance:
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
        instance.add_dynamic_partitions("campaign", ["one"])
        assert list(instance.get_dynamic_partitions("campaign")) == ["one"]
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0
        assert not instance.run_retries_enabled
        assert instance.storage_directory().startswith(str(tmp_path))
    assert settings.load({"MAILPIPE_HOME": str(CHECKOUT)}).segments.is_dir()
