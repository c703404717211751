"""`mailpipe db`: the embedded server, the schema, addresses."""

from __future__ import annotations

import click

from mailpipe import db, embedded_postgres, identity, stand_in
from mailpipe.cli import session
from mailpipe.cli.output import dump
from mailpipe.cli.session import as_option, json_option
from mailpipe.db import migrate


@click.group(epilog="Example: mailpipe db start")
def command() -> None:
    """Start, stop and prepare the database.

    Without MAILPIPE_DATABASE_URL mailpipe runs a PostgreSQL of its own, with its data under var/.
    """


@command.command(epilog="Example: mailpipe db start")
@json_option
def start(as_json: bool) -> None:
    """Start the embedded server, if it is not running, and bring its schema up to date."""
    config = session.load()
    if config.database_url is not None:
        _say(as_json, False, "MAILPIPE_DATABASE_URL names a server of your own; there is nothing to start")
        return
    session.prepare(config)
    server = embedded_postgres.ensure_running(config.var)
    _say(as_json, True, f"PostgreSQL is running; data in {server.data_dir}")


@command.command(epilog="Example: mailpipe db stop")
@json_option
def stop(as_json: bool) -> None:
    """Stop the embedded server, and the local SES stand-in if one is running. All data stays."""
    config = session.load()
    if stand_in.stop(config) and not as_json:
        click.echo("the SES stand-in is stopped")
    if config.database_url is not None:
        _say(as_json, True, "MAILPIPE_DATABASE_URL names a server of your own; mailpipe does not stop it")
    elif embedded_postgres.stop(config.var):
        _say(as_json, False, "PostgreSQL is stopped")
    else:
        _say(as_json, False, "PostgreSQL was not running")


@command.command(epilog="Example: mailpipe db upgrade")
@json_option
def upgrade(as_json: bool) -> None:
    """Bring the schema up to date. Safe to run at any time and by many at once."""
    config = session.load()
    migrate.upgrade(db.url(config))
    if as_json:
        dump({"current": True})
    else:
        click.echo("the schema is up to date")


@command.command(epilog='Example: psql "$(mailpipe db url)"')
@click.option("--dagster", is_flag=True, help="The address of Dagster's storage, with the driver that it needs.")
@json_option
def url(dagster: bool, as_json: bool) -> None:
    """Print the address of the database (a password too, if it has one). Starts the embedded server."""
    config = session.load()
    if dagster:
        address = db.url(config, driver="psycopg2", database=config.dagster_database)
    else:
        address = db.url(config).set(drivername="postgresql")
    text = address.render_as_string(hide_password=False)
    if as_json:
        dump({"url": text})
    else:
        click.echo(text)


@command.command(
    "confirm-restore", epilog='Example: mailpipe db confirm-restore --as ana --reason "disk failed, dump of 03:00"'
)
@click.option("--reason", required=True, help="What happened; kept for ever.")
@as_option
@json_option
def confirm_restore(reason: str, person: str, as_json: bool) -> None:
    """Say that this database is the one to go on with, after a dump was restored or a volume copied.

    Every campaign that is approved or sending is paused. Whoever got mail after the dump was taken is pending again in it:
    resume only campaigns of which nothing was sent since then, and cancel the others.
    """
    config = session.load()
    with session.ses(config) as ses, session.database(config) as database, database.connection() as connection:
        paused = identity.confirm(connection, config, ses, actor=person, reason=reason)
    if as_json:
        dump({"paused": paused})
        return
    click.echo(f"confirmed; {len(paused)} campaigns are paused" + (": " if paused else "") + ", ".join(paused))
    for key in paused:
        click.echo(f"look at it, then: mailpipe campaign resume {key}, or mailpipe campaign cancel {key}")


def _say(as_json: bool, running: bool, text: str) -> None:
    if as_json:
        dump({"running": running, "text": text})
    else:
        click.echo(text)
