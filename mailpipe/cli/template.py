"""`mailpipe template`: what the mails look like."""

from __future__ import annotations

import click

from mailpipe import campaign, template
from mailpipe.cli import session
from mailpipe.cli.failure import Mistake
from mailpipe.cli.output import dump, facts, show, table
from mailpipe.cli.session import json_option
from mailpipe.errors import TemplateError


@click.group(epilog="Example: mailpipe template preview flash_sale")
def command() -> None:
    """Look at the mail templates in assets/templates/."""


@command.command("list", epilog="Example: mailpipe template list")
@json_option
def list_(as_json: bool) -> None:
    """List the templates and their variables. Exit code 2 when one is wrong; the others are listed all the same."""
    folder = session.load().templates
    found, problems = [], []
    for name in template.list_templates(folder):
        try:
            found.append(template.load(folder, name))
        except TemplateError as error:
            problems.append(str(error))
    if as_json:
        dump(
            {
                "templates": [_listed(one) for one in found],
                "problems": problems,
            }
        )
    else:
        rows = [(one.name, one.version, one.subject, ", ".join(one.variables)) for one in found]
        show(table(["template", "version", "subject", "variables"], rows))
    if problems:
        raise Mistake("\n".join(problems))


@command.command(epilog="Example: mailpipe template preview flash_sale --part html > flash_sale.html")
@click.argument("name")
@click.option("--part", type=click.Choice(["subject", "html", "text"]), help="Print this part alone, as it is.")
@json_option
def preview(name: str, part: str | None, as_json: bool) -> None:
    """Show the mail with the sample values of its variables, as SES will make it."""
    loaded = template.load(session.load().templates, name)
    mail = loaded.sample()
    parts = {"subject": mail.subject, "html": mail.html, "text": mail.text}
    if as_json:
        dump({"name": loaded.name, "version": loaded.version, **({part: parts[part]} if part else parts)})
    elif part:
        click.echo(parts[part])
    else:
        show(facts({"template": loaded.name, "version": loaded.version, "subject": mail.subject}))
        click.echo(f"\n{mail.text}")
        click.echo(f"The HTML part: mailpipe template preview {name} --part html > {name}.html")


@command.command(epilog="Example: mailpipe template publish login_code")
@click.argument("name")
@json_option
def publish(name: str, as_json: bool) -> None:
    """Publish a template for messages, under a name that never changes. From now on messages that name it get this content.

    Campaigns publish theirs when they are approved.
    """
    config = session.load()
    with session.database(config) as database, session.ses(config) as ses, database.connection() as connection:
        version = campaign.publish(connection, config, ses, name)
    if as_json:
        dump({"template": name, "version": version})
    else:
        click.echo(f"template {name} is published as {version}")


def _listed(one: template.Template) -> dict[str, object]:
    return {
        "name": one.name,
        "version": one.version,
        "subject": one.subject,
        "variables": one.to_json()["variables"],
    }
