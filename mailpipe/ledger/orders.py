"""What is decided about people after their calls: by events, and by orders of a person. Whom it concerns is decided elsewhere
(`event`, `unknown`, `narrow`); here the chunks, their counters and the exceptions change together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mailpipe.db import Connection, queries
from mailpipe.ledger import steps

QUERIES = queries.beside(__file__)


def settle_unknown(
    connection: Connection, campaign_id: int, chunk_no: int, told: Sequence[tuple[int, str, str, int]]
) -> int:
    """Let events speak: (seq, sent|failed, reason, attempt) of one chunk. Answers how many people changed their state.

    `attempt` is the one that the person was at when this was decided: people of whom it is no longer true stay as they are.
    """
    with connection.transaction():
        steps.lock_chunk(connection, campaign_id, chunk_no)
        row = connection.execute(
            QUERIES["settle_unknown"],
            {
                "campaign_id": campaign_id,
                "chunk_no": chunk_no,
                "seqs": [seq for seq, _, _, _ in told],
                "states": [state for _, state, _, _ in told],
                "reasons": [reason for _, _, reason, _ in told],
                "attempts": [attempt for _, _, _, attempt in told],
            },
        ).fetchone()
    return 0 if row is None else int(row[0])


def send_again(connection: Connection, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    """Make `unknown` people pending again, as a new attempt; None: all of them. Answers whom it concerned, by seq.

    Only for a person's order, inside its transaction: `campaign.lock` comes before, the record of the order with it.
    """
    return _resolve(connection, "send_again", campaign_id, seqs)


def call_sent(connection: Connection, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    """Count `unknown` people as sent, on a person's word; otherwise as `send_again`."""
    return _resolve(connection, "call_sent", campaign_id, seqs)


def narrow(connection: Connection, campaign_id: int) -> int:
    """Skip whoever is pending and not in the temporary table `kept (user_id)`. Answers how many people that were.

    Only for a person's order, inside its transaction, which holds the lock of a campaign that is not sending.
    """
    row = connection.execute(QUERIES["narrow"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return int(row[0])


def _resolve(connection: Connection, name: str, campaign_id: int, seqs: Sequence[int] | None) -> list[int]:
    parameters: dict[str, Any] = {"campaign_id": campaign_id, "seqs": None if seqs is None else list(seqs)}
    chunks = [row[0] for row in connection.execute(QUERIES["lock_unknown"], parameters)]
    return [row[0] for row in connection.execute(QUERIES[name], {**parameters, "chunks": chunks})]
