"""A server that may be killed, and a world on it. Nothing else may share this server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from mailpipe import embedded_postgres
from mailpipe.db import Database, migrate
from tests.crash.harness import Crash, Server
from tests.support import make_world

PEOPLE = 200
_SHARED_MEMORY = Path("/dev/shm")

# Durable as mailpipe demands it. What is not flushed by a commit stays long in memory: a commit that does not wait for its
# flush is then lost for certain when the server is killed.
POSTGRES = {"wal_writer_delay": "10s", "shared_buffers": "32MB", "max_connections": "60"}


@pytest.fixture(scope="session")
def mortal_server() -> Iterator[Server]:
    """A server that survives being killed with everything that it has promised."""
    with mortal(_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as server:
        yield server


@contextmanager
def mortal(where: Path | None) -> Iterator[Server]:
    """Such a server in a folder of its own below `where`."""
    var = Path(tempfile.mkdtemp(prefix="mailpipe-crash-", dir=where))
    # The server's account must get in; else the data would lie elsewhere, and stay there.
    var.chmod(0o755)
    try:
        server = Server(var, POSTGRES)
        server.start()
        yield server
    finally:
        embedded_postgres.remove(var)
        shutil.rmtree(var, ignore_errors=True)


def _named(connection: Any, _record: Any) -> None:
    # So that those of senders can be told from the test's own.
    connection.autocommit = True
    connection.execute("SET application_name = 'witness'")
    connection.autocommit = False


@contextmanager
def staged(server: Server, folder: Path) -> Iterator[Crash]:
    """A world on a fresh database of this server."""
    url = make_url(server.start().url(folder.name))
    migrate.upgrade(url)
    database = Database(url, pool_size=12)
    event.listen(database.engine, "connect", _named)
    with make_world(database, folder) as world:
        world.settings = replace(world.settings, allow_unsafe_durability=False, connect_timeout=2.0, read_timeout=5.0)
        crash = Crash(world, server, folder)
        try:
            yield crash
        finally:
            crash.end()
    database.close()


@pytest.fixture(scope="module")
def _crash(mortal_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crash]:
    with staged(mortal_server, tmp_path_factory.mktemp("crash")) as crash:
        yield crash


@pytest.fixture
def crash(_crash: Crash) -> Iterator[Crash]:
    """People, a provider and senders that die, on a server that may die too."""
    _crash.server.start()
    _crash.world.clean()
    _crash.world.people(PEOPLE)
    yield _crash
    _crash.end()
