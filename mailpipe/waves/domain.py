"""What a sending domain sends, day by day: the measure of its warm-up, whichever of its campaigns sends it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

REMEMBERED = timedelta(days=30)
"""Mailbox providers keep a domain's reputation for about so long; after it, the domain is new to them again."""


@dataclass(frozen=True)
class Volume:
    """Mails of a domain by day: `sent` over the last 30 days, `planned` from today on."""

    sent: dict[date, int]
    planned: dict[date, int]

    @property
    def peak(self) -> int:
        """The most that it has sent on one of these days."""
        return max(self.sent.values(), default=0)

    @property
    def days(self) -> dict[date, int]:
        """Both together."""
        return {day: self.sent.get(day, 0) + self.planned.get(day, 0) for day in self.sent.keys() | self.planned.keys()}


def volume(connection: Connection, domain: str, *, zone: str, but: int | None = None) -> Volume:
    """The volume of a domain by days of `zone`, without the campaign `but`. Planned is who waits in campaigns that are approved,
    sending or paused."""
    given = {"domain": domain, "zone": zone, "but": but, "since": REMEMBERED}
    return Volume(
        {day: int(people) for day, people in connection.execute(QUERIES["sent"], given)},
        {day: int(people) for day, people in connection.execute(QUERIES["planned"], given)},
    )
