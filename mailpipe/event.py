"""What SES says after a call, as bit sets beside the ledger's: one bit for each person, kind and attempt.

Events arrive late, early, twice and in any order; folding is a union of sets, so none of that matters. Which states follow
from them is asked of the ledger (`settle`). Reading what SES publishes, and everything else that follows, is `feedback`'s duty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mailpipe import ledger
from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

Kind = Literal[
    "send",
    "delivery",
    "bounce",
    "hard_bounce",
    "soft_bounce",
    "content_bounce",
    "provider_list",
    "policy_bounce",
    "complaint",
    "reject",
    "rendering_failure",
    "delivery_delay",
    "open",
    "click",
]

BOUNCES: tuple[Kind, ...] = ("hard_bounce", "soft_bounce", "content_bounce", "provider_list", "policy_bounce")
"""What a `bounce` was: nobody is there, not now, not this mail, SES did not try, not from us. Each is a bounce too."""
SEVERITY: tuple[Kind, ...] = (
    "complaint",
    "hard_bounce",
    "provider_list",
    "policy_bounce",
    "content_bounce",
    "soft_bounce",
    "bounce",
    "rendering_failure",
    "reject",
    "delivery_delay",
    "click",
    "open",
    "delivery",
    "send",
)
"""The worst first: what is said of a person of whom several are told. A bounce can follow a delivery, whichever is told first."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event about one recipient of one campaign."""

    kind: Kind
    campaign: str
    seq: int
    attempt: int = 1


def worst(kinds: Iterable[str]) -> Kind | None:
    """The one that counts, of what was told of a person; None if nothing was."""
    told = set(kinds)
    return next((kind for kind in SEVERITY if kind in told), None)


def fold(connection: Connection, events: Iterable[Event]) -> None:
    """Set the bits of these events. Doing it again changes nothing."""
    distinct = sorted({(event.campaign, event.seq, event.kind, event.attempt) for event in events})
    connection.execute(
        QUERIES["fold"],
        {
            "keys": [key for key, _, _, _ in distinct],
            "seqs": [seq for _, seq, _, _ in distinct],
            "kinds": [kind for _, _, kind, _ in distinct],
            "attempts": [attempt for _, _, _, attempt in distinct],
        },
    )


def settle(connection: Connection, campaign_id: int, chunks: Sequence[int] | None = None) -> int:
    """Let the events of a campaign (or of these chunks of it) change the states that they prove wrong. Answers how many people
    changed."""
    parameters = {"campaign_id": campaign_id, "chunks": None if chunks is None else list(chunks)}
    rows = connection.execute(QUERIES["settles"], parameters).fetchall()
    changed = 0
    for chunk_no, people in itertools.groupby(rows, key=lambda row: row[0]):
        told = {seq: (seq, state, reason, attempt) for _, seq, state, reason, attempt in people}
        changed += ledger.settle_unknown(connection, campaign_id, chunk_no, list(told.values()))
    return changed
