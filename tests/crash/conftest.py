"""A server that may be killed, and a world on it. Nothing else may share this server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from mailpipe import embedded_postgres
from mailpipe.db import Database, migrate
from tests.crash.harness import Crash, Server
from tests.support import make_world

PEOPLE = 200

# Durable as mailpipe demands it. What is not flushed by a commit stays long in memory: a commit that does not wait for its
# flush is then lost for certain when the server is killed.
POSTGRES = {"wal_writer_delay": "10s", "shared_buffers": "32MB", "max_connections": "60"}


@pytest.fixture(scope="session")
def mortal_server() -> Iterator[Server]:
    """A server that survives being killed with everything that it has promised."""
    var = Path(tempfile.mkdtemp(prefix="mailpipe-crash-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        server = Server(var, POSTGRES)
        server.start()
        yield server
    finally:
        embedded_postgres.stop(var)
        shutil.rmtree(var, ignore_errors=True)


@pytest.fixture(scope="module")
def _crash(mortal_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crash]:
    folder = tmp_path_factory.mktemp("crash")
    url = make_url(mortal_server.start().url(folder.name))
    migrate.upgrade(url)
    database = Database(url, pool_size=12)
    with make_world(database, folder) as world:
        world.settings = replace(
            world.settings,
            allow_unsafe_durability=False,
            connect_timeout=2.0,
            read_timeout=5.0,
        )
        yield Crash(world, mortal_server, folder)
    database.close()


@pytest.fixture
def crash(_crash: Crash) -> Iterator[Crash]:
    """People, a provider and senders that die, on a server that may die too."""
    _crash.server.start()
    _crash.world.clean()
    _crash.world.people(PEOPLE)
    yield _crash
    _crash.end()
