"""The snapshot: a segment's people frozen into a campaign's immutable recipients, and cut into slices and chunks.

Everything happens on the server in one transaction: a snapshot that fails leaves nothing. Who is left out, and how the others get
their numbers, is `stage`'s. An address that SES cannot take stays in, as skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from mailpipe import campaign, cells, earlier, frequency, segment
from mailpipe.db import Connection, queries
from mailpipe.errors import SnapshotError
from mailpipe.experiment import assign
from mailpipe.schedule import timing, when
from mailpipe.sendtime.spec import launches
from mailpipe.settings import Settings
from mailpipe.stage import OWN_COLUMNS, Stage
from mailpipe.waves.assign import Waves

QUERIES = queries.beside(__file__)

CALL = 50
"""Recipients of a full call: slices begin at multiples of it, so that no slice ends with a call that is nearly empty."""


@dataclass(frozen=True)
class Snapshot:
    """What was frozen. `returned` counts the rows of the segment, `excluded` those left out by reason; the rest are
    `recipients`, among them those who are skipped for their address. Times are UTC."""

    campaign_id: int
    taken_at: datetime
    segment: str
    segment_sha256: str
    as_of: datetime
    parameters: dict[str, Any]
    variables: list[str]
    returned: int
    excluded: dict[str, int]
    recipients: int
    timing: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "taken_at": self.taken_at.isoformat(), "as_of": self.as_of.isoformat()}


@dataclass(frozen=True, slots=True)
class Cut:
    """One chunk of a snapshot: `size` recipients from `first_seq` on, who are all due in the same window (`group`)."""

    chunk_no: int
    slice: int
    first_seq: int
    size: int
    group: int = 0


def cut(recipients: int, chunk_size: int, groups: Sequence[int] = ()) -> Iterator[Cut]:
    """Cut recipients 1..N into 100 slices of equal numbers of full calls, and each slice into chunks. `groups` are the numbers of
    those who are due together, in order; no chunk holds people of two.

    A small audience fills fewer slices, spread over all hundred: a slice holds at least one full call, or nobody.
    """
    calls = -(-recipients // CALL)
    ends = list(accumulate(groups)) or [recipients]
    chunk_no = group = 0
    for number in range(100):
        start = -(-number * calls // 100) * CALL + 1
        end = min(-(-(number + 1) * calls // 100) * CALL, recipients)
        while start <= end:
            while ends[group] < start:
                group += 1
            size = min(chunk_size, end + 1 - start, ends[group] + 1 - start)
            yield Cut(chunk_no, number, start, size, group)
            chunk_no += 1
            start += size


def get(connection: Connection, campaign_id: int) -> Snapshot | None:
    """The snapshot of a campaign, if it has one."""
    with connection.cursor(row_factory=class_row(Snapshot)) as cursor:
        return cursor.execute(QUERIES["get"], {"campaign_id": campaign_id}).fetchone()


def take(connection: Connection, settings: Settings, key: str) -> Snapshot:
    """Freeze the audience of a campaign, once and for all. `connection` is in autocommit mode.

    Raises:
        SnapshotError: there is one already, the campaign is over, or the segment fails while it runs; nothing is kept.
        SegmentError: the segment's file, columns or parameters are wrong.
        CampaignError: the audience is of an earlier campaign, and what became of its people can still change.
    """
    found = campaign.get(connection, key)
    chosen = campaign.people(connection, settings, found.spec)
    as_of = found.spec.as_of or max(found.now, found.due_at.astimezone(UTC))
    bound = segment.bind(chosen, found.spec.parameters, as_of)
    columns = segment.check(connection, chosen, bound)
    with connection.transaction():
        return _freeze(connection, settings, found, chosen, bound, [column.name for column in columns])


def _freeze(
    connection: Connection,
    settings: Settings,
    found: campaign.Campaign,
    chosen: segment.Segment,
    bound: dict[str, object],
    columns: list[str],
) -> Snapshot:
    campaign_id = found.campaign_id
    row = connection.execute(QUERIES["claim"], {"campaign_id": campaign_id}).fetchone()
    assert row is not None
    if get(connection, campaign_id) is not None:
        raise SnapshotError(
            f"campaign {found.key!r} has a snapshot already; it is never taken twice. Create a new campaign"
        )
    if row[0] in ("done", "cancelled"):
        raise SnapshotError(f"campaign {found.key!r} is {row[0]}; no snapshot is taken of it any more")
    connection.execute(
        "SELECT set_config('statement_timeout', %s, true), set_config('work_mem', '256MB', true),"
        " set_config('maintenance_work_mem', '512MB', true)",
        (str(int(settings.segment_timeout * 1000)),),
    )
    ours, read = [campaign_id], chosen
    if found.spec.audience is not None:
        earlier_id, read = earlier.hold(connection, found.spec.audience)
        ours.append(earlier_id)
    names = [name for name in columns if name not in OWN_COLUMNS]
    stage = Stage(connection, campaign_id, found.spec.topic)
    assigners = _assigners(settings, found)
    leaves_out = found.spec.holdout is not None or settings.frequency_cap is not None
    anew = found.spec.varies or bool(assigners) or leaves_out
    with segment.explained(chosen):
        stage.fill(segment.statement(read), bound, columns, anew=anew)
        if nameless := stage.excluded().get("nameless"):
            raise SnapshotError(
                f"{chosen.path}: user_id is NULL in {nameless} rows; every person needs one. Nothing was kept"
            )
        stage.refuse_unconsenting(settings.consent)
    frequency.refuse(connection, settings.frequency_cap, stage.name, but=ours, due_at=found.due_at)
    stage.readdress()
    timed = timing.stage(
        connection,
        found.spec,
        stage.name,
        default_zone=found.spec.default_timezone or settings.default_timezone,
        due_at=found.due_at,
        now=found.now,
    )
    assign.hold_out(connection, found, stage.name)
    placed = cells.place(connection, stage.name, when.plain(found.spec, found.due_at), timed, assigners)
    if not stage.write(placed):
        raise SnapshotError(f"{chosen.path}: duplicates remain after they were removed; please report this")
    excluded = stage.excluded()
    recipients = stage.returned - sum(excluded.values())
    placed.measure(connection, stage.table, recipients)
    cuts = list(cut(recipients, found.spec.chunk_size, placed.sizes))
    skipped = stage.unusable()
    stage.attach()
    _write_chunks(connection, campaign_id, cuts, placed)
    dues = [None if cell.held else cell.window.due_at for cell in placed.cells]
    timing.keep(connection, campaign_id, launches(dues) if found.spec.mode else dues, cuts)
    if skipped:
        connection.execute(QUERIES["skip"], {"campaign_id": campaign_id, "seqs": skipped})
    connection.execute(
        QUERIES["keep"],
        {
            "campaign_id": campaign_id,
            "segment": chosen.name,
            "sha256": chosen.sha256,
            "sql": chosen.sql,
            "as_of": bound["as_of"],
            "parameters": Jsonb({name: str(value) for name, value in bound.items() if name != "as_of"}),
            "variables": names,
            "returned": stage.returned,
            "excluded": Jsonb(excluded),
            "recipients": recipients,
            "timing": Jsonb(placed.to_json(found.spec)),
        },
    )
    taken = get(connection, campaign_id)
    assert taken is not None
    return taken


def _write_chunks(connection: Connection, campaign_id: int, cuts: Sequence[Cut], placed: cells.Placement) -> None:
    with connection.cursor() as cursor, cursor.copy(QUERIES["chunks"]) as copy:
        for piece in cuts:
            cell = placed.cells[piece.group]
            window = cell.window
            bits = "0" * piece.size
            copy.write_row(
                (
                    *(campaign_id, piece.chunk_no, piece.slice, piece.first_seq, piece.size),
                    *(window.due_at, window.expires_at, window.quiet_at, cell.zone, cell.variant, cell.held),
                    *(list(cell.labels), bits, bits),
                )
            )


def _assigners(settings: Settings, found: campaign.Campaign) -> list[cells.Assigner]:
    """What tells the people of this campaign apart beside their zones, in the order in which each builds on those before."""
    found_by: list[cells.Assigner] = []
    if found.spec.mode == "optimised":
        # Loading numpy takes a tenth of a second, which no other campaign and no look at one should pay.
        from mailpipe.sendtime import plan  # noqa: PLC0415

        found_by.append(plan.SendTimes(found, settings.default_timezone))
    if found.spec.experiment:
        found_by.append(assign.Split.of(found))
    if found.spec.in_waves:
        found_by.append(Waves(found))
    return found_by
