"""`mailpipe engagement hours`: when people are best mailed, for all of them or for one."""

from __future__ import annotations

import click

from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import json_option
from mailpipe.db import Connection
from mailpipe.sendtime import hours as keeping


@click.command("hours", epilog="Example: mailpipe engagement hours --refresh   or: mailpipe engagement hours 4711")
@click.argument("person", required=False)
@click.option("--refresh", is_flag=True, help="Write the table anew first, as Dagster does behind each fold.")
@json_option
def hours(person: str | None, refresh: bool, as_json: bool) -> None:
    """Say how many people are best mailed at which hour of their clock, and whose data say so; or the hour of PERSON and why."""
    with session.database(session.load()) as database, database.connection() as connection:
        if refresh:
            keeping.refresh(connection)
        if person is not None:
            _show_person(connection, person, as_json)
            return
        last, shares = keeping.refreshed(connection), keeping.summary(connection)
    if as_json:
        dump(
            {
                "refreshed_at": last.refreshed_at if last else None,
                "people": last.people if last else 0,
                "hours": [one._asdict() for one in shares],
            }
        )
        return
    if last is None:
        click.echo("no hours yet; --refresh writes them")
        return
    show(facts({"people": last.people, "written": last.refreshed_at, "made of days to": last.folded_to}))
    rows = [(f"{one.hour:02}:00", one.why, one.people, round(one.confidence, 2)) for one in shares]
    show(table(["hour", "from", "people", "confidence"], rows))


def _show_person(connection: Connection, person: str, as_json: bool) -> None:
    found = keeping.of_person(connection, person)
    if found is None:
        raise Mistake(f"nothing is known of {person}: they are mailed at the best hour of people in their zone")
    if as_json:
        dump(found.to_json())
        return
    show(facts({"best": found.text, "confidence": round(found.confidence, 2), "zone": found.zone}))
    show(table(["hour", "worth"], [(f"{hour:02}", share) for hour, share in enumerate(found.worth)]))
