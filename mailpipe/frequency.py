"""How often one person may hear from campaigns: at most n mails in d days. Asked when an audience is frozen.

Somebody who has had enough is left out of the campaign, never put off to another day. Messages of the outbox are not counted and
not capped: what somebody has asked for always comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mailpipe.db import Connection, queries
from mailpipe.settings import Cap

QUERIES = queries.beside(__file__)


def refuse(connection: Connection, cap: Cap | None, staged: str, *, but: Sequence[int], due_at: datetime) -> None:
    """Leave out the staged people for whom this campaign would be one too many (the reason is `frequency_cap`). Mails of the
    campaigns `but` are not counted: its own, and those of the campaign that it corrects or completes."""
    if cap is not None:
        connection.execute(
            QUERIES.filled("refuse", staged=staged),
            {"but": list(but), "due_at": due_at, "mails": cap.mails, "days": cap.days},
        )
