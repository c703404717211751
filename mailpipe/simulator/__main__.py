"""The stand-in's command line: `python -m mailpipe.simulator`; `mailpipe ses-simulator` adds its command."""

from pathlib import Path
from typing import Any

import click

from mailpipe.simulator.options import TOPIC, Options
from mailpipe.simulator.server import serve
from mailpipe.simulator.wire import ApiError

_share = click.FloatRange(0, 1)
_milliseconds = click.FloatRange(0)
_file = click.Path(path_type=Path, dir_okay=False)


@click.command(
    "ses-simulator",
    epilog="Example: python -m mailpipe.simulator --port 4579 --journal var/ses/journal.jsonl "
    "--events var/ses/events.jsonl --rate 500 --latency-ms 100",
)
@click.option("--journal", type=_file, required=True, help="JSON lines, one per accepted message; appended to.")
@click.option("--events", type=_file, required=True, help="JSON lines, one per SES event; appended to.")
@click.option("--state", type=_file, help="Keeps templates, configuration sets and suppression list over a restart.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 (the default) takes a free port.")
@click.option("--ready-file", type=_file, help="The URL is written here, whole, once connections are accepted.")
@click.option("--region", default="eu-west-1", show_default=True, help="Appears in the ARNs of events.")
@click.option("--rate", type=click.FloatRange(1), default=100_000, show_default=True, help="Recipients per second.")
@click.option("--rate-tolerance", type=click.IntRange(0), default=0, help="Recipients by which a second may exceed it.")
@click.option("--throttle-style", type=click.Choice(["entries", "call"]), default="entries", show_default=True)
@click.option(
    "--call-rate", type=click.FloatRange(1), default=100_000, show_default=True, help="Bulk calls per second."
)
@click.option("--daily-quota", type=click.IntRange(-1), default=-1, help="Recipients per rolling day; -1 is no limit.")
@click.option("--daily-window-s", type=click.FloatRange(0, min_open=True), default=86_400, help="Length of that day.")
@click.option("--strict-configuration-sets", is_flag=True, help="Refuse configuration sets that nobody created.")
@click.option("--latency-ms", type=_milliseconds, default=0, help="How long a send's answer waits.")
@click.option("--jitter-ms", type=_milliseconds, default=0, help="Random extra latency, 0 to this.")
@click.option("--delivery-ms", type=_milliseconds, default=0, help="How long after Send the later events are written.")
@click.option("--bounce-rate", type=_share, default=0, help="Share of addresses that bounce, by a hash.")
@click.option("--complaint-rate", type=_share, default=0, help="Share of addresses that complain.")
@click.option("--delay-rate", type=_share, default=0, help="Share of addresses that are delivered late.")
@click.option("--open-rate", type=_share, default=0, help="Share of addresses whose people open what they get.")
@click.option("--click-rate", type=_share, default=0, help="Share of addresses whose people click too.")
@click.option("--sns-url", help="Post events there, as signed SNS notifications.")
@click.option("--sns-topic", default=TOPIC, show_default=True, help="The topic that they come from.")
@click.option("--sns-certificate", type=_file, help="Where its certificate is written; by default beside the events.")
@click.option("--sns-duplicates", type=_share, default=0, help="Share of notifications that come twice.")
@click.option("--sns-disorder-ms", type=_milliseconds, default=0, help="Notifications this close may change places.")
@click.option("--sqs", is_flag=True, help="Serve events from an SQS queue too, at the same address.")
@click.option("--sqs-raw", is_flag=True, help="The queue gets them without an SNS envelope.")
@click.option("--render", is_flag=True, help="Render every message and journal the hashes of its parts.")
@click.option("--keep-messages", type=click.IntRange(0), default=10_000, show_default=True, help="Readable afterwards.")
@click.option("--faults", type=_file, help="A JSON list of fault rules in force from the start.")
@click.option("--seed", type=int, default=0, show_default=True)
def command(**given: Any) -> None:
    """Run the SES stand-in until it is told to stop (SIGTERM or Ctrl-C).

    It speaks the SES v2 API. Point a client at the printed address; any credentials will do.
    """
    try:
        serve(Options(**given))
    except OSError as error:
        raise click.UsageError(f"{error.strerror}: {error.filename}" if error.filename else str(error)) from None
    except ApiError as error:
        raise click.BadParameter(str(error), param_hint="--faults") from None


if __name__ == "__main__":
    command()
