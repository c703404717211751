"""`mailpipe suppression`: the list of addresses that nobody may mail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import click

from mailpipe import address, suppression, suppression_file, suppression_sync
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, show, table
from mailpipe.cli.session import as_option, json_option
from mailpipe.errors import ServiceError
from mailpipe.suppression import Entry, Reason

_scope = click.option(
    "--scope", default=suppression.ALL, show_default=True, help="all, marketing, or topic:NAME: which mail is refused."
)
_reason = click.option(
    "--reason", type=click.Choice(suppression.REASONS), default="manual", show_default=True, help="Why it is refused."
)


@click.group(epilog="Example: mailpipe suppression show somebody@example.com")
def command() -> None:
    """See and change whom nobody may mail. Bounces and complaints come onto the list by themselves."""


@command.command(epilog="Example: mailpipe suppression add somebody@example.com --scope marketing")
@click.argument("email")
@_scope
@_reason
@as_option
@json_option
def add(email: str, scope: str, reason: Reason, person: str, as_json: bool) -> None:
    """Suppress one address, in whatever spelling. The very next call honours it."""
    with session.database(session.load()) as database, database.connection() as connection:
        new = suppression.suppress(connection, [Entry(_checked(email), scope, reason, person)])
    if as_json:
        dump({"new": new})
    else:
        click.echo("suppressed" if new else "it was suppressed already, for a reason as strong")


@command.command(epilog='Example: mailpipe suppression remove somebody@example.com --because "asked for it by phone"')
@click.argument("email")
@click.option("--scope", help="Only this scope; without it all of them.")
@click.option("--because", required=True, help="Why the address may be mailed again; kept with your name.")
@as_option
@json_option
def remove(email: str, scope: str | None, because: str, person: str, as_json: bool) -> None:
    """Take an address off the list. What was there, who removed it and why is kept.

    SES has a list of its own: if the address is on it, SES accepts mails to it and delivers none. The command says so.
    """
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        lifted = suppression.lift(connection, _checked(email), scope, actor=person, reason=because)
        left = suppression.find(connection, email)
    warning = _at_ses(suppression.key(email))
    if as_json:
        dump({"removed": [one.scope for one in lifted], "left": [one.scope for one in left], "warning": warning})
        return
    click.echo(
        "removed: " + (", ".join(f"{one.scope} ({one.reason})" for one in lifted) or "nothing, it was not there")
    )
    if left:
        click.echo("still suppressed for: " + ", ".join(one.scope for one in left))
    if warning:
        click.echo(warning, err=True)


@command.command("show", epilog="Example: mailpipe suppression show somebody@example.com --json")
@click.argument("email")
@json_option
def show_(email: str, as_json: bool) -> None:
    """What suppresses an address, here and at SES."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = suppression.find(connection, _checked(email))
    warning = _at_ses(suppression.key(email))
    if as_json:
        dump({"suppressions": [asdict(one) for one in found], "ses": warning})
        return
    if found:
        rows = [(one.scope, one.reason, one.source, f"{one.at:%Y-%m-%d %H:%M}") for one in found]
        show(table(["scope", "reason", "source", "since"], rows))
    else:
        click.echo("not suppressed here")
    if warning:
        click.echo(warning)


@command.command("import", epilog="Example: mailpipe suppression import bounced.csv --reason hard_bounce")
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="replace"))
@_scope
@_reason
@json_option
def import_(file: TextIO, scope: str, reason: Reason, as_json: bool) -> None:
    """Suppress the addresses of FILE, a CSV with a header: email, and maybe scope, reason and source (- is the standard input).

    Lines that cannot be used are named; all others are taken in.
    """
    name = getattr(file, "name", "-")
    with session.database(session.load()) as database:
        done = suppression_file.read(database, file, scope=scope, reason=reason, source=Path(name).name)
    if as_json:
        dump(asdict(done))
    else:
        click.echo(f"{done.read:,} lines read, {done.new:,} new or stronger")
    if done.wrong:
        lines = [f"{name}: line {number}: {text}" for number, text in done.wrong[:20]]
        more = [f"... and {len(done.wrong) - 20:,} more"] if len(done.wrong) > 20 else []
        raise Mistake("\n".join([*lines, *more, "all other lines were taken in"]))


@command.command(epilog="Example: mailpipe suppression export suppressed.csv")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def export(path: Path, as_json: bool) -> None:
    """Write the whole list to PATH as CSV; `import` reads it."""
    with session.database(session.load()) as database:
        count = suppression_file.write(database, path)
    if as_json:
        dump({"rows": count, "path": str(path)})
    else:
        click.echo(f"{count:,} rows in {path}")


@command.command(epilog="Example: mailpipe suppression sync")
@json_option
def sync(as_json: bool) -> None:
    """Bring this list and that of the SES account together: what SES lists is suppressed here, and SES learns of hard bounces."""
    config = session.load()
    with session.ses(config) as ses, session.database(config) as database:
        done = suppression_sync.sync(database, ses)
    if as_json:
        dump(asdict(done))
    else:
        left = f", {done.left:,} are left for the next time" if done.left else ""
        click.echo(f"{done.listed:,} listed by SES, {done.learned:,} of them news; SES was told of {done.told:,}{left}")


def _checked(email: str) -> str:
    try:
        suppression.key(email)
    except address.AddressError as error:
        raise Mistake(f"EMAIL: {error}") from None
    return email


def _at_ses(key: str) -> str | None:
    try:
        with session.ses(session.load()) as ses:
            reason = ses.suppressed(key)
    except ServiceError:
        return "SES could not be asked whether its own list holds the address"
    if reason is None:
        return None
    return (
        f"SES's own list holds the address ({reason}): it accepts mails to it and delivers none. Remove it there too"
        " (DeleteSuppressedDestination), or it comes back with the next bounce or sync"
    )
