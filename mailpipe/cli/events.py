"""`mailpipe events`: what SES says after a call."""

from __future__ import annotations

from dataclasses import asdict
from typing import TextIO

import click

from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump
from mailpipe.cli.session import json_option
from mailpipe.feedback.ingest import ingest_lines


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
    with session.database(session.load()) as database:
        done = ingest_lines(database, file)
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
