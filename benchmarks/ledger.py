"""Our ledger against the classic row ledger: same server, same run, same columns, same durability, one connection each.

    python -m benchmarks.ledger [--recipients N] [--quick]

Both freeze the same segment (with duplicates in other case), both ask for suppression and consent when they freeze and again when
they claim, and both must end with the same people in the same states. No HTTP: answers are made up.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from benchmarks import classic, ground
from benchmarks.ground import Ground, say
from mailpipe import campaign, interpreter, ledger, plan, report
from mailpipe.db import Connection, Kept
from mailpipe.demo import audience
from mailpipe.demo.audience import Shares
from mailpipe.ses.answer import Answer, Kind, Result

CALL = 50
LEASE = 120.0
CLASSIC = 1
"""The campaign's number in the classic ledger."""
OWNER = "benchmark"
# Nobody whom the pre-check of addresses would skip: the classic ledger has none.
SHARES = Shares(unusable=0)
UNIQUE = Shares(unusable=0, duplicate=0)


@dataclass(frozen=True)
class Size:
    """How many people are frozen, how often, and how many of them are then claimed and marked."""

    recipients: int
    looped: int
    rounds: int


QUICK = Size(150_000, 40_000, 2)


@dataclass
class Meter:
    """Seconds, bytes of WAL and the durations of progress queries of one ledger's loop."""

    seconds: float = 0.0
    wal: int = 0
    progress: list[float] = field(default_factory=list)


