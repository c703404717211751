"""The application database: one pool, transactions, and the check that commits are durable.

Statements live as named queries in a `.sql` file beside the module that owns them (`queries.py` loads them) and run on
plain psycopg connections. SQLAlchemy keeps the pool, the migrations and the reading of segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar, cast

import psycopg
import sqlalchemy
from psycopg.rows import TupleRow
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL, make_url

from mailpipe import embedded_postgres
from mailpipe.errors import DatabaseUnavailable, SettingsError, UnsafeDatabase
from mailpipe.settings import Settings

Connection = psycopg.Connection[TupleRow]

DATABASE = "mailpipe"
"""The database on the embedded server."""
STANDSTILL = 120.0
"""Seconds for which a client may leave a transaction lying. The server then ends it: a process that was stopped in the middle of
one, or whose machine is gone without a word, would otherwise keep its locks, and a chunk from everybody, for hours."""


# A server whose machine is gone without a word is noticed after 25 s; by default a statement would wait for its answer for hours.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}


class Database:
    """A pool of connections to one PostgreSQL database; safe to share between threads.

    With `patience` nothing waits longer than so many seconds for a connection, nor for a statement: for who has somebody waiting.
    """

    def __init__(
        self,
        url: URL,
        *,
        pool_size: int = 5,
        allow_unsafe_durability: bool = False,
        standstill: float = STANDSTILL,
        patience: float | None = None,
    ) -> None:
        self.url = url
        self._allow_unsafe = allow_unsafe_durability
        self._standstill = standstill
        self._patience = patience
        # A thread that finds the pool empty waits for a connection: back-pressure, not an error.
        self.engine: Engine = sqlalchemy.create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=patience or 3600,
            pool_pre_ping=True,
            connect_args={"application_name": "mailpipe", "connect_timeout": 10, **_KEEPALIVE},
        )
        event.listen(self.engine, "connect", self._prepare)

    def _prepare(self, connection: Any, _record: Any) -> None:
        driver = cast(
            Connection,
            connection.driver_connection if hasattr(connection, "driver_connection") else connection,
        )
        driver.autocommit = True
        check_durability(driver, allow_unsafe=self._allow_unsafe)
        driver.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (f"{self._standstill * 1000:.0f}ms",)
        )
        if self._patience is not None:
            driver.execute("SELECT set_config('statement_timeout', %s, false)", (f"{self._patience * 1000:.0f}ms",))
        driver.autocommit = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A pooled connection in autocommit mode: each statement is a transaction of its own.

        Raises:
            DatabaseUnavailable: the server does not answer.
            UnsafeDatabase: the server does not make commits durable.
        """
        try:
            pooled = self.engine.raw_connection()
        except sqlalchemy.exc.OperationalError as error:
            raise DatabaseUnavailable(f"cannot connect to PostgreSQL: {error.orig}") from error
        except sqlalchemy.exc.TimeoutError as error:
            raise DatabaseUnavailable("no connection to PostgreSQL became free in time") from error
        try:
            driver = cast(Connection, pooled.driver_connection)
            driver.autocommit = True
            yield driver
            driver.autocommit = False
        except psycopg.OperationalError:
            pooled.invalidate()
            raise
        except psycopg.errors.IdleInTransactionSessionTimeout as error:
            pooled.invalidate()
            raise DatabaseUnavailable(
                f"this process stood still in a transaction for {self._standstill:g} s"
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            # After a failover, or by a pooler's mistake, this is a standby: the primary is waited for like a lost server.
            pooled.invalidate()
            raise DatabaseUnavailable("this PostgreSQL takes no writes; is it a standby?") from error
        except BaseException:
            if not driver.closed:
                driver.rollback()
                driver.autocommit = False
            raise
        finally:
            pooled.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A pooled connection inside one transaction; commits at the end, rolls back on an error."""
        with self.connection() as connection, connection.transaction():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


class Kept:
    """One pooled connection that a thread keeps from statement to statement: taking one from the pool, and asking whether it still
    lives, costs as much as opening a call. Not shared between threads.

    For statements that are repeated and whose plan does not depend on the values: the server plans each once. Left to itself it
    takes a range of fifty for one of thousands, and plans the opening of a call anew each time (0.5 ms, as much as it then works).
    And what such a statement wants first comes first in an index: to lease a chunk, the server else read and sorted all that are
    left (0.8 ms instead of 0.1). A table that was nearly empty when the plan was made is no reason to read it all for ever. And
    nothing is compiled: on the server's estimate of thousands it would be, anew for each call.
    """

    _PLANS: ClassVar = {
        "plan_cache_mode": "force_generic_plan",
        "enable_sort": "off",
        "enable_seqscan": "off",
        "jit": "off",
    }

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stack = ExitStack()
        self._connection: Connection | None = None

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection, in autocommit mode; given back when an error passes. Raises what `Database.connection` does."""
        if self._connection is None:
            self._connection = self._stack.enter_context(self._database.connection())
            self._connection.execute("; ".join(f"SET {name} = {value}" for name, value in self._PLANS.items()))
        try:
            yield self._connection
        except BaseException as error:
            self._forget()
            self._connection = None
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise

    def give_back(self) -> None:
        """Leave the connection to others for a while. One that is lost is thrown away: nobody has asked anything of it."""
        self._forget()
        self._connection = None
        with suppress(psycopg.OperationalError):
            self._stack.close()

    def _forget(self) -> None:
        """Others plan their statements for themselves. A connection that is lost has nothing to forget."""
        if self._connection is not None and not self._connection.broken:
            with suppress(psycopg.Error):
                self._connection.rollback()
                self._connection.execute("; ".join(f"RESET {name}" for name in self._PLANS))


def check_durability(connection: Connection, *, allow_unsafe: bool = False) -> None:
    """Refuse a server that may forget a commit, and make this session commit synchronously.

    A call is opened by a commit *before* it is made. If that commit can be lost in a crash of the server, the same
    people are mailed twice: with commits made asynchronous, a crash test of this protocol doubled 24,600 of 120,000.

    Raises:
        UnsafeDatabase: fsync or full_page_writes is off.
    """
    connection.execute("SET synchronous_commit = on")
    if allow_unsafe:
        return
    for name in ("fsync", "full_page_writes"):
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        if row is None or row[0] != "on":
            raise UnsafeDatabase(
                f"PostgreSQL runs with {name} = {row[0] if row else '?'}: a crash could make mailpipe send twice."
                f" Set {name} = on and restart the server"
            )


def connect(settings: Settings, *, pool_size: int = 5, patience: float | None = None) -> Database:
    """The application database of these settings; starts the embedded server if it is the one to use. See `Database`.

    Raises:
        SettingsError: MAILPIPE_DATABASE_URL is not a PostgreSQL address.
        DatabaseUnavailable: the server cannot be reached or started.
    """
    return Database(
        url(settings),
        pool_size=pool_size,
        allow_unsafe_durability=settings.allow_unsafe_durability,
        patience=patience,
    )


def url(settings: Settings, *, driver: str = "psycopg", database: str | None = None) -> URL:
    """The address of the application's database, or of another one on the same server, for a named driver.

    The driver is always named: SQLAlchemy 2.1 opens a bare `postgresql://` with psycopg 3, under which Dagster's
    storage cannot write events (it needs `psycopg2`).
    """
    if settings.database_url is None:
        server = embedded_postgres.ensure_running(settings.var)
        parsed = make_url(server.url(database or DATABASE))
    else:
        parsed = parse_url(settings.database_url)
        if database is not None:
            parsed = parsed.set(database=database)
    return parsed.set(drivername=f"postgresql+{driver}")


def parse_url(text: str) -> URL:
    """Read an address as people write it (`postgres://`, `postgresql://`, with or without a driver)."""
    try:
        parsed = make_url(text.replace("postgres://", "postgresql://", 1))
    except sqlalchemy.exc.ArgumentError as error:
        raise SettingsError(
            "MAILPIPE_DATABASE_URL: not an address; expected postgresql://user@host:5432/name"
        ) from error
    if parsed.get_backend_name() != "postgresql" or not parsed.database:
        raise SettingsError("MAILPIPE_DATABASE_URL: expected postgresql://user@host:5432/name with a database name")
    return parsed
