"""A campaign's moves, each a job with a form: create, approve, pause, resume, cancel; someone's word on an experiment or a gate."""

from collections.abc import Mapping
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from assets.failure import explained
from assets.partitions import CAMPAIGNS, OWNERS
from assets.resources import DatabaseResource, SesResource, load_settings
from mailpipe import campaign, campaign_file
from mailpipe.campaign import Campaign
from mailpipe.campaign_file import Spec
from mailpipe.experiment import decision
from mailpipe.waves import advance

_AUTHOR = "Your name. Somebody else has to approve the campaign."


DURATIONS = ("finish_within", "expires_after", "snapshot_lead")


def form() -> dict[str, dg.Field]:
    """The launch form of a campaign file: the fields of `Spec`, and who creates it. Limits are checked by `Spec` itself."""
    fields = {name: _field(name, field) for name, field in Spec.model_fields.items()}
    return {"author": dg.Field(str, description=_AUTHOR), **fields}


def _field(name: str, field: FieldInfo) -> dg.Field:
    options = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    kind: Any = next(option for option in options if option is not NoneType)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    default = field.default
    if get_origin(kind) is dict:
        kind = dict
    elif get_origin(kind) is Literal:
        kind = str
    elif get_origin(kind) is tuple:
        kind = list
    elif issubclass(kind, BaseModel):
        kind, default = dict, None if default is None else default.model_dump()
    elif kind is datetime or name in DURATIONS:
        # Texts in the form: 2026-11-27T09:00:00+01:00, 30m.
        kind, default = str, default if default is None else str(default)
    if NoneType in options:
        kind = dg.Noneable(kind)
    if field.is_required():
        return dg.Field(kind, description=field.description)
    return dg.Field(kind, is_required=False, default_value=default, description=field.description)


@dg.op(config_schema=form(), tags={"kind": "postgres"})
def create(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
    """Check the form, record the campaign as a draft, and make it a partition."""
    given: Mapping[str, Any] = context.op_config
    fields = {name: value for name, value in given.items() if name != "author" and value is not None}
    with explained(), database.connection() as connection:
        spec = campaign_file.parse(fields, where="create_campaign")
        created = campaign.create(connection, load_settings(), spec, author=given["author"])
    context.instance.add_dynamic_partitions(str(CAMPAIGNS.name), [created.key])
    context.log.info(f"campaign {created.key} is a draft of {created.author}. Next: approve_campaign, by somebody else")


class ApproveConfig(dg.Config):
    """Who lets which campaign be sent."""

    campaign: str = Field(description="The key of a campaign that is a draft")
    approver: str = Field(description="Your name. The author cannot approve their own campaign.")


class MoveConfig(dg.Config):
    """Who moves which campaign."""

    campaign: str = Field(description="The key of the campaign")
    actor: str = Field(description="Your name. It is kept with the campaign's history.")


class StopConfig(MoveConfig):
    """Who stops which campaign, and why."""

    reason: str = Field(description="Why; everybody who looks at the campaign sees it.")


class DecideConfig(StopConfig):
    """Who decides which experiment, for which variant, and why."""

    variant: str = Field(description="The variant that goes to the people who wait, whatever the numbers say")


class GateConfig(StopConfig):
    """Who lets the next wave or day of which campaign go, or holds it, and why."""

    go: bool = Field(
        description="On: the next part goes when it is planned, whatever the rates are. Off: nobody goes until somebody lets them."
    )


@dg.op(tags={"kind": "ses"})
def approve(
    context: dg.OpExecutionContext, config: ApproveConfig, database: DatabaseResource, ses: SesResource
) -> None:
    """Publish the template under its immutable name and approve the campaign."""
    with explained(), database.connection() as connection:
        approved = ses.approve(connection, config.campaign, approver=config.approver)
    context.log.info(f"campaign {approved.key} is approved with template {approved.template_version}. Next: snapshot")


@dg.op(tags={"kind": "postgres"})
def pause(context: dg.OpExecutionContext, config: StopConfig, database: DatabaseResource) -> None:
    """Stop opening calls; what is in flight is recorded."""
    with explained(), database.connection() as connection:
        _say(context, campaign.pause(connection, config.campaign, actor=config.actor, reason=config.reason))


@dg.op(tags={"kind": "postgres"})
def resume(context: dg.OpExecutionContext, config: MoveConfig, database: DatabaseResource) -> None:
    """Let a paused campaign go on. A run that has ended meanwhile is launched again by `send`."""
    with explained(), database.connection() as connection:
        _say(context, campaign.resume(connection, config.campaign, actor=config.actor))


@dg.op(tags={"kind": "postgres"})
def cancel(context: dg.OpExecutionContext, config: StopConfig, database: DatabaseResource) -> None:
    """End a campaign for good; who has no mail yet is skipped."""
    with explained(), database.connection() as connection:
        _say(context, campaign.cancel(connection, config.campaign, actor=config.actor, reason=config.reason))


@dg.op(tags={"kind": "postgres"})
def decide(context: dg.OpExecutionContext, config: DecideConfig, database: DatabaseResource) -> None:
    """Decide an experiment by a person's word, and free who waits for it."""
    with explained(), database.connection() as connection:
        made = decision.decide(
            connection,
            load_settings(),
            config.campaign,
            actor=config.actor,
            winner=config.variant,
            reason=config.reason,
        )
    context.log.info(f"campaign {config.campaign}: {made.winner} goes to {made.released} people")


@dg.op(tags={"kind": "postgres"})
def judge(context: dg.OpExecutionContext, config: GateConfig, database: DatabaseResource) -> None:
    """Open or hold the gate before the next wave or day by a person's word."""
    verdict: Literal["pass", "hold"] = "pass" if config.go else "hold"
    with explained(), database.connection() as connection:
        gate = advance.decide(connection, config.campaign, verdict, actor=config.actor, reason=config.reason)
    context.log.info(f"campaign {config.campaign}: {gate.text}")


def _say(context: dg.OpExecutionContext, moved: Campaign) -> None:
    context.log.info(
        f"campaign {moved.key} is {moved.state}" + (f": {moved.state_reason}" if moved.state_reason else "")
    )


@dg.job(description="Create a campaign as a draft, from the fields of a campaign file.", owners=OWNERS)
def create_campaign() -> None:
    create()


@dg.job(description="Approve a draft: its template is frozen, and it may be sent.", owners=OWNERS)
def approve_campaign() -> None:
    approve()


@dg.job(description="Pause a campaign at once. Runs that send it end by themselves.", owners=OWNERS)
def pause_campaign() -> None:
    pause()


@dg.job(
    description="Let a paused campaign go on where it stopped. Then launch `send` for what is failed and missing.",
    owners=OWNERS,
)
def resume_campaign() -> None:
    resume()


@dg.job(description="Cancel a campaign for good. It cannot be resumed.", owners=OWNERS)
def cancel_campaign() -> None:
    cancel()


@dg.job(
    description="Decide a campaign's experiment for a variant, once and for all. Without it the rule decides at the fixed time.",
    owners=OWNERS,
)
def decide_experiment() -> None:
    decide()


@dg.job(
    description="Let the next wave or warm-up day of a campaign go, or hold it. Without it the gate is judged by what SES tells.",
    owners=OWNERS,
)
def judge_gate() -> None:
    judge()


JOBS = [
    create_campaign,
    approve_campaign,
    pause_campaign,
    resume_campaign,
    cancel_campaign,
    decide_experiment,
    judge_gate,
]
