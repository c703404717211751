"""Holds a campaign against what its sending domain usually sends: a jump looks like spam to mailbox providers, and is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime

from mailpipe.campaign import Campaign
from mailpipe.db import Connection
from mailpipe.snapshot import Snapshot
from mailpipe.waves import domain

FLOOR = 5_000
"""Mails a day up to which nobody is a bulk sender: Gmail's and Microsoft's rules begin there."""


def problem(connection: Connection, found: Campaign, taken: Snapshot, factor: float) -> str | None:
    """Why the campaign's largest day is too large for its domain; None: it is not, or its file says that it warms up.

    Beyond `factor` times the most that the domain has sent on one of the last 30 days (UTC), and beyond FLOOR, it is. What its
    other campaigns have planned for the same day counts.
    """
    if found.spec.warmup is not None:
        return None
    known = domain.volume(connection, found.spec.sender_domain, zone="UTC", but=found.campaign_id)
    days = by_day((datetime.fromisoformat(one["at"]), int(one["people"])) for one in taken.timing.get("due", []))
    most = max(((people + known.days.get(day, 0), day) for day, people in days.items()), default=None)
    if most is None or most[0] <= max(FLOOR, factor * known.peak):
        return None
    before = f"at most {known.peak:,} on one of the last 30 days" if known.peak else "nothing within the last 30 days"
    return (
        f"{most[0]:,} mails of {found.spec.sender_domain} on {most[1]}, and it has sent {before}: mailbox providers take such a"
        " jump for spam. Let the domain grow (`warmup: {ramp: moderate}`, docs/waves.md); MAILPIPE_USUAL_FACTOR sets the limit"
    )


def by_day(dues: Iterable[tuple[datetime, int]]) -> Counter[date]:
    """People by the day (UTC) on which they are due."""
    days: Counter[date] = Counter()
    for at, people in dues:
        days[at.date()] += people
    return days
