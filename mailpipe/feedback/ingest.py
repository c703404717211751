"""Acts on what SES says: keeps it, folds it into the ledger's bits, suppresses whom nobody may mail any more.

Everything about one batch is one transaction, which is committed before SNS or SQS is told that it was taken. The same event again,
in whatever order, changes nothing: each is kept once by its `digest`, and only what is new is acted upon. What is not tied to a
person by our tags is tied by SES's message id, now or once our own record of the call is there (`bind_late`).

This module alone writes `event`, `feedback` and `soft_bounce`.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from mailpipe import address, breaker, event, latency, outbox, suppression
from mailpipe.db import Connection, Database, queries
from mailpipe.feedback import archive
from mailpipe.feedback.translate import BounceClass, Fact, Untranslatable, facts, storable, unwrap
from mailpipe.ledger import unpack_message_ids

QUERIES = queries.beside(__file__)
LOG = logging.getLogger("mailpipe.feedback")

# Texts full of quotes in the binary form: escaping them took as long as everything else that is done here to an event.
_KEEP = re.sub(rb"%\((bodies|ses_ids|kinds|digests)\)s", rb"%(\1)b", QUERIES["keep"])

BATCH = 2_000
SOFT_BOUNCES = 3
"""A mailbox that takes nothing from so many campaigns within SOFT_WINDOW gets no more marketing."""
SOFT_WINDOW = timedelta(days=60)
RECORDED_WITHIN, RECORDED_LATE = 60.0, 3600.0
"""Seconds after SES took a mail in which the record of its call is looked for: when its event comes, and when it is tried again."""
BIND_WITHIN = timedelta(days=1)
"""So long an event that is nobody's is tried again: the record of its call may still be on its way, after a database was away."""

_BITS: Mapping[BounceClass, event.Kind] = {
    "hard": "hard_bounce",
    "soft": "soft_bounce",
    "content": "content_bounce",
    "provider_list": "provider_list",
    "policy": "policy_bounce",
}
_FOLDED = {"send", "delivery", "bounce", "complaint", "reject", "rendering_failure", "delivery_delay", "open", "click"}
_COUNTED = {"complaint", "hard_bounce", "delivery_delay"}
_ORDINARY = {"send", "delivery", "open", "click"}


@dataclass(frozen=True, slots=True)
class Received:
    """An event as it came: its own text (without an SNS envelope), and SNS's id of the message."""

    body: str
    sns_id: str | None = None


@dataclass
class Ingested:
    """Counts of one ingestion. `folded`: facts about people or messages of ours; `foreign`: about nobody we know (yet); `repeated`:
    known already; `malformed`: places (from 1) of what is no SES event; `settled`: people whose state changed; `suppressed`:
    addresses newly suppressed; `paused`: campaigns that the breaker stopped."""

    read: int = 0
    folded: int = 0
    foreign: int = 0
    repeated: int = 0
    malformed: list[int] = field(default_factory=list)
    settled: int = 0
    suppressed: int = 0
    paused: list[str] = field(default_factory=list)

    def add(self, other: Ingested) -> None:
        self.malformed += [self.read + place for place in other.malformed]
        self.read += other.read
        self.folded += other.folded
        self.foreign += other.foreign
        self.repeated += other.repeated
        self.settled += other.settled
        self.suppressed += other.suppressed
        self.paused += other.paused


@dataclass(frozen=True, slots=True)
class _Bound:
    """A fact, and the person of ours whom it is about, if it is one."""

    fact: Fact
    body: str
    sns_id: str | None
    campaign_id: int | None = None

    @property
    def is_ours(self) -> bool:
        return self.campaign_id is not None or self.fact.message is not None


def ingest_lines(database: Database, lines: Iterable[str], *, keep_days: int = archive.KEEP_DAYS) -> Ingested:
    """Take in a file of events, one JSON document a line, in batches; each is committed before the next is read."""
    done = Ingested()
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    while batch := list(itertools.islice(numbered, BATCH)):
        part = ingest(database, [Received(line) for _, line in batch], keep_days=keep_days)
        part.malformed = [batch[place - 1][0] - done.read for place in part.malformed]
        done.add(part)
    return done


