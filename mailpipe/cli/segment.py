"""`mailpipe segment`: who there is to send to."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.console import Group, RenderableType
from rich.table import Table

from mailpipe import preview as previews
from mailpipe import segment
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import json_option


@click.group(epilog="Example: mailpipe segment preview engaged_30d")
def command() -> None:
    """Look at the segments in assets/segments/."""


@command.command("list", epilog="Example: mailpipe segment list")
@json_option
def list_(as_json: bool) -> None:
    """List the segments with their parameters. Exit code 2 when a file is wrong; the others are listed all the same."""
    found, problems = segment.load_all(session.load().segments)
    if as_json:
        dump(
            {
                "segments": [
                    {
                        "name": one.name,
                        "title": one.title,
                        "owner": one.owner,
                        "description": one.description,
                        "parameters": [
                            {"name": p.name, "type": p.type, "default": p.default, "description": p.description}
                            for p in one.parameters
                        ],
                    }
                    for one in found
                ],
                "problems": [str(problem) for problem in problems],
            }
        )
    else:
        rows = [(one.name, one.title, one.owner, _parameters(one)) for one in found]
        show(table(["segment", "title", "owner", "parameters"], rows))
    if problems:
        raise Mistake("\n".join(str(problem) for problem in problems))


@command.command(
    epilog="Example: mailpipe segment preview engaged_30d --param days=7 --as-of 2026-11-27T09:00:00+01:00"
)
@click.argument("name")
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter; may be repeated.")
@click.option("--as-of", metavar="INSTANT", help="The instant that the segment sees as now, with offset. Default: now.")
@json_option
def preview(name: str, parameters: tuple[str, ...], as_of: str | None, as_json: bool) -> None:
    """Check a segment and count its people; addresses are masked. Nothing is written."""
    config = session.load()
    chosen = segment.find(config.segments, name)
    bound = segment.bind(chosen, dict(_pair(text) for text in parameters), _instant(as_of))
    with session.database(config) as database:
        seen = previews.preview(database, chosen, bound, timeout=config.segment_timeout)
    if as_json:
        dump(seen.to_json())
        return
    summary = {"segment": f"{chosen.name}: {chosen.title}", "people": seen.people, "rows": seen.rows}
    missing = {name: number for name, number in seen.nulls.items() if number}
    columns = [(column.name, column.type, missing.get(column.name, 0)) for column in seen.columns]
    tables = [
        table(
            list(counted.columns),
            [(value, people, f"{share:.1%}") for value, people, share in counted.values],
            title=name,
        )
        for name, counted in seen.breakdowns.items()
    ]
    sample = [["-" if value is None else str(value) for value in row] for row in seen.sample.values]
    tables.append(table(list(seen.sample.columns), sample, title="sample"))
    show(Group(facts(summary), "", table(["column", "type", "without value"], columns), *_spaced(tables)))


def _parameters(one: segment.Segment) -> str:
    return ", ".join(f"{p.name} {p.type} = {'null' if p.default is None else p.default}" for p in one.parameters) or "-"


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint="--param")
    return name.strip(), value


def _instant(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise click.BadParameter(
            "expected an instant with offset, for example 2026-11-27T09:00:00+01:00", param_hint="--as-of"
        )
    return instant


def _spaced(tables: list[Table]) -> list[RenderableType]:
    return [part for one in tables for part in ("", one)]
