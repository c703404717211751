"""Narrowing a campaign that is under way: who is still pending and not in another segment is skipped, and stays so."""

from __future__ import annotations

from collections.abc import Mapping

from mailpipe import campaign, ledger, segment
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.settings import Settings


def narrow(
    connection: Connection,
    settings: Settings,
    key: str,
    *,
    keep: str,
    actor: str,
    reason: str,
    parameters: Mapping[str, object] | None = None,
) -> int:
    """Skip everybody who is pending and whom the segment `keep` does not return now. Answers how many people that were.

    Raises:
        CampaignError: the campaign is not paused (nor approved and frozen), or somebody still works on it.
        SegmentError: the segment cannot be used.
    """
    if not reason.strip():
        raise CampaignError("say why the campaign is narrowed; the reason is kept")
    chosen = segment.find(settings.segments, keep)
    now = campaign.get(connection, key).now
    bound = segment.bind(chosen, parameters or {}, now)
    segment.check(connection, chosen, bound)
    with connection.transaction():
        found = campaign.lock(connection, key)
        if found.state not in ("paused", "approved"):
            raise CampaignError(f"campaign {key!r} is {found.state}; pause it before it is narrowed")
        counts = ledger.counts(connection, found.campaign_id)
        if counts.processing_chunks:
            raise CampaignError(
                f"campaign {key!r}: {counts.processing_chunks} chunks are still in somebody's hands; wait until they are given"
                " back (a dead worker's: `mailpipe reconcile`) and try again"
            )
        connection.execute(
            "SELECT set_config('statement_timeout', %s, true)", (str(int(settings.segment_timeout * 1000)),)
        )
        connection.execute("CREATE TEMPORARY TABLE kept (user_id text) ON COMMIT DROP")
        with segment.explained(chosen):
            connection.execute(
                b"INSERT INTO kept SELECT DISTINCT CAST(segment.user_id AS text) FROM (\n"
                + segment.statement(chosen)
                + b"\n) AS segment WHERE segment.user_id IS NOT NULL",
                bound,
            )
        skipped = ledger.narrow(connection, found.campaign_id)
        campaign.note(
            connection,
            found.campaign_id,
            actor=actor,
            action="narrow",
            detail={"keep": keep, "sha256": chosen.sha256, "skipped": skipped, "reason": reason.strip()},
        )
    return skipped