def take(database: Database, received: Sequence[Received], *, keep_days: int = archive.KEEP_DAYS) -> Ingested:
    """As `ingest`, and an event that the database does not take for its content harms no other: it is counted as malformed.

    Raises:
        DatabaseUnavailable, psycopg.OperationalError: nothing is promised of those that were not taken in; take them in again.
    """
    try:
        return ingest(database, received, keep_days=keep_days)
    except (psycopg.DataError, UnicodeError) as error:
        if len(received) == 1:
            LOG.error("an event cannot be kept (%s); it is left out", type(error).__name__)
            return Ingested(read=1, malformed=[1])
    half = len(received) // 2
    done = take(database, received[:half], keep_days=keep_days)
    done.add(take(database, received[half:], keep_days=keep_days))
    return done


def ingest(database: Database, received: Sequence[Received], *, keep_days: int = archive.KEEP_DAYS) -> Ingested:
    """Take in events. When this returns, all of them are on disk, and campaigns beyond their lines are paused.

    Raises:
        DatabaseUnavailable, psycopg.OperationalError: nothing of them is promised; take them in again.
    """
    done, told = _translate(received)
    if not told:
        return done
    span = archive.span(keep_days)
    with database.connection() as connection:
        archive.prepare(connection, (one.fact.at for one in told), span)
        with connection.transaction():
            bound = _bind(connection, told)
            new = _keep(connection, bound, span)
            _act(connection, new, done)
        _follow(connection, new, done)
    done.folded = sum(one.is_ours for one in bound)
    done.foreign += len(bound) - done.folded
    done.repeated = len(bound) - len(new)
    return done


def bind_late(connection: Connection, *, limit: int = BATCH) -> int:
    """Try again to tie events to people whose call is recorded by now. Answers how many facts that were."""
    rows = connection.execute(QUERIES["unbound"], {"since": datetime.now(UTC) - BIND_WITHIN, "limit": limit}).fetchall()
    bound: list[_Bound] = []
    for body, digest in rows:
        bound += [_Bound(fact, body, None) for fact in facts(body) if fact.digest == bytes(digest)]
    done = Ingested()
    with connection.transaction():
        found = [one for one in _bind(connection, bound, late=RECORDED_LATE) if one.campaign_id is not None]
        if found:
            connection.execute(
                QUERIES["bind"],
                {
                    "ats": [one.fact.at for one in found],
                    "digests": [one.fact.digest for one in found],
                    **_places(found),
                },
            )
            _act(connection, found, done)
    _follow(connection, found, done)
    return len(found)


def _translate(received: Sequence[Received]) -> tuple[Ingested, list[_Bound]]:
    done = Ingested(read=len(received))
    told: list[_Bound] = []
    for place, one in enumerate(received, start=1):
        try:
            body = unwrap(one.body)
            found = facts(body)
        except Untranslatable:
            done.malformed.append(place)
            continue
        body = (body if body.isascii() else storable(body)).replace("\0", "").strip()
        for fact in found:
            if fact.kind == "other":
                done.foreign += 1
            else:
                told.append(_Bound(fact, body, one.sns_id))
    return done, told


def _bind(connection: Connection, told: Sequence[_Bound], *, late: float = RECORDED_WITHIN) -> list[_Bound]:
    """Find the campaigns of our tags; where there are none, the person by SES's message id."""
    keys = {one.fact.campaign for one in told if one.fact.campaign is not None}
    known: dict[str, int] = {}
    if keys:
        known = dict(connection.execute(QUERIES["campaigns"], {"keys": list(keys)}).fetchall())
    bound = [replace(one, campaign_id=known[one.fact.campaign]) if one.fact.campaign in known else one for one in told]
    nobodys = [place for place, one in enumerate(bound) if not one.is_ours and one.fact.accepted_at is not None]
    if nobodys:
        for place, campaign_id, key, seq, attempt in _by_message_id(connection, bound, nobodys, late):
            fact = replace(bound[place].fact, campaign=key, seq=seq, attempt=attempt)
            bound[place] = replace(bound[place], fact=fact, campaign_id=campaign_id)
    return bound


