"""`mailpipe events`: what SES says after a call."""

from __future__ import annotations

from dataclasses import asdict
from typing import TextIO

import click

from mailpipe import stand_in
from mailpipe.children import told_to_stop
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump
from mailpipe.cli.session import json_option
from mailpipe.feedback import poll as poller
from mailpipe.feedback import upkeep as upkeeping
from mailpipe.feedback.ingest import ingest_lines
from mailpipe.feedback.poll import READERS


@click.group(epilog="Example: mailpipe events ingest events.jsonl")
def command() -> None:
    """Take in the events that SES publishes."""


@command.command(epilog="Example: mailpipe events ingest var/ses-simulator/events.jsonl")
@click.argument("file", type=click.File(encoding="utf-8", errors="replace"))
@json_option
def ingest(file: TextIO, as_json: bool) -> None:
    """Fold the events of FILE, one JSON document a line (- is the standard input), into the ledger.

    Doing it again changes nothing. Lines that are no SES events are counted and named; the others are taken in all the same.
    """
    config = session.load()
    with session.database(config) as database:
        done = ingest_lines(database, file, keep_days=config.event_days)
    if as_json:
        dump(asdict(done))
    else:
        click.echo(
            f"{done.read:,} events read, {done.folded:,} folded, {done.foreign:,} not of our campaigns,"
            f" {done.settled:,} people changed their state"
        )
    if done.malformed:
        lines = ", ".join(str(number) for number in done.malformed[:10])
        more = f" and {len(done.malformed) - 10:,} more" if len(done.malformed) > 10 else ""
        raise Mistake(f"{file.name}: no SES event in line {lines}{more}; the other lines were taken in")


@command.command(
    epilog="Example: mailpipe events poll --queue-url https://sqs.eu-west-1.amazonaws.com/111122223333/ses-events"
)
@click.option("--queue-url", required=True, help="The SQS queue that is subscribed to the SNS topic, raw or not.")
@click.option("--once", is_flag=True, help="End when the queue is empty.")
@click.option(
    "--endpoint",
    envvar="MAILPIPE_SQS_ENDPOINT",
    show_envvar=True,
    help="Where SQS answers; without it AWS, or the stand-in.",
)
@json_option
def poll(queue_url: str, once: bool, endpoint: str | None, as_json: bool) -> None:
    """Take in events from a queue until Ctrl-C or SIGTERM. Run as many of these as you want.

    A message is deleted from the queue once its event is on disk. A database that is away is waited for.
    """
    config = session.load()
    poller.step_back()
    with session.database(config, pool_size=READERS + 1) as database, told_to_stop() as stop:
        done = poller.poll(
            database,
            config,
            queue_url,
            endpoint=endpoint or stand_in.endpoint(config),
            stop=stop,
            once=once,
        )
    if as_json:
        dump({**asdict(done), "malformed": len(done.malformed)})
    else:
        click.echo(
            f"{done.read:,} events read, {done.folded:,} folded, {done.foreign:,} about nobody of ours, {done.repeated:,} repeated,"
            f" {done.suppressed:,} addresses suppressed, {len(done.malformed):,} no SES events"
        )
        for key in done.paused:
            click.echo(f"the breaker paused campaign {key}")


@command.command(epilog="Example: mailpipe events upkeep")
@json_option
def upkeep(as_json: bool) -> None:
    """Look at the breaker's lines, tie late events to people, make partitions ahead and drop old ones.

    In Dagster the sensor `breaker` and the schedule `tidy_events` do it.
    """
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        kept = upkeeping.run(connection)
        tidied = upkeeping.daily(connection, config.event_days)
    if as_json:
        dump({**asdict(kept), **asdict(tidied)})
    else:
        click.echo(
            f"{kept.bound:,} events found their person; paused: {', '.join(kept.paused) or 'nothing'};"
            f" made: {', '.join(tidied.made) or 'nothing'}; dropped: {', '.join(tidied.dropped) or 'nothing'}"
        )
