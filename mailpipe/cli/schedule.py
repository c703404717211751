"""`mailpipe schedule`: recurring campaigns, from their file to each of their fires."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from mailpipe.cli import session
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import as_option, json_option, person_option
from mailpipe.schedule import fire, recurring, spec
from mailpipe.schedule.recurring import Schedule
from mailpipe.schedule.spec import ScheduleSpec
from mailpipe.schedule.when import RECIPIENT

NAME = click.argument("name")
FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group(
    epilog="Example: mailpipe schedule preview assets/schedules/weekly_news.yaml && mailpipe schedule create"
    " assets/schedules/weekly_news.yaml --author ana"
)
def command() -> None:
    """Campaigns that come again: every Monday, on the first of the month.

    Each fire makes one campaign, shortly before it is due. The sensors `recurring` and `due` in Dagster do the rest.
    """


@command.command("list", epilog="Example: mailpipe schedule list")
@json_option
def list_(as_json: bool) -> None:
    """All schedules, and when they fire next."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = recurring.get_all(connection)
    if as_json:
        dump([described(one) for one in found])
        return
    rows = [
        (one.key, one.cron_expression, one.timezone, one.state, one.next_run_at, one.last_run_at, one.approver)
        for one in found
    ]
    show(table(("schedule", "cron", "zone", "state", "next", "last", "approved by"), rows))


@command.command("show", epilog="Example: mailpipe schedule show weekly-news")
@NAME
@json_option
def show_(name: str, as_json: bool) -> None:
    """One schedule: what it says, its next five fires, and what became of the last ones."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        found = recurring.get(connection, name)
        past = recurring.occurrences(connection, found)
    coming = found.spec.coming(found.now, minimum=0)
    if as_json:
        dump({**described(found), "next": coming, "occurrences": [vars(one) for one in past]})
        return
    show(
        facts(
            {
                "schedule": found.key,
                "state": found.state,
                "fires": found.spec.compiled(minimum=0).words,
                "zone": found.timezone,
                "missed fires": found.spec.missed,
                "segment": found.spec.campaign["segment"],
                "template": found.spec.campaign["template"],
                "author": found.author,
                "approved by": found.approver or ("each campaign by itself" if found.spec.approval == "each" else None),
            }
        )
    )
    _show_fires(coming)
    rows = [(f"{one.slot:%Y-%m-%d %H:%M}", one.state, one.campaign, one.campaign_state or one.reason) for one in past]
    show(table(("slot", "became", "campaign", "state or reason"), rows, title="past fires"))


@command.command(epilog="Example: mailpipe schedule preview assets/schedules/weekly_news.yaml")
@FILE
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 100), help="How many fires.")
@json_option
def preview(file: Path, count: int, as_json: bool) -> None:
    """Say in words and instants when FILE would fire. Nothing is recorded."""
    config = session.load()
    found = spec.read_file(file)
    words = found.compiled(minimum=config.minimum_interval).words
    coming = found.coming(datetime.now(UTC), minimum=config.minimum_interval, count=count)
    if as_json:
        dump({"schedule": found.key, "words": words, "timezone": found.timezone, "next": coming})
        return
    click.echo(f"{found.key}: {words}, {_zone(found)}")
    _show_fires(coming)


@command.command(epilog="Example: mailpipe schedule create assets/schedules/weekly_news.yaml --author ana")
@FILE
@person_option("--author", "--as", "author", help="Who made it, and so cannot approve it. Default: your login.")
@json_option
def create(file: Path, author: str, as_json: bool) -> None:
    """Record the schedule that FILE describes. It makes campaigns once its series is approved."""
    config = session.load()
    found = spec.read_file(file)
    with session.database(config) as database, database.connection() as connection:
        made = recurring.create(connection, config, found, author=author)
    if as_json:
        dump(described(made))
        return
    click.echo(f"schedule {made.key} of {made.author}: {found.compiled(minimum=0).words}, {_zone(found)}")
    _show_fires(found.coming(made.now, minimum=0))
    if found.approval == "series":
        click.echo(f"next, by somebody else: mailpipe schedule approve {made.key}")


@command.command(epilog="Example: mailpipe schedule approve weekly-news --as ben")
@NAME
@as_option
@json_option
def approve(name: str, person: str, as_json: bool) -> None:
    """Approve the whole series with its template as it is now. Its author cannot do this."""
    config = session.load()
    with session.ses(config) as ses, session.database(config) as database, database.connection() as connection:
        made = recurring.approve(connection, config, ses, name, approver=person)
    _told(made, as_json, f"schedule {name} is approved by {person}, with the template {made.template_version}")


@command.command(epilog="Example: mailpipe schedule pause weekly-news")
@NAME
@as_option
@json_option
def pause(name: str, person: str, as_json: bool) -> None:
    """No fires from now on. Campaigns that are made already go on; `mailpipe campaign pause` stops those."""
    with session.database(session.load()) as database, database.connection() as connection:
        made = recurring.pause(connection, name, actor=person)
    _told(made, as_json, f"schedule {name} is paused")


@command.command(epilog="Example: mailpipe schedule resume weekly-news")
@NAME
@as_option
@json_option
def resume(name: str, person: str, as_json: bool) -> None:
    """Fire again from now on. What fell into the pause is not made up."""
    with session.database(session.load()) as database, database.connection() as connection:
        made = recurring.resume(connection, name, actor=person)
    _told(made, as_json, f"schedule {name} fires next at {made.next_run_at:%Y-%m-%d %H:%M} UTC")


@command.command("run-now", epilog="Example: mailpipe schedule run-now weekly-news")
@NAME
@as_option
@json_option
def run_now(name: str, person: str, as_json: bool) -> None:
    """Make a campaign at once, besides the cron."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        made = fire.run_now(connection, config, name, actor=person)
    if as_json:
        dump({"campaign": made})
    else:
        click.echo(f"campaign {made} is made; the sensor `due` freezes and sends it")


@command.command(epilog="Example: mailpipe schedule delete weekly-news")
@NAME
@as_option
@json_option
def delete(name: str, person: str, as_json: bool) -> None:
    """End a schedule for good. Its campaigns and its history stay, and its key is not used again."""
    with session.database(session.load()) as database, database.connection() as connection:
        recurring.delete(connection, name, actor=person)
    if as_json:
        dump({"deleted": name})
    else:
        click.echo(f"schedule {name} is deleted")


def described(found: Schedule) -> dict[str, Any]:
    """A schedule as programs read it."""
    return {
        **{name: value for name, value in vars(found).items() if name not in ("spec", "now", "schedule_id")},
        "state": found.state,
        "spec": found.spec.model_dump(mode="json"),
    }


def _zone(found: ScheduleSpec) -> str:
    return "by the clocks of each recipient" if found.timezone == RECIPIENT else f"by the clocks of {found.timezone}"


def _show_fires(coming: list[dict[str, str]]) -> None:
    show(table(("next fires", "instant", "UTC"), [(one["slot"], one["local"], one["utc"]) for one in coming]))


def _told(made: Schedule, as_json: bool, text: str) -> None:
    if as_json:
        dump(described(made))
    else:
        click.echo(text)
