"""What happened, and how it is going: progress with an honest ETA, one person's fate, exports. Reads only."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from mailpipe import adapters, address, campaign, event, hold, latency, ledger, pace, snapshot
from mailpipe.db import Connection, Database, queries
from mailpipe.errors import CampaignError
from mailpipe.waves import standing

QUERIES = queries.beside(__file__)


@dataclass(frozen=True)
class Progress:
    """People by state (they add up to `total`), and the pace. `rate_per_second` is what was accepted over the last 60 s of
    recorded calls (over the last 2,000 calls if there are more); `eta_minutes` rests on it and is None while nothing moves.
    `waiting` says for what, and until when; then the wait and the limits count too."""

    campaign: str
    state: str
    state_reason: str | None
    total: int
    pending: int
    sending: int
    sent: int
    delivered: int
    failed: int
    skipped: int
    unknown: int
    rate_per_second: float
    eta_minutes: float | None
    queued_chunks: int
    processing_chunks: int
    waiting: str | None
    delivery_p95_seconds: float | None = None
    """From SES's acceptance to the delivery, for 95 of 100 who were delivered; true within a tenth."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reason:
    """How many people ended in an exceptional state for one reason."""

    state: str
    reason: str
    people: int


@dataclass(frozen=True)
class Fate:
    """What happened to one person of a campaign. `called_at`: the answer of the last call that had this person in it (UTC)."""

    campaign: str
    seq: int
    slice: int
    user_id: str
    state: str
    reason: str | None
    detail: str | None
    attempt: int
    called_at: datetime | None
    message_id: str | None
    events: list[str]
    worst: str | None
    """The one that counts of what SES told, whichever came last."""
    told: list[dict[str, Any]]
    """What was exceptional, with the first time of each (UTC) and SES's word for it: kind, at, detail."""
    variant: str | None = None
    """Of an experiment: which mail is theirs; None: the campaign's own, or not decided yet."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "called_at": self.called_at.isoformat() if self.called_at else None}


def progress(connection: Connection, key: str) -> Progress:
    """Where a campaign stands.

    Raises:
        CampaignError: there is no such campaign.
    """
    found = campaign.get(connection, key)
    counts = ledger.counts(connection, found.campaign_id)
    accepted, span = _last_minute(connection, found.campaign_id)
    rate = accepted / max(span, 1.0) if accepted else 0.0
    left = counts.pending + counts.sending
    wait = _wait(connection, found, left)
    eta = None
    if left == 0:
        eta = 0.0
    elif found.state == "sending":
        eta = _eta(left, rate, wait)
    return Progress(
        campaign=found.key,
        state=found.state,
        state_reason=found.state_reason,
        total=counts.total,
        pending=counts.pending,
        sending=counts.sending,
        sent=counts.sent,
        delivered=events(connection, found.campaign_id).get("delivery", 0),
        failed=counts.failed,
        skipped=counts.skipped,
        unknown=counts.unknown,
        rate_per_second=round(rate, 1),
        eta_minutes=None if eta is None else round(eta / 60, 2),
        queued_chunks=counts.queued_chunks,
        processing_chunks=counts.processing_chunks,
        delivery_p95_seconds=latency.percentile(connection, found.campaign_id, 0.95),
        waiting=None if wait is None else wait.text,
    )


def events(connection: Connection, campaign_id: int) -> dict[str, int]:
    """People by kind of event that SES has told of them."""
    rows = connection.execute(QUERIES["events"], {"campaign_id": campaign_id})
    return {kind: int(people) for kind, people in rows}


def reasons(connection: Connection, key: str) -> list[Reason]:
    """Exceptional ends of a campaign by state and reason, the most frequent first."""
    found = campaign.get(connection, key)
    rows = connection.execute(QUERIES["outcomes"], {"campaign_id": found.campaign_id})
    return [Reason(state, reason, int(people)) for state, reason, people in rows]


def measured_rate(connection: Connection, key: str) -> float | None:
    """Recipients accepted per second between the first and the last answer; None before there are two."""
    accepted, span = _pair(connection, "span", campaign.get(connection, key).campaign_id)
    return accepted / span if span else None


def who(connection: Connection, key: str, person: str) -> list[Fate]:
    """What happened to a person, found by address in any case, or by user id; empty if the campaign never had them."""
    found = campaign.get(connection, key)
    try:
        email_key = address.key(person)
    except address.AddressError:
        email_key = person.lower()
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            QUERIES["who"], {"campaign_id": found.campaign_id, "person": person, "email_key": email_key}
        ).fetchall()
    return [
        Fate(
            campaign=found.key,
            seq=row["seq"],
            slice=row["slice"],
            user_id=row["user_id"],
            state=row["state"],
            reason=row["reason"],
            detail=row["detail"],
            attempt=row["attempt"],
            called_at=row["at"],
            message_id=_message_id(row),
            events=row["events"],
            worst=event.worst(row["events"]),
            told=row["told"],
            variant=row["variant"],
        )
        for row in rows
    ]


def export(database: Database, key: str, path: Path, *, state: str | None = None) -> int:
    """Write every recipient of a campaign with its state to a CSV or Parquet file; answers how many.

    A server-side cursor keeps memory constant. The file appears only when it is complete.

    Raises:
        CampaignError: there is no such campaign, no such state, or the file's ending is unknown.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise CampaignError(f"{path}: expected a name that ends in .csv or .parquet")
    if state not in (None, "pending", "sending", "sent", "failed", "skipped", "unknown"):
        raise CampaignError(f"state {state!r}: expected pending, sending, sent, failed, skipped or unknown")
    partial = path.with_name(path.name + ".part")
    with database.transaction() as connection:
        found = campaign.get(connection, key)
        with connection.cursor("export") as cursor:
            cursor.itersize = 10_000
            cursor.execute(QUERIES["export"], {"campaign_id": found.campaign_id, "state": state})
            try:
                write = _write_csv if path.suffix == ".csv" else _write_parquet
                count = write(partial, _pages(cursor))
            except OSError as error:
                raise CampaignError(f"{path}: cannot be written: {error.strerror}") from error
    partial.replace(path)
    return count


