"""Resources: configuration that builds the library's plain objects. Nothing is opened before a face asks for it.

`ses` has its pace inside: it hands out no client, only what is paced or sends nothing.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from mailpipe import campaign, db, plan, send, settings, stand_in, suppression_sync
from mailpipe.db import Connection, Database
from mailpipe.ledger import SliceCounts
from mailpipe.ses import client
from mailpipe.settings import Settings
from mailpipe.suppression_sync import Synced

CHECKOUT = Path(__file__).resolve().parents[1]


def load_settings() -> Settings:
    """The settings: `MAILPIPE_*` of the environment, for the checkout that this file is in, wherever Dagster was started.

    They are no resource on purpose. Whoever may launch a run may fill in a resource's fields, and so could say who counts
    as having consented. Raises SettingsError.
    """
    return settings.load({"MAILPIPE_HOME": str(CHECKOUT), **os.environ})


class DatabaseResource(dg.ConfigurableResource[Any]):
    """The application's database, with the embedded server behind it where no other one is set."""

    pool_size: int | None = Field(
        default=None,
        description="Connections for everything but the send, which takes what its threads need. Empty: 2.",
    )

    @contextmanager
    def connect(self, pool_size: int | None = None) -> Iterator[Database]:
        """A pool of connections, closed at the end. Raises DatabaseUnavailable."""
        database = db.connect(load_settings(), pool_size=pool_size or self.pool_size or 2)
        try:
            yield database
        finally:
            database.close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One connection in autocommit mode."""
        with self.connect(1) as database, database.connection() as connection:
            yield connection


class SesResource(dg.ConfigurableResource[Any]):
    """Amazon SES, or its stand-in, behind the pace that all processes share."""

    threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Calls that a run makes at once. Empty: MAILPIPE_THREADS, else enough for the campaign's pace.",
    )

    def approve(self, connection: Connection, key: str, *, approver: str) -> campaign.Campaign:
        """Publish the campaign's template and approve the campaign. See `campaign.approve`."""
        config = load_settings()
        ses = client.connect(config, endpoint=stand_in.endpoint(config), connections=1)
        try:
            return campaign.approve(connection, config, ses, key, approver=approver)
        finally:
            ses.close()

    def send(
        self,
        database: DatabaseResource,
        key: str,
        slices: tuple[int, int],
        *,
        actor: str,
        horizon: float,
        accept_plan: bool,
        late: bool,
        stop: threading.Event,
        on_slice: Callable[[SliceCounts], None],
        on_tick: Callable[[Connection], None],
    ) -> send.Outcome:
        """Send a range of slices of one campaign, paced. See `send.run`."""
        config = load_settings()
        config = replace(config, threads=self.threads or config.threads)
        # An upper bound: a connection is opened when a thread needs it.
        threads = config.threads or plan.MAX_THREADS
        ses = client.connect(config, endpoint=stand_in.endpoint(config), connections=threads)
        try:
            with database.connect(threads + 3) as pool:
                return send.run(
                    pool,
                    config,
                    ses,
                    key,
                    slices,
                    actor=actor,
                    horizon=horizon,
                    accept_plan=accept_plan,
                    late=late,
                    stop=stop,
                    on_slice=on_slice,
                    on_tick=on_tick,
                )
        finally:
            ses.close()

    def sync_suppression(self, database: Database) -> Synced:
        """Bring the suppression list and that of the account together. See `suppression_sync.sync`."""
        config = load_settings()
        ses = client.connect(config, endpoint=stand_in.endpoint(config), connections=1)
        try:
            return suppression_sync.sync(database, ses)
        finally:
            ses.close()


def build() -> dict[str, dg.ConfigurableResource[Any]]:
    """The resources by the names under which the faces ask for them."""
    return {"database": DatabaseResource(), "ses": SesResource()}
