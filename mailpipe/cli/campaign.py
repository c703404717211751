"""`mailpipe campaign`: the moves of a campaign, from its file to its end. Looking at one is in `campaign_look`, sending it in
`campaign_send`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import psycopg
from rich.console import Group

from mailpipe import bars, campaign, campaign_file, kill_switch, plan, report, send, snapshot, stand_in
from mailpipe.cli import (
    campaign_experiment,
    campaign_feedback,
    campaign_gate,
    campaign_look,
    campaign_send,
    campaign_unknown,
    campaign_uplift,
    session,
)
from mailpipe.cli.campaign_look import described
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, minutes, show, table
from mailpipe.cli.session import as_option, json_option, person_option
from mailpipe.errors import ServiceError, SettingsError
from mailpipe.experiment import look
from mailpipe.schedule import timing
from mailpipe.settings import Settings
from mailpipe.waves import table as waves

NAME = click.argument("name")


@click.group(
    epilog="Example: mailpipe campaign create assets/campaigns/flash_sale.yaml && mailpipe campaign snapshot flash-sale"
)
def command() -> None:
    """Create, approve, send and follow campaigns.

    The usual way: create, snapshot, plan, approve (by somebody else), start, progress.
    """


for _other in (campaign_look.list_, campaign_look.show_, campaign_look.progress, campaign_look.who):
    command.add_command(_other)
for _other in (campaign_feedback.feedback, campaign_feedback.narrow, campaign_feedback.postmaster):
    command.add_command(_other)
command.add_command(campaign_experiment.experiment)
command.add_command(campaign_experiment.decide)
command.add_command(campaign_look.export)
command.add_command(campaign_send.start)
command.add_command(campaign_gate.command)
command.add_command(campaign_unknown.command)
command.add_command(campaign_uplift.uplift)


@command.command(epilog="Example: mailpipe campaign create assets/campaigns/flash_sale.yaml --author ana")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", help="The campaign's key, instead of the one in the file: a key is never used again.")
@person_option("--author", "--as", "author", help="Who made it, and so cannot approve it. Default: your login.")
@json_option
def create(file: Path, key: str | None, author: str, as_json: bool) -> None:
    """Record the campaign that FILE describes, as a draft."""
    config = session.load()
    spec = campaign_file.read_file(file)
    if key is not None:
        spec = campaign_file.parse({**spec.model_dump(), "key": key}, where="--key")
    with session.database(config) as database, database.connection() as connection:
        made = campaign.create(connection, config, spec, author=author)
    _moved(
        made, as_json, f"campaign {made.key} is a draft of {made.author}; next: mailpipe campaign snapshot {made.key}"
    )


@command.command("snapshot", epilog="Example: mailpipe campaign snapshot flash-sale")
@NAME
@json_option
def snapshot_(name: str, as_json: bool) -> None:
    """Freeze the audience, once and for all. What changes in the segment afterwards changes nothing in the campaign."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        taken = snapshot.take(connection, config, name)
    if as_json:
        dump(taken.to_json())
        return
    show(
        facts(
            {
                "segment": f"{taken.segment} ({taken.segment_sha256[:12]})",
                "as of": taken.as_of,
                "rows of the segment": taken.returned,
                **{f"left out: {reason}": number for reason, number in sorted(taken.excluded.items())},
                "recipients": taken.recipients,
            }
        )
    )


@command.command("plan", epilog="Example: mailpipe campaign plan flash-sale")
@NAME
@click.option("--accept", is_flag=True, help="Exit with 0 even if something cannot be met.")
@json_option
def plan_(name: str, accept: bool, as_json: bool) -> None:
    """Say how long the campaign takes and which limit binds. Exit code 2 when what is wanted cannot be met.

    The limits of the SES account are read first, if it can be reached.
    """
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        if campaign.get(connection, name).spec.adapter == "ses":
            _read_account(connection, config)
        made = plan.of(connection, name, usual_factor=config.most_of_usual)
        taken = report.snapshot_summary(connection, name)
        spec = campaign.get(connection, name).spec
    if as_json:
        lift = look.smallest_lift(spec, taken.timing)
        dump({**made.to_json(), "excluded": taken.excluded, "timing": taken.timing, "smallest_lift": lift})
    else:
        _show_plan(made)
        for line in (
            *timing.told(spec, taken.timing, taken.excluded),
            *look.planned(spec, taken.timing, taken.excluded),
            *waves.told(taken.timing),
        ):
            click.echo(line)
        show(_waves(taken.timing))
    if made.problems and not accept:
        raise Mistake("\n".join(made.problems))


@command.command(epilog="Example: mailpipe campaign approve flash-sale --as ben")
@NAME
@as_option
@click.option("--accept-plan", is_flag=True, help="Approve it although the plan cannot be met.")
@json_option
def approve(name: str, person: str, accept_plan: bool, as_json: bool) -> None:
    """Publish the template under a name that never changes, and allow the campaign to be sent. Its author cannot do this."""
    config = session.load()
    with session.ses(config) as ses, session.database(config) as database, database.connection() as connection:
        send.read_account(connection, config, send.account(ses, campaign.get(connection, name)))
        plan.check(connection, name, accept=accept_plan, usual_factor=config.most_of_usual, actor=person)
        made = campaign.approve(connection, config, ses, name, approver=person)
    _moved(made, as_json, f"campaign {name} is approved by {person}, with the template {made.template_version}")


