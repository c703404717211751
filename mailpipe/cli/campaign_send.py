"""`mailpipe campaign start`: opens a campaign and sends it in this process."""

from __future__ import annotations

import click

from mailpipe import campaign, identity, plan, report, send
from mailpipe.children import told_to_stop
from mailpipe.cli import session
from mailpipe.cli.campaign_look import described
from mailpipe.cli.failure import Trouble
from mailpipe.cli.output import Bar, dump
from mailpipe.cli.session import as_option, json_option
from mailpipe.db import Connection
from mailpipe.send import End

STOPPED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it."""


@click.command(epilog="Example: mailpipe campaign start flash-sale --as ana")
@click.argument("name")
@click.option("--no-send", is_flag=True, help="Only open it for senders: runs in Dagster, or another `start`.")
@click.option("--accept-plan", is_flag=True, help="Start it although the plan cannot be met.")
@click.option("--late", is_flag=True, help="Start it although it was due long ago and is missed.")
@as_option
@json_option
def start(name: str, no_send: bool, accept_plan: bool, late: bool, person: str, as_json: bool) -> None:
    """Start an approved campaign that has its snapshot, and send it. A campaign that was stopped half-way goes on.

    Ctrl-C ends it gracefully: answers under way are recorded, everybody else stays pending; `start` again goes on.
    """
    config = session.load()
    size = session.most_connections(config)
    with session.ses(config, connections=size) as ses, session.database(config, pool_size=size) as database:
        with database.connection() as connection:
            account = send.account(ses, campaign.get(connection, name))
            identity.admit(connection, config, account)
            send.read_account(connection, config, account)
            plan.check(connection, name, accept=accept_plan, usual_factor=config.most_of_usual, actor=person)
            opened = campaign.start(connection, name, actor=person, late=late, grace=config.misfire_grace)
        if no_send:
            if as_json:
                dump(described(opened))
            else:
                click.echo(f"campaign {name} is open for senders")
            return
        with Bar() as bar, told_to_stop() as stop:

            def tick(connection: Connection) -> None:
                bar.update(report.progress(connection, name))

            outcome = send.run(database, config, ses, name, actor=person, on_tick=tick, stop=stop)
        with database.connection() as connection:
            now = report.progress(connection, name)
    if as_json:
        dump({**now.to_json(), "end": outcome.end, "text": outcome.text})
    else:
        if outcome.end is not End.NOT_SENDING:  # that one is told as an error, below
            click.echo(outcome.text)
        click.echo(
            f"{now.sent:,} sent, {now.failed:,} failed, {now.skipped:,} skipped, {now.unknown:,} unknown,"
            f" {now.pending:,} pending"
        )
    if outcome.end is End.STOPPED:
        raise click.exceptions.Exit(STOPPED)
    if outcome.end is End.NOT_SENDING:
        raise Trouble(outcome.text)
