"""What optimised campaigns have brought: counted from their events, kept, and compared. How is told in `estimate`.

Somebody engaged who clicked within a day, as far as a person's clicks can be told from machines' (`feedback.machine`). Opens are
the second measure, among people whose opens are seen: Apple's proxy opens everything for the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from psycopg.rows import class_row

from mailpipe import campaign
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.feedback import machine
from mailpipe.feedback.machine import Visit
from mailpipe.sendtime import estimate
from mailpipe.sendtime.estimate import Cell, Comparison
from mailpipe.sendtime.spec import BASE_HOUR, LABELS

QUERIES = queries.beside(__file__)

DAY = timedelta(days=1)
_Where = tuple[str, int, int, float]


@dataclass(frozen=True)
class Uplift:
    """Comparisons of one campaign, or of several together: by clicks, and by opens of people whose opens are seen."""

    campaigns: list[str]
    clicks: Comparison
    opens: Comparison
    explored_clicks: Comparison
    explored_opens: Comparison

    @property
    def comparisons(self) -> dict[str, Comparison]:
        return {
            "clicks": self.clicks,
            "opens": self.opens,
            "explored_clicks": self.explored_clicks,
            "explored_opens": self.explored_opens,
        }

    def to_json(self) -> dict[str, Any]:
        return {"campaigns": self.campaigns, **{name: one.to_json() for name, one in self.comparisons.items()}}


class Counted(NamedTuple):
    """A row of `send_counted`, with the campaign's key."""

    campaign: str
    label: str
    hour: int
    best_hour: int
    propensity: float
    people: int
    clickers: int
    readable: int
    openers: int


def of(connection: Connection, key: str) -> Uplift:
    """What an optimised campaign has brought so far.

    Raises:
        CampaignError: there is no such campaign, or it is not optimised.
    """
    found = campaign.get(connection, key)
    if found.spec.mode != "optimised":
        raise CampaignError(f"campaign {key!r} has no `mode: optimised`: nobody got an hour of their own")
    count(connection, found)
    fixed = found.spec.optimise.control_hour if found.spec.optimise else BASE_HOUR
    return _uplift(_counted(connection, found.campaign_id), fixed)


def pooled(connection: Connection) -> Uplift:
    """All optimised campaigns together; those of the last weeks are counted anew."""
    for (key,) in connection.execute(QUERIES["uncounted"]).fetchall():
        count(connection, campaign.get(connection, key))
    return _uplift(_counted(connection, None), BASE_HOUR)


def count(connection: Connection, found: Campaign) -> None:
    """Count a campaign's people and what they did, unless that was done when nothing could come any more. `connection` is in
    autocommit mode."""
    given = {"campaign_id": found.campaign_id, "labels": list(LABELS)}
    row = connection.execute(QUERIES["is_settled"], given).fetchone()
    if row is not None and row[0]:
        return
    people: dict[_Where, tuple[int, int]] = {
        (label, hour, best, propensity): (int(number), int(readable))
        for label, hour, best, propensity, number, readable in connection.execute(QUERIES["people"], given)
    }
    clickers, openers = Counter[_Where](), Counter[_Where]()
    seqs, kinds = _engaged(connection, given)
    rows = connection.execute(QUERIES["of_people"], {**given, "seqs": seqs, "kinds": kinds})
    for label, hour, best, propensity, kind, number, readable in rows:
        where = (label, hour, best, propensity)
        if kind == "click":
            clickers[where] += int(number)
        else:
            openers[where] += int(readable)
    cells = list(people)
    with connection.transaction():
        connection.execute(QUERIES["forget"], given)
        connection.execute(
            QUERIES["keep"],
            {
                "campaign_id": found.campaign_id,
                "labels": [cell[0] for cell in cells],
                "hours": [cell[1] for cell in cells],
                "bests": [cell[2] for cell in cells],
                "propensities": [cell[3] for cell in cells],
                "people": [people[cell][0] for cell in cells],
                "clickers": [clickers[cell] for cell in cells],
                "readable": [people[cell][1] for cell in cells],
                "openers": [openers[cell] for cell in cells],
            },
        )


def _engaged(connection: Connection, given: dict[str, Any]) -> tuple[list[int], list[str]]:
    """Who clicked, and who opened, within a day, as far as it was a person; who clicked has opened too."""
    seqs: list[int] = []
    kinds: list[str] = []
    with connection.transaction(), connection.cursor("send_visits", row_factory=class_row(Visit)) as cursor:
        cursor.itersize = 10_000
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        for seq, group in groupby(cursor.execute(QUERIES["visits"], given), key=lambda one: one.seq):
            own = list(group)
            human = {one.kind for one in own if _within_a_day(one) and machine.is_human(one, own, now=now)}
            for kind in ("click", "open"):
                if kind in human or "click" in human:
                    seqs.append(seq)
                    kinds.append(kind)
    return seqs, kinds


def _within_a_day(visit: Visit) -> bool:
    return visit.delivered_at is None or visit.at - visit.delivered_at <= DAY


def _counted(connection: Connection, campaign_id: int | None) -> list[Counted]:
    return [Counted(*row) for row in connection.execute(QUERIES["counted"], {"campaign_id": campaign_id})]


def _uplift(rows: list[Counted], fixed: int) -> Uplift:
    clicks = [
        Cell(one.campaign, one.label, one.hour, one.best_hour, one.propensity, one.people, one.clickers) for one in rows
    ]
    opens = [
        Cell(one.campaign, one.label, one.hour, one.best_hour, one.propensity, one.readable, one.openers)
        for one in rows
    ]
    return Uplift(
        sorted({one.campaign for one in rows}),
        estimate.control(clicks),
        estimate.control(opens),
        estimate.exploration(clicks, fixed=fixed),
        estimate.exploration(opens, fixed=fixed),
    )
