"""What SES says after a call: reads its events and folds them into the ledger's bit sets.

Events arrive late, early, twice and in any order; folding is a union of sets, so none of that matters. Which states follow
from them is asked of the ledger (`settle`). Only events that carry our tags can be bound to a person here.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from mailpipe import ledger
from mailpipe.db import Connection, Database, queries

QUERIES = queries.beside(__file__)

Kind = Literal[
    "send",
    "delivery",
    "bounce",
    "complaint",
    "reject",
    "rendering_failure",
    "delivery_delay",
    "open",
    "click",
]

_KINDS: dict[str, Kind] = {
    "Send": "send",
    "Delivery": "delivery",
    "Bounce": "bounce",
    "Complaint": "complaint",
    "Reject": "reject",
    # With a space in the event, and without one in the name of the block: SES event publishing examples.
    "Rendering Failure": "rendering_failure",
    "DeliveryDelay": "delivery_delay",
    "Open": "open",
    "Click": "click",
}
_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event about one recipient of one campaign."""

    kind: Kind
    campaign: str
    seq: int
    attempt: int = 1


@dataclass
class Ingested:
    """Counts of one ingestion. `folded`: events of campaigns of ours; `foreign`: events that are not about one; `malformed`:
    numbers of lines that are no SES events; `settled`: people whose state changed."""

    read: int = 0
    folded: int = 0
    foreign: int = 0
    malformed: list[int] = field(default_factory=list)
    settled: int = 0


def parse(line: str) -> Event | None:
    """Read one event as SES publishes it. None: an event, but not one of ours.

    Raises:
        ValueError: this is no SES event.
    """
    content = json.loads(line)
    if not isinstance(content, dict) or not isinstance(content.get("mail"), dict):
        raise ValueError("not an SES event")
    name = content.get("eventType") or content.get("notificationType")
    if not isinstance(name, str):
        raise ValueError("an SES event without a type")
    kind = _KINDS.get(name)
    tags = content["mail"].get("tags")
    if kind is None or not isinstance(tags, dict):
        return None
    try:
        key, seq, attempt = tags["campaign"][0], int(tags["seq"][0]), int(tags.get("attempt", ["1"])[0])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    if not isinstance(key, str) or not 0 < seq < 2**31 or not 0 < attempt < 2**15:
        return None
    return Event(kind, key, seq, attempt)


def ingest(database: Database, lines: Iterable[str]) -> Ingested:
    """Fold events, one JSON document a line, in batches; each batch is committed before the next is read."""
    done = Ingested()
    touched: Counter[str] = Counter()
    for batch in _batches(_events(lines, done)):
        with database.connection() as connection:
            fold(connection, batch)
        touched.update(event.campaign for event in batch)
    with database.connection() as connection:
        for key in sorted(touched):
            row = connection.execute("SELECT campaign_id FROM mailpipe.campaign WHERE key = %s", (key,)).fetchone()
            if row is None:
                done.foreign += touched[key]
            else:
                done.folded += touched[key]
                done.settled += settle(connection, row[0])
    return done


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


def settle(connection: Connection, campaign_id: int) -> int:
    """Let the events of a campaign change the states that they prove wrong. Answers how many people changed."""
    rows = connection.execute(QUERIES["settles"], {"campaign_id": campaign_id}).fetchall()
    changed = 0
    for chunk_no, people in itertools.groupby(rows, key=lambda row: row[0]):
        told = {seq: (seq, state, reason, attempt) for _, seq, state, reason, attempt in people}
        changed += ledger.settle_unknown(connection, campaign_id, chunk_no, list(told.values()))
    return changed


def _events(lines: Iterable[str], done: Ingested) -> Iterator[Event]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        done.read += 1
        try:
            event = parse(line)
        except ValueError:
            done.malformed.append(number)
            continue
        if event is None:
            done.foreign += 1
        else:
            yield event


def _batches(events: Iterator[Event]) -> Iterator[list[Event]]:
    while batch := list(itertools.islice(events, _BATCH)):
        yield batch
