"""The commands of `mailpipe campaign` about what came back: rates, machines, who complains, and narrowing the rest."""

from __future__ import annotations

import csv
from datetime import date
from typing import TextIO

import click
from rich.console import Group, RenderableType

from mailpipe import breaker
from mailpipe import narrow as narrowing
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import as_option, json_option
from mailpipe.feedback import summary as summaries
from mailpipe.feedback.summary import Summary

NAME = click.argument("name")


@click.command(epilog="Example: mailpipe campaign feedback flash-sale --by tier")
@NAME
@click.option("--by", metavar="VARIABLE", help="Complaints by a column of the segment: tier, source, last_login_at ...")
@json_option
def feedback(name: str, by: str | None, as_json: bool) -> None:
    """What came back: sent against delivered, complaints, bounces and delays against their lines, people against machines."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = summaries.summary(connection, name)
        groups = summaries.by_variable(connection, name, by) if by else []
    if as_json:
        dump({**found.to_json(), "by": {by: [one.to_json() for one in groups]} if by else {}})
        return
    parts: list[RenderableType] = [facts(_facts(found)), ""]
    rates = [(one.name, one.people, one.sample, f"{one.rate:.3%}", f"{one.line:.3%}", one.level) for one in found.rates]
    parts.append(table(["rate", "people", "of", "is", "line", "level"], rates))
    for number, some in found.loud_slices.items():
        parts.append(f"slice {number:02d}: " + "; ".join(one.text for one in some))
    if by:
        rows = [(one.value, one.sent, one.complaints, f"{one.complaint_rate:.3%}", one.hard_bounces) for one in groups]
        parts += ["", table([by, "sent", "complaints", "rate", "hard bounces"], rows)]
    show(Group(*parts))


@click.command(
    epilog='Example: mailpipe campaign narrow flash-sale --keep engaged_30d --because "complaints of old accounts"'
)
@NAME
@click.option("--keep", required=True, metavar="SEGMENT", help="Only who is in this segment now stays pending.")
@click.option("--because", required=True, help="Why; kept in the campaign's history.")
@as_option
@json_option
def narrow(name: str, keep: str, because: str, person: str, as_json: bool) -> None:
    """Skip everybody of a paused campaign who is still pending and not in SEGMENT. It cannot be taken back."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        skipped = narrowing.narrow(connection, config, name, keep=keep, actor=person, reason=because)
    if as_json:
        dump({"campaign": name, "skipped": skipped})
    else:
        click.echo(
            f"{skipped:,} people are skipped (narrowed); `mailpipe campaign resume {name}` goes on with the others"
        )


@click.command(epilog="Example: mailpipe campaign postmaster rates.csv")
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="replace"))
@json_option
def postmaster(file: TextIO, as_json: bool) -> None:
    """Keep the spam rates of Google's Postmaster Tools: FILE is a CSV with the columns domain, day (2026-11-27) and rate (0.0012).

    Gmail tells SES of no complaints; this is where its rate can be seen beside the others.
    """
    rates: list[tuple[str, date, float]] = []
    rows = csv.DictReader(file)
    for row in rows:
        try:
            rate = float(row["rate"])
            if not 0 <= rate <= 1:
                raise ValueError
            rates.append((row["domain"].strip(), date.fromisoformat(row["day"].strip()), rate))
        except (KeyError, ValueError, AttributeError, TypeError):
            raise Mistake(
                f"line {rows.line_num}: expected domain, day and rate, as example.com,2026-11-27,0.0012; nothing was kept"
            ) from None
    with session.database(session.load()) as database, database.transaction() as connection:
        kept = breaker.keep_postmaster(connection, rates)
    if as_json:
        dump({"kept": kept})
    else:
        click.echo(f"{kept:,} rates kept")


def _facts(found: Summary) -> dict[str, object]:
    told = found.engagement
    spam = found.postmaster
    share = found.share_at_gmail
    return {
        "campaign": found.campaign,
        "sent": found.sent,
        "delivered": found.delivered,
        "send to delivery": _seconds(found.delivery_p50_seconds, found.delivery_p95_seconds),
        "people who clicked": f"{told.clickers:,} (machines {told.machine_clickers:,}, raw {told.raw_clickers:,})",
        "people who opened": f"{told.openers:,} (machines {told.machine_openers:,}, raw {told.raw_openers:,})",
        "hidden by Apple": f"{told.apple:,} people, of whom nobody knows whether they read it",
        "rule for machines": told.rule,
        "policy bounces": found.events.get("policy_bounce", 0),
        "complaints at Gmail": "none are told to SES"
        + (f"; {share:.1%} of the people are there" if share is not None else "")
        + (f"; Postmaster Tools: {spam[1]:.2%} on {spam[0]}" if spam else "; no rate of Postmaster Tools is known"),
    }


def _seconds(half: float | None, most: float | None) -> str | None:
    return None if half is None or most is None else f"{half:.1f} s for half of them, {most:.1f} s for 95 %"
