"""How long SES takes from accepting a mail to delivering it: a histogram for each campaign. This module alone writes `latency`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

STEP = 1.1
"""Each bucket is a tenth wider than the one before, so a percentile is true within 10 %. Bucket b ends at STEP ** b ms."""


def bucket(seconds: float) -> int:
    """The bucket of a time. A delivery before its acceptance, by two clocks, counts as one of a millisecond."""
    return min(300, math.ceil(math.log(max(0.001, seconds) * 1000, STEP)))


def count(connection: Connection, deliveries: Iterable[tuple[int, float]]) -> None:
    """Count deliveries, each once: (campaign_id, seconds)."""
    counted = Counter((campaign_id, bucket(seconds)) for campaign_id, seconds in deliveries)
    if counted:
        rows = sorted(counted.items())
        connection.execute(
            QUERIES["count"],
            {
                "campaign_ids": [campaign_id for (campaign_id, _), _ in rows],
                "buckets": [number for (_, number), _ in rows],
                "people": [people for _, people in rows],
            },
        )


def percentile(connection: Connection, campaign_id: int, part: float) -> float | None:
    """Seconds within which this part of the delivered were delivered; None while nobody is."""
    rows = connection.execute(QUERIES["get"], {"campaign_id": campaign_id}).fetchall()
    wanted = part * sum(people for _, people in rows)
    reached = 0
    for number, people in rows:
        reached += people
        if reached >= wanted:
            return round(float(STEP**number) / 1000, 3)
    return None
