"""What planning in waves costs: `python -m benchmarks.waves [--quick]`.

Freezes the same audience without and with a warm-up (tiers of engagement for half of the people), moves the warm-up from its first
to its second day after a bad gate, which lays everybody out anew, and freezes a correction for all people of the first campaign.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks import ground
from benchmarks.ground import say
from mailpipe import campaign
from mailpipe.db import Connection
from mailpipe.waves import advance, standing

ENGAGED = """\
INSERT INTO mailpipe.engagement (person_id, as_of, since, last_engaged_at, last_clicked_at, tier)
SELECT CAST(user_id AS text), current_date, now() - interval '900 days', now() - make_interval(days => d.days),
       CASE WHEN user_id % 6 = 0 THEN now() - make_interval(days => d.days) END, 3
FROM users, LATERAL (SELECT CAST(mod(user_id, 301) AS integer) AS days) d WHERE user_id % 2 = 0"""
# As if the first day had been sent a day ago, with a bounce for every fourth mail.
SENT = """\
WITH gone AS (
    UPDATE mailpipe.chunk SET state = 'done', sent = size - skipped, finished = ~ CAST(repeat('0', size) AS bit varying),
        due_at = due_at - interval '1 day'
    WHERE campaign_id = %(id)s AND held IS NULL RETURNING campaign_id, chunk_no, size
),
call AS (
    INSERT INTO mailpipe.call (campaign_id, chunk_no, no, at, seconds, positions, accepted, message_ids_text)
    SELECT campaign_id, chunk_no, 1, now() - interval '1 day', 0.1, ~ CAST(repeat('0', size) AS bit varying), size, 'x' FROM gone
)
INSERT INTO mailpipe.event_mask SELECT campaign_id, chunk_no, kind, 1, ~ CAST(repeat('0', size) AS bit varying)
FROM gone, (VALUES ('delivery'), ('hard_bounce')) AS k(kind)"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waves", description="Planning in waves.")
    parser.add_argument("--quick", action="store_true", help="100,000 people instead of a million")
    people = 100_000 if parser.parse_args().quick else 1_000_000
    with (
        ground.make("waves", connections=4) as base,
        ground.provider(1000) as provider,
        base.database.connection() as connection,
    ):
        ses = base.ses(provider, 1)
        ground.build(connection, ground.people(people, lambda counts: counts.recipients))
        connection.execute(ENGAGED.encode())
        connection.execute(b"VACUUM (FREEZE, ANALYZE) mailpipe.engagement")
        result: dict[str, Any] = {"people": people}
        base.create("plain", ses)
        result["freeze_plain_s"] = _seconds(lambda: base.freeze("plain"))
        base.create("warm", ses, sender="Shop <news@warm.example.com>", warmup={"ramp": "moderate", "spread": "6h"})
        result["freeze_warmup_s"] = _seconds(lambda: base.freeze("warm"))
        result |= _move(connection)
        connection.execute(SENT.encode(), {"id": base.campaign_id("plain")})
        connection.execute(b"UPDATE mailpipe.campaign SET state = 'done' WHERE key = 'plain'")
        fields = {
            "segment": None,
            "audience": {"campaign": "plain", "delivery": "sent"},
            "sender": "Shop <a@b.example.com>",
        }
        base.create("correction", ses, **fields)
        result["freeze_correction_s"] = _seconds(lambda: base.freeze("correction"))
        ses.close()
    ground.emit(result)


def _move(connection: Connection) -> dict[str, Any]:
    """From the first day to the second, which repeats it."""
    found = campaign.start(connection, "warm", actor="ben")
    parts = standing.standings(connection, found.campaign_id)
    say(f"{len(parts)} days, the last one {parts[-1].label}")
    connection.execute(SENT.encode(), {"id": found.campaign_id})
    connection.execute(
        b"UPDATE mailpipe.chunk SET due_at = due_at - interval '1 day' WHERE campaign_id = %(id)s AND held IS NOT NULL",
        {"id": found.campaign_id},
    )
    connection.execute(
        b"UPDATE mailpipe.snapshot SET timing = jsonb_set(timing, '{waves,begins}', to_jsonb(now() - interval '1 day'))"
        b" WHERE campaign_id = %(id)s",
        {"id": found.campaign_id},
    )
    look_s = _seconds(lambda: standing.standings(connection, found.campaign_id))
    chunks = connection.execute(
        b"SELECT count(*) FROM mailpipe.chunk WHERE campaign_id = %s", (found.campaign_id,)
    ).fetchone()
    moved: list[advance.Advanced | None] = []
    advance_s = _seconds(lambda: moved.append(advance.run(connection, "warm")))
    (done,) = moved
    assert done is not None
    assert done.verdict == "repeat", done
    return {
        "days": parts[-1].number,
        "chunks": chunks[0] if chunks else 0,
        "look_s": look_s,
        "advance_s": advance_s,
        "repeated_people": done.people,
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 3)


if __name__ == "__main__":
    main()
