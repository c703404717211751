"""The suppression list beside that of the SES account: each learns what the other knows.

SES refuses an address on its list whatever the mail, so what comes from there is for all mail. There goes only what SES would have
put there itself: hard bounces, and complaints about all mail. It has no word for an unsubscribe, nor scopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mailpipe import address, suppression
from mailpipe.db import Database, queries
from mailpipe.ses.client import Ses

QUERIES = queries.beside(__file__)

OVERLAP = timedelta(hours=1)
"""The list is read again from so long before the last time: its clock is not ours."""
PUSHED_AT_ONCE = 1_000
"""Addresses that one run tells SES of; SES takes them one by one."""
_BATCH = 1_000
_WORDS = {"hard_bounce": "BOUNCE", "complaint": "COMPLAINT"}


@dataclass(frozen=True)
class Synced:
    """Addresses that SES listed, those of them that were news to us, and those that SES was told of."""

    listed: int
    learned: int
    told: int
    left: int


def sync(database: Database, ses: Ses) -> Synced:
    """Learn, then tell. Stopped half-way, it goes on where it was.

    Raises:
        ServiceError: SES refuses (in its sandbox nothing can be put on the list) or cannot be reached; what was learned stays.
    """
    listed, learned = _learn(database, ses)
    told, left = _tell(database, ses)
    return Synced(listed, learned, told, left)


def _learn(database: Database, ses: Ses) -> tuple[int, int]:
    started = datetime.now(UTC)
    with database.connection() as connection:
        row = connection.execute(QUERIES["since"]).fetchone()
    since = None if row is None else row[0] - OVERLAP
    listed = learned = 0
    batch: list[suppression.Entry] = []
    for one in ses.suppressed_since(since):
        listed += 1
        try:
            address.send_form(one.address)
        except address.AddressError:
            continue  # not one that we could mail
        batch.append(
            suppression.Entry(one.address, suppression.ALL, "provider_list", f"ses {one.reason.lower()}", one.at)
        )
        if len(batch) == _BATCH:
            learned += _keep(database, batch)
            batch = []
    learned += _keep(database, batch)
    with database.connection() as connection:
        connection.execute(QUERIES["learned"], {"until": started})
    return listed, learned


def _keep(database: Database, batch: list[suppression.Entry]) -> int:
    with database.transaction() as connection:
        new = suppression.suppress(connection, batch)
        connection.execute(QUERIES["known"], {"keys": [suppression.key(one.address) for one in batch]})
    return new


def _tell(database: Database, ses: Ses) -> tuple[int, int]:
    with database.connection() as connection:
        rows = connection.execute(QUERIES["untold"], {"reasons": list(_WORDS), "limit": PUSHED_AT_ONCE}).fetchall()
    for key, reason in rows:
        ses.suppress(key, _WORDS[reason])
        with database.connection() as connection:
            connection.execute(QUERIES["known"], {"keys": [key]})
    with database.connection() as connection:
        row = connection.execute(QUERIES["left"], {"reasons": list(_WORDS)}).fetchone()
    assert row is not None
    return len(rows), int(row[0])