_COLUMNS = ("seq", "user_id", "email", "state", "reason", "slice", "attempt", "variant")


def _pages(cursor: psycopg.ServerCursor[Any]) -> Iterator[list[tuple[Any, ...]]]:
    while rows := cursor.fetchmany(10_000):
        yield rows


def _write_csv(path: Path, pages: Iterator[list[tuple[Any, ...]]]) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for rows in pages:
            writer.writerows(rows)
            count += len(rows)
    return count


def _write_parquet(path: Path, pages: Iterator[list[tuple[Any, ...]]]) -> int:
    # Only here: importing pyarrow takes longer than most commands.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = (pa.int32(), pa.string(), pa.string(), pa.string(), pa.string(), pa.int16(), pa.int16(), pa.string())
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in pages:
            columns = zip(*rows, strict=True)
            writer.write_batch(pa.record_batch(list(map(list, columns)), schema=schema))
            count += len(rows)
    return count


def _last_minute(connection: Connection, campaign_id: int) -> tuple[int, float]:
    """Recipients accepted in the last minute, and over how many seconds."""
    with connection.transaction():
        # New rows are in no statistics: the planner expects a handful, and would read and sort all of the minute.
        connection.execute("SET LOCAL enable_bitmapscan = off")
        return _pair(connection, "rate", campaign_id)


def _pair(connection: Connection, name: str, campaign_id: int) -> tuple[int, float]:
    row = connection.execute(QUERIES[name], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return int(row[0]), float(row[1] or 0.0)


@dataclass(frozen=True)
class _Wait:
    """For what a campaign waits, for how many seconds from now (None: nobody knows), and how fast it may go then (recipients per
    second)."""

    text: str
    seconds: float | None
    rate: float | None


def _wait(connection: Connection, found: campaign.Campaign, left: int) -> _Wait | None:
    if left == 0 or found.state != "sending":
        return None
    limits = pace.read(connection, found.campaign_id, apart=adapters.MOST.get(found.spec.adapter))
    frees = pace.quota_frees(connection, limits.day)
    if frees is not None:
        return _Wait(_until("quota", frees), (frees - datetime.now(UTC)).total_seconds(), limits.real_rate)
    known = pace.state(connection)
    if known.blocked_until is not None and limits.blocked_for is not None:
        text = _until(str(known.blocked_reason), known.blocked_until)
        return _Wait(text, limits.blocked_for or 0.0, limits.real_rate)
    due = ledger.next_due(connection, found.campaign_id, (0, 99)).pending
    if due is not None and due > 0:
        return _Wait(f"next people are due in {due:.0f} s", due, limits.real_rate)
    if due is None and (held := hold.waiting(connection, found.campaign_id)):
        text = " and ".join(f"{people} people wait for {_DECISIONS[reason]}" for reason, people in held.items())
        if "wave" in held and (gate := standing.look(connection, found)):
            text += f" after {gate.stage.label} ({gate.text})"
        return _Wait(text, None, limits.real_rate)
    return None


_DECISIONS = {"experiment": "the decision of the experiment", "wave": "the gate"}


def _until(reason: str, instant: datetime) -> str:
    return f"waiting for {reason} until {instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _eta(left: int, rate: float, wait: _Wait | None) -> float | None:
    """Seconds to the end; while a campaign waits, those of the wait and what is left at the rate that it may have then."""
    if wait is None:
        return left / rate if rate > 0 else None
    then = rate or wait.rate
    return wait.seconds + left / then if then and wait.seconds is not None else None


def _message_id(row: dict[str, Any]) -> str | None:
    """The id of this person's message: the accepted ones of a call stand in seq order."""
    if row["positions"] is None:
        return None
    rank = row["positions"][: row["position"]].count("1")
    codes = row["codes"]
    if codes is not None and codes[rank] != "s":
        return None
    accepted_before = rank if codes is None else codes[:rank].count("s")
    ids: list[str] = ledger.unpack_message_ids(row["message_ids"], row["message_ids_text"])
    return ids[int(accepted_before)]


def snapshot_summary(connection: Connection, key: str) -> snapshot.Snapshot:
    """The snapshot of a campaign.

    Raises:
        CampaignError: it has none yet.
    """
    taken = snapshot.get(connection, campaign.get(connection, key).campaign_id)
    if taken is None:
        raise CampaignError(f"campaign {key!r} has no snapshot yet")
    return taken
