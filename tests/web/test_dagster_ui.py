"""A campaign that failed half-way is resumed by somebody with a browser, in Dagster's own UI, and nobody is mailed twice.

Real webserver, daemon, run processes and storage in PostgreSQL, with the checkout's `dagster.yaml` and `workspace.yaml`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mailpipe import children
from tests.conftest import admin
from tests.support import World

dagster = pytest.importorskip("dagster", reason="Dagster is not installed")
pytest.importorskip("dagster_webserver", reason="Dagster's webserver is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHECKOUT = Path(__file__).parents[2]
PEOPLE = 5_000
UNLUCKY = 2_510
"""The person in slice 50 for whom the consent query fails."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing; apt-get install chromium"),
    # The daemon looks for backfills every 30 seconds.
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Parameter `(backfill_policy|owners)`"),
    pytest.mark.filterwarnings("ignore:Specifying a partitions_def on an AssetCheckSpec"),
]


@dataclass
class Stage:
    """A campaign in the middle of trouble, and Dagster's environment around it."""

    world: World
    key: str
    environment: dict[str, str]


@pytest.fixture
def stage(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A campaign whose only run failed: slices before the unlucky person are green, the others failed."""
    world.people(PEOPLE)
    key = world.create(chunk_size=100, rate=2_000.0)
    world.approve(key)
    settings = replace(
        world.settings,
        home=CHECKOUT,
        database_url=world.database.url.render_as_string(hide_password=False),
        dagster_database=f"dagster_ui_{os.getpid()}",
    )
    environment = children.dagster_environment(settings) | {
        # Segments and templates are the world's; what is Dagster's is the checkout's.
        "MAILPIPE_HOME": str(world.settings.home),
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        # One thread, so that what is done before the fault is certain; what it held is free again after three seconds.
        "MAILPIPE_THREADS": "1",
        "MAILPIPE_LEASE": "3",
        "MAILPIPE_CONNECT_TIMEOUT": "1",
        "MAILPIPE_READ_TIMEOUT": "1",
    }
    for name, value in environment.items():
        if name.startswith(("MAILPIPE_", "DAGSTER_")):
            monkeypatch.setenv(name, value)
    import definitions  # noqa: PLC0415 - reads the environment

    with dagster.DagsterInstance.from_config(str(CHECKOUT)) as instance:
        instance.add_dynamic_partitions("campaign", ["another", key])
        snapshot = definitions.defs.resolve_job_def("snapshot")
        assert snapshot.execute_in_process(instance=instance, partition_key=key).success
        # Asked again before each call.
        monkeypatch.setenv("MAILPIPE_CONSENT", f"1 / (CASE WHEN person.user_id = '{UNLUCKY}' THEN 0 ELSE 1 END) = 1")
        send = definitions.defs.resolve_job_def("send")
        start, end = (f"dagster/asset_partition_range_{edge}" for edge in ("start", "end"))
        failed = send.execute_in_process(
            instance=instance, tags={start: f"{key}|00", end: f"{key}|99"}, raise_on_error=False
        )
        assert not failed.success
    yield Stage(world, key, environment)
    with admin(world.database.url) as connection:
        connection.execute(f'DROP DATABASE "{settings.dagster_database}" WITH (FORCE)'.encode())


@pytest.fixture
def address(stage: Stage, tmp_path: Path) -> Iterator[str]:
    """Where the UI answers; webserver and daemon end with the test, and so do the runs that they started."""
    port = free_port()
    workspace = ["-w", str(CHECKOUT / "workspace.yaml")]
    programs = {
        "webserver": ["dagster_webserver", "-h", "127.0.0.1", "-p", str(port), *workspace],
        "daemon": ["dagster._daemon", "run", *workspace],
    }
    with children.Group() as group:
        for name, arguments in programs.items():
            group.start(
                name,
                [sys.executable, "-m", *arguments],
                log=tmp_path / f"{name}.log",
                cwd=tmp_path,
                env=stage.environment,
            )
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url, group)
        yield url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_until_it_answers(url: str, group: children.Group) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            ended = group.ended()
            if ended is not None or time.monotonic() > deadline:
                lines = [line for child in group.children for line in children.last_lines(child.log)]
                raise AssertionError("\n".join(lines)) from None
        time.sleep(0.1)


def test_somebody_resumes_a_failed_campaign_in_the_browser(stage: Stage, address: str, tmp_path: Path) -> None:
    """Failed slices are selected, the backfill is launched, they turn green, and the journal agrees with the ledger."""
    world, key = stage.world, stage.key
    before = Counter(line["seq"] for line in world.journal(key))
    assert len(before) == 2_500
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        try:
            page.set_default_timeout(30_000)
            page.goto(f"{address}/assets/deliveries?view=partitions")
            # A campaign that has not begun is there too.
            page.get_by_text("Failed (50)").wait_for()
            page.get_by_text("Materialized (50)").wait_for()
            page.get_by_text("Missing (100)").wait_for()
            page.screenshot(path=tmp_path / "failed.png")

            page.get_by_role("button", name="Materialize").first.click()
            dialog = page.get_by_role("dialog").filter(has_text="Launch runs to materialize deliveries")
            slices = dialog.get_by_role("button", name="All", exact=True).nth(1)
            slices.click()
            dialog.get_by_text("Select a partition or create one").first.click()
            page.get_by_placeholder("Filter partitions").fill(key)
            page.get_by_role("menuitem").filter(has_text=key).last.click()
            page.keyboard.press("Escape")
            dialog.get_by_text("Backfill only failed and missing partitions within selection").click()
            dialog.get_by_text("Only 50 failed and missing partitions").wait_for()
            page.screenshot(path=tmp_path / "chosen.png")
            dialog.get_by_role("button", name="Launch backfill").click()
            dialog.wait_for(state="hidden")

            page.goto(f"{address}/assets/deliveries?view=partitions")
            page.get_by_text("Materialized (100)").wait_for(timeout=150_000)
            page.get_by_text("Failed (0)").wait_for()
            page.screenshot(path=tmp_path / "green.png")
        finally:
            # What was seen last, for whoever has to find out why.
            page.screenshot(path=tmp_path / "last.png")
            browser.close()
    assert world.keep_promises(key) == {"sent": PEOPLE}
    after = Counter(line["seq"] for line in world.journal(key))
    assert before.items() <= after.items()
    assert set(after.values()) == {1}, "nobody was mailed twice"
    assert len(after) == PEOPLE
    assert world.campaign(key).state == "done"
