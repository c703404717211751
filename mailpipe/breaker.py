"""The breaker: stops a campaign whose complaints, hard bounces or delays are above its lines, until a person resumes it.

Rates are counted from the ledger and its event bits, so the same event twice counts once. They are looked at whenever events are
taken in, and again by a sensor. Lines belong to the campaign (`lines.Lines`); a slice on its own only warns, because a hundred
of them are a hundred chances for bad luck.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal

from psycopg.rows import dict_row

from mailpipe import campaign
from mailpipe.db import Connection, queries
from mailpipe.lines import Lines

QUERIES = queries.beside(__file__)

Level = Literal["too_few", "ok", "warning", "pause"]
WARN_AT = 0.5
"""Part of a line from which on there is a warning."""
GMAIL = ("gmail.com", "googlemail.com")
"""Google tells SES of no complaints (SES: enforcement FAQ); Postmaster Tools shows a rate."""
_EVERY = 1.0
_looked: dict[int, float] = {}


@dataclass(frozen=True, slots=True)
class Counts:
    """People of a campaign or a slice. `sent` are those whom SES accepted; who was told twice counts once."""

    sent: int
    delivered: int
    complaints: int
    hard_bounces: int
    delayed: int

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            *(max(0, now - then) for now, then in zip(asdict(self).values(), asdict(earlier).values(), strict=True))
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One rate against its line. `sample` is what it is a part of, `after` how large that must be before the line counts."""

    name: Literal["complaints", "hard_bounces", "delays"]
    people: int
    sample: int
    rate: float
    line: float
    after: int
    reached: int
    level: Level

    @property
    def text(self) -> str:
        return f"{self.name.replace('_', ' ')}: {self.people:,} of {self.sample:,} are {self.rate:.2%}, the line is {self.line:.2%}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def assess(counts: Counts, lines: Lines) -> list[Finding]:
    """Hold rates against their lines. Pure."""
    told = (
        ("complaints", counts.complaints, lines.complaints, lines.complaints_after, counts.sent),
        ("hard_bounces", counts.hard_bounces, lines.hard_bounces, lines.hard_bounces_after, counts.delivered),
        ("delays", counts.delayed, lines.delays, lines.delays_after, counts.sent),
    )
    return [_finding(name, people, counts.sent, line, after, reached) for name, people, line, after, reached in told]  # type: ignore[arg-type]


def _finding(
    name: Literal["complaints", "hard_bounces", "delays"],
    people: int,
    sample: int,
    line: float,
    after: int,
    reached: int,
) -> Finding:
    rate = people / sample if sample else 0.0
    level: Level = "ok"
    if reached < after:
        level = "too_few"
    elif rate > line:
        level = "pause"
    elif rate > line * WARN_AT:
        level = "warning"
    return Finding(name, people, sample, rate, line, after, reached, level)


def counts(connection: Connection, campaign_id: int) -> tuple[Counts, dict[int, Counts]]:
    """The whole campaign, and each slice that holds somebody."""
    slices: dict[int, Counts] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(QUERIES["counts"], {"campaign_id": campaign_id}):
            number = row.pop("slice")
            slices[number] = Counts(**{name: int(value) for name, value in row.items()})
    return _sum(slices.values()), slices


def rates(connection: Connection, found: campaign.Campaign) -> list[Finding]:
    """The rates of the whole campaign against its lines, whatever was resumed meanwhile."""
    whole, _ = counts(connection, found.campaign_id)
    return assess(whole, found.spec.lines)


def look(connection: Connection, found: campaign.Campaign) -> list[Finding]:
    """The campaign's rates since it was last resumed, against its lines."""
    whole, _ = counts(connection, found.campaign_id)
    return assess(whole.since(_baseline(connection, found.campaign_id)), found.spec.lines)


def look_at_slices(connection: Connection, found: campaign.Campaign) -> dict[int, list[Finding]]:
    """What is at least a warning, by slice."""
    _, slices = counts(connection, found.campaign_id)
    told = {number: assess(one, found.spec.lines) for number, one in slices.items()}
    loud = {number: [one for one in all_ if one.level in ("warning", "pause")] for number, all_ in told.items()}
    return {number: some for number, some in loud.items() if some}


def evaluate(connection: Connection, campaign_ids: Collection[int], *, at_once: bool = True) -> list[str]:
    """Pause those of these campaigns that are beyond a line. Answers their keys. `connection` is in autocommit mode.

    Not `at_once`: a campaign that this process has looked at within the last second is left for the next time.
    """
    now = time.monotonic()
    due = [one for one in sorted(campaign_ids) if at_once or now - _looked.get(one, -_EVERY) >= _EVERY]
    if not due:
        return []
    _looked.update(dict.fromkeys(due, now))
    rows = connection.execute(QUERIES["sending"], {"campaign_ids": due}).fetchall()
    return [key for (key,) in rows if _evaluate(connection, key)]


def evaluate_all(connection: Connection) -> list[str]:
    """As `evaluate`, every campaign that is sending."""
    rows = connection.execute(QUERIES["all_sending"]).fetchall()
    return evaluate(connection, [campaign_id for (campaign_id,) in rows])


def _evaluate(connection: Connection, key: str) -> bool:
    beyond = [one for one in look(connection, campaign.get(connection, key)) if one.level == "pause"]
    if not beyond:
        return False
    reason = "breaker: " + "; ".join(one.text for one in beyond)
    with connection.transaction():
        found = campaign.lock(connection, key)
        if found.state != "sending":
            return False
        whole, _ = counts(connection, found.campaign_id)
        connection.execute(QUERIES["trip"], {"campaign_id": found.campaign_id, "reason": reason, **asdict(whole)})
        campaign.halt(connection, key, reason=reason)
    return True


def gmail_share(connection: Connection, campaign_id: int) -> float | None:
    """The part of a campaign's recipients whose complaints SES never hears of; None without recipients. Reads all of them."""
    row = connection.execute(
        QUERIES["gmail"], {"campaign_id": campaign_id, "patterns": [f"%@{domain}" for domain in GMAIL]}
    ).fetchone()
    assert row is not None
    return row[0] / row[1] if row[1] else None


def keep_postmaster(connection: Connection, rates: Iterable[tuple[str, date, float]]) -> int:
    """Keep spam rates of Postmaster Tools: (domain of the sender, day, part of the mails). Answers how many."""
    number = 0
    for domain, day, rate in rates:
        number += connection.execute(
            QUERIES["keep_postmaster"], {"domain": domain.lower(), "day": day, "rate": rate}
        ).rowcount
    return number


def postmaster(connection: Connection, domain: str, *, days: int = 7) -> tuple[date, float] | None:
    """The worst rate of the last days for a sender's domain, and its day."""
    row = connection.execute(QUERIES["postmaster"], {"domain": domain.lower(), "days": days}).fetchone()
    return None if row is None else (row[0], float(row[1]))


def _baseline(connection: Connection, campaign_id: int) -> Counts:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(QUERIES["baseline"], {"campaign_id": campaign_id}).fetchone()
    return Counts(0, 0, 0, 0, 0) if row is None else Counts(**row)


def _sum(all_: Iterable[Counts]) -> Counts:
    columns: Sequence[Sequence[int]] = [list(asdict(one).values()) for one in all_]
    return Counts(*(sum(column) for column in zip(*columns, strict=True))) if columns else Counts(0, 0, 0, 0, 0)