class Provider:
    """Made-up answers: 1 % refused for good, the others with an id in the form of SES. `seconds` is what making them took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def answer(self, seqs: Sequence[int]) -> Answer:
        start = time.perf_counter()
        made = Answer(tuple(self._result(seq) for seq in seqs), seconds=0.1)
        self.seconds += time.perf_counter() - start
        return made

    @staticmethod
    def _result(seq: int) -> Result:
        digits = hashlib.blake2b(seq.to_bytes(4), digest_size=24).hexdigest()
        if int(digits[:8], 16) % 100 == 0:
            return Result(Kind.FAILED, "message_rejected")
        parts = (digits[:16], digits[16:24], digits[24:28], digits[28:32], digits[32:36], digits[36:])
        return Result(Kind.SENT, message_id="-".join(parts) + "-000000")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description="Our ledger and the classic one.")
    parser.add_argument("--recipients", type=int, default=1_000_000, help="people in the snapshot")
    parser.add_argument(
        "--quick", action="store_true", help="150,000 recipients, of whom 40,000 are claimed and marked"
    )
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else Size(chosen.recipients, chosen.recipients, 3)
    with ground.make("ledger", connections=2) as base, ground.provider(1e6) as stand_in:
        ses = base.ses(stand_in, 1)
        for number in range(size.rounds + 1):
            base.create(f"ledger-{number}", ses)
        ses.close()
        with base.database.connection() as connection:
            ground.emit(_measure(base, connection, size))


def _measure(base: Ground, connection: Connection, size: Size) -> dict[str, object]:
    recipients = size.recipients
    unique_ours, unique_classic = _freeze_unique(base, connection, size)
    connection.execute(b"TRUNCATE mailpipe.suppression")
    ground.build(connection, ground.people(recipients, lambda counts: counts.recipients, SHARES), SHARES)
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(size.rounds):
        # Each goes first in turn.
        for is_ours in (True, False) if number % 2 == 0 else (False, True):
            if is_ours:
                ours.append(_timed(connection, partial(base.freeze, f"ledger-{number}")))
            else:
                connection.execute(b"TRUNCATE classic_recipient")
                theirs.append(_timed(connection, partial(_freeze_classic, connection)))
    key = f"ledger-{size.rounds - 1}"
    campaign_id = base.campaign_id(key)
    _assert_same_people(connection, campaign_id, recipients)
    say(f"snapshots: ours {ours}, classic {theirs}; somebody changes their mind")
    audience.opt_out_some(connection, 0.001)
    connection.execute(
        "INSERT INTO mailpipe.suppression (email_key, reason, source)"
        " SELECT DISTINCT lower(email), 'complaint', 'benchmark' FROM users"
        # Keys are in ASCII, as SES writes addresses.
        " WHERE user_id % 997 = 0 AND octet_length(email) = char_length(email) ON CONFLICT DO NOTHING"
    )
    # Else autovacuum does it for all the tables of the snapshots during the first loop: 1 GB of log that is nobody's.
    connection.execute(b"VACUUM (FREEZE, ANALYZE)")
    mine, other, counts = _loops(base, connection, key, size.looped)
    _assert_same_states(connection, campaign_id, size.looped)
    return {
        "recipients": recipients,
        "looped_recipients": size.looped,
        "snapshot_ratio": _ratio(statistics.median(theirs), statistics.median(ours)),
        "loop_time_ratio": _ratio(other.seconds, mine.seconds),
        "wal_ratio": _ratio(other.wal, mine.wal),
        "progress_ms": round(statistics.median(mine.progress) * 1e3, 2),
        "counts_ms": round(counts * 1e3, 2),
        "classic_progress_ms": round(statistics.median(other.progress) * 1e3, 2),
        "snapshot_seconds": round(statistics.median(ours), 2),
        "classic_snapshot_seconds": round(statistics.median(theirs), 2),
        "unique_snapshot_ratio": _ratio(unique_classic, unique_ours),
        "unique_snapshot_seconds": round(unique_ours, 2),
        "unique_classic_snapshot_seconds": round(unique_classic, 2),
        "loop_seconds": round(mine.seconds, 2),
        "classic_loop_seconds": round(other.seconds, 2),
        "loop_wal_mb": round(mine.wal / 1e6, 1),
        "classic_loop_wal_mb": round(other.wal / 1e6, 1),
    }


def _freeze_unique(base: Ground, connection: Connection, size: Size) -> tuple[float, float]:
    """Seconds of both snapshots of a segment in which nobody comes twice; the classic one need not look for duplicates."""
    classic.create(connection)
    ground.build(connection, ground.people(size.recipients, lambda counts: counts.recipients, UNIQUE), UNIQUE)
    return (
        _timed(connection, lambda: base.freeze(f"ledger-{size.rounds}")),
        _timed(connection, lambda: _freeze_classic(connection, duplicates=False)),
    )


def _freeze_classic(connection: Connection, *, duplicates: bool = True) -> None:
    classic.take(connection, CLASSIC, datetime.now(UTC), duplicates=duplicates)


def _timed(connection: Connection, step: Callable[[], object]) -> float:
    # Neither side pays for what the other has left to be written.
    connection.execute(b"CHECKPOINT")
    start = time.perf_counter()
    step()
    return round(time.perf_counter() - start, 3)


def _loops(base: Ground, connection: Connection, key: str, recipients: int) -> tuple[Meter, Meter, float]:
    """Ours first: the dead rows of the classic ledger keep autovacuum busy for a while, which is not ours to pay. Python's garbage
    collector is for both what it is in a sender."""
    campaign_id = base.campaign_id(key)
    campaign.start(connection, key, actor="ana")
    provider = Provider()
    kept = Kept(base.database)
    with interpreter.collector_at_rest(), kept.use() as second:
        steps = _work(second, campaign_id, base.settings.consent, provider.answer)
        say("our claims and marks")
        ours = _metered(connection, steps, provider, recipients, lambda: report.progress(connection, key))
        counts = statistics.median(_looks(lambda: ledger.counts(connection, campaign_id)))
    kept.give_back()
    provider = Provider()
    with interpreter.collector_at_rest(), base.database.connection() as second:
        steps = classic.work(second, CLASSIC, 0, provider.answer)
        say("classic claims and marks")
        theirs = _metered(connection, steps, provider, recipients, lambda: classic.progress(connection, CLASSIC))
    return ours, theirs, counts


def _metered(
    connection: Connection, steps: Iterator[int], provider: Provider, recipients: int, progress: Callable[[], object]
) -> Meter:
    """Run a loop, without the time that made-up answers take; look at the progress at each quarter."""
    meter = Meter()
    looks = [recipients * quarter // 4 for quarter in (1, 2, 3)] + [0]
    connection.execute(b"CHECKPOINT")
    log = _wal(connection)
    start = time.perf_counter()
    for seq in steps:
        if seq >= recipients:
            break
        if looks[0] and seq >= looks[0]:
            meter.seconds += time.perf_counter() - start
            meter.progress += _looks(progress)
            del looks[0]
            start = time.perf_counter()
    meter.seconds += time.perf_counter() - start - provider.seconds
    meter.wal = _wal(connection) - log
    meter.progress += _looks(progress)
    return meter


def _looks(progress: Callable[[], object]) -> list[float]:
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        progress()
        durations.append(time.perf_counter() - start)
    return durations


def _work(
    connection: Connection, campaign_id: int, consent: str, answer: Callable[[Sequence[int]], Answer]
) -> Iterator[int]:
    """Our claims and marks, in the steps of `mailpipe.worker` where calls follow each other closely; yields the last seq of each
    chunk."""
    opening = ledger.opening(campaign_id, "news", consent=consent)
    low = 0
    while held := ledger.lease(connection, campaign_id, (0, 99), owner=OWNER, seconds=LEASE, low=low):
        low = held.chunk_no
        people = ledger.people(connection, held)
        calls = [people[start : start + CALL] for start in range(0, len(people), CALL)]
        answered: list[ledger.Answered] = []
        for first in range(0, len(calls), plan.TOGETHER):
            # One commit: the answers of the calls before, and the opening of the next ones.
            window = calls[first : first + plan.TOGETHER]
            opened = ledger.open_calls(connection, held, window, opening=opening, seconds=LEASE, answered=answered)
            if opened is None:
                raise SystemExit("the lease was lost: the machine stood still for two minutes")
            answered = [ledger.Answered(one, answer(one.seqs)) for one in opened if one.seqs]
        if not answered or ledger.record(connection, held, answered):
            ledger.release(connection, held)
        yield held.first_seq + held.size - 1


def _assert_same_people(connection: Connection, campaign_id: int, recipients: int) -> None:
    """The same people at the same addresses, but for domains that are written as SES takes them."""
    differing = _count(
        connection,
        "SELECT count(*) FROM (SELECT * FROM mailpipe.recipient WHERE campaign_id = %s) r"
        " FULL JOIN (SELECT * FROM classic_recipient WHERE campaign_id = %s) c USING (user_id)"
        " WHERE r.seq IS DISTINCT FROM c.seq OR r.variables IS DISTINCT FROM c.variables",
        campaign_id,
    )
    people = _count(connection, "SELECT count(*) FROM classic_recipient WHERE %s > 0 AND campaign_id = %s", campaign_id)
    if differing or people != recipients:
        raise SystemExit(f"the snapshots differ in {differing} of {people} people, expected {recipients}")


def _assert_same_states(connection: Connection, campaign_id: int, looped: int) -> None:
    """Everybody is in the same state for the same reason, everybody mailed has an id, and nobody looped over is pending."""
    differing = _count(
        connection,
        "SELECT count(*) FROM (SELECT * FROM mailpipe.delivery WHERE campaign_id = %s) d"
        " FULL JOIN (SELECT * FROM classic_recipient WHERE campaign_id = %s) c USING (seq)"
        " WHERE (d.user_id, d.state, d.reason) IS DISTINCT FROM (c.user_id, c.status, c.reason)"
        " OR (c.status = 'sent') <> (c.message_id IS NOT NULL)",
        campaign_id,
    )
    missing = _count(
        connection,
        "SELECT (SELECT sum(accepted - length(message_ids) / 24) FROM mailpipe.call WHERE campaign_id = %s)"
        " + (SELECT count(*) FROM classic_recipient WHERE campaign_id = %s AND status NOT IN ('sent', 'failed', 'skipped')"
        f" AND seq <= {looped})",
        campaign_id,
    )
    if differing or missing:
        raise SystemExit(f"the ledgers differ in {differing} people; {missing} have no end or no id")


def _count(connection: Connection, statement: str, campaign_id: int) -> int:
    row = connection.execute(statement.encode(), (campaign_id, CLASSIC)).fetchone()
    assert row is not None
    return int(row[0])


def _wal(connection: Connection) -> int:
    row = connection.execute(b"SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def _ratio(theirs: float, ours: float) -> float:
    return round(theirs / ours, 2)


if __name__ == "__main__":
    main()
