"""What must hold for every campaign at any time, asked of the ledger: nobody lost, nobody mailed twice, nobody against
their will. Each function answers how many people break the rule; 0 is the only good answer. Reads only.
"""

from __future__ import annotations

from mailpipe import campaign, ledger, snapshot
from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

MOMENTS = 5.0
"""Seconds before a request in which a suppression may come too late to be seen."""


def unaccounted_rows(connection: Connection, key: str) -> int:
    """Rows of the segment that are neither recipients nor left out for a reason."""
    taken = snapshot.get(connection, campaign.get(connection, key).campaign_id)
    return 0 if taken is None else abs(taken.returned - taken.recipients - sum(taken.excluded.values()))


def missing_people(connection: Connection, key: str) -> int:
    """Recipients whom the chunks do not hold exactly once, in one unbroken row from 1 to N."""
    return _ask(connection, "missing", key)


def stateless_people(connection: Connection, key: str) -> int:
    """Recipients of the snapshot who are in none of the six states, or in two."""
    found = campaign.get(connection, key)
    taken = snapshot.get(connection, found.campaign_id)
    counts = ledger.counts(connection, found.campaign_id)
    states = counts.pending + counts.sending + counts.sent + counts.failed + counts.skipped + counts.unknown
    return abs((taken.recipients if taken else 0) - states)


def accepted_twice(connection: Connection, key: str) -> int:
    """Acceptances of the same person beyond the first, and beyond one for each re-send that somebody ordered."""
    return _ask(connection, "accepted_twice", key)


def mailed_while_suppressed(connection: Connection, key: str) -> int:
    """People accepted by SES although they were suppressed before the call was opened."""
    return _ask(connection, "mailed_while_suppressed", key, moments=MOMENTS)


def _ask(connection: Connection, name: str, key: str, **values: object) -> int:
    found = campaign.get(connection, key)
    row = connection.execute(QUERIES[name], {"campaign_id": found.campaign_id, **values}).fetchone()
    return 0 if row is None else int(row[0])
