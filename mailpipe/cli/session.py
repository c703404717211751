"""What the commands work with: the settings, a database with its schema, SES, and the options that many of them share."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from mailpipe import db, plan, settings, stand_in
from mailpipe.db import Database, migrate
from mailpipe.errors import SettingsError
from mailpipe.ses import client
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A user id without a name, as in some containers.
        raise click.UsageError("say who you are: --as NAME, or set MAILPIPE_USER") from None


def json_option(function: Decorated) -> Decorated:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(function)


def person_option(*names: str, help: str) -> Callable[[Decorated], Decorated]:
    """An option that takes the name of whoever acts."""
    return click.option(*names, default=_user, envvar="MAILPIPE_USER", show_envvar=True, metavar="NAME", help=help)


as_option = person_option("--as", "person", help="Who does this; kept in the campaign's history. Default: your login.")


def load() -> Settings:
    return settings.load()


def prepare(config: Settings) -> None:
    """See that the database has the present schema: the embedded one is brought there, an own one is the owner's to change.

    Raises:
        SettingsError: the own database has another schema.
    """
    url = db.url(config)
    if config.database_url is None:
        migrate.create_database(url)
        if not migrate.is_current(url):
            migrate.upgrade(url)
    elif not migrate.is_current(url):
        raise SettingsError(
            "the database of MAILPIPE_DATABASE_URL does not have the schema of this version of mailpipe;"
            " run `mailpipe db upgrade`"
        )


@contextmanager
def database(config: Settings, *, pool_size: int = 5, patience: float | None = None) -> Iterator[Database]:
    """The application database, ready for use. See `db.Database`."""
    prepare(config)
    opened = db.connect(config, pool_size=pool_size, patience=patience)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def ses(config: Settings, *, connections: int = 1) -> Iterator[Ses]:
    """SES as these settings know it; a local stand-in is started like the embedded database, when it is needed."""
    if stand_in.is_wanted(config):
        stand_in.ensure_running(config)
    opened = client.connect(config, endpoint=stand_in.endpoint(config), connections=connections)
    try:
        yield opened
    finally:
        opened.close()


def most_connections(config: Settings) -> int:
    """Connections that a run can use at once: one for each call under way and a few more. They are opened as they are needed."""
    return (config.threads or plan.MAX_THREADS) + 3
