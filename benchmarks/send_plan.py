"""What everybody's own hour costs: the table of hours written anew, and an audience frozen by it beside one that is due at once."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks import ground
from benchmarks.ground import PeakMemory, say
from mailpipe.db import Connection
from mailpipe.sendtime import hours

ENGAGED = """\
INSERT INTO mailpipe.engagement (person_id, zone, as_of, events, mails, ev, ex, since, tier)
SELECT CAST(u.user_id AS text), u.timezone, CURRENT_DATE - CAST(u.user_id % 10 AS integer), 1, 5,
       (SELECT array_agg(CAST(CASE WHEN u.user_id % 3 = 0 AND h = u.user_id / 7 % 24 THEN 2 ELSE 0 END AS real) ORDER BY h)
        FROM generate_series(0, 23) h),
       array_fill(CAST(0.2 AS real), ARRAY[24]), now(), 3
FROM users u WHERE u.user_id % 5 > 0"""


def measure(people: int, rate: float = 600) -> dict[str, Any]:
    """Seconds; four in five people are known, a third of those with data of their own."""
    with ground.make("sendtime", connections=3) as base, base.database.connection() as connection:
        ground.build(connection, people)
        connection.execute(ENGAGED.encode())
        connection.execute(b"VACUUM (FREEZE, ANALYZE) mailpipe.engagement")
        with PeakMemory() as memory:
            begun = time.perf_counter(), time.process_time()
            refreshed = hours.refresh(connection)
            spent = [
                round(now - then, 2)
                for now, then in zip((time.perf_counter(), time.process_time()), begun, strict=True)
            ]
        say(f"{refreshed.people:,} hours in {spent[0]} s")
        with ground.provider(rate) as stand_in:
            ses = base.ses(stand_in, 1)
            due_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            base.create("plain", ses, due_at=due_at, rate=rate)
            base.create("optimised", ses, due_at=due_at, rate=rate, mode="optimised")
            ses.close()
        took = {}
        for key in ("plain", "optimised"):
            begun_at = time.perf_counter()
            with PeakMemory() as planning:
                taken = base.freeze(key)
            took[key] = round(time.perf_counter() - begun_at, 2)
            say(f"{key}: {taken.recipients:,} people frozen in {took[key]} s")
        return {
            "people": people,
            "refreshed": refreshed.people,
            "refresh_seconds": spent[0],
            "refresh_own_cpu_seconds": spent[1],
            "refresh_rss_mb": round(memory.mb),
            "frozen": taken.recipients,
            "freeze_plain_seconds": took["plain"],
            "freeze_optimised_seconds": took["optimised"],
            "plan_rss_mb": round(planning.mb),
            "moved_for_pace": taken.timing["optimised"]["moved_for_pace"],
            "due_times": _count(connection, taken.campaign_id),
        }


def _count(connection: Connection, campaign_id: int) -> int:
    row = connection.execute(
        "SELECT count(DISTINCT due_at) FROM mailpipe.chunk WHERE campaign_id = %s", (campaign_id,)
    ).fetchone()
    return int(row[0]) if row else 0
