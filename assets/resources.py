"""Resources: configuration that builds the library's plain objects. Nothing is opened before a face asks for it.

`ses` has its pace inside: it hands out no client, only what is paced or sends nothing.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from mailpipe import campaign, db, plan, send, settings, stand_in
from mailpipe.db import Connection, Database
from mailpipe.ledger import SliceCounts
from mailpipe.ses import client
from mailpipe.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[1]


class SettingsResource(dg.ConfigurableResource[Any]):
    """The settings of mailpipe: the environment's `MAILPIPE_*` variables."""

    overrides: dict[str, str] = Field(
        default={},
        description="`MAILPIPE_*` values that take the place of the environment's, for this code location only."
        " They are shown to everybody in the UI, so nothing secret belongs here.",
    )

    def load(self) -> Settings:
        """The settings as they are now. Raises SettingsError.

        Wherever Dagster was started, the checkout is the one that this file is in.
        """
        return settings.load({"MAILPIPE_HOME": str(CHECKOUT), **os.environ, **self.overrides})


class DatabaseResource(dg.ConfigurableResource[Any]):
    """The application's database, with the embedded server behind it where no other one is set."""

    settings: SettingsResource

    @contextmanager
    def connect(self, pool_size: int = 2) -> Iterator[Database]:
        """A pool of connections, closed at the end. Raises DatabaseUnavailable."""
        database = db.connect(self.settings.load(), pool_size=pool_size)
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

    settings: SettingsResource

    def approve(self, connection: Connection, key: str, *, approver: str) -> campaign.Campaign:
        """Publish the campaign's template and approve the campaign. See `campaign.approve`."""
        config = self.settings.load()
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
        stop: threading.Event,
        on_slice: Callable[[SliceCounts], None],
        on_tick: Callable[[Connection], None],
    ) -> send.Outcome:
        """Send a range of slices of one campaign, paced. See `send.run`."""
        config = self.settings.load()
        # An upper bound: connections are opened when a thread needs one.
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
                    stop=stop,
                    on_slice=on_slice,
                    on_tick=on_tick,
                )
        finally:
            ses.close()


def build(overrides: dict[str, str] | None = None) -> dict[str, dg.ConfigurableResource[Any]]:
    """The resources by the names under which the faces ask for them."""
    shared = SettingsResource(overrides=overrides or {})
    return {
        "settings": shared,
        "database": DatabaseResource(settings=shared),
        "ses": SesResource(settings=shared),
    }
