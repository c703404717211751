"""`mailpipe campaign uplift`: what hours of their own have brought."""

from __future__ import annotations

import click
from rich.console import Group, RenderableType

from mailpipe.cli import session
from mailpipe.cli.output import dump, show, table
from mailpipe.cli.session import json_option
from mailpipe.sendtime import uplift as uplifts
from mailpipe.sendtime.uplift import Uplift

MEASURES = {
    "clicks": "clicks",
    "opens": "opens that are seen",
    "explored_clicks": "clicks",
    "explored_opens": "opens that are seen",
}


@click.command(epilog="Example: mailpipe campaign uplift spring-sale   or: mailpipe campaign uplift --all --json")
@click.argument("name", required=False)
@click.option("--all", "together", is_flag=True, help="All optimised campaigns together.")
@json_option
def uplift(name: str | None, together: bool, as_json: bool) -> None:
    """Say what a campaign with `mode: optimised` has brought: people at their own hour against the control group, and random
    hours against each other, each with an interval of 95 %. One campaign alone seldom tells; --all pools them.
    """
    if (name is None) == (not together):
        raise click.UsageError("name a campaign, or take --all")
    with session.database(session.load()) as database, database.connection() as connection:
        found = uplifts.pooled(connection) if name is None else uplifts.of(connection, name)
    if as_json:
        dump(found.to_json())
        return
    show(Group(*_lines(found)))


def _lines(found: Uplift) -> list[RenderableType]:
    lines: list[RenderableType] = [f"campaigns: {', '.join(found.campaigns) or 'none yet'}"]
    rows = [
        (
            one.of,
            MEASURES[name],
            _rate(one.engaged, one.people, one.rate),
            _rate(one.other_engaged, one.other_people, one.other_rate),
        )
        for name, one in found.comparisons.items()
    ]
    lines.append(table(["compared", "by", "first", "second"], rows))
    lines += [f"{one.of}, {MEASURES[name]}: {one.text}" for name, one in found.comparisons.items()]
    return lines


def _rate(engaged: int, people: int, rate: float | None) -> str:
    return f"{engaged:,} of {people:,}" + (f" ({rate:.2%})" if rate is not None else "")
