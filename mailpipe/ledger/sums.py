"""What the ledger says of a campaign: people by state, and when the next chunk may be leased. Reads only, and only `chunk`."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import dict_row

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)


@dataclass(frozen=True, kw_only=True)
class States:
    """People by state. The six states add up to `total`."""

    total: int = 0
    sent: int = 0
    failed: int = 0
    skipped: int = 0
    unknown: int = 0
    sending: int = 0
    pending: int = 0


@dataclass(frozen=True, kw_only=True)
class Counts(States):
    """People of a campaign by state, and its chunks."""

    chunks: int
    queued_chunks: int
    processing_chunks: int


@dataclass(frozen=True, kw_only=True)
class SliceCounts(States):
    """People of one slice by state."""

    slice: int

    @property
    def complete(self) -> bool:
        return self.pending == 0 and self.sending == 0


@dataclass(frozen=True, slots=True)
class Due:
    """Seconds until a chunk may be leased (negative: it may be now): `pending`, the next one that is free; `freed`, the next one
    whose holder's lease ends if they stay silent. None: there is none."""

    pending: float | None
    freed: float | None

    @property
    def soonest(self) -> float | None:
        return min((seconds for seconds in (self.pending, self.freed) if seconds is not None), default=None)


def counts(connection: Connection, campaign_id: int) -> Counts:
    """People by state; a sum over the chunks, never kept beside them."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(QUERIES["counts"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    return Counts(**{name: int(value) for name, value in row.items()})


def slices(connection: Connection, campaign_id: int, between: tuple[int, int] = (0, 99)) -> dict[int, SliceCounts]:
    """People by state for every slice of the range, also for those that hold nobody."""
    found = {number: SliceCounts(slice=number) for number in range(between[0], between[1] + 1)}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(
            QUERIES["slices"],
            {"campaign_id": campaign_id, "first_slice": between[0], "last_slice": between[1]},
        ):
            found[row["slice"]] = SliceCounts(**{name: int(value) for name, value in row.items()})
    return found


def next_due(connection: Connection, campaign_id: int, between: tuple[int, int]) -> Due:
    """When the next chunk of these slices may be leased."""
    row = connection.execute(
        QUERIES["next_due"], {"campaign_id": campaign_id, "first_slice": between[0], "last_slice": between[1]}
    ).fetchone()
    assert row is not None
    return Due(*(None if seconds is None else float(seconds) for seconds in row))
