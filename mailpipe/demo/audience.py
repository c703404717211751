"""The demo's audience: any number of invented people in `public.users`, with all that a real list has.

The people are made by PostgreSQL (`users.sql`) from the small tables in `data/`. Each kind that needs care
occurs an exact number of times, so that whoever sends to them knows what must come out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from math import gcd
from pathlib import Path
from typing import Any

import psycopg

from mailpipe.db.queries import Queries
from mailpipe.errors import UserError

QUERIES = Queries(Path(__file__).with_name("users.sql"))
DATA = Path(__file__).with_name("data")
COMMENT = "Invented people of the mailpipe demo, which drops and rebuilds this table"
SOURCE = "demo"
"""Marks the demo's rows in `mailpipe.suppression`."""
LEAST = 100
"""From this many people on, each kind occurs at least once."""


@dataclass(frozen=True)
class Shares:
    """How large a part of the people is of each kind. Apart from the last, nobody is of two kinds.

    Together they must stay below 0.35, which leaves every duplicate an ordinary person to be a duplicate of.
    """

    duplicate: float = 0.003
    """Another account of a person who is there, with the address in capitals."""
    unusable: float = 0.002
    """An address that SES cannot take: no @, a space, an accent before the @, a dot too many (two ways)."""
    bounce: float = 0.001
    """An address of the mailbox simulator of SES that bounces."""
    complaint: float = 0.0002
    """An address of the mailbox simulator of SES that complains."""
    without_city: float = 0.0005
    """No city, for which a template may have no default."""
    suppressed: float = 0.005
    """On the suppression list, one in four for marketing only."""
    inactive: float = 0.08
    """A closed account."""
    opted_out: float = 0.12
    """No consent to marketing."""
    without_first_name: float = 0.01
    """No first name. Drawn from all, whatever their kind."""


@dataclass(frozen=True)
class AudienceCounts:
    """How many people there are, and how many of each kind (see `Shares`)."""

    people: int
    duplicate: int
    unusable: int
    bounce: int
    complaint: int
    without_city: int
    suppressed: int
    inactive: int
    opted_out: int
    without_first_name: int

    @property
    def recipients(self) -> int:
        """Rows of a snapshot of everybody: consent, not suppressed, each once; unusable addresses too."""
        return self.people - self.duplicate - self.suppressed - self.inactive - self.opted_out


def counts(people: int, shares: Shares = Shares()) -> AudienceCounts:
    """The exact numbers for that many people: rounded shares, from 100 people on at least one of each kind.

    Raises:
        UserError: fewer than one person, or shares that leave too few ordinary people.
    """
    if people < 1:
        raise UserError(f"an audience needs at least one person, got {people}")
    parts = {part.name: getattr(shares, part.name) for part in fields(shares)}
    if min(parts.values()) < 0 or sum(parts.values()) - shares.without_first_name >= 0.35:
        raise UserError("the shares of special people must not be negative and together stay below 0.35")
    least = 1 if people >= LEAST else 0
    return AudienceCounts(
        people, **{name: max(least, round(share * people)) if share else 0 for name, share in parts.items()}
    )


def build(
    connection: psycopg.Connection[Any],
    people: int,
    seed: int = 7,
    *,
    shares: Shares = Shares(),
    as_of: datetime | None = None,
) -> AudienceCounts:
    """Make `public.users` anew with that many people, and put some of them on the suppression list.

    The same arguments give the same people. Times lie in the five years before `as_of` (default: 00:00 UTC
    today). All is one transaction.

    Raises:
        UserError: there is a table `public.users` that the demo did not make, or the numbers do not work.
    """
    made = counts(people, shares)
    moment = as_of or datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    values: dict[str, object] = {
        "people": people,
        "seed": seed,
        "as_of": moment,
        "source": SOURCE,
        "step": _step(people, 0.618034),
        "name_step": _step(people, 0.754878),
        "shift": seed * 7919 % people,
        "without_first_name": made.without_first_name,
    }
    end = 0
    for part in fields(Shares):
        if part.name != "without_first_name":
            end += getattr(made, part.name)
            values[f"until_{part.name}"] = end
    with connection.transaction():
        present, comment = connection.execute(QUERIES["owner"]).fetchone() or (False, None)
        if present and comment != COMMENT:
            raise UserError("table public.users was not made by the demo, and the demo would drop it. Use another one")
        connection.execute(QUERIES["create"])
        connection.execute(f"COMMENT ON TABLE public.users IS '{COMMENT}'".encode())
        for table, name in (("demo_name", "names"), ("demo_city", "cities"), ("demo_domain", "domains")):
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)".encode()) as copy:
                copy.write((DATA / f"{name}.csv").read_bytes())
        connection.execute(QUERIES["slots"])
        connection.execute(QUERIES["fill"], values)
        connection.execute(QUERIES["finish"])
        connection.execute("DELETE FROM mailpipe.suppression WHERE source = %s", (SOURCE,))
        connection.execute(QUERIES["suppress"], values)
    return made


def opt_out_some(connection: psycopg.Connection[Any], share: float, seed: int = 7) -> int:
    """Withdraw the consent of a few people who come late in the order of sending; return how many.

    They are drawn from the last quarter by last login, where a campaign arrives last. `share` is of all;
    at least one person is taken. Nobody is taken who would not have been sent to anyway.
    """
    with connection.transaction():
        row = connection.execute("SELECT count(*) FROM public.users").fetchone()
        number = max(1, round(share * (row[0] if row else 0)))
        return connection.execute(QUERIES["opt_out"], {"seed": seed, "number": number}).rowcount


def _step(people: int, ratio: float) -> int:
    """A number prime to `people`, near `ratio` of it: its multiples modulo `people` visit each place once."""
    step = max(1, round(people * ratio))
    while gcd(step, people) != 1:
        step += 1
    return step
