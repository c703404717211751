"""Reads a history of opens that somebody else kept: Parquet or CSV, rows checked one by one. The rest is `intake`'s duty.

Files of people are as people make them: with a byte order mark, UTF-16, semicolons or tabs, headers in other words, and lines above
the header. What cannot be read is told by line and column, never by what it holds.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from mailpipe.errors import EngagementError

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "recipient_id": ("user_id", "person_id", "contact_id", "customer_id", "subscriber_id", "user", "recipient"),
    "event_type": ("event", "type", "action", "kind", "activity"),
    "opened_at": (
        "at",
        "timestamp",
        "occurred_at",
        "event_time",
        "event_at",
        "time",
        "clicked_at",
        "datetime",
        "created_at",
    ),
    "sent_at": ("send_time", "sent_time", "sent", "mailed_at"),
    "timezone": ("time_zone", "tz", "zone"),
    "user_agent": ("useragent", "agent", "ua"),
    "ip": ("ip_address", "ipaddress"),
}
"""The columns of a history, with the other names that they are known by. The first three are needed."""
NEEDED = ("recipient_id", "event_type", "opened_at")

Kind = Literal["open", "click"]
KINDS: Mapping[str, Kind] = {
    "open": "open", "opened": "open", "email_open": "open", "email_opened": "open", "unique_open": "open", "view": "open",
    "click": "click", "clicked": "click", "email_click": "click", "email_clicked": "click", "unique_click": "click",
    "link_click": "click",
}  # fmt: skip
IGNORED = frozenset(
    {
        "send", "sent", "delivered", "delivery", "processed", "bounce", "bounced", "complaint", "spam", "unsubscribe",
        "unsubscribed", "dropped", "deferred", "reject", "rejected", "failed",
    }
)  # fmt: skip
"""Kinds that such tables hold too, and that say nothing here."""
MOST_ERRORS = 10
_HEAD_LINES = 20
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One reaction as it was told. Times are UTC."""

    recipient_id: str
    kind: Kind
    at: datetime
    sent_at: datetime | None
    timezone: str | None
    agent: str | None
    ip: str | None


class _Wrong(ValueError):
    def __init__(self, column: str, text: str) -> None:
        super().__init__(f"column {column}: {text}")


def digest(path: Path) -> bytes:
    """The same for files of the same content. Raises EngagementError: the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise EngagementError(f"{path}: cannot be read: {error.strerror}") from None


def read(path: Path, zone: tzinfo = UTC) -> Iterator[Row]:
    """The reactions of a file, in its order; times without an offset are those of `zone`.

    Raises:
        EngagementError: a column is missing, or rows are wrong; the text names up to MOST_ERRORS of them by line (of a Parquet file
            by row) and column. It is raised at the end, so whoever reads must be able to forget what was read.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from _checked(path, "row", _parquet(path), zone)
    else:
        yield from _checked(path, "line", _csv(path), zone)


def named(names: Iterable[str | None]) -> dict[str, int]:
    """Which column stands where, by the names of a header. A column's own name wins over another name for it."""
    plain = [_plain(name or "") for name in names]
    found: dict[str, int] = {}
    for column, others in COLUMNS.items():
        place = next((plain.index(name) for name in (column, *others) if name in plain), None)
        if place is not None:
            found[column] = place
    return found


@lru_cache(maxsize=1024)
def kind_of(text: str) -> Kind | None:
    """What an event type means; None: it says nothing here. Raises ValueError: nobody knows it."""
    name = _plain(text)
    if name in KINDS:
        return KINDS[name]
    if name in IGNORED:
        return None
    raise ValueError("neither an open nor a click; write open or click")


def _plain(name: str) -> str:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip().strip("\ufeff"))
    return re.sub(r"[^a-z0-9]+", "_", apart.lower()).strip("_")


def _checked(path: Path, unit: str, rows: Iterable[tuple[int, Mapping[str, Any]]], zone: tzinfo) -> Iterator[Row]:
    wrong: list[str] = []
    number = 0
    for place, row in rows:
        try:
            made = _row(row, zone)
        except _Wrong as error:
            number += 1
            if number <= MOST_ERRORS:
                wrong.append(f"{path}: {unit} {place}, {error}")
            continue
        if made is not None and not wrong:
            yield made
    if wrong:
        more = f"\nand {number - MOST_ERRORS:,} more" if number > MOST_ERRORS else ""
        raise EngagementError("\n".join(wrong) + f"{more}\nNothing was brought in. Mend the file and import it again")


