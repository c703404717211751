"""How often one person may hear from campaigns: at most n mails in d days. Asked when an audience is frozen.

Somebody who has had enough is left out of the campaign, never put off to another day. Messages of the outbox are not counted and
not capped: what somebody has asked for always comes.
"""

from __future__ import annotations

from datetime import datetime

from mailpipe.db import Connection, queries
from mailpipe.settings import Cap

QUERIES = queries.beside(__file__)


def refuse(connection: Connection, cap: Cap | None, staged: str, *, campaign_id: int, due_at: datetime) -> None:
    """Leave out the staged people for whom this campaign would be one too many (the reason is `frequency_cap`)."""
    if cap is not None:
        connection.execute(
            QUERIES.filled("refuse", staged=staged),
            {"campaign_id": campaign_id, "due_at": due_at, "mails": cap.mails, "days": cap.days},
        )
