"""`mailpipe pace`: how fast may be sent, what of the day is left, and a limit by a person's order."""

from __future__ import annotations

from typing import Any

import click

from mailpipe import pace
from mailpipe.cli import session
from mailpipe.cli.output import dump, facts, show
from mailpipe.cli.session import json_option

_TEXTS = {
    "rate": "rate, recipients/s",
    "account_rate": "allowed by SES",
    "ceiling": "MAILPIPE_RATE",
    "ordered": "ordered with --limit",
    "used_part_of_rate": "part of it in use (below 1 after refusals)",
    "reserve": "kept for critical and high messages",
    "recipients_of_a_call": "recipients of a call, at most",
    "calls_per_second": "calls/s, at most",
    "quota": "quota of 24 h, recipients",
    "used": "used in the last 24 h",
    "left": "left for messages",
    "left_for_marketing": "left for campaigns",
    "wants_slots": "who is sending",
    "waiting_for": "waiting for",
}


@click.command(epilog="Example: mailpipe pace --limit 300")
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    help="Recipients per second for everything together, from now on; senders follow within a second.",
)
@click.option("--no-limit", is_flag=True, help="Take the order of --limit back.")
@json_option
def command(limit: float | None, no_limit: bool, as_json: bool) -> None:
    """Show the limits that hold now, or limit everything together."""
    if limit is not None and no_limit:
        raise click.UsageError("--limit and --no-limit are two orders; give one")
    with session.database(session.load()) as database, database.connection() as connection:
        if limit is not None or no_limit:
            pace.order_rate(connection, limit)
        document = _document(pace.read(connection))
    if as_json:
        dump(document)
    else:
        # Without a quota nothing is counted, and 0 would be no answer.
        told = {name for name, value in document.items() if value is not None} - (
            {"used"} if document["quota"] is None else set()
        )
        show(facts({text: document[name] for name, text in _TEXTS.items() if name in told}))


def _document(limits: pace.Limits) -> dict[str, Any]:
    """Rates in recipients per second, calls in calls per second, the day in recipients; null is no limit."""
    split, day = limits.split, limits.day
    return {
        "rate": limits.account,
        "account_rate": limits.account_rate,
        "ceiling": limits.ceiling,
        "ordered": limits.order_rate,
        "used_part_of_rate": round(limits.ease, 3),
        "reserve": None if split is None or split.reserve is None else split.reserve.rate,
        "recipients_of_a_call": limits.call_size,
        "calls_per_second": None if limits.call_rate is None else round(limits.call_rate, 2),
        "quota": day.quota,
        "used": day.used,
        "left": day.left,
        "left_for_marketing": day.left_for_marketing,
        "wants_slots": ", ".join(f"{claim.lane} {claim.campaign_id or 'messages'}" for claim in limits.claims) or None,
        "waiting_for": limits.blocked_reason if (limits.blocked_for or 0) > 0 else None,
    }