def _by_message_id(
    connection: Connection, bound: Sequence[_Bound], places: Sequence[int], late: float
) -> Iterator[tuple[int, int, str, int, int]]:
    """(place, campaign_id, key, seq, attempt) of those whose message id stands in a recorded call."""
    rows = connection.execute(
        QUERIES["by_message_id"],
        {
            "places": list(places),
            "packed": [bound[place].fact.ses_id.removesuffix("-000000").replace("-", "") for place in places],
            "ids": [bound[place].fact.ses_id for place in places],
            "times": [bound[place].fact.accepted_at for place in places],
            "late": late,
        },
    )
    for place, campaign_id, key, first_seq, positions, codes, packed, text in rows.fetchall():
        rank = unpack_message_ids(packed, text).index(bound[place].fact.ses_id)
        people = [offset for offset, bit in enumerate(positions) if bit == "1"]
        accepted = people if codes is None else [one for one, code in zip(people, codes, strict=True) if code == "s"]
        yield place, campaign_id, key, first_seq + accepted[rank], 1


def _keep(connection: Connection, bound: Sequence[_Bound], span: archive.Span) -> list[_Bound]:
    """Write the events that are new, and answer them. What is older than the archive is not kept, and always acted upon."""
    kept = sorted((one for one in bound if one.fact.at in span), key=lambda one: (one.fact.at, one.fact.digest))
    new = [one for one in bound if one.fact.at not in span]
    if kept:
        rows = connection.execute(
            _KEEP,
            {
                "ats": [one.fact.at for one in kept],
                "digests": [one.fact.digest for one in kept],
                "kinds": [one.fact.kind for one in kept],
                **_places(kept),
                "messages": [one.fact.message for one in kept],
                "ses_ids": [one.fact.ses_id for one in kept],
                "accepted": [one.fact.accepted_at for one in kept],
                "details": [one.fact.bounce or one.fact.detail for one in kept],
                "links": [one.fact.link for one in kept],
                "agents": [one.fact.agent for one in kept],
                "ips": [one.fact.ip for one in kept],
                "sns_ids": [one.sns_id for one in kept],
                "bodies": [one.body for one in kept],
            },
        ).fetchall()
        by_key = {(one.fact.at, one.fact.digest): one for one in kept}
        new += [by_key[at, bytes(digest)] for at, digest in rows]
    return new


def _places(bound: Sequence[_Bound]) -> dict[str, Any]:
    return {
        "campaign_ids": [one.campaign_id for one in bound],
        "seqs": [one.fact.seq for one in bound],
        "attempts": [one.fact.attempt for one in bound],
    }


def _act(connection: Connection, new: Sequence[_Bound], done: Ingested) -> None:
    """All that follows from new facts, inside the transaction that keeps them."""
    people = [one for one in new if one.campaign_id is not None]
    event.fold(connection, _bits(people))
    exceptional = [one for one in people if one.fact.kind not in _ORDINARY]
    if exceptional:
        exceptional.sort(key=lambda one: (one.campaign_id, one.fact.seq, one.fact.attempt, _kind(one.fact)))
        connection.execute(
            QUERIES["feedback"],
            {
                **_places(exceptional),
                "kinds": [_kind(one.fact) for one in exceptional],
                "ats": [one.fact.at for one in exceptional],
                "details": [one.fact.detail for one in exceptional],
            },
        )
    latency.count(connection, _deliveries(people))
    done.suppressed += suppression.suppress(connection, _suppressions(connection, new))
    done.suppressed += _count_soft(connection, people)
    done.settled += outbox.settle(connection, _of_messages(new))


def _follow(connection: Connection, new: Sequence[_Bound], done: Ingested) -> None:
    """What may come after the commit, because it can be done again at any time: states of people, and the breaker."""
    people = [one for one in new if one.campaign_id is not None]
    if not people:
        return
    troubled = connection.execute(
        QUERIES["troubled"], {**_places(people), "kinds": [one.fact.kind for one in people]}
    ).fetchall()
    for campaign_id, chunks in troubled:
        done.settled += event.settle(connection, campaign_id, chunks)
    policy = Counter(one.fact.campaign for one in people if one.fact.bounce == "policy")
    for key, number in policy.items():
        LOG.warning("campaign %s: %d bounces say that we are not welcome (policy or reputation)", key, number)
    touched = {one.campaign_id for one in people if one.campaign_id is not None}
    crossing = any(_kind(one.fact) in _COUNTED for one in people)
    done.paused += breaker.evaluate(connection, touched, at_once=crossing)