def _row(row: Mapping[str, Any], zone: tzinfo) -> Row | None:
    try:
        kind = kind_of(_text(row.get("event_type")))
    except ValueError as error:
        raise _Wrong("event_type", str(error)) from None
    if kind is None:
        return None
    person = _text(row.get("recipient_id"))
    if not person:
        raise _Wrong("recipient_id", "is empty")
    if len(person) > _LONGEST or "\0" in person:
        raise _Wrong("recipient_id", "is no id")
    if "@" in person:
        raise _Wrong("recipient_id", "is an address; people are known by the user_id of your segments here")
    at = _time("opened_at", row.get("opened_at"), zone)
    if at is None:
        raise _Wrong("opened_at", "is empty")
    sent_at = _time("sent_at", row.get("sent_at"), zone)
    if sent_at is not None and sent_at > at:
        raise _Wrong("sent_at", "is after opened_at")
    return Row(
        person, kind, at, sent_at, _text(row.get("timezone")) or None,
        _text(row.get("user_agent")) or None, _text(row.get("ip")) or None,
    )  # fmt: skip


def _text(value: object) -> str:
    # pandas writes whole numbers as 7.0 where others of the column are missing.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip().replace("\0", "")


def _time(column: str, value: object, zone: tzinfo) -> datetime | None:
    if isinstance(value, datetime):
        found = value
    else:
        text = _text(value)
        if not text:
            return None
        try:
            if re.fullmatch(r"\d{10}(\.\d+)?|\d{13}", text):
                return datetime.fromtimestamp(float(text) / (1000 if len(text) == 13 else 1), UTC)
            found = datetime.fromisoformat(text.removesuffix(" UTC"))
        except ValueError:
            raise _Wrong(column, "is no time; write it like 2026-01-31T09:30:00Z") from None
    found = (found.replace(tzinfo=zone) if found.tzinfo is None else found).astimezone(UTC)
    if not 2000 <= found.year <= 2100:
        raise _Wrong(column, "is no time of this century")
    return found


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException):
        raise EngagementError(f"{path}: is no Parquet file that can be read") from None
    with file:
        names = file.schema_arrow.names
        places = _header(path, names, "")
        number = 0
        for batch in file.iter_batches(columns=[names[place] for place in places.values()]):
            values = {column: batch.column(names[place]).to_pylist() for column, place in places.items()}
            for row in zip(*values.values(), strict=True):
                number += 1
                yield number, dict(zip(values, row, strict=True))


def _csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        lines = io.TextIOWrapper(raw, encoding=encoding, newline="")
        try:
            head = [line for _, line in zip(range(_HEAD_LINES), lines, strict=False)]
            delimiter, skipped = _dialect(path, head)
            lines.seek(0)
            for _ in range(skipped):
                lines.readline()
            reader = csv.reader(lines, delimiter=delimiter)
            places = _header(path, next(reader), f" line {skipped + 1}:")
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield (
                        reader.line_num + skipped,
                        {column: row[place] if place < len(row) else None for column, place in places.items()},
                    )
        except UnicodeError:
            raise EngagementError(f"{path}: is not written in UTF-8; save it as CSV UTF-8") from None
        except csv.Error as error:
            raise EngagementError(f"{path}: is no CSV: {error}") from None


def _dialect(path: Path, head: Sequence[str]) -> tuple[str, int]:
    """The delimiter, and how many lines stand above the header."""
    for number, line in enumerate(head):
        for delimiter in (",", ";", "\t", "|"):
            cells = next(csv.reader([line], delimiter=delimiter), [])
            if {"recipient_id", "opened_at"} <= set(named(cells)):
                return delimiter, number
    first = head[0] if head else ""
    delimiter = max((",", ";", "\t", "|"), key=first.count)
    _header(path, next(csv.reader([first], delimiter=delimiter), []), " line 1:")
    return delimiter, 0


def _header(path: Path, names: Sequence[str | None], where: str) -> dict[str, int]:
    places = named(names)
    missing = [column for column in NEEDED if column not in places]
    if missing:
        if not places:
            # Perhaps there is no header, and these are the people themselves.
            shown = f"There is no header in its first {_HEAD_LINES} lines that names any"
        else:
            shown = f"It has: {', '.join(str(name).strip() for name in names[:20] if name)}"
        raise EngagementError(
            f"{path}:{where} has no column {' and no '.join(missing)}. {shown}. Needed are {', '.join(NEEDED)}; known too are"
            f" {', '.join(name for name in COLUMNS if name not in NEEDED)}"
        )
    return places
