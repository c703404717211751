"""A campaign: its states, and the moves between them. The file that describes it is `campaign_file`'s.

This module is the only writer of `campaign`, `template_version` and `audit`. Every move is one UPDATE that names the states it
may start from, so two people (or two sensors) cannot both win. How people are chosen is `snapshot`'s duty, what happened
to them `ledger`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from mailpipe import adapters, address, earlier, segment, template
from mailpipe.campaign_file import Spec, parse
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.experiment import letters
from mailpipe.experiment.spec import Experiment
from mailpipe.segment import Segment
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

State = Literal["draft", "approved", "sending", "paused", "done", "cancelled"]


@dataclass(frozen=True)
class Campaign:
    """A row of `campaign`. `rate` is in recipients per second, times are UTC."""

    campaign_id: int
    key: str
    state: State
    state_reason: str | None
    spec: Spec
    template_version: str | None
    rate: float | None
    due_at: datetime
    author: str
    approver: str | None
    created_at: datetime
    changed_at: datetime
    now: datetime
    """The database's clock when the row was read."""


def _of_row(**row: Any) -> Campaign:
    return Campaign(**{**row, "spec": Spec.model_validate(row["spec"])})


def create(connection: Connection, settings: Settings, spec: Spec, *, author: str) -> Campaign:
    """Record a new campaign as `draft`.

    Raises:
        CampaignError: the key is taken.
        SegmentError, TemplateError: what the campaign refers to is missing or broken.
    """
    _person(author, "author")
    if spec.audience is not None:
        earlier.exists(connection, spec.audience)
    _bound(settings, spec)
    _for_campaigns(settings, spec.template, spec.sender)
    _letters(settings, spec)
    _same_arms(connection, spec)
    with connection.transaction():
        row = connection.execute(
            QUERIES["create"],
            {
                "key": spec.key,
                "spec": Jsonb(spec.model_dump(mode="json")),
                "rate": spec.rate,
                "due_at": spec.first_due(),
                "author": author,
            },
        ).fetchone()
        if row is None:
            raise CampaignError(f"campaign {spec.key!r} exists already; a key is never used again, choose another")
        campaign_id = int(row[0])
        for line in ("campaign", "share"):
            connection.execute(f"CREATE SEQUENCE mailpipe.pace_{line}_{campaign_id}".encode())
        _audit(connection, campaign_id, author, "create", spec.model_dump(mode="json"))
    return get(connection, spec.key)


def check(settings: Settings, spec: Spec) -> None:
    """See that what a campaign refers to can be used.

    Raises:
        SegmentError, TemplateError: it is missing or broken.
    """
    _bound(settings, spec)
    template.load(settings.templates, spec.template)


def _bound(settings: Settings, spec: Spec) -> None:
    """See that the segment's file takes the campaign's parameters."""
    if spec.segment is not None:
        segment.bind(segment.find(settings.segments, spec.segment), spec.parameters, spec.as_of or datetime.now(UTC))


def people(connection: Connection, settings: Settings, spec: Spec) -> Segment:
    """The segment of a campaign: its file's, or one that is made of people of an earlier campaign.

    Raises:
        SegmentError: there is no such file, or it is wrong.
        CampaignError: what became of the earlier campaign's people can still change.
    """
    if spec.audience is not None:
        return earlier.find(connection, spec.audience)
    assert spec.segment is not None
    return segment.find(settings.segments, spec.segment)


def get(connection: Connection, key: str) -> Campaign:
    """The campaign with this key.

    Raises:
        CampaignError: there is none.
    """
    with connection.cursor(row_factory=kwargs_row(_of_row)) as cursor:
        found = cursor.execute(QUERIES["get"], {"key": key}).fetchone()
    if found is None:
        raise CampaignError(f"no campaign {key!r}; `mailpipe campaign list` shows them")
    return found


def lock(connection: Connection, key: str) -> Campaign:
    """As `get`, and nobody moves the campaign before this transaction ends."""
    connection.execute(QUERIES["lock"], {"key": key})
    return get(connection, key)


def get_all(connection: Connection) -> list[Campaign]:
    """All campaigns, the newest first."""
    with connection.cursor(row_factory=kwargs_row(_of_row)) as cursor:
        return cursor.execute(QUERIES["get_all"]).fetchall()


