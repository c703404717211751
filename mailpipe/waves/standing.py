"""Where a campaign that goes in waves stands: its parts as they are planned now and as they went, and the gate before the next one.
Reads only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg.rows import dict_row

from mailpipe import campaign
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, queries
from mailpipe.waves.gate import Judgement, Part, Told, judge

QUERIES = queries.beside(__file__)

Verdict = Literal["pass", "repeat", "drop", "hold"]
_SLACK = timedelta(hours=1)
"""So much sooner than planned a part may follow one that began late: else a warm-up would slip by minutes a day."""


@dataclass(frozen=True)
class Standing:
    """A part of a campaign, as it is planned now and as it went. Times are UTC; `verdict` is that of the gate behind it."""

    label: str
    number: int
    at: datetime
    people: int
    sent: int
    left: int
    held: bool
    told: Part
    verdict: Verdict | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Gate:
    """The gate behind the latest part that was let go. `opens_at`: when it can be judged; None: it has been."""

    stage: Standing
    following: Standing
    opens_at: datetime
    open: bool
    judgement: Judgement | None
    verdict: Verdict | None
    text: str


def standings(connection: Connection, campaign_id: int) -> list[Standing]:
    """The parts of a campaign in their order, also those to come."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(QUERIES["stages"], {"campaign_id": campaign_id}).fetchall()
    decided = {number: (verdict, reason) for number, verdict, reason, *_ in verdicts(connection, campaign_id)}
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["label"]].append(row)
    found = []
    for label, some in grouped.items():
        number = int(label.partition(":")[2])
        by_provider: dict[str, Told] = defaultdict(Told)
        for row in some:
            by_provider[row["family"]] += Told(
                row["sent"], row["told"], row["hard_bounces"], row["complaints"], row["delayed"]
            )
        left = sum(row["left"] for row in some)
        verdict, reason = decided.get(number, (None, None))
        found.append(
            Standing(
                label=label,
                number=number,
                at=min(row["at"] for row in some),
                people=sum(row["people"] for row in some),
                sent=sum(row["sent"] for row in some),
                left=left,
                held=any(row["held"] for row in some),
                told=Part(number, left, {name: one for name, one in by_provider.items() if one.sent}),
                verdict=verdict,
                reason=reason,
            )
        )
    return sorted(found, key=lambda one: one.number)


def look(connection: Connection, found: Campaign) -> Gate | None:
    """The gate before the next part; None when nobody waits for one."""
    parts = standings(connection, found.campaign_id) if found.spec.in_waves else []
    gone, to_come = [one for one in parts if not one.held], [one for one in parts if one.held]
    if not gone or not to_come:
        return None
    stage, following = gone[-1], to_come[0]
    opens_at = _opens_at(connection, found, stage, following)
    if stage.verdict == "hold":
        return Gate(stage, following, opens_at, False, None, "hold", f"held by a person: {stage.reason}")
    if stage.verdict is not None:
        return Gate(
            stage, following, opens_at, found.now >= opens_at, None, stage.verdict, f"{stage.verdict}: {stage.reason}"
        )
    good = [one.told for one in reversed(gone[:-1]) if one.verdict == "pass"]
    judgement = judge(stage.told, good, found.spec.gates)
    if found.now < opens_at:
        return Gate(
            stage, following, opens_at, False, judgement, None, f"to be judged at {opens_at:%Y-%m-%d %H:%M} UTC"
        )
    return Gate(
        stage,
        following,
        opens_at,
        judgement.verdict == "pass",
        judgement,
        None,
        f"{judgement.verdict}: {judgement.text}",
    )


def held_back(connection: Connection, key: str) -> int:
    """People who would be mailed by now, if the gate before them had passed."""
    found = campaign.get(connection, key)
    gate = look(connection, found) if found.state == "sending" else None
    if gate is None or found.now < gate.opens_at or gate.open:
        return 0
    return gate.following.people


def _opens_at(connection: Connection, found: Campaign, stage: Standing, following: Standing) -> datetime:
    """When the next part is planned; and as long after the part before really began as it was planned to be."""
    row = connection.execute(QUERIES["began"], {"campaign_id": found.campaign_id, "label": stage.label}).fetchone()
    began: datetime | None = row[0] if row else None
    if began is None:
        return following.at
    distance = following.at - stage.at
    return max(following.at, began + distance - min(_SLACK, distance / 20))


def verdicts(connection: Connection, campaign_id: int) -> list[tuple[Any, ...]]:
    """What was decided behind the parts of a campaign, in their order: number of the part, verdict, reason, day of the ramp."""
    return connection.execute(QUERIES["verdicts"], {"campaign_id": campaign_id}).fetchall()
