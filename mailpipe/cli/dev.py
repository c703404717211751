"""`mailpipe dev`: the Dagster UI and the web application on this machine."""

from __future__ import annotations

from functools import partial

import click

from mailpipe import dev
from mailpipe.children import told_to_stop
from mailpipe.cli import session, web
from mailpipe.settings import Settings


@click.command(epilog="Example: mailpipe dev --port 3000")
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port of the Dagster UI.")
@click.option(
    "--web-port",
    type=click.IntRange(1, 65535),
    default=8025,
    show_default=True,
    help="Port of the web application (API, metrics, unsubscribe pages).",
)
def command(port: int, web_port: int) -> None:
    """Open the data of this checkout in the Dagster UI, with the web application, the lanes and a local SES stand-in to send to.

    Runs until Ctrl-C or SIGTERM, and leaves no process behind. The data stays in var/. If there are no people yet, a small
    invented audience is made.
    """
    config = session.load()
    dev.require(config, port, web_port)
    with told_to_stop() as stop:
        click.echo("starting the database")
        session.prepare(config)
        dev.run(config, port=port, web_port=web_port, stop=stop, say=click.echo, ready=partial(_tell, config))
    click.echo("stopped")


def _tell(config: Settings, addresses: dev.Addresses) -> None:
    click.echo(f"Dagster UI:    {addresses.ui}")
    click.echo(f"Web and API:   {addresses.web}")
    click.echo(f"Schedules:     {addresses.web}/schedules (no name; the password is an API token)")
    click.echo(web.tokens(config))
    click.echo(f"SES stand-in:  {addresses.stand_in or 'none, mail goes to AWS'}")
    click.echo("Ctrl-C stops everything")