def approve(connection: Connection, settings: Settings, ses: Ses, key: str, *, approver: str) -> Campaign:
    """Publish the template under a name that never changes, and let the campaign be sent.

    Raises:
        CampaignError: the campaign is not a draft, or the approver is its author.
        TemplateError: the template is broken, or SES holds other content under its versioned name.
    """
    _person(approver, "approver")
    found = get(connection, key)
    if found.state != "draft":
        raise CampaignError(f"campaign {key!r} is {found.state}; only a draft can be approved")
    if approver.strip().casefold() == found.author.strip().casefold():
        raise CampaignError(f"campaign {key!r}: its author cannot approve it; another person must")
    _for_campaigns(settings, found.spec.template, found.spec.sender)
    version = publish(connection, settings, ses, found.spec.template, adapter=found.spec.adapter)
    written = _letters(settings, found.spec)
    for letter in written.values():
        if found.spec.adapter == "ses":
            ses.publish(letter.version, letter.published())
    with connection.transaction():
        for variant, letter in written.items():
            # Under a name of its own: a message that names the template gets the template.
            _keep(connection, letter, template_name=f"{letter.name} ({key}: {variant})")
            connection.execute(
                QUERIES["keep_variant"],
                {"campaign_id": found.campaign_id, "variant": variant, "version": letter.version},
            )
        _move(connection, found, "approve", approver, {"template_version": version, "approver": approver})
    return get(connection, key)


def adopt(connection: Connection, found: Campaign, *, approver: str, template_version: str) -> None:
    """Approve a draft that belongs to a series, as somebody has approved the whole of it, with the template of that time."""
    _move(connection, found, "approve", approver, {"template_version": template_version, "approver": approver})


def publish(connection: Connection, settings: Settings, ses: Ses, name: str, *, adapter: adapters.Name = "ses") -> str:
    """Put a template's present content into the database, and into SES if that renders it; answers its immutable versioned name."""
    content = template.load(settings.templates, name)
    if adapter == "ses":
        ses.publish(content.version, content.published())
    _keep(connection, content, template_name=name)
    return content.version


def _keep(connection: Connection, content: template.Template, *, template_name: str) -> None:
    connection.execute(
        QUERIES["keep_template"],
        {"name": content.version, "template": template_name, "content": Jsonb(content.to_json())},
    )


def _letters(settings: Settings, spec: Spec) -> dict[str, template.Template]:
    """The mails of an experiment's variants, checked; of no experiment none."""
    if spec.experiment is None:
        return {}
    for variant in spec.experiment.variants:
        _for_campaigns(settings, variant.template or spec.template, spec.sender)
    return letters.of(settings.templates, spec.experiment, campaign=spec.key, base=spec.template)


def _same_arms(connection: Connection, spec: Spec) -> None:
    """In a series an arm is a place that a person keeps, so all of its campaigns have the same ones."""
    wanted = spec.experiment
    if wanted is None or wanted.series is None:
        return
    row = connection.execute(QUERIES["of_series"], {"series": wanted.series}).fetchone()
    if row is None:
        return
    known = Experiment.model_validate(row[1])
    if (known.names, known.shares) != (wanted.names, wanted.shares):
        arms = ", ".join(f"{one.name} {one.share:g}" for one in known.variants)
        raise CampaignError(
            f"experiment: series {wanted.series!r} has the variants {arms} (campaign {row[0]!r}); take the same names and"
            " shares in the same order, or another series"
        )


def _for_campaigns(settings: Settings, template_name: str, sender: str) -> None:
    """Refuse what belongs to transactional mail: a template without an unsubscribe link, and its From domain."""
    if template.load(settings.templates, template_name).transactional:
        raise CampaignError(
            f"template {template_name}: is transactional and has no unsubscribe link; a campaign needs one that has"
        )
    own = settings.transactional_sender
    if own is not None and address.domain(own) == address.domain(sender):
        raise CampaignError(
            f"sender: the domain {address.domain(sender)} is that of transactional mail"
            " (MAILPIPE_TRANSACTIONAL_SENDER), whose good name a campaign would use up; send from another one"
        )


def published_template(connection: Connection, version: str) -> template.Template:
    """The template of this versioned name as it was published; its folder may have changed since."""
    row = connection.execute(QUERIES["template"], {"name": version}).fetchone()
    if row is None:
        raise CampaignError(f"template {version!r} was never published")
    return template.Template.from_json(row[0])


