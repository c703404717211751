"""The clocks of people, as a table for one statement: what to add to UTC for each text that stands for a zone, over a span of days.

The rules are those of `schedule.zones`, never the server's: its zones are those of its host.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from mailpipe.db import Connection
from mailpipe.schedule import zones

Row = tuple[str, str | None, datetime, datetime, timedelta]
"""(text, zone, since, until, offset): between `since` and `until` (UTC) the clocks of `zone` show UTC plus `offset`."""

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
CREATE = b"""\
CREATE TEMPORARY TABLE IF NOT EXISTS engagement_clock (
    given text NOT NULL, zone text, since timestamptz NOT NULL, until timestamptz NOT NULL, shift interval NOT NULL
) ON COMMIT DROP"""


def spans(texts: Iterable[str], since: datetime, until: datetime) -> list[Row]:
    """The rows of these texts. What is no zone has no name and the clocks of UTC. Changes are found to the hour: those of the zones
    of the world that fall in between are told from the next full hour on."""
    rows: list[Row] = []
    known: dict[str, list[tuple[datetime, datetime, timedelta]]] = {}
    for text in texts:
        zone = zones.find(text)
        if zone is None:
            rows.append((text, None, since, until, timedelta()))
            continue
        if zone not in known:
            known[zone] = _offsets(zone, since, until)
        rows += [(text, zone, *one) for one in known[zone]]
    return rows


def unknown(texts: Iterable[str]) -> list[str]:
    """Those of the texts that mean no zone."""
    return [text for text in texts if zones.find(text) is None]


def add(connection: Connection, texts: Iterable[str], since: datetime, until: datetime) -> None:
    """Put the clocks of these texts into the transaction's table `engagement_clock`, unless they are there."""
    connection.execute(CREATE)
    present = {row[0] for row in connection.execute(b"SELECT DISTINCT given FROM engagement_clock")}
    with connection.cursor() as cursor, cursor.copy(b"COPY engagement_clock FROM STDIN") as copy:
        for row in spans(sorted(set(texts) - present), since, until):
            copy.write_row(row)
    connection.execute(b"ANALYZE engagement_clock")


def _offsets(zone: str, since: datetime, until: datetime) -> list[tuple[datetime, datetime, timedelta]]:
    rules = zones.load(zone)

    def shift(at: datetime) -> timedelta:
        found = at.astimezone(rules).utcoffset()
        assert found is not None
        return found

    made: list[tuple[datetime, datetime, timedelta]] = []
    start = at = since
    while at < until:
        end = min(at + _DAY, until)
        if shift(end) != shift(start):
            end = next(
                hour for hour in (at + n * _HOUR for n in range(1, 25)) if hour >= end or shift(hour) != shift(start)
            )
            end = min(end, until)
            made.append((start, end, shift(start)))
            start = end
        at = end
    if start < until:
        made.append((start, until, shift(start)))
    return made
