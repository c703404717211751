"""Fixtures shared by all kinds of tests: a throw-away PostgreSQL, and a fresh migrated database for each test.

`MAILPIPE_TEST_DATABASE_URL` runs the same tests against a server of one's own; otherwise the embedded one is started
once a session, without fsync (no test that relies on it crashes the server).
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from sqlalchemy.engine import URL, make_url

from mailpipe import embedded_postgres
from mailpipe.db import Database, migrate
from tests.support import World, make_world

for name in [name for name in os.environ if name.startswith(("MAILPIPE_", "AWS_")) and "TEST" not in name]:
    if name != "MAILPIPE_PG_BIN":
        del os.environ[name]

# How fast examples are made is a matter of the machine: nothing of ours is tested by it.
hypothesis_settings.register_profile("mailpipe", suppress_health_check=[HealthCheck.too_slow], deadline=None)
hypothesis_settings.load_profile("mailpipe")

_numbers = itertools.count(1)
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_connections": "150"}


@pytest.fixture(scope="session", autouse=True)
def _collector_at_rest() -> Iterator[None]:
    """Each run keeps the collector away from all that was imported, and looks at it once for that. Once a session is enough."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def server_url() -> Iterator[URL]:
    """The address of a PostgreSQL server on which databases may be made and dropped."""
    own = os.environ.get("MAILPIPE_TEST_DATABASE_URL")
    if own:
        yield make_url(own).set(drivername="postgresql+psycopg")
        return
    var = Path(tempfile.mkdtemp(prefix="mailpipe-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield make_url(embedded_postgres.ensure_running(var, settings=FAST).url("postgres"))
    finally:
        embedded_postgres.remove(var)
        shutil.rmtree(var, ignore_errors=True)


@pytest.fixture(scope="session")
def template_database(server_url: URL) -> Iterator[str]:
    """A migrated database that others are cloned from."""
    name = f"mailpipe_template_{os.getpid()}"
    migrate.upgrade(server_url.set(database=name))
    yield name
    with admin(server_url) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextmanager
def clone(server_url: URL, template: str) -> Iterator[URL]:
    """A copy of a database, for as long as it is needed."""
    name = f"mailpipe_test_{os.getpid()}_{next(_numbers)}"
    with admin(server_url) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
    yield server_url.set(database=name)
    with admin(server_url) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture
def database_url(server_url: URL, template_database: str) -> Iterator[URL]:
    """The address of a fresh database with the present schema."""
    with clone(server_url, template_database) as url:
        yield url


@pytest.fixture
def database(database_url: URL) -> Iterator[Database]:
    """A pool on a fresh database."""
    database = Database(database_url, pool_size=10, allow_unsafe_durability=True)
    yield database
    database.close()


def admin(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    """A connection outside any transaction, for statements about databases."""
    text = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    return psycopg.connect(text, autocommit=True)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """People, a stand-in and settings around a fresh database."""
    with make_world(database, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def _scene(server_url: URL, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with clone(server_url, template_database) as url:
        database = Database(url, pool_size=20, allow_unsafe_durability=True)
        with make_world(database, tmp_path_factory.mktemp("scene")) as made:
            yield made
        database.close()


@pytest.fixture
def scene(_scene: World) -> World:
    """A world that the tests of one module share, without people, suppressions, limits and faults at the start of each."""
    _scene.clean()
    return _scene
