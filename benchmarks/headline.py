"""The headline: a whole campaign at the account's rate, with a provider that takes its time to answer.

    python -m benchmarks.headline --recipients 971696 --rate 600 --latency-ms 300

The stand-in enforces its rate strictly in every sliding second, so one recipient too many is a throttled recipient. Afterwards
its journal and the ledger are compared person by person.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks import ground
from benchmarks.ground import Ground, PeakMemory, say
from mailpipe import ledger, report, send
from mailpipe.db import Connection
from mailpipe.pace import Limits
from mailpipe.plan import threads as threads_for
from mailpipe.ses.client import Ses
from mailpipe.simulator.child import StandIn

KEY = "headline"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.headline", description="A whole campaign at full rate.")
    parser.add_argument("--recipients", type=int, default=971_696, help="people who are mailed")
    parser.add_argument("--rate", type=float, default=600, help="recipients per second that the account allows")
    parser.add_argument("--latency-ms", type=float, default=300, help="how long the provider takes to answer")
    parser.add_argument("--quick", action="store_true", help="12,000 recipients: 20 s of sending")
    chosen = parser.parse_args()
    recipients = 12_000 if chosen.quick else chosen.recipients
    threads = threads_for(Limits(None, chosen.rate, None))
    with ground.make("headline", connections=threads + 3) as base:
        with base.database.connection() as connection:
            ground.build(connection, ground.people(recipients, ground.mailable))
        with ground.provider(chosen.rate, chosen.latency_ms) as stand_in:
            ses = base.ses(stand_in, threads)
            ground.emit(_measure(base, stand_in, ses, recipients, chosen.rate, chosen.latency_ms))
            ses.close()


def _measure(
    base: Ground, stand_in: StandIn, ses: Ses, recipients: int, rate: float, latency_ms: float
) -> dict[str, object]:
    base.create(KEY, ses)
    taken = base.freeze(KEY)
    say(f"{taken.recipients:,} recipients of {taken.returned:,} people; sending to {recipients:,}")
    campaign_id = base.campaign_id(KEY)
    told_at = time.monotonic()

    def tell(connection: Connection) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > 10:
            told_at = time.monotonic()
            now = report.progress(connection, KEY)
            eta = "?" if now.eta_minutes is None else f"{now.eta_minutes:.1f}"
            say(f"{now.sent:,} sent, {now.pending:,} pending, {now.rate_per_second:g}/s, {eta} minutes left")

    with PeakMemory() as memory:
        outcome = send.run(base.database, base.settings, ses, KEY, on_tick=tell)
    state = stand_in.state()
    with base.database.connection() as connection:
        counts = ledger.counts(connection, campaign_id)
        differing = _disagreements(connection, campaign_id, stand_in.journal_file)
    if outcome.end is not send.End.COMPLETE or counts.sent != recipients:
        raise SystemExit(f"the campaign is not complete: {outcome.text}; {counts}")
    return {
        "recipients": recipients,
        "rate": rate,
        "latency_ms": latency_ms,
        "minutes": round(outcome.seconds / 60, 2),
        "recipients_per_second": round(recipients / outcome.seconds, 1),
        "utilisation": round(recipients / outcome.seconds / rate, 4),
        "max_in_any_second": state["max_in_any_second"],
        "throttled": state["throttled"],
        "calls": state["requests"],
        "max_calls_in_flight": state["max_in_flight"],
        "sent": counts.sent,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "unknown": counts.unknown,
        "journal_disagreements": differing,
        "rss_mb": round(memory.mb),
    }


def _disagreements(connection: Connection, campaign_id: int, journal: Path) -> int:
    """People whom journal and ledger do not agree on: mailed twice, at another address, or in one of the two only."""
    rows = connection.execute(
        "SELECT seq, lower(email) FROM mailpipe.delivery WHERE campaign_id = %s AND state = 'sent'", (campaign_id,)
    )
    sent: dict[int, str] = dict(rows)
    differing = 0
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            differing += sent.pop(entry["seq"], None) != entry["to"].lower()
    return differing + len(sent)


if __name__ == "__main__":
    main()
