"""The snapshot: a segment's people frozen into a campaign's immutable recipients, and cut into slices and chunks.

Everything happens on the server in one transaction: a snapshot that fails leaves nothing. The segment is staged once; who is left
out (suppressed, not to be mailed, there already) is found on the stage; then the others are numbered and written, once. An address
that SES cannot take stays in, as skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from mailpipe import address, campaign, cells, earlier, frequency, segment, suppression
from mailpipe.db import Connection, queries
from mailpipe.errors import SnapshotError
from mailpipe.experiment import assign
from mailpipe.schedule import timing, when
from mailpipe.sendtime.spec import launches
from mailpipe.settings import Settings
from mailpipe.waves.assign import Waves

QUERIES = queries.beside(__file__)

CALL = 50
"""Recipients of a full call: slices begin at multiples of it, so that no slice ends with a call that is nearly empty."""

_OWN_COLUMNS = ("user_id", "email", "timezone", "locale")


class _Same(NamedTuple):
    """Who is the same person: an SQL hash of each row, and a condition for the rows that have what is hashed."""

    hash: str
    known: str


_USER = _Same("hashtextextended(user_id, 0)", "true")
# People without any address are not one person.
_ADDRESS = _Same("email_hash", "email <> ''")


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
    ours = [campaign_id]
    if found.spec.audience is not None:
        ours.append(earlier.hold(connection, found.spec.audience))
    connection.execute(
        "SELECT set_config('statement_timeout', %s, true), set_config('work_mem', '256MB', true),"
        " set_config('maintenance_work_mem', '512MB', true)",
        (str(int(settings.segment_timeout * 1000)),),
    )
    names = [name for name in columns if name not in _OWN_COLUMNS]
    table = _Table(connection, campaign_id)
    scopes = suppression.scopes(found.spec.topic)
    with segment.explained(chosen):
        returned = table.run(
            "stage",
            {**bound, "scopes": scopes, "topics": suppression.topics(found.spec.topic)},
            segment=segment.statement(chosen),
            consent=settings.consent,
            timezone="CAST(segment.timezone AS text)" if "timezone" in columns else "CAST(NULL AS text)",
            locale="CAST(segment.locale AS text)" if "locale" in columns else "CAST(NULL AS text)",
            variables=", ".join(f"CAST(segment.{_quoted(connection, name)} AS text)" for name in names),
        ).rowcount
    table.run("refuse")
    if nameless := dict(table.run("excluded").fetchall()).get("nameless"):
        raise SnapshotError(
            f"{chosen.path}: user_id is NULL in {nameless} rows; every person needs one. Nothing was kept"
        )
    frequency.refuse(connection, settings.frequency_cap, table.staged, but=ours, due_at=found.due_at)
    unusable = _readdress(table, scopes)
    timed = timing.stage(
        connection,
        found.spec,
        table.staged,
        default_zone=found.spec.default_timezone or settings.default_timezone,
        due_at=found.due_at,
        now=found.now,
    )
    assign.hold_out(connection, found, table.staged)
    placed = cells.place(
        connection, table.staged, when.plain(found.spec, found.due_at), timed, _assigners(settings, found)
    )
    sorting = {"join": placed.join, "order": placed.order}
    # Hardly any segment returns a person under two addresses. The index finds it out, and it is done again, users first.
    if not (_fill(table, [_ADDRESS], sorting) or _fill(table, [_USER, _ADDRESS], sorting)):
        raise SnapshotError(f"{chosen.path}: duplicates remain after they were removed; please report this")
    excluded = {reason: int(count) for reason, count in table.run("excluded").fetchall()}
    recipients = returned - sum(excluded.values())
    placed.measure(connection, table.name, recipients)
    cuts = list(cut(recipients, found.spec.chunk_size, placed.sizes))
    if unusable:
        unusable = [seq for (seq,) in table.run("seqs", {"campaign_id": campaign_id, "places": unusable})]
    table.run("attach")
    of_cuts = [placed.cells[piece.group] for piece in cuts]
    connection.execute(
        QUERIES["chunks"],
        {
            "campaign_id": campaign_id,
            "numbers": [piece.chunk_no for piece in cuts],
            "slices": [piece.slice for piece in cuts],
            "firsts": [piece.first_seq for piece in cuts],
            "sizes": [piece.size for piece in cuts],
            "dues": [cell.window.due_at for cell in of_cuts],
            "ends": [cell.window.expires_at for cell in of_cuts],
            "quiets": [cell.window.quiet_at for cell in of_cuts],
            "zones": [cell.zone for cell in of_cuts],
            "variants": [cell.variant for cell in of_cuts],
            "helds": [cell.held for cell in of_cuts],
            "labels": ["{" + ",".join(cell.labels) + "}" for cell in of_cuts],
        },
    )
    dues = [None if cell.held else cell.window.due_at for cell in placed.cells]
    timing.keep(connection, campaign_id, launches(dues) if found.spec.mode else dues, cuts)
    if unusable:
        table.run("skip", {"campaign_id": campaign_id, "seqs": unusable})
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
            "returned": returned,
            "excluded": Jsonb(excluded),
            "recipients": recipients,
            "timing": Jsonb(placed.to_json(found.spec)),
        },
    )
    taken = get(connection, campaign_id)
    assert taken is not None
    return taken


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


class _Table:
    """The campaign's own partition while it is being made."""

    def __init__(self, connection: Connection, campaign_id: int) -> None:
        self.connection = connection
        self.name = f"mailpipe.recipient_{campaign_id}"
        self.staged = f"{self.name}_staged"
        self._names = {"campaign_id": str(campaign_id), "table": self.name, "staged": self.staged}

    def run(
        self, name: str, parameters: dict[str, Any] | None = None, *, segment: bytes = b"", **fragments: str
    ) -> Any:
        text = QUERIES.texts[name]
        for key, fragment in {**self._names, **fragments}.items():
            text = text.replace("{{" + key + "}}", fragment)
        if parameters is None:
            return self.connection.execute(text.encode())
        # The segment is written for psycopg already.
        return self.connection.execute(queries.to_psycopg(text).replace(b"{{segment}}", segment), parameters)


def _readdress(table: _Table, scopes: list[str]) -> list[int]:
    """Write international domains as they are sent. Answers who has an address that SES cannot take."""
    unusable: list[int] = []
    changed: dict[int, str] = {}
    for place, text in table.run("unusual").fetchall():
        try:
            changed[place] = address.send_form(text or "")
        except address.AddressError:
            unusable.append(place)
            changed[place] = text or ""
    if changed:
        table.run("readdress", {"places": list(changed), "emails": list(changed.values())})
        table.run("refuse_readdressed", {"places": list(changed), "scopes": scopes})
    return unusable


def _fill(table: _Table, same: Sequence[_Same], sorting: Mapping[str, str]) -> bool:
    """Refuse who is the same person as somebody before, number and write the others, by `sorting` and then by place. False, and
    nothing is done, when the unique indexes find somebody twice."""
    try:
        with table.connection.transaction():
            # Sorting a million hashes takes half the time of a hash table of them; the planner expects a few hundred.
            table.connection.execute("SELECT set_config('enable_hashagg', 'off', true)")
            for person in same:
                table.run("refuse_duplicates", hash=person.hash, known=person.known)
            table.run("fill", order=sorting["order"], join=sorting["join"])
            for step in ("tidy", "index_user", "index_email"):
                table.run(step)
    except psycopg.errors.UniqueViolation:
        return False
    return True


def _quoted(connection: Connection, name: str) -> str:
    return sql.Identifier(name).as_string(connection)
