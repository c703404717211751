"""The send path, from lease to record, against the bare calls of the same client: what the promises cost in throughput.

    python -m benchmarks.pipeline [--recipients N] [--quick]

The pace is unlimited in effect (a slot is still taken for every call). The bare loop makes the calls that the send path made, with
bodies made beforehand, the same client and as many threads; it runs before and after, because the machine's speed drifts. `ratio`
is to a plain loop of that kind. `ratio_to_tuned` is to one that is helped as the send path helps itself: all threads on one
processor, Python's garbage collector at rest. So that is what the promises cost.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import deque
from typing import Any

from benchmarks import ground
from benchmarks.ground import Ground, PeakMemory, say
from mailpipe import campaign, ledger, message, send, settings
from mailpipe.interpreter import Processor, collector_at_rest
from mailpipe.links import Signer
from mailpipe.plan import UNLIMITED_THREADS
from mailpipe.ses import request
from mailpipe.ses.client import Ses
from mailpipe.simulator.child import StandIn

RATE = 100_000_000.0
"""Recipients per second that the account allows: slots are a microsecond apart."""
CALL = 50
CALLS = 400
"""Requests made beforehand for the bare loop, which makes them again and again."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description="The send path at full speed.")
    parser.add_argument("--recipients", type=int, default=1_000_000, help="people who are mailed")
    parser.add_argument("--quick", action="store_true", help="60,000 recipients")
    parser.add_argument("--threads", type=int, default=UNLIMITED_THREADS, help="sender threads")
    chosen = parser.parse_args()
    recipients = 60_000 if chosen.quick else chosen.recipients
    with ground.make("pipeline", connections=chosen.threads + 3, threads=chosen.threads) as base:
        with base.database.connection() as connection:
            ground.build(connection, ground.people(recipients, ground.mailable))
        with ground.provider(RATE) as stand_in:
            ses = base.ses(stand_in, chosen.threads)
            result = _measure(base, stand_in, ses, recipients, chosen.threads)
            ses.close()
    if chosen.quick:
        del result["rss_mb"]
    ground.emit(result)


def _measure(base: Ground, stand_in: StandIn, ses: Ses, recipients: int, threads: int) -> dict[str, object]:
    base.create("pipeline", ses)
    base.freeze("pipeline")
    # Half of the bare calls before and half after; together as many as the send path makes, but at most 100,000 recipients.
    calls = min(recipients, 100_000) // CALL // 2
    requests = _requests(base)
    _bare(ses, requests, 4 * threads, threads)  # opens the connections
    say("bare calls")
    plain, tuned = [_bare(ses, requests, calls, threads)], [_tuned(ses, requests, calls, threads)]
    say(f"{plain[0]:,.0f}/s; the send path")
    with PeakMemory() as memory:
        outcome = send.run(base.database, base.settings, ses, "pipeline")
    say(f"{recipients / outcome.seconds:,.0f}/s; bare calls again")
    tuned.append(_tuned(ses, requests, calls, threads))
    plain.append(_bare(ses, requests, calls, threads))
    campaign_id = base.campaign_id("pipeline")
    with base.database.connection() as connection:
        counts = ledger.counts(connection, campaign_id)
    if outcome.end is not send.End.COMPLETE or counts.sent != recipients or stand_in.state()["throttled"]:
        raise SystemExit(f"the campaign is not complete: {outcome.text}; {counts}")
    rate = recipients / outcome.seconds
    return {
        "recipients": recipients,
        "ratio": round(rate / statistics.mean(plain), 3),
        "ratio_to_tuned": round(rate / statistics.mean(tuned), 3),
        "recipients_per_second": round(rate),
        "bare_before": round(plain[0]),
        "bare_after": round(plain[1]),
        "tuned_before": round(tuned[0]),
        "tuned_after": round(tuned[1]),
        "threads": threads,
        "rss_mb": round(memory.mb),
    }


def _requests(base: Ground) -> list[dict[str, Any]]:
    """The requests of the first people of the campaign, as the send path makes them, under another name for the journal."""
    with base.database.connection() as connection:
        found = campaign.get(connection, "pipeline")
        template = campaign.published_template(connection, str(found.template_version))
        rows = connection.execute(
            "SELECT seq, user_id, email, timezone, locale, r.variables, s.variables FROM mailpipe.recipient r"
            " JOIN mailpipe.snapshot s USING (campaign_id) WHERE campaign_id = %s AND seq <= %s ORDER BY seq",
            (found.campaign_id, CALLS * CALL),
        ).fetchall()
    signer = Signer(settings.unsubscribe_keys(base.settings), base.settings.public_url)
    letter = message.Letter(template, rows[0][6], signer, campaign="bare", topic=found.spec.topic)
    entries = []
    for seq, user_id, email, timezone, locale, values, _ in rows:
        person = message.Recipient(seq, user_id, email, timezone, locale, values)
        try:
            entries.append(letter.entry(person))
        except message.Unfit:
            continue
    return [
        request.bulk_request(
            sender=found.spec.sender,
            template_name=template.version,
            configuration_set=base.settings.configuration_set,
            entries=entries[start : start + CALL],
        )
        for start in range(0, len(entries) - CALL + 1, CALL)
    ]


def _tuned(ses: Ses, requests: list[dict[str, Any]], calls: int, threads: int) -> float:
    """`_bare`, helped as the send path helps itself."""
    processor = Processor()
    processor.take()
    with collector_at_rest():
        rate = _bare(ses, requests, calls, threads, processor)
    processor.release()
    return rate


def _bare(
    ses: Ses, requests: list[dict[str, Any]], calls: int, threads: int, processor: Processor | None = None
) -> float:
    """Recipients per second of `calls` calls and nothing else."""
    todo = deque(requests[number % len(requests)] for number in range(calls))
    refused: list[object] = []

    def call() -> None:
        if processor is not None:
            processor.stay()
        while True:
            try:
                one = todo.popleft()
            except IndexError:
                return
            answer = ses.send(one)
            if any(result.message_id is None for result in answer.results):
                refused.append(answer)

    workers = [threading.Thread(target=call) for _ in range(threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - start
    if refused:
        raise SystemExit(f"{len(refused)} bare calls were refused")
    return calls * CALL / seconds


if __name__ == "__main__":
    main()