def start(
    connection: Connection,
    key: str,
    *,
    actor: str,
    late: bool = False,
    grace: float = Settings.misfire_grace,
) -> Campaign:
    """Open an approved campaign for senders. One that is sending already stays as it is.

    Raises:
        CampaignError: it is not approved, or has no snapshot; or its file's `due_at` is more than `grace` seconds ago, and
            nobody says that it may start `late`.
    """
    found = get(connection, key)
    if found.state == "sending":
        return found
    if found.state == "paused":
        raise CampaignError(f"campaign {key!r} is paused ({found.state_reason}); resume it instead")
    if found.state != "approved":
        raise CampaignError(f"campaign {key!r} is {found.state}; only an approved campaign can be started")
    frozen = connection.execute(QUERIES["has_snapshot"], {"campaign_id": found.campaign_id}).fetchone()
    if frozen is None:
        raise CampaignError(f"campaign {key!r} has no snapshot yet; run the snapshot first")
    due_at = frozen[0] or found.due_at
    behind = (found.now - due_at).total_seconds()
    if found.spec.is_timed and behind > grace and not late:
        raise CampaignError(
            f"campaign {key!r} was due at {due_at:%Y-%m-%d %H:%M %Z}, {behind / 3600:.1f} h ago, and nobody started it:"
            f" it is missed. If its mails still make sense, start it explicitly with --late (in Dagster: the field `late`)"
        )
    _move(connection, found, "start", actor, {"late": True} if late else None, must=False)
    started = get(connection, key)
    if started.state != "sending":
        raise CampaignError(f"campaign {key!r} is {started.state} by now; look at it and try again")
    return started


def pause(connection: Connection, key: str, *, actor: str, reason: str) -> Campaign:
    """Stop a campaign: no call is opened any more. Takes effect within one call of each sender thread."""
    found = get(connection, key)
    if found.state != "paused":
        if found.state not in ("approved", "sending"):
            raise CampaignError(f"campaign {key!r} is {found.state}; only an approved or sending one can be paused")
        _move(connection, found, "pause", actor, {"reason": reason})
    return get(connection, key)


def pause_all(connection: Connection, *, actor: str, reason: str) -> list[str]:
    """Pause every campaign that could send, now or when it is started. Answers their keys."""
    with connection.transaction():
        found = [one for one in get_all(connection) if one.state in ("approved", "sending")]
        return [one.key for one in found if _move(connection, one, "pause", actor, {"reason": reason}, must=False)]


def halt(connection: Connection, key: str, *, reason: str) -> None:
    """Pause a sending campaign because the provider refuses it as a whole. A campaign that is not sending stays as it is."""
    found = get(connection, key)
    if found.state == "sending":
        _move(connection, found, "pause", "mailpipe", {"reason": reason}, must=False)


def resume(connection: Connection, key: str, *, actor: str) -> Campaign:
    """Let a paused campaign go on exactly where it stopped."""
    found = get(connection, key)
    if found.state != "paused":
        raise CampaignError(f"campaign {key!r} is {found.state}; only a paused one can be resumed")
    _move(connection, found, "resume", actor)
    return get(connection, key)


def cancel(connection: Connection, key: str, *, actor: str, reason: str) -> Campaign:
    """End a campaign for good. Who has no mail yet is `skipped(cancelled)`; calls in flight still record their answers."""
    found = get(connection, key)
    if found.state in ("done", "cancelled"):
        raise CampaignError(f"campaign {key!r} is {found.state} already")
    with connection.transaction():
        _move(connection, found, "cancel", actor, {"reason": reason})
        connection.execute(QUERIES["cancel_chunks"], {"campaign_id": found.campaign_id})
    return get(connection, key)


def change(
    connection: Connection,
    settings: Settings,
    ses: Ses,
    key: str,
    *,
    actor: str,
    rate: float | None = None,
    template_name: str | None = None,
) -> Campaign:
    """Set another rate (any time before the end), or another template (while draft, approved or paused).

    Raises:
        CampaignError: the campaign is over, or sending while its template should change.
    """
    found = get(connection, key)
    if found.state in ("done", "cancelled"):
        raise CampaignError(f"campaign {key!r} is {found.state}; nothing of it can change any more")
    if rate is not None and not 0 < rate <= 100_000:
        raise CampaignError("rate: expected recipients per second, above 0")
    version = found.template_version
    if template_name is not None:
        if found.state == "sending":
            raise CampaignError(f"campaign {key!r} is sending; pause it before its template is changed")
        template.load(settings.templates, template_name)
        if version is not None and found.spec.experiment is not None:
            raise CampaignError(
                f"campaign {key!r}: the mails of its experiment were frozen when it was approved; create another campaign"
            )
        if version is not None:
            _for_campaigns(settings, template_name, found.spec.sender)
            version = publish(connection, settings, ses, template_name, adapter=found.spec.adapter)
    spec = found.spec.model_copy(update={"rate": rate or found.rate, "template": template_name or found.spec.template})
    with connection.transaction():
        changed = connection.execute(
            QUERIES["change"],
            {
                "campaign_id": found.campaign_id,
                "state": found.state,
                "spec": Jsonb(spec.model_dump(mode="json")),
                "rate": rate or found.rate,
                "template_version": version,
            },
        ).rowcount
        if not changed:
            raise CampaignError(f"campaign {key!r} changed its state meanwhile; look at it and try again")
        _audit(connection, found.campaign_id, actor, "change", {"rate": rate, "template": template_name})
    return get(connection, key)


