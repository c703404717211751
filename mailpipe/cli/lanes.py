"""`mailpipe lanes`: the standing worker that sends messages."""

from __future__ import annotations

import click

from mailpipe import stand_in
from mailpipe.children import told_to_stop
from mailpipe.cli import session
from mailpipe.errors import UserError
from mailpipe.lane import NAMES, LaneName


@click.command(epilog="Example: mailpipe lanes --lanes critical,high")
@click.option(
    "--lanes", "names", default=",".join(NAMES), show_default=True, metavar="NAMES", help="Which lanes to work."
)
def command(names: str) -> None:
    """Send the messages of the outbox, until Ctrl-C or SIGTERM. Run as many of these as you want, on as many machines.

    At the end answers in flight are recorded and everything else is given back; nothing is lost, nothing doubled.
    """
    lanes = _lanes(names)
    # Not above: help must not wait for boto3.
    from mailpipe.lanes import run  # noqa: PLC0415

    config = session.load()
    session.prepare(config)
    with session.ses(config) as ses, told_to_stop() as stop:
        run.run(
            config,
            ses,
            endpoint=stand_in.endpoint(config),
            lanes=lanes,
            stop=stop,
            ready=lambda: click.echo(f"working the lanes {', '.join(lanes)}; Ctrl-C stops"),
        )
    click.echo("stopped")


def _lanes(names: str) -> list[LaneName]:
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if not asked or set(asked) - set(NAMES):
        raise UserError(f"--lanes {names}: expected one or more of {', '.join(NAMES)}, separated by commas")
    return [name for name in NAMES if name in asked]
