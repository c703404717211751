"""`mailpipe web`: the API, the metrics and the unsubscribe pages."""

from __future__ import annotations

import logging
import sys

import click

from mailpipe import settings
from mailpipe.cli import session
from mailpipe.web import app, serve

CONNECTIONS = 20
"""To the database, from one process; requests beyond them wait."""
PATIENCE = 15.0
"""Seconds that a request waits for the database before it is told to come back: shorter than those who ask wait for us."""


@click.command(epilog="Example: mailpipe web --host 0.0.0.0 --port 8025")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8025, show_default=True, help="0 takes a free one.")
def command(host: str, port: int) -> None:
    """Serve the API of messages, /metrics, and the pages behind unsubscribe links.

    Runs until Ctrl-C or SIGTERM, and answers what is on its way first. As many of them as wanted may run on one database. The
    access log goes to standard error; it names routes, no addresses and no tokens.
    """
    config = session.load()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with session.database(config, pool_size=CONNECTIONS, patience=PATIENCE) as database:
        built = app.build(config, database)
        click.echo(tokens(config))
        serve.serve(built, host=host, port=port, ready=lambda url: click.echo(f"listening on {url}"))


def tokens(config: settings.Settings) -> str:
    """Where the tokens of the API are, in a sentence without any of them."""
    if config.api_tokens:
        return "API tokens: those of MAILPIPE_API_TOKENS"
    if config.is_local:
        return f"API token: in {settings.local_token(config)}"
    return "API: closed, MAILPIPE_API_TOKENS is not set"
