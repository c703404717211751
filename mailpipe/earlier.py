"""People of an earlier campaign as the audience of another: a correction for those who have the mail, or the rest.

They become a segment like any other, made here instead of read from a file: zone, locale and variables are those that were frozen
then. Everything else of a snapshot stays: who has opted out or is suppressed by now is left out, whatever is asked for here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from psycopg import sql

from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.segment_file import Segment

QUERIES = queries.beside(__file__)

Delivery = Literal["sent", "failed", "skipped", "unknown", "pending", "rest"]

_STABLE = ("paused", "done", "cancelled")
_UNSTARTED = ("pending", "rest")
_STATE = "d.state = '{}'"
# Whoever was refused for good stays refused: they have opted out, their address is none, or a person has narrowed the campaign.
_REST = (
    "(d.state IN ('pending', 'failed') OR d.state = 'skipped'"
    " AND d.reason NOT IN ('suppressed', 'opted_out', 'unusable_address', 'narrowed'))"
)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Earlier(pydantic.BaseModel):
    """People of an earlier campaign by what became of them: `{campaign: flash-sale, delivery: sent}`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    campaign: Annotated[
        str, pydantic.Field(pattern=r"^[a-z0-9_-]{1,63}$", description="The key of the earlier campaign")
    ]
    delivery: Annotated[
        tuple[Delivery, ...],
        pydantic.BeforeValidator(_listed),
        pydantic.Field(min_length=1, description="sent, failed, skipped, unknown; or rest: those who were not sent"),
    ]

    @property
    def text(self) -> str:
        """In few words, for lists."""
        return f"campaign {self.campaign}: {', '.join(self.delivery)}"

    @property
    def condition(self) -> str:
        """Who is meant, as SQL over the view `delivery`."""
        return " OR ".join(
            _REST if one == "rest" else _STATE.format(one) for one in get_args(Delivery) if one in self.delivery
        )


def exists(connection: Connection, chosen: Earlier) -> None:
    """See that there is such a campaign.

    Raises:
        CampaignError: there is none.
    """
    if connection.execute(QUERIES["find"], {"key": chosen.campaign}).fetchone() is None:
        raise CampaignError(f"audience: no campaign {chosen.campaign!r}; `mailpipe campaign list` shows them")


def find(connection: Connection, chosen: Earlier) -> Segment:
    """The people as a segment, in the order in which the earlier campaign mailed them.

    Raises:
        CampaignError: there is no such campaign, or what became of its people can still change.
    """
    row = connection.execute(QUERIES["find"], {"key": chosen.campaign}).fetchone()
    if row is None:
        raise CampaignError(f"audience: no campaign {chosen.campaign!r}; `mailpipe campaign list` shows them")
    campaign_id, state, variables, calls = row
    _settled(chosen, state, variables, calls)
    people = "mailpipe.delivery d JOIN mailpipe.recipient r ON r.campaign_id = d.campaign_id AND r.seq = d.seq"
    return _segment(
        connection, chosen, variables, f"{people}\nWHERE d.campaign_id = {int(campaign_id)} AND ({chosen.condition})"
    )


def _segment(connection: Connection, chosen: Earlier, variables: Sequence[str], people: str) -> Segment:
    """The segment of `people`, SQL in which `d.seq` is their number and `r` their frozen row."""
    names = "".join(
        f",\n       r.variables[{number}] AS {sql.Identifier(name).as_string(connection)}"
        for number, name in enumerate(variables, start=1)
    )
    text = f"-- {chosen.text}\nSELECT r.user_id, r.email, r.timezone, r.locale{names}\nFROM {people}\nORDER BY d.seq"
    return Segment(
        name=chosen.text,
        path=Path(chosen.text),
        title=chosen.text,
        owner="",
        description=f"People of the campaign {chosen.campaign} by what became of them, as they were frozen then.",
        parameters=(),
        sql=text,
        body_line=1,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def hold(connection: Connection, chosen: Earlier) -> tuple[int, Segment]:
    """Let nobody move the earlier campaign before this transaction ends, and gather its people; answers its id, and a segment that
    reads them. It returns what that of `find` does; but the planner, which knows nothing of a campaign of this hour, takes its
    chunks for a handful, and reads all of them for each person: minutes for a million. Called in the snapshot's transaction.

    Raises:
        CampaignError: what became of its people can change again.
    """
    connection.execute(QUERIES["hold"], {"key": chosen.campaign})
    row: tuple[Any, ...] | None = connection.execute(QUERIES["find"], {"key": chosen.campaign}).fetchone()
    assert row is not None
    campaign_id, state, variables, calls = row
    _settled(chosen, state, variables, calls)
    connection.execute(QUERIES["by_index"])
    connection.execute(QUERIES.filled("gather", campaign_id=str(int(campaign_id)), condition=chosen.condition))
    for step in ("as_before", "known"):
        connection.execute(QUERIES[step])
    people = f"earlier_person d JOIN mailpipe.recipient r ON r.campaign_id = {int(campaign_id)} AND r.seq = d.seq"
    return int(campaign_id), _segment(connection, chosen, variables, people)


def _settled(chosen: Earlier, state: str, variables: list[str] | None, calls: int) -> None:
    key = chosen.campaign
    if variables is None or state not in _STABLE:
        known = "has no snapshot, so nobody was mailed by it" if variables is None else f"is {state}"
        hint = "; pause it, or wait until it is done" if state == "sending" else ""
        raise CampaignError(
            f"audience: campaign {key!r} {known}{hint}. Who of it was sent can be told once it is paused, done or cancelled"
        )
    if calls:
        raise CampaignError(
            f"audience: campaign {key!r} has {calls} chunks in somebody's hands, whose answers are still to come; wait until they"
            " are given back (a dead worker's: `mailpipe reconcile`) and try again"
        )
    if state == "paused" and (named := [one for one in chosen.delivery if one in _UNSTARTED]):
        raise CampaignError(
            f"audience: campaign {key!r} is paused, and its {named[0]} would be mailed by both campaigns when it is resumed; cancel"
            " it first, or resume it instead of mailing them from here"
        )
