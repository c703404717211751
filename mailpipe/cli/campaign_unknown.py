"""`mailpipe campaign unknown`: looks at the people whose fate nobody knows, and writes down what a person decides about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from mailpipe import report, unknown
from mailpipe.cli import session
from mailpipe.cli.output import dump, show, table
from mailpipe.cli.session import as_option, json_option

NAME = click.argument("name")
_SHOWN = 100
"""People that are listed for the eye; programs (`--json`) and files (`export`) get all."""


@click.group("unknown", epilog="Example: mailpipe campaign unknown list flash-sale")
def command() -> None:
    """People of whom nobody knows whether SES accepted their mail. No machine mails them again; a person may order it.

    Events first: `mailpipe events ingest FILE` settles those whom SES did accept.
    """


@command.command("list", epilog="Example: mailpipe campaign unknown list flash-sale --json")
@NAME
@json_option
def list_(name: str, as_json: bool) -> None:
    """List them: since when, and why."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = unknown.people(connection, name)
    if as_json:
        dump([one.to_json() for one in found])
        return
    rows = [(str(one.seq), one.user_id, one.reason, one.detail, one.attempt, one.since) for one in found[:_SHOWN]]
    show(table(["seq", "user id", "reason", "detail", "attempt", "since"], rows))
    more = f", of whom {_SHOWN} are shown; --json and export give all" if len(found) > _SHOWN else ""
    click.echo(f"{len(found):,} people of campaign {name} are unknown{more}")


@command.command(epilog="Example: mailpipe campaign unknown export flash-sale unknown.csv")
@NAME
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def export(name: str, file: Path, as_json: bool) -> None:
    """Write them to FILE (.csv or .parquet). It holds addresses: keep it safe."""
    with session.database(session.load()) as database:
        count = report.export(database, name, file, state="unknown")
    if as_json:
        dump({"file": str(file), "recipients": count})
    else:
        click.echo(f"{count:,} recipients written to {file}")


@command.command(
    epilog='Example: mailpipe campaign unknown resolve flash-sale --all --resend --reason "not in the log of SES" --as ana'
)
@NAME
@click.option("--outcome", type=click.Choice(["sent"]), help="Count them as sent: they are never mailed again.")
@click.option(
    "--resend", is_flag=True, help="Mail them again, as a new attempt. Who has the mail already gets it twice."
)
@click.option("--seq", "seqs", type=click.IntRange(1, 2**31 - 1), multiple=True, help="This person; can be repeated.")
@click.option("--all", "everybody", is_flag=True, help="Everybody who is unknown now.")
@click.option("--reason", required=True, help="Why; kept in the campaign's history.")
@as_option
@json_option
def resolve(
    name: str,
    outcome: str | None,
    resend: bool,
    seqs: tuple[int, ...],
    everybody: bool,
    reason: str,
    person: str,
    as_json: bool,
) -> None:
    """Decide about people who are unknown: count them as sent, or mail them again.

    Events that are known already speak first. A campaign that is done is sending again after --resend; `start` or Dagster sends.
    """
    if resend == (outcome is not None):
        raise click.UsageError("say what they are: --outcome sent, or --resend")
    if everybody == bool(seqs):
        raise click.UsageError("say who: --seq N (once for each person), or --all")
    with session.database(session.load()) as database, database.connection() as connection:
        done = unknown.resolve(
            connection,
            name,
            "resend" if resend else "sent",
            seqs=None if everybody else seqs,
            actor=person,
            reason=reason,
        )
    if as_json:
        dump(done.to_json())
        return
    what = "are pending again, as a new attempt" if resend else "count as sent"
    click.echo(
        f"{done.people:,} people of campaign {name} {what}" + (f": seq {written(done.seqs)}" if done.seqs else "")
    )
    if done.settled:
        click.echo(f"{done.settled:,} people were settled by events before")
    if seqs and done.people < len(set(seqs)):
        click.echo(f"{len(set(seqs)) - done.people:,} of those asked for were not unknown and stay as they are")
    if resend and done.people:
        click.echo(f"next: mailpipe campaign start {name}, or launch their slices; a paused campaign has to be resumed")


def written(seqs: Iterable[Sequence[int]]) -> str:
    """Ranges of seqs for people: 1-3, 7."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in seqs)
