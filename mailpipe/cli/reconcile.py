"""`mailpipe reconcile`: the ledger put in order."""

from __future__ import annotations

import click

from mailpipe import reconcile
from mailpipe.cli import session
from mailpipe.cli.output import dump
from mailpipe.cli.session import json_option


@click.command(epilog="Example: mailpipe reconcile flash-sale")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """Free the chunks of silent workers, let events settle the unknown, and finish campaigns that are complete.

    NAME is a campaign; without it, all that are not over. Safe to run at any time, also while mail is being sent.
    """
    with session.database(session.load()) as database, database.connection() as connection:
        done = reconcile.run(connection, name)
    if as_json:
        dump(done.to_json())
        return
    click.echo(
        f"{done.freed_chunks:,} chunks freed, {done.became_unknown:,} people became unknown,"
        f" {done.settled:,} settled by events"
    )
    if done.released:
        click.echo(f"{done.released:,} people may go: the gate before their wave or day has passed")
    for key in done.finished:
        click.echo(f"campaign {key} is done")
