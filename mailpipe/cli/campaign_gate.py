"""`mailpipe campaign gate`: the gate between two waves or days, and a person's word on it."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType

from mailpipe import campaign
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import json_option, person_option
from mailpipe.waves import advance, standing
from mailpipe.waves.standing import Gate


@click.command("gate", epilog='Example: mailpipe campaign gate news --pass --reason "Postmaster Tools is green"')
@click.argument("name")
@click.option("--pass", "passes", is_flag=True, help="Let the next part go when it is planned, whatever the rates are.")
@click.option("--hold", "holds", is_flag=True, help="Let nobody go until somebody says --pass.")
@click.option("--reason", help="Why; kept with the verdict and in the campaign's history.")
@person_option("--as", "--actor", "person", help="Who says so. Default: your login.")
@json_option
def command(name: str, passes: bool, holds: bool, reason: str | None, person: str, as_json: bool) -> None:
    """Show the gate before the next wave or day of a campaign, or give a person's word on it.

    Gates are judged by `mailpipe reconcile`, which Dagster launches every few minutes. A verdict is final; only a person's --hold
    ends, with a person's --pass.
    """
    if passes and holds:
        raise click.UsageError("say either --pass or --hold")
    with session.database(session.load()) as database, database.connection() as connection:
        if passes or holds:
            if not reason:
                raise click.UsageError("say why: --reason")
            gate: Gate | None = advance.decide(
                connection, name, "pass" if passes else "hold", actor=person, reason=reason
            )
        else:
            gate = standing.look(connection, campaign.get(connection, name))
    if gate is None:
        raise Mistake(f"campaign {name}: nobody waits for a gate between waves or days")
    if as_json:
        dump(_document(gate))
        return
    parts: list[RenderableType] = [
        facts(
            {
                "after": f"{gate.stage.label} ({gate.stage.sent:,} sent)",
                "before": f"{gate.following.label} ({gate.following.people:,} people)",
                "planned": gate.opens_at,
                "gate": gate.text,
            }
        )
    ]
    if gate.judgement is not None and gate.judgement.measures:
        rows = [
            (one.name, one.provider or "all", one.people, one.sample, f"{one.rate:.2%}", f"{one.line:.2%}", one.level)
            for one in gate.judgement.measures
        ]
        parts += ["", table(["rate", "provider", "people", "of", "is", "line", "level"], rows)]
    show(Group(*parts))


def _document(gate: Gate) -> dict[str, Any]:
    return {
        "after": gate.stage.label,
        "before": gate.following.label,
        "opens_at": gate.opens_at,
        "open": gate.open,
        "verdict": gate.verdict,
        "text": gate.text,
        "judgement": gate.judgement.to_json() if gate.judgement else None,
    }
