"""Notices when something else than people unsubscribes: many from one mail domain within minutes.

Mail gateways of companies open every link of a mail, and some press its buttons. Then everybody of one company is unsubscribed
soon after the mail has come. An opt-out is honoured all the same; a person has to look and, if need be, ask the company. Domains
that many people share (Gmail and others) have no gateway of that kind and are not counted.

This module alone writes `unsubscribe_minute`.
"""

from __future__ import annotations

import logging

from mailpipe import campaign, provider
from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

PEOPLE = 5
"""So many of one domain within MINUTES raise the alarm; published cases had everybody of a company within minutes."""
MINUTES = 10
ACTION = "unsubscribe_burst"
"""The alarm's action in `audit`."""
_log = logging.getLogger(__name__)


def note(connection: Connection, person_id: str) -> bool:
    """Count that a person has opted out; answers whether that raises the alarm: one for each domain within MINUTES.

    For a transaction. The alarm is a line of `audit` and of the log, with the domain and the number of people, never an address.
    A person whom no campaign of the last week had is not counted: their domain is not known here.
    """
    domain = _domain(connection, person_id)
    if domain is None or provider.of(domain.partition(".")[0]) is not None:
        return False
    counted = connection.execute(QUERIES["count"], {"domain": domain, "minutes": MINUTES}).fetchone()
    assert counted is not None
    people, alarmed = counted
    if people < PEOPLE or alarmed:
        return False
    connection.execute(QUERIES["alarmed"], {"domain": domain})
    campaign.note(
        connection,
        None,
        actor="web",
        action=ACTION,
        detail={"domain": domain, "people": people, "minutes": MINUTES},
    )
    _log.warning(
        "%s: %s people of %s unsubscribed within %s minutes: a scanner, not people?", ACTION, people, domain, MINUTES
    )
    return True


def _domain(connection: Connection, person_id: str) -> str | None:
    campaigns = [str(campaign_id) for (campaign_id,) in connection.execute(QUERIES["recent"])]
    if not campaigns:
        return None
    query = QUERIES.filled("domain", campaigns=", ".join(campaigns))
    row = connection.execute(query, {"person_id": person_id}).fetchone()
    return None if row is None else str(row[0])
