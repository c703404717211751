"""Campaigns sent on days long past, as rows of the ledger and of the events: for what reads them, not for what writes them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from mailpipe.db import Connection

BROWSER = "Mozilla/5.0 (Windows NT 10.0) Firefox/140.0"
APPLE = "Mozilla/5.0"
_numbers = itertools.count(1)


class Past:
    """Writes such rows."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def mailed(
        self,
        at: datetime,
        people: Sequence[str],
        *,
        zones: Mapping[str, str] | None = None,
        codes: str | None = None,
        variant: str | None = None,
    ) -> int:
        """A campaign of one chunk and one call at an instant; answers its id. `codes` has a letter for each person."""  # fmt: skip
        size = len(people)
        key = f"past-{next(_numbers)}"
        row = self.connection.execute(
            "INSERT INTO mailpipe.campaign (key, spec, due_at, author) VALUES (%s, '{}', %s, 'ana') RETURNING campaign_id",
            (key, at),
        ).fetchone()
        assert row is not None
        campaign_id: int = row[0]
        self.connection.execute(
            f"CREATE TABLE mailpipe.recipient_{campaign_id} PARTITION OF mailpipe.recipient FOR VALUES IN ({campaign_id})".encode()
        )
        with self.connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO mailpipe.recipient VALUES (%s, %s, %s, %s, %s, NULL, '{}')",
                [
                    (campaign_id, seq, one, f"{one}@mail.example.com", (zones or {}).get(one, "UTC"))
                    for seq, one in enumerate(people, start=1)
                ],
            )
        self.connection.execute(
            "INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished, variant)"
            " VALUES (%s, 0, 0, 1, %s, %s, %s::varbit, %s::varbit, %s)",
            (campaign_id, size, at, "0" * size, "0" * size, variant),
        )
        accepted = size if codes is None else codes.count("s")
        self.connection.execute(
            "INSERT INTO mailpipe.call (campaign_id, chunk_no, no, at, seconds, positions, accepted, codes, message_ids)"
            " VALUES (%s, 0, 1, %s, 0.1, %s::varbit, %s, %s, %s)",
            (campaign_id, at, "1" * size, accepted, codes, b"\0" * 24 * accepted if accepted else None),
        )
        return campaign_id

    def visit(
        self, campaign_id: int, seq: int, at: datetime, kind: str = "open", *, agent: str = BROWSER, link: str = "a"
    ) -> None:
        self.connection.execute(
            f"CREATE TABLE IF NOT EXISTS mailpipe.event_{at:%Y%m} PARTITION OF mailpipe.event FOR VALUES"
            f" FROM ('{at:%Y-%m}-01Z') TO ('{(at.replace(day=1) + timedelta(days=32)):%Y-%m}-01Z')".encode()
        )
        self.connection.execute(
            "INSERT INTO mailpipe.event (at, digest, kind, campaign_id, seq, ses_id, agent, ip, link, body)"
            " VALUES (%s, decode(md5(random()::text), 'hex'), %s, %s, %s, 'x', %s, '192.0.2.1', %s, '{}')",
            (at, kind, campaign_id, seq, agent, link),
        )

    def mask(self, campaign_id: int, kind: str, bits: str) -> None:
        self.connection.execute(
            "INSERT INTO mailpipe.event_mask VALUES (%s, 0, %s, 1, %s::varbit)", (campaign_id, kind, bits)
        )
