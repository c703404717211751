"""What came back from one campaign: rates and their lines, people and machines, who complains. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from psycopg.rows import class_row

from mailpipe import breaker, campaign, latency, report, snapshot
from mailpipe.breaker import Finding
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError
from mailpipe.feedback import machine

QUERIES = queries.beside(__file__)

TELLING = ("tier", "source", "last_login_at")
"""Columns of a segment by which complaints are shown, where it selects them."""


@dataclass(frozen=True)
class Summary:
    """Of one campaign. `sent` and `delivered` are two numbers: SES took the mail, and the other host did. Times in seconds."""

    campaign: str
    sent: int
    delivered: int
    delivery_p50_seconds: float | None
    delivery_p95_seconds: float | None
    events: dict[str, int]
    rates: list[Finding]
    loud_slices: dict[int, list[Finding]]
    share_at_gmail: float | None
    postmaster: tuple[date, float] | None
    engagement: machine.Counts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """People of a campaign who share a value: how many were sent to, and what came back."""

    value: str
    sent: int
    complaints: int
    hard_bounces: int

    @property
    def complaint_rate(self) -> float:
        return self.complaints / self.sent if self.sent else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "complaint_rate": self.complaint_rate}


def summary(connection: Connection, key: str) -> Summary:
    """All of it. Reads every recipient once, for the share at Gmail. Raises CampaignError: there is no such campaign."""
    found = campaign.get(connection, key)
    progress = report.progress(connection, key)
    return Summary(
        campaign=key,
        sent=progress.sent,
        delivered=progress.delivered,
        delivery_p50_seconds=latency.percentile(connection, found.campaign_id, 0.5),
        delivery_p95_seconds=progress.delivery_p95_seconds,
        events=report.events(connection, found.campaign_id),
        rates=breaker.rates(connection, found),
        loud_slices=breaker.look_at_slices(connection, found),
        share_at_gmail=breaker.gmail_share(connection, found.campaign_id),
        postmaster=breaker.postmaster(connection, found.spec.sender_domain),
        engagement=machine.counts(connection, found.campaign_id),
    )


def complaints(connection: Connection, key: str) -> dict[str, list[Group]]:
    """Who complains, by those of TELLING that the campaign's segment selects; empty before there are complaints or a snapshot.

    Raises CampaignError: there is no such campaign.
    """
    found = campaign.get(connection, key)
    taken = snapshot.get(connection, found.campaign_id)
    if taken is None or not report.events(connection, found.campaign_id).get("complaint"):
        return {}
    return {name: by_variable(connection, key, name) for name in TELLING if name in taken.variables}


def by_variable(connection: Connection, key: str, variable: str) -> list[Group]:
    """Complaints and hard bounces by a column of the segment, such as tier or source; dates (last_login_at) by their age when the
    campaign was frozen. The most complaints first.

    Raises:
        CampaignError: there is no such campaign, or it has no snapshot or no such variable.
    """
    taken = report.snapshot_summary(connection, key)
    if variable not in taken.variables:
        raise CampaignError(
            f"campaign {key!r}: its people have no {variable!r}. They have: {', '.join(taken.variables) or 'no variables'}."
            " A segment has to select a column for it to be known here"
        )
    with connection.cursor(row_factory=class_row(Group)) as cursor:
        return cursor.execute(
            QUERIES["by_variable"],
            {"campaign_id": taken.campaign_id, "place": taken.variables.index(variable) + 1, "as_of": taken.as_of},
        ).fetchall()
