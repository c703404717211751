"""The commands of `mailpipe campaign` about experiments: what came back of the arms, and the decision."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Group, RenderableType

from mailpipe import campaign
from mailpipe.cli import session
from mailpipe.cli.output import dump, facts, show, table, written
from mailpipe.cli.session import as_option, json_option
from mailpipe.experiment import decision, look
from mailpipe.experiment.look import EFFECT_DAYS, Effect, Look
from mailpipe.experiment.rule import CHANCE, RATIO_ALARM

NAME = click.argument("name")


@click.command(epilog="Example: mailpipe campaign experiment subject-test")
@NAME
@json_option
def experiment(name: str, as_json: bool) -> None:
    """What came back of an experiment's arms so far, and what was decided with which numbers; what people bought who were
    held out.

    The numbers of now are for people to look at; the decision is made once, at its time, from those that stand then.
    """
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        effect = look.effect(connection, config, name)
        spec = campaign.get(connection, name).spec
        found = look.look(connection, config, name) if spec.experiment or not spec.holdout else None
    if as_json:
        dump({**(found.to_json() if found else {}), "effect": _effect_json(effect)})
        return
    if found is not None:
        _show(found)
    if effect is not None:
        show(facts(_effect(effect)))
    elif found is None:
        click.echo(f"campaign {name} has no experiment; what its holdout shows is known once MAILPIPE_ORDERS is set")


def _show(found: Look) -> None:
    rows = [
        (
            arm.variant,
            arm.assigned,
            arm.delivered,
            arm.successes,
            f"{arm.rate:.3%}",
            "-" if arm.lift is None else f"{arm.lift:+.1%} ({arm.lift_low:+.1%} to {arm.lift_high:+.1%})",
            f"{arm.chance:.1%}",
            arm.complaints,
        )
        for arm in found.arms
    ]
    columns = ["variant", "people", "delivered", found.metric, "rate", "against the control", "best", "complaints"]
    parts: list[RenderableType] = [facts(_facts(found)), "", table(columns, rows, title="now")]
    if found.decision is not None:
        counted = [
            (arm.variant, arm.delivered, arm.successes, f"{arm.rate:.3%}", arm.complaints)
            for arm in found.decision.arms
        ]
        title = f"as it was decided, counted up to {found.decision.decide_at:%Y-%m-%d %H:%M:%S %Z}"
        parts += ["", table(["variant", "delivered", found.metric, "rate", "complaints"], counted, title=title)]
    show(Group(*parts))


@click.command(
    epilog='Example: mailpipe campaign decide subject-test --winner plain --reason "wrong price in the other"'
)
@NAME
@click.option("--winner", metavar="VARIANT", help="Decide for this one now, whatever the numbers say; needs --reason.")
@click.option("--reason", help="Why; kept with the decision.")
@as_option
@json_option
def decide(name: str, winner: str | None, reason: str | None, person: str, as_json: bool) -> None:
    """Decide an experiment, once and for all, and let the people who wait for it be mailed.

    Without --winner the rule decides, if its time has come (the sensor `experiments` does the same by itself).
    """
    if winner is not None and not reason:
        raise click.UsageError("say why it is decided against the numbers: --reason")
    config = session.load()
    with session.database(config) as database, database.connection() as connection:
        decision.tick(connection, config)
        done = decision.decide(connection, config, name, actor=person, winner=winner, reason=reason)
    if as_json:
        dump(done.to_json())
    else:
        click.echo(
            f"campaign {name}: {done.winner} goes to the rest, {done.released or 0:,} people ({done.outcome}: {done.reason})"
        )


def _effect_json(effect: Effect | None) -> dict[str, object] | None:
    if effect is None:
        return None
    return {**asdict(effect), "difference": effect.difference}


def _effect(effect: Effect) -> dict[str, object]:
    difference = effect.difference
    told = "-" if difference is None else f"{difference[0]:+.3%} ({difference[1]:+.3%} to {difference[2]:+.3%})"
    return {
        f"bought within {EFFECT_DAYS} days": f"{effect.mailed_buyers:,} of {effect.mailed:,} who were mailed",
        "of those held out": f"{effect.held_out_buyers:,} of {effect.held_out:,}",
        "because of the campaign": told,
    }


def _facts(found: Look) -> dict[str, object]:
    ratio = f"p = {found.ratio_p:.3g}"
    if found.ratio_p < RATIO_ALARM:
        ratio += ": the arms lost their people unequally; look why before you believe the rates"
    if found.decision is not None:
        made = found.decision
        told = {
            "decision": f"{made.winner} ({made.outcome}), by {made.actor} at {made.decided_at:%Y-%m-%d %H:%M:%S %Z}"
        }
        told["because"] = f"{made.reason}"
    else:
        told = {"is decided at" if found.is_fixed else "planned to be decided at": written(found.decide_at)}
    return {
        "campaign": f"{found.campaign} ({found.state})",
        "decided by": f"{found.metric}; it takes a chance of {CHANCE:.1%} to be the best",
        "sizes of the arms": ratio,
        **told,
        **({"waiting": found.waiting} if found.waiting else {}),
        **({"held out": found.held_out} if found.held_out else {}),
    }