def _kind(fact: Fact) -> str:
    if fact.bounce is None:
        return fact.kind
    return "unsubscribed" if fact.bounce == "unsubscribed" else _BITS[fact.bounce]


def _bits(people: Iterable[_Bound]) -> Iterator[event.Event]:
    for one in people:
        fact = one.fact
        if fact.kind not in _FOLDED or fact.campaign is None or fact.seq is None:
            continue
        yield event.Event(fact.kind, fact.campaign, fact.seq, fact.attempt)  # type: ignore[arg-type]
        bit = None if fact.bounce is None else _BITS.get(fact.bounce)
        if bit is not None:
            yield event.Event(bit, fact.campaign, fact.seq, fact.attempt)


def _of_messages(new: Iterable[_Bound]) -> Iterator[outbox.Fact]:
    for one in new:
        if one.fact.message is not None:
            yield outbox.Fact(one.fact.message, _kind(one.fact), one.fact.attempt, one.fact.at)


def _suppressions(connection: Connection, new: Iterable[_Bound]) -> list[suppression.Entry]:
    made: list[suppression.Entry] = []
    redacted: list[tuple[_Bound, str, suppression.Reason]] = []
    for one in new:
        for scope, reason in _consequences(one.fact):
            try:
                address.send_form(one.fact.recipient)
            except address.AddressError:
                # Some hosts redact whom they tell of; the person is known by the tags all the same.
                redacted.append((one, scope, reason))
            else:
                source = one.fact.campaign or "ses"
                made.append(suppression.Entry(one.fact.recipient, scope, reason, source, one.fact.at))
    for one, scope, reason in redacted:
        if one.campaign_id is None:
            continue
        row = connection.execute(QUERIES["email"], {"campaign_id": one.campaign_id, "seq": one.fact.seq}).fetchone()
        if row is not None:
            made.append(suppression.Entry(row[0], scope, reason, one.fact.campaign or "ses", one.fact.at))
    return made


def _consequences(fact: Fact) -> Iterator[tuple[str, suppression.Reason]]:
    """Scopes and reasons. A policy bounce is about us, so it suppresses nobody. A complaint about a campaign is about marketing;
    whether SES's own list refuses the rest is SES's decision, and comes back as a bounce of the class `provider_list`."""
    if fact.bounce == "hard":
        yield suppression.ALL, "hard_bounce"
    elif fact.bounce == "provider_list":
        yield suppression.ALL, "provider_list"
    elif fact.bounce == "unsubscribed":
        yield suppression.MARKETING, "unsubscribe"
    elif fact.kind == "complaint":
        yield suppression.MARKETING if fact.message is None else suppression.ALL, "complaint"
    for topic in fact.topics:
        yield suppression.MARKETING if topic == suppression.MARKETING else f"topic:{topic}", "unsubscribe"


def _deliveries(people: Iterable[_Bound]) -> Iterator[tuple[int, float]]:
    for one in people:
        if one.fact.kind == "delivery" and one.fact.accepted_at is not None and one.campaign_id is not None:
            yield one.campaign_id, (one.fact.at - one.fact.accepted_at).total_seconds()


def _count_soft(connection: Connection, people: Iterable[_Bound]) -> int:
    rows: dict[tuple[str, int], datetime] = {}
    for one in people:
        if one.fact.bounce == "soft" and one.campaign_id is not None:
            try:
                rows[suppression.key(one.fact.recipient), one.campaign_id] = one.fact.at
            except address.AddressError:
                continue
    if not rows:
        return 0
    ordered = sorted(rows.items())
    connection.execute(
        QUERIES["soft_bounce"],
        {
            "keys": [key for (key, _), _ in ordered],
            "campaign_ids": [campaign_id for (_, campaign_id), _ in ordered],
            "ats": [at for _, at in ordered],
        },
    )
    repeated = connection.execute(
        QUERIES["repeated"],
        {
            "keys": sorted({key for key, _ in rows}),
            "since": datetime.now(UTC) - SOFT_WINDOW,
            "times": SOFT_BOUNCES,
        },
    ).fetchall()
    return suppression.suppress(
        connection,
        [
            suppression.Entry(key, suppression.MARKETING, "soft_bounces", f"{times} campaigns")
            for key, times in repeated
        ],
    )