def retime(connection: Connection, key: str, changes: Mapping[str, Any], *, actor: str) -> Campaign:
    """Let a campaign that is not frozen yet be due at another time; `changes` are fields of its file that say when.

    Raises:
        CampaignError: a field is wrong, or the campaign is frozen, sending or over.
    """
    found = get(connection, key)
    spec = parse({**found.spec.model_dump(), **changes}, where=key)
    if found.state not in ("draft", "approved"):
        raise CampaignError(f"campaign {key!r} is {found.state}; its time cannot change any more")
    _person(actor, "actor")
    with connection.transaction():
        values = {"campaign_id": found.campaign_id, "state": found.state, "due_at": spec.first_due()}
        moved = connection.execute(QUERIES["retime"], {**values, "spec": Jsonb(spec.model_dump(mode="json"))}).rowcount
        if not moved:
            raise CampaignError(f"campaign {key!r} is frozen already; its time cannot change any more")
        detail = {name: spec.model_dump(mode="json")[name] for name in changes}
        _audit(connection, found.campaign_id, actor, "retime", detail)
    return get(connection, key)


def finish(connection: Connection, campaign_id: int) -> bool:
    """Make a sending campaign `done` once nobody of it is pending or in a call. Answers whether this call did so."""
    return connection.execute(QUERIES["finish"], {"campaign_id": campaign_id}).rowcount == 1


def reopen(connection: Connection, campaign_id: int) -> bool:
    """Make a campaign that was `done` sending again, if somebody of it is pending after all: by a late answer, or by an order."""
    return connection.execute(QUERIES["reopen"], {"campaign_id": campaign_id}).rowcount == 1


def note(
    connection: Connection, campaign_id: int | None, *, actor: str, action: str, detail: Mapping[str, Any]
) -> None:
    """Keep in the history what a person ordered elsewhere than here, in the transaction that does it. No campaign: it concerns
    the whole database.

    Raises:
        CampaignError: nobody says who orders it.
    """
    _person(actor, "actor")
    _audit(connection, campaign_id, actor, action, detail)


def topics(connection: Connection) -> list[str]:
    """The topics of campaigns that people have got mail of."""
    return [topic for (topic,) in connection.execute(QUERIES["topics"])]


def history(connection: Connection, campaign_id: int) -> list[dict[str, Any]]:
    """What people ordered, oldest first: at, actor, action, detail."""
    rows = connection.execute(QUERIES["history"], {"campaign_id": campaign_id}).fetchall()
    return [{"at": at, "actor": actor, "action": action, "detail": detail} for at, actor, action, detail in rows]


def _move(
    connection: Connection,
    found: Campaign,
    action: str,
    actor: str,
    detail: Mapping[str, Any] | None = None,
    *,
    must: bool = True,
) -> bool:
    _person(actor, "actor")
    with connection.transaction():
        moved = connection.execute(
            QUERIES[action],
            {"campaign_id": found.campaign_id, "state": found.state, "actor": actor, **(detail or {})},
        ).rowcount
        if moved:
            _audit(connection, found.campaign_id, actor, action, detail or {})
        elif must:
            raise CampaignError(f"campaign {found.key!r} changed its state meanwhile; look at it and try again")
    return moved == 1


def _audit(connection: Connection, campaign_id: int | None, actor: str, action: str, detail: Mapping[str, Any]) -> None:
    connection.execute(
        QUERIES["audit"],
        {
            "campaign_id": campaign_id,
            "actor": actor,
            "action": action,
            "detail": Jsonb(json.loads(json.dumps(detail))),
        },
    )


def _person(name: str, role: str) -> None:
    if not name.strip():
        raise CampaignError(f"{role}: say who you are, for example --as ana")
