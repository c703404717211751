"""`mailpipe engagement`: who reads, and at which hour."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from mailpipe.cli import engagement_hours, session
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import json_option
from mailpipe.engagement import days, intake, look
from mailpipe.engagement import fold as folding
from mailpipe.schedule import zones

_NEXT = "next: mailpipe engagement hours --refresh (in Dagster, send_hours), so that the hours of people follow"


@click.group(epilog="Example: mailpipe engagement summary --json")
def command() -> None:
    """Learn who reads, and at which hour, from what was sent and what came back."""


command.add_command(engagement_hours.hours)


@command.command("import", epilog="Example: mailpipe engagement import opens.csv --zone Europe/Berlin")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--sql", metavar="QUERY", help="A query on the database of mailpipe, in place of a file.")
@click.option("--zone", default="UTC", metavar="ZONE", help="Of times in the file that say no offset. Default: UTC.")
@json_option
def bring(file: Path | None, sql: str | None, zone: str, as_json: bool) -> None:
    """Bring in a history of opens and clicks that somebody else kept, from FILE (Parquet or CSV) or a query.

    Columns: recipient_id, event_type (open or click), opened_at; also known: sent_at, timezone, user_agent, ip. The same content
    again changes nothing. Do not bring in what mailpipe sent itself: it would count twice.
    """
    if (file is None) == (sql is None):
        raise click.UsageError("give a FILE, or --sql and a query")
    config = session.load()
    known = zones.load(zone)
    with session.database(config) as database, database.connection() as connection:
        done = intake.from_query(connection, sql) if sql is not None else None
        if file is not None:
            done = intake.from_file(connection, file, zone=known)
    assert done is not None
    if as_json:
        dump(done.to_json())
    elif done.already is not None:
        click.echo(f"brought in already on {done.already:%Y-%m-%d %H:%M} UTC as {done.source}; nothing changed")
    else:
        click.echo(
            f"{done.rows:,} rows of {done.people:,} people: {done.events:,} reactions counted, {done.machines:,} rows of machines"
            " weigh nothing"
        )
        click.echo(_NEXT)


@command.command(epilog="Example: mailpipe engagement fold")
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="This day (UTC). Without it: every day that waits.")
@json_option
def fold(day: datetime | None, as_json: bool) -> None:
    """Fold days into what is known of people: mails, and the reactions of their first 24 hours.

    A day can be folded 26 hours after its end. Days are folded in order; one that is folded changes nothing.
    """
    config = session.load()
    now = datetime.now(UTC)
    with session.database(config) as database, database.connection() as connection:
        wanted = days.due(connection, now) if day is None else [day.date()]
        done = [folding.fold(connection, config, one, now=now) for one in wanted]
    if as_json:
        dump([one.to_json() for one in done])
    for one in [] if as_json else done:
        was = "was folded before" if one.already else f"{one.seconds:.1f} s"
        click.echo(
            f"{one.day}: {one.mails:,} mails to {one.people:,} people, {one.opens:,} opened, {one.clicks:,} clicked, {was}"
        )
    if not as_json:
        click.echo(_NEXT if done else "no day waits to be folded")


@command.command("show", epilog="Example: mailpipe engagement show 4711")
@click.argument("person")
@json_option
def show_person(person: str, as_json: bool) -> None:
    """What is known of PERSON, a user id of the segments."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        found = look.person(connection, person)
    if as_json:
        dump(found.to_json())
        return
    told = {name: value for name, value in found.to_json().items() if name not in ("ev", "ex", "tier")}
    show(facts({"tier": f"T{found.tier}", **told}))
    show(
        table(
            ["hour", "reactions", "exposure"],
            [
                [f"{hour:02d}", round(ev, 2), round(ex, 2)]
                for hour, (ev, ex) in enumerate(zip(found.ev, found.ex, strict=True))
            ],
        )
    )


@command.command(epilog="Example: mailpipe engagement summary")
@json_option
def summary(as_json: bool) -> None:
    """How many people are known, how engaged they are, and which days are folded."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        now = look.summary(connection, datetime.now(UTC))
    if as_json:
        dump(now.to_json())
        return
    waiting = f"{len(now.due)} days from {now.due[0]} on" if now.due else "none"
    show(
        facts(
            {
                "folded to": now.folded_to,
                "waiting": waiting,
                "people": now.people,
                "with own data": f"{now.own_data:,} ({now.own_share:.1%})",
                "behind Apple's proxy": now.proxied,
                "without a zone": now.zoneless,
                **{f"T{number}": people for number, people in enumerate(now.tiers, start=1)},
                "imports": now.imports,
            }
        )
    )
    if now.days:
        show(
            table(
                ["day", "mails", "people", "opened", "clicked", "machines", "bought", "seconds"],
                [[one.day.isoformat(), one.mails, one.people, one.opens, one.clicks, one.machines, one.bought, one.seconds]
                 for one in now.days],
            )
        )  # fmt: skip
