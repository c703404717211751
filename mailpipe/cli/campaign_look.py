"""The commands of `mailpipe campaign` that only look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Group

from mailpipe import campaign, report
from mailpipe.cli import campaign_unknown, session
from mailpipe.cli.output import Bar, dump, facts, minutes, show, table
from mailpipe.cli.session import json_option
from mailpipe.db import Database
from mailpipe.errors import UserError
from mailpipe.waves import standing
from mailpipe.waves import table as waves

NAME = click.argument("name")
WATCH_EVERY = 1.0
"""Seconds between two looks of `--watch`."""


def described(found: campaign.Campaign) -> dict[str, Any]:
    """A campaign as a JSON document."""
    return {
        "campaign": found.key,
        "state": found.state,
        "state_reason": found.state_reason,
        "author": found.author,
        "approver": found.approver,
        "created_at": found.created_at,
        "due_at": found.due_at,
        "rate": found.rate,
        "template_version": found.template_version,
        "spec": found.spec.model_dump(mode="json"),
    }


@click.command("list", epilog="Example: mailpipe campaign list")
@json_option
def list_(as_json: bool) -> None:
    """List all campaigns, the newest first."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = campaign.get_all(connection)
    if as_json:
        dump([described(one) for one in found])
        return
    rows = [(one.key, one.state, one.spec.people, one.spec.template, one.author, one.due_at) for one in found]
    show(table(["campaign", "state", "segment", "template", "author", "due"], rows))


@click.command("show", epilog="Example: mailpipe campaign show flash-sale")
@NAME
@json_option
def show_(name: str, as_json: bool) -> None:
    """Show one campaign: what it is, what happened to its people and why, who did what."""
    with session.database(session.load()) as database, database.connection() as connection:
        found = campaign.get(connection, name)
        history = campaign.history(connection, found.campaign_id)
        now = report.progress(connection, name)
        reasons = report.reasons(connection, name)
    if as_json:
        dump(
            {
                **described(found),
                "progress": now.to_json(),
                "reasons": [{"state": r.state, "reason": r.reason, "people": r.people} for r in reasons],
                "history": history,
            }
        )
        return
    state = found.state if found.state_reason is None else f"{found.state} ({found.state_reason})"
    summary = {
        "campaign": found.key,
        "state": state,
        "segment": found.spec.people,
        "template": found.template_version or found.spec.template,
        "sender": found.spec.sender,
        "author": found.author,
        "approver": found.approver,
        "due": found.due_at,
        "rate": f"{found.rate:g}/s" if found.rate else "the limit of the account",
    }
    parts: list[Any] = [facts(summary), "", _people(now)]
    if reasons:
        parts += ["", table(["state", "reason", "people"], [(r.state, r.reason, r.people) for r in reasons])]
    steps = [(h["at"], h["actor"], h["action"], _ordered(h["detail"])) for h in history]
    parts += ["", table(["at", "who", "what", "why"], steps)]
    show(Group(*parts))


@click.command(epilog="Example: mailpipe campaign progress flash-sale --watch")
@NAME
@click.option("--watch", is_flag=True, help="Follow it until it is over; with --json, one line a second.")
@json_option
def progress(name: str, watch: bool, as_json: bool) -> None:
    """Say how many people are in which state, how fast it goes, and when it ends.

    The rate is what was accepted in the last 60 seconds, never what was configured. With no movement there is no ETA.
    """
    parts: list[dict[str, Any]] = []
    with session.database(session.load()) as database:
        if watch and not as_json:
            with Bar() as bar:
                bar.update(now := _look(database, name))
                while not _is_over(now):
                    time.sleep(WATCH_EVERY)
                    bar.update(now := _look(database, name))
        else:
            now = _look(database, name)
            while watch and not _is_over(now):
                dump(now.to_json(), line=True)
                time.sleep(WATCH_EVERY)
                now = _look(database, name)
        with database.connection() as connection:
            found = campaign.get(connection, name)
            if found.spec.in_waves:
                parts = waves.going(standing.standings(connection, found.campaign_id), found.spec.days_of)
    if as_json:
        dump({**now.to_json(), **({"waves": parts} if parts else {})})
        return
    show(_people(now))
    if parts:
        show(Group("", table(list(parts[0]), [list(part.values()) for part in parts])))


@click.command(epilog="Example: mailpipe campaign who flash-sale 4711")
@NAME
@click.argument("person")
@json_option
def who(name: str, person: str, as_json: bool) -> None:
    """Say what happened to one PERSON of a campaign, given by user id or address."""
    with session.database(session.load()) as database, database.connection() as connection:
        fates = report.who(connection, name, person)
    if not fates:
        raise UserError(f"campaign {name} has nobody of that user id or address")
    if as_json:
        dump([fate.to_json() for fate in fates])
    for fate in [] if as_json else fates:
        shown = {key.replace("_", " "): value for key, value in fate.to_json().items() if key not in ("events", "told")}
        show(facts({**shown, "seq": str(fate.seq), "events": ", ".join(fate.events) or None}))
        if fate.told:
            rows = [(one["kind"], one["at"], one["attempt"], one["detail"]) for one in fate.told]
            show(table(["told by SES", "at", "attempt", "word"], rows))


@click.command(epilog="Example: mailpipe campaign export flash-sale failed.csv --state failed")
@NAME
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--state", help="Only people in this state, for example failed or unknown.")
@json_option
def export(name: str, file: Path, state: str | None, as_json: bool) -> None:
    """Write every recipient and their state to FILE (.csv or .parquet). It holds addresses: keep it safe."""
    with session.database(session.load()) as database:
        count = report.export(database, name, file, state=state)
    if as_json:
        dump({"file": str(file), "recipients": count})
    else:
        click.echo(f"{count:,} recipients written to {file}")


def _ordered(detail: dict[str, Any]) -> str:
    """Why somebody did something, and to whom, as far as they had to say it."""
    said = [str(detail["reason"])] if detail.get("reason") else []
    if detail.get("seqs"):
        said.append(f"{detail['people']:,} people: seq {campaign_unknown.written(detail['seqs'])}")
    return "; ".join(said)


def _look(database: Database, name: str) -> report.Progress:
    with database.connection() as connection:
        return report.progress(connection, name)


def _is_over(now: report.Progress) -> bool:
    return now.state in ("done", "cancelled")


def _people(now: report.Progress) -> Any:
    states = ("total", "pending", "sending", "sent", "delivered", "failed", "skipped", "unknown")
    return facts(
        {
            "state": now.state if now.state_reason is None else f"{now.state} ({now.state_reason})",
            **{name: getattr(now, name) for name in states},
            **({"delivered within": f"{p95:.1f} s for 95 %"} if (p95 := now.delivery_p95_seconds) is not None else {}),
            "rate": f"{now.rate_per_second:,.1f}/s",
            "ETA": minutes(now.eta_minutes),
            "chunks": f"{now.queued_chunks:,} queued, {now.processing_chunks:,} in work",
            **({"waiting": now.waiting} if now.waiting else {}),
        }
    )
