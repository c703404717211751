"""The command line: one file per group of commands, each a thin shell around the library.

A person's mistake ends with its text and exit code 2, a service's trouble with one line and exit code 1. What a command
does belongs to the library; how its answer looks, to `output`.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

COMMANDS = {
    "campaign": "campaign",
    "db": "database",
    "demo": "demo",
    "dev": "dev",
    "engagement": "engagement",
    "events": "events",
    "experiment": "experiment",
    "lanes": "lanes",
    "message": "message",
    "pace": "pace",
    "reconcile": "reconcile",
    "schedule": "schedule",
    "segment": "segment",
    "ses-simulator": "ses_simulator",
    "suppression": "suppression",
    "template": "template",
    "web": "web",
}
"""The command's name -> the module of this package that holds it as `command`."""


class Commands(click.Group):
    """Loads the module of the command that is asked for, and no other: help must not wait for pandas."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"mailpipe.cli.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        # Not above: `mailpipe ses-simulator` runs without the library.
        from mailpipe.cli.failure import explained  # noqa: PLC0415

        with explained():
            return super().invoke(ctx)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: mailpipe demo --recipients 10000",
)
def main() -> None:
    """Send campaigns through Amazon SES, and say for each person what happened."""
