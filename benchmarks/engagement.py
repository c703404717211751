"""What folding a day costs: `python -m benchmarks.engagement`.

Two days on which everybody is mailed once: on the first all people are new, on the second all are known. A fifth of them react.
One JSON line: `mails`, `events`, `first_seconds`, `seconds`, `seconds_per_million` (mails and events of the second day together),
`cpu_seconds` (what the second day took of the processor, here and in the server: it does not depend on what else the machine does),
`peak_mb`.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from benchmarks import ground
from mailpipe.db import Connection
from mailpipe.engagement import fold

DAY = date(2026, 3, 1)
_LATER = datetime(2026, 4, 1, tzinfo=UTC)

CAMPAIGN = """
INSERT INTO mailpipe.campaign (key, state, spec, due_at, author) VALUES (%(key)s, 'draft', '{}', now(), 'ana');
CREATE TABLE mailpipe.recipient_%(id)s (LIKE mailpipe.recipient INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
INSERT INTO mailpipe.recipient_%(id)s
SELECT %(id)s, i, CAST(i * 7 %% %(mails)s AS text), 'p' || i || '@mail.example.com',
       (ARRAY['Asia/Ho_Chi_Minh', 'Europe/Berlin', 'America/New_York', 'Asia/Tokyo', NULL])[1 + i %% 5], 'en', '{}'
FROM generate_series(1, %(mails)s) AS i;
ALTER TABLE mailpipe.recipient_%(id)s ADD PRIMARY KEY (campaign_id, seq);
ALTER TABLE mailpipe.recipient ATTACH PARTITION mailpipe.recipient_%(id)s FOR VALUES IN (%(id)s);
INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, state, opened, finished, sent)
SELECT %(id)s, n, 0, n * 500 + 1, 500, %(day)s, 'done', repeat('0', 500)::varbit, repeat('1', 500)::varbit, 500
FROM generate_series(0, %(mails)s / 500 - 1) AS n;
INSERT INTO mailpipe.call (campaign_id, chunk_no, no, at, seconds, positions, accepted, message_ids)
SELECT %(id)s, n, k + 1, %(day)s + interval '9 hours' + (n * 10 + k) * interval '0.1 seconds', 0.1,
       (repeat('0', k * 50) || repeat('1', 50) || repeat('0', 450 - k * 50))::varbit, 50, decode(repeat('00', 1200), 'hex')
FROM generate_series(0, %(mails)s / 500 - 1) AS n, generate_series(0, 9) AS k;
INSERT INTO mailpipe.event (at, digest, kind, campaign_id, seq, ses_id, body)
SELECT %(day)s + interval '9 hours', decode(md5(%(id)s || 'd' || i), 'hex'), 'delivery', %(id)s, i, 'x', repeat(md5(i::text), 16)
FROM generate_series(1, %(mails)s) AS i;
INSERT INTO mailpipe.event (at, digest, kind, campaign_id, seq, ses_id, agent, ip, link, body)
SELECT %(day)s + interval '10 hours' + interval '13 hours' * random() * random(), decode(md5(%(id)s || '/' || i), 'hex'),
       CASE WHEN i %% 8 = 0 THEN 'click' ELSE 'open' END, %(id)s, i, 'x',
       CASE WHEN i %% 3 = 0 THEN 'Mozilla/5.0' ELSE 'Mozilla/5.0 (Windows NT 10.0) Chrome/120' END, '192.0.2.1',
       'https://shop.example.com', repeat(md5(i::text), 32)
FROM generate_series(1, %(mails)s, 5) AS i;
"""


def _fill(connection: Connection, number: int, day: date, mails: int) -> None:
    statement = CAMPAIGN % {"key": f"'day-{number}'", "id": number, "mails": mails, "day": f"timestamptz '{day}Z'"}
    connection.execute(statement.encode())


def _cpu(connection: Connection) -> float:
    """Seconds of the processor that this process and its backend of the server have had (Linux)."""
    fields = Path(f"/proc/{connection.info.backend_pid}/stat").read_text().rsplit(")", 1)[1].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mails", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="100,000 people")
    given = parser.parse_args()
    mails = 100_000 if given.quick else given.mails
    with ground.make("engagement", connections=2) as base, base.database.connection() as connection:
        connection.execute(
            "CREATE TABLE mailpipe.event_202603 PARTITION OF mailpipe.event FOR VALUES FROM ('2026-03-01Z') TO ('2026-04-01Z')"
        )
        for number in (1, 2):
            ground.say(f"inventing day {number}")
            _fill(connection, number, DAY + timedelta(days=number - 1), mails)
        connection.execute("VACUUM (ANALYZE)")
        seconds, used = [], []
        with ground.PeakMemory() as memory:
            for number in (0, 1):
                ground.say("folding")
                began, before = time.monotonic(), _cpu(connection)
                done = fold.fold(connection, base.settings, DAY + timedelta(days=number), now=_LATER)
                seconds.append(time.monotonic() - began)
                used.append(_cpu(connection) - before)
                ground.say(f"{done.mails:,} mails, {done.opens:,} opens, {done.clicks:,} clicks in {seconds[-1]:.1f} s")
        events = mails // 5
        ground.emit(
            {
                "mails": mails,
                "events": events,
                "first_seconds": round(seconds[0], 1),
                "seconds": round(seconds[1], 1),
                "seconds_per_million": round(seconds[1] / (mails + events) * 1e6, 1),
                "cpu_seconds": round(used[1], 1),
                "peak_mb": round(memory.mb),
            }
        )


if __name__ == "__main__":
    main()