@command.command(epilog='Example: mailpipe campaign pause flash-sale --reason "wrong price"')
@NAME
@click.option("--reason", help="Why; everybody who looks at the campaign sees it.")
@click.option(
    "--provider",
    is_flag=True,
    help="Also turn off the configuration set at SES. Everything that sends through it stops, other campaigns too.",
)
@as_option
@json_option
def pause(name: str, reason: str | None, provider: bool, person: str, as_json: bool) -> None:
    """Stop sending. No call is begun any more; those under way are finished and recorded."""
    config = session.load()
    reason = reason or f"by {person}"
    with session.database(config) as database, database.connection() as connection:
        if provider:
            with session.ses(config) as ses:
                made = kill_switch.pause(connection, config, ses, name, actor=person, reason=reason)
        else:
            made = campaign.pause(connection, name, actor=person, reason=reason)
    _moved(made, as_json, f"campaign {name} is paused: {made.state_reason}" + _switched(config, "off", provider))


@command.command(epilog="Example: mailpipe campaign resume flash-sale && mailpipe campaign start flash-sale")
@NAME
@click.option("--provider", is_flag=True, help="First turn the configuration set at SES on again.")
@as_option
@json_option
def resume(name: str, provider: bool, person: str, as_json: bool) -> None:
    """Let a paused campaign go on where it stopped. Running senders continue; `start` or Dagster begins new ones."""
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        if provider:
            with session.ses(config) as ses:
                made = kill_switch.resume(connection, config, ses, name, actor=person)
        else:
            made = campaign.resume(connection, name, actor=person)
    hint = (
        f"; senders that still run go on, `mailpipe campaign start {name}` begins one"
        if made.state == "sending"
        else ""
    )
    _moved(made, as_json, f"campaign {name} is {made.state} again{hint}" + _switched(config, "on", provider))


@command.command(epilog='Example: mailpipe campaign cancel flash-sale --reason "sold out"')
@NAME
@click.option("--reason", help="Why; everybody who looks at the campaign sees it.")
@as_option
@json_option
def cancel(name: str, reason: str | None, person: str, as_json: bool) -> None:
    """End a campaign for good. Who has no mail yet gets none."""
    with session.database(session.load()) as database, database.connection() as connection:
        made = campaign.cancel(connection, name, actor=person, reason=reason or f"by {person}")
    _moved(made, as_json, f"campaign {name} is cancelled")


@command.command("set", epilog="Example: mailpipe campaign set flash-sale --rate 500")
@NAME
@click.option("--rate", type=float, help="Recipients per second, from now on; senders follow within a second.")
@click.option("--template", help="Another template, published at once; not while the campaign is sending.")
@as_option
@json_option
def set_(name: str, rate: float | None, template: str | None, person: str, as_json: bool) -> None:
    """Change the rate or the template of a campaign."""
    if rate is None and template is None:
        raise click.UsageError("say what to change: --rate or --template")
    config = session.load()
    with session.ses(config) as ses, session.database(config) as database, database.connection() as connection:
        made = campaign.change(connection, config, ses, name, actor=person, rate=rate, template_name=template)
    _moved(
        made, as_json, f"campaign {name}: rate {made.rate or 'the limit of the account'}, template {made.spec.template}"
    )


def _waves(kept: dict[str, Any]) -> Group:
    """The days or waves of a plan: a row each, and a bar."""
    rows = waves.planned(kept)
    if not rows:
        return Group()
    columns = ["part", "at", "people", "so_far", "cap", "others", "tiers"]
    if rows[0]["cap"] is None:
        columns = [name for name in columns if name not in ("cap", "others")]
    shown = table([name.replace("_", " ") for name in columns], [[row[name] for name in columns] for row in rows])
    return Group("", shown, "", *bars.plot([(row["part"], row["people"]) for row in rows]))


def _switched(config: Settings, to: str, provider: bool) -> str:
    return f"; the configuration set {config.configuration_set} is {to} at SES" if provider else ""


def _moved(made: campaign.Campaign, as_json: bool, text: str) -> None:
    if as_json:
        dump(described(made))
    else:
        click.echo(text)


def _read_account(connection: psycopg.Connection[tuple[object, ...]], config: Settings) -> None:
    """The plan is worth reading without SES too."""
    try:
        if stand_in.endpoint(config) is None or not stand_in.is_wanted(config) or stand_in.find(config):
            with session.ses(config) as ses:
                send.read_account(connection, config, ses)
    except (ServiceError, SettingsError) as error:
        click.echo(f"the limits of the SES account are not known: {error}", err=True)


def _show_plan(made: plan.Plan) -> None:
    quota = None if made.daily_quota is None else "unlimited" if made.daily_quota < 0 else f"{made.daily_quota:,.0f}"
    show(
        facts(
            {
                "campaign": made.campaign,
                "recipients": made.recipients,
                "chunks": made.chunks,
                "calls": f"{made.calls:,} of at most {made.call_size} recipients",
                "calls per second": made.calls_per_second,
                "rate": f"{made.rate:g} recipients/s" if made.rate else "no limit known",
                "it takes": None if made.seconds is None else f"{minutes(made.seconds / 60)} (h:mm:ss)",
                "wanted within": None if made.finish_within is None else minutes(made.finish_within / 60),
                "required rate": None if made.required_rate is None else f"{made.required_rate:.1f} recipients/s",
                "24 h quota": quota,
                "sent in the last 24 h": None if made.sent_last_day is None else f"{made.sent_last_day:,.0f}",
                "calls at once": made.threads,
                "binding limit": made.binding,
            }
        )
    )
