"""Who must not be mailed, whatever a segment says: suppressed addresses, and people who have opted out of a topic.

An address is suppressed because of what happened to it (it bounced, somebody complained, SES refuses it) or because somebody
says so. A person opts out; their token names them and a topic, so it works for ever, without a row of the campaign. The ledger asks
for both when it opens a call, the snapshot when it freezes. Imports of people never touch either.

This module alone writes `suppression`, `suppression_removed` and `opt_out`. How events lead here is `feedback`'s duty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row

from mailpipe import address
from mailpipe.db import Connection, queries
from mailpipe.errors import SuppressionError

QUERIES = queries.beside(__file__)

Reason = Literal["complaint", "hard_bounce", "provider_list", "soft_bounces", "unsubscribe", "manual"]
REASONS: tuple[Reason, ...] = ("complaint", "hard_bounce", "provider_list", "soft_bounces", "unsubscribe", "manual")
"""The strongest first: where two are told of one address, the stronger one stays."""
ALL = "all"
"""The scope of every mail, the transactional ones too."""
MARKETING = "marketing"
"""The scope, and the topic, of every campaign."""

_scope = re.compile(r"all|marketing|topic:[a-z0-9_-]{1,32}").fullmatch


@dataclass(frozen=True)
class Entry:
    """An address to suppress, as anybody may spell it. `at` is the time of the fact; None: now."""

    address: str
    scope: str
    reason: Reason
    source: str
    at: datetime | None = None


@dataclass(frozen=True)
class Suppression:
    """A suppressed address by its key, with the strongest reason that was given for this scope. Times are UTC."""

    email_key: str
    scope: str
    reason: Reason
    source: str
    at: datetime


@dataclass(frozen=True)
class OptOut:
    """A person does not want a topic any more."""

    person_id: str
    topic: str
    source: str
    at: datetime


def key(text: str) -> str:
    """The one normal form by which addresses are compared, at every entry. Raises address.AddressError.

    In SQL it is `mailpipe.email_key(email)`, for an address that went through `address.send_form`, as those of recipients did.
    """
    return address.key(text)


def scopes(topic: str) -> list[str]:
    """The scopes that refuse a campaign of this topic. A transactional mail is refused by ALL alone."""
    return [ALL, MARKETING, f"topic:{topic}"]


def topics(topic: str) -> list[str]:
    """The topics whose opt-outs refuse a campaign of this topic: who opts out of `marketing` wants none of them."""
    return [MARKETING, topic]


def check_scope(text: str) -> str:
    """The same text. Raises SuppressionError."""
    if not _scope(text):
        raise SuppressionError(f"scope {text!r}: expected all, marketing, or topic: and a name of a-z 0-9 _ -")
    return text


def suppress(connection: Connection, entries: Sequence[Entry]) -> int:
    """Suppress addresses; a weaker reason changes nothing. Answers how many rows are new or have a stronger reason now.

    Raises:
        address.AddressError: one of them is no address; nothing is written.
        SuppressionError: a scope that does not exist; nothing is written.
    """
    strongest: dict[tuple[str, str], Entry] = {}
    for entry in sorted(entries, key=lambda one: REASONS.index(one.reason)):
        strongest.setdefault((key(entry.address), check_scope(entry.scope)), entry)
    # In the order of the key: two writers never wait for each other in a circle.
    rows = sorted(strongest.items(), key=lambda item: item[0])
    return connection.execute(
        QUERIES["suppress"],
        {
            "keys": [email_key for (email_key, _), _ in rows],
            "scopes": [scope for (_, scope), _ in rows],
            "reasons": [entry.reason for _, entry in rows],
            "sources": [entry.source for _, entry in rows],
            "times": [entry.at for _, entry in rows],
            "strength": list(REASONS),
        },
    ).rowcount


def lift(connection: Connection, text: str, scope: str | None, *, actor: str, reason: str) -> list[Suppression]:
    """Take an address off the list, for one scope or (None) for all of them; what was there is kept with who removed it and why.

    Answers what was removed. Whether SES still suppresses the address is another question (`suppression_sync`).

    Raises:
        address.AddressError: this is no address.
        SuppressionError: no reason is given, or a scope that does not exist.
    """
    if not reason.strip():
        raise SuppressionError("say why the address may be mailed again; the reason is kept")
    if scope is not None:
        check_scope(scope)
    with connection.cursor(row_factory=class_row(Suppression)) as cursor:
        return cursor.execute(
            QUERIES["lift"], {"key": key(text), "scope": scope, "actor": actor, "why": reason.strip()}
        ).fetchall()


def find(connection: Connection, text: str) -> list[Suppression]:
    """All that suppresses an address. Raises address.AddressError."""
    with connection.cursor(row_factory=class_row(Suppression)) as cursor:
        return cursor.execute(QUERIES["find"], {"key": key(text)}).fetchall()


def every(connection: Connection) -> Iterator[Suppression]:
    """The whole list, in the order of the keys, page by page. Inside a transaction."""
    with connection.cursor("suppressions", row_factory=class_row(Suppression)) as cursor:
        cursor.itersize = 10_000
        yield from cursor.execute(QUERIES["every"])


def unsubscribe(connection: Connection, person_id: str, topic: str, *, source: str = "link") -> bool:
    """A person opts out of a topic; a second time is as good as the first. Answers whether it is news.

    Nothing but the two texts of the token is needed. Once this is committed, no call is opened to the person any more.
    """
    parameters = {"person_id": person_id, "topic": topic, "source": source}
    return connection.execute(QUERIES["unsubscribe"], parameters).rowcount == 1


def resubscribe(connection: Connection, person_id: str, topic: str) -> bool:
    """A person takes their opt-out back. Answers whether there was one. A suppressed address stays suppressed."""
    parameters = {"person_id": person_id, "topic": topic}
    return connection.execute(QUERIES["resubscribe"], parameters).rowcount == 1


def opt_outs(connection: Connection, person_id: str) -> list[OptOut]:
    """The topics that a person has opted out of."""
    with connection.cursor(row_factory=class_row(OptOut)) as cursor:
        return cursor.execute(QUERIES["opt_outs"], {"person_id": person_id}).fetchall()
