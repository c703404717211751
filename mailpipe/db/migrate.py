"""Brings a database to the present schema with Alembic, creating the database itself on the embedded server."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import URL

MIGRATIONS = Path(__file__).with_name("migrations")
VERSION_TABLE = "mailpipe_version"
_LOCK = 782638


def upgrade(url: URL) -> None:
    """Create the database if it is missing and run the migrations it has not seen. Safe to run by many at once."""
    create_database(url)
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:lock, 0)"), {"lock": _LOCK})
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def create_database(url: URL) -> None:
    """Create the database of this URL on its server, if it is not there. Safe to run by many at once.

    A team's own server may let its users into their own database alone, so that one is tried first.
    """
    try:
        with sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).connect():
            return
    except sqlalchemy.exc.OperationalError:
        pass
    engine = sqlalchemy.create_engine(url.set(database="postgres"), poolclass=sqlalchemy.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:lock, 2)"), {"lock": _LOCK})
        known = sqlalchemy.text("SELECT 1 FROM pg_database WHERE datname = :name")
        if not connection.execute(known, {"name": url.database}).scalar():
            quoted = connection.dialect.identifier_preparer.quote(str(url.database))
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {quoted}"))


def is_current(url: URL) -> bool:
    """Whether the database has the newest schema that this version of mailpipe knows."""
    return is_current_on(sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool))


def is_current_on(engine: sqlalchemy.Engine) -> bool:
    """The same, over connections that are there already."""
    with engine.connect() as connection:
        present = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    return present == _newest()


@lru_cache(maxsize=1)
def _newest() -> str | None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return ScriptDirectory.from_config(config).get_current_head()
