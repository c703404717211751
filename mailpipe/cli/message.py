"""`mailpipe message`: one mail to one person, from the command line; and what became of it."""

from __future__ import annotations

from typing import Any, get_args

import click

from mailpipe import outbox
from mailpipe.cli import session
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import as_option, json_option
from mailpipe.errors import UserError
from mailpipe.lane import NAMES


@click.group(
    epilog="Example: mailpipe message send --to success@simulator.amazonses.com --template login_code --var code=482913"
    " --lane critical"
)
def command() -> None:
    """Messages: login codes, receipts, reminders. `mailpipe lanes` sends them."""


@command.command(
    epilog="Example: mailpipe message send --to success@simulator.amazonses.com --template login_code --var code=482913"
    " --lane critical --key login-4711"
)
@click.option("--to", required=True, metavar="ADDRESS", help="One address.")
@click.option("--template", help="A published template (see `mailpipe template publish`).")
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of it; can be repeated.")
@click.option("--subject", help="Instead of a template: the subject ...")
@click.option("--text", help="... and the text.")
@click.option("--html", help="... or the HTML.")
@click.option("--lane", type=click.Choice(NAMES), default="normal", show_default=True, help="How urgent it is.")
@click.option("--sender", help="From. Default: MAILPIPE_TRANSACTIONAL_SENDER.")
@click.option("--key", "idempotency_key", help="The same key again is the same mail.")
@click.option("--delay", help="Not before so long from now, as 24h or 90s.")
@click.option("--send-at", help="Not before this instant, with offset.")
@click.option("--cancel-key", help="By which it can be called off.")
@click.option("--expires-in", help="Of no use any more so long after it is due.")
@json_option
def send(as_json: bool, variables: tuple[str, ...], **fields: Any) -> None:
    """Put a message into the outbox."""
    values = dict(one.partition("=")[::2] for one in variables)
    given = {name: value for name, value in fields.items() if value is not None}
    spec = outbox.parse({**given, **({"variables": values} if values else {})})
    with session.database(session.load()) as database, database.connection() as connection:
        accepted = outbox.enqueue(connection, spec)
    if as_json:
        dump({"message_id": accepted.message_id, "created": accepted.created})
    else:
        click.echo(f"{accepted.message_id}" + ("" if accepted.created else " (was there already, under this key)"))


@command.command("show", epilog="Example: mailpipe message show 0199c2f0-1c7e-7a54-b3a0-4b8f6f1c2d3e")
@click.argument("message_id")
@json_option
def show_(message_id: str, as_json: bool) -> None:
    """Show what became of a message, and of each call about it. No address, no content."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = outbox.get(connection, message_id)
    if found is None:
        raise UserError(f"there is no message {message_id}")
    told = found.to_json()
    if as_json:
        dump(told)
        return
    calls = told.pop("calls")
    show(facts({**told, "events": ", ".join(f"{kind} {at}" for kind, at in told["events"].items()) or None}))
    if calls:
        rows = [
            [call[name] for name in ("no", "attempt", "opened_at", "seconds", "result", "reason")] for call in calls
        ]
        show(table(["call", "attempt", "opened", "seconds", "result", "reason"], rows, title="calls"))


@command.command("list", epilog="Example: mailpipe message list --state dead --json")
@click.option("--state", type=click.Choice(get_args(outbox.State)), default="dead", show_default=True)
@click.option("--lane", type=click.Choice(NAMES), help="Only of this lane.")
@click.option("--most", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@json_option
def list_(state: outbox.State, lane: Any, most: int, as_json: bool) -> None:
    """List messages in a state: the `dead`, the `unknown`, ..."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = outbox.of_state(connection, state, lane=lane, most=most)
    if as_json:
        dump(found)
        return
    names = ["message_id", "lane", "reason", "detail", "attempt", "tries", "created_at", "finished_at"]
    show(table(names, [[one[name] for name in names] for one in found]))


@command.command(epilog="Example: mailpipe message cancel --key cart-4711")
@click.argument("message_id", required=False)
@click.option("--key", "cancel_key", help="Call off all messages under this cancel key.")
@json_option
def cancel(message_id: str | None, cancel_key: str | None, as_json: bool) -> None:
    """Call off a message that is in no call yet. Exit code 2 when there is none to call off."""
    if (message_id is None) == (cancel_key is None):
        raise click.UsageError("say which: MESSAGE_ID, or --key")
    with session.database(session.load()) as database, database.connection() as connection:
        if cancel_key is not None:
            count = outbox.cancel_by_key(connection, cancel_key)
        else:
            count = int(outbox.cancel(connection, str(message_id)))
    if as_json:
        dump({"cancelled": count})
    if not count:
        raise UserError("nothing was called off: there is no such message that still waits")
    if not as_json:
        click.echo(f"{count} message{'s' if count > 1 else ''} called off")


@command.command(
    epilog='Example: mailpipe message requeue 0199c2f0-1c7e-7a54-b3a0-4b8f6f1c2d3e --reason "SES is back" --as ana'
)
@click.argument("message_ids", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why; kept for ever.")
@as_option
@json_option
def requeue(message_ids: tuple[str, ...], reason: str, person: str, as_json: bool) -> None:
    """Send messages once more that ended without being sent. One that is `unknown` may arrive twice."""
    with session.database(session.load()) as database, database.connection() as connection:
        done = [outbox.requeue(connection, one, actor=person, reason=reason) for one in message_ids]
    if as_json:
        dump([{"message_id": one.message_id, "attempt": one.attempt} for one in done])
    else:
        click.echo(f"{len(done)} message{'s wait' if len(done) > 1 else ' waits'} to be sent again")


@command.command(epilog="Example: mailpipe message depths --json")
@json_option
def depths(as_json: bool) -> None:
    """Show how full each lane is: due and waiting, in somebody's hands, and since when."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = outbox.depths(connection)
    rows = [(lane, depth.pending, depth.processing, depth.oldest_age_seconds) for lane, depth in found.items()]
    names = ["lane", "pending", "processing", "oldest_age_seconds"]
    if as_json:
        dump([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show(table(names, rows))
