"""`mailpipe demo`: the whole of mailpipe in one command."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.console import Group

from mailpipe.children import told_to_stop
from mailpipe.cli import session
from mailpipe.cli.campaign_send import STOPPED
from mailpipe.cli.failure import Trouble
from mailpipe.cli.output import Bar, dump, facts, show, table
from mailpipe.cli.session import json_option
from mailpipe.demo import run as demo
from mailpipe.demo.audience import LEAST


@click.command(epilog="Example: mailpipe demo --recipients 10000 --rate 1000 --latency-ms 100")
@click.option(
    "--recipients",
    type=click.IntRange(LEAST),
    default=100_000,
    show_default=True,
    help="Invented people in the audience. About four in five of them want mail and get it.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=2_000,
    show_default=True,
    help="Recipients per second that the provider allows, and the campaign uses.",
)
@click.option(
    "--latency-ms",
    type=click.FloatRange(0),
    default=50,
    show_default=True,
    help="How long the provider takes to answer.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Decides who is invented.")
@json_option
def command(recipients: int, rate: float, latency_ms: float, seed: int, as_json: bool) -> None:
    """Send a flash sale to invented people through Dagster and a local SES stand-in, and prove what happened.

    Starts what it needs, invents the people (lifelike: some are inactive, opted out, suppressed, there twice, have unusable
    addresses, bounce, or opt out while it runs), creates and approves a campaign, and runs the Dagster jobs. Exit code 1
    unless the provider's journal and the ledger agree person by person. No mail leaves this machine.
    """
    config = session.load()
    session.prepare(config)
    plan = demo.Plan(people=recipients, rate=rate, latency_ms=latency_ms, seed=seed)
    with told_to_stop() as stop, Bar() as bar:
        try:
            result = demo.run(config, plan, demo.Screen(bar.say, bar.update), stop=stop)
        except demo.Stopped as stopped:
            bar.say(f"stopped. Campaign {stopped.key} can go on: `mailpipe dev`, then materialize its missing slices")
            raise click.exceptions.Exit(STOPPED) from None
    agreement = result.agreement
    if as_json:
        dump(_document(result, recipients), line=True)
    else:
        _show(result)
    if not agreement.agree:
        lines = ["the provider's journal and the ledger disagree:", *agreement.lines()]
        raise Trouble("\n  ".join(lines))
    if not (result.progress.failed and result.progress.skipped):
        raise Trouble("nobody failed or nobody was skipped, although the audience has people of both kinds")


def _document(result: demo.Result, recipients: int) -> dict[str, Any]:
    return {
        **result.progress.to_json(),
        "recipients": recipients,
        "measured_rate": None if result.measured_rate is None else round(result.measured_rate, 1),
        "max_in_any_second": result.peak,
        "throttled": result.throttled,
        "opted_out_meanwhile": result.opted_out,
        "reasons": [asdict(reason) for reason in result.reasons],
        "events": result.events,
        "audience": asdict(result.audience),
        "journal": str(result.journal),
        "journal_lines": result.agreement.accepted,
        "faults": dict(result.agreement.faults),
        "agree": result.agreement.agree,
    }


def _show(result: demo.Result) -> None:
    now, agreement = result.progress, result.agreement
    reasons = [(reason.state, reason.reason, reason.people) for reason in result.reasons]
    ends = [("sent", "accepted by SES", now.sent), *reasons, ("", "total", now.total)]
    events = [(kind, people) for kind, people in sorted(result.events.items())]
    rate = "-" if result.measured_rate is None else f"{result.measured_rate:,.0f} recipients/s"
    verdict = "agree" if agreement.agree else "DISAGREE"
    show(
        Group(
            "",
            f"Campaign {result.key} is {now.state}",
            "",
            table(["state", "reason", "people"], ends),
            "",
            table(["event of SES", "people"], events),
            "",
            facts(
                {
                    "measured rate": rate,
                    "most in any second": f"{result.peak:,} ({result.throttled:,} refused for the rate)",
                    "opted out meanwhile": result.opted_out,
                    "journal and ledger": f"{verdict}: {agreement.accepted:,} accepted, {now.sent:,} sent",
                    "the journal": str(result.journal),
                }
            ),
            "",
            "Where to look next:",
            "  make dev    (the same campaign in the Dagster UI)",
            f"  mailpipe campaign show {result.key}",
            f"  mailpipe campaign export {result.key} failed.csv --state failed",
        )
    )
