"""The suppression list as CSV: `email,scope,reason,source,at`, of which only `email` is needed to read one.

A line that cannot be used is told by its number, never by what it holds, and stops no other line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from mailpipe import address, suppression
from mailpipe.db import Database
from mailpipe.errors import SuppressionError
from mailpipe.suppression import Entry, Reason

COLUMNS = ("email", "scope", "reason", "source", "at")
_BATCH = 5_000


@dataclass
class Imported:
    """Counts of an import: `new` rows are new or have a stronger reason now; `wrong` names lines and what is wrong with them."""

    read: int = 0
    new: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)


def read(
    database: Database, lines: Iterable[str], *, scope: str = suppression.ALL, reason: Reason = "manual", source: str
) -> Imported:
    """Suppress the addresses of a CSV file with a header line; `scope` and `reason` are for lines that say none.

    Raises:
        SuppressionError: there is no column `email`, or the file is no CSV.
    """
    suppression.check_scope(scope)
    done = Imported()
    rows = csv.DictReader(lines)
    if "email" not in (rows.fieldnames or ()):
        raise SuppressionError("line 1: expected a header with a column `email`, and maybe scope, reason and source")
    entries = _entries(rows, done, scope, reason, source)
    while batch := list(islice(entries, _BATCH)):
        with database.connection() as connection:
            done.new += suppression.suppress(connection, batch)
    return done


def write(database: Database, path: Path) -> int:
    """Write the whole list; answers how many rows. The file appears only when it is complete.

    Raises:
        SuppressionError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    count = 0
    try:
        with database.transaction() as connection, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for one in suppression.every(connection):
                writer.writerow((one.email_key, one.scope, one.reason, one.source, one.at.isoformat()))
                count += 1
    except OSError as error:
        raise SuppressionError(f"{path}: cannot be written: {error.strerror}") from error
    partial.replace(path)
    return count


def _entries(rows: csv.DictReader[str], done: Imported, scope: str, reason: Reason, source: str) -> Iterator[Entry]:
    try:
        for row in rows:
            done.read += 1
            given = {
                name: (value or "").strip()
                for name, value in row.items()
                if name in COLUMNS and not isinstance(value, list)
            }
            try:
                yield _entry(given, scope, reason, source)
            except (address.AddressError, SuppressionError) as error:
                done.wrong.append((rows.line_num, str(error)))
    except csv.Error as error:
        raise SuppressionError(f"line {rows.line_num}: not CSV: {error}") from error


def _entry(given: dict[str, str], scope: str, reason: Reason, source: str) -> Entry:
    said = next((one for one in suppression.REASONS if one == (given.get("reason") or reason)), None)
    if said is None:
        raise SuppressionError(f"reason: expected one of {', '.join(suppression.REASONS)}")
    wanted = suppression.check_scope(given.get("scope") or scope)
    # Found out here, so that the line can be named.
    key = suppression.key(given.get("email", ""))
    return Entry(key, wanted, said, given.get("source") or source)
