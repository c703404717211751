"""`mailpipe experiment`: what to ask before an experiment is launched. Its campaign is moved with `mailpipe campaign`."""

from __future__ import annotations

from pathlib import Path

import click

from mailpipe import campaign_file
from mailpipe.cli import session
from mailpipe.cli.output import dump, facts, show
from mailpipe.cli.session import json_option
from mailpipe.errors import CampaignError
from mailpipe.experiment import letters, power


@click.group(epilog="Example: mailpipe experiment size --rate 0.02 --lift 0.1")
def command() -> None:
    """Plan experiments: how many people they take, and what the mails of their variants look like."""


@command.command(epilog="Example: mailpipe experiment size --rate 0.02 --lift 0.1 --arms 3")
@click.option("--rate", type=float, required=True, help="People who do what counts, as a share: 0.02 are 2 %.")
@click.option("--lift", type=float, help="The difference that should be seen, relative: 0.1 is 2.2 % instead of 2 %.")
@click.option(
    "--people", type=click.IntRange(min=1), help="Instead of --lift: the smallest one that such arms can show."
)
@click.option("--power", "seen", type=float, default=power.POWER, show_default=True, help="How often it is seen.")
@click.option("--arms", type=int, default=2, show_default=True, help="Variants, the control among them.")
@json_option
def size(rate: float, lift: float | None, people: int | None, seen: float, arms: int, as_json: bool) -> None:
    """How many people each arm of an experiment needs, or what arms of so many people can show."""
    if (lift is None) == (people is None):
        raise click.UsageError("give either --lift or --people")
    try:
        if lift is None:
            assert people is not None
            lift = power.smallest_lift(rate, people, power=seen, arms=arms)
            per_arm = people
        else:
            per_arm = power.per_arm(rate, lift, power=seen, arms=arms)
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None
    if as_json:
        dump({"rate": rate, "lift": lift, "power": seen, "arms": arms, "per_arm": per_arm, "people": per_arm * arms})
    elif lift is None:
        click.echo(f"arms of {per_arm:,} people can show nothing at a rate of {rate:.2%}")
    else:
        click.echo(
            f"{per_arm:,} people an arm ({per_arm * arms:,} in {arms} arms) see {lift:+.1%} at a rate of {rate:.2%}"
            f" in {seen:.0%} of all experiments"
        )


@command.command(epilog="Example: mailpipe experiment preview assets/campaigns/subject_test.yaml --variant question")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--variant", help="Only this one; with its HTML part.")
@json_option
def preview(file: Path, variant: str | None, as_json: bool) -> None:
    """Show the mail of every variant of the campaign that FILE describes, with sample values and its marked links."""
    config = session.load()
    spec = campaign_file.read_file(file)
    if spec.experiment is None:
        raise CampaignError(f"{file}: has no experiment")
    made = letters.of(config.templates, spec.experiment, campaign=spec.key, base=spec.template)
    if variant is not None and variant not in made:
        raise CampaignError(f"{file}: has no variant {variant!r}; it has: {', '.join(made)}")
    chosen = {name: letter for name, letter in made.items() if variant in (None, name)}
    mails = {name: letter.sample() for name, letter in chosen.items()}
    if as_json:
        dump(
            {
                name: {
                    "version": chosen[name].version,
                    "subject": mail.subject,
                    "html": mail.html,
                    "text": mail.text,
                }
                for name, mail in mails.items()
            }
        )
        return
    for name, mail in mails.items():
        show(facts({"variant": name, "template": chosen[name].version, "subject": mail.subject}))
        click.echo(f"\n{mail.html if variant else mail.text}")
    if names := letters.unmarked(made):
        click.echo(f"not marked, as their links begin with a tag: {', '.join(names)}")
