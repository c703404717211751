"""The folded days as Parquet: `mails/day=2026-01-31/` and `reactions/day=2026-01-31/`, one file each, without addresses and names.

`mails`: person_id, campaign, variant, sent_at, hour. `reactions`, the first human open and the first human click of a mail:
person_id, campaign, variant, sent_at, kind, hour, latency (seconds after the send). Hours are those of the person's own clocks; the
day is that of the send in UTC. Files appear whole, and a day that is written again replaces what was there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from mailpipe.db import Connection

Kind = Literal["mails", "reactions"]
FILE = "part-0.parquet"
_NAME = pa.dictionary(pa.int32(), pa.string())
_AT = pa.timestamp("us", tz="UTC")
SCHEMAS: dict[Kind, Any] = {
    "mails": pa.schema(
        [("person_id", pa.string()), ("campaign", _NAME), ("variant", _NAME), ("sent_at", _AT), ("hour", pa.int8())]
    ),
    "reactions": pa.schema(
        [("person_id", pa.string()), ("campaign", _NAME), ("variant", _NAME), ("sent_at", _AT), ("kind", _NAME),
         ("hour", pa.int8()), ("latency", pa.float32())]
    ),
}  # fmt: skip


class Day:
    """The files of one day while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[Kind, Any] = {}

    def add(self, kind: Kind, connection: Connection, statement: bytes, campaign: str) -> None:
        """Append the rows of a statement: all columns of the kind in their order, but for `campaign`."""
        schema = SCHEMAS[kind]
        names = [name for name in schema.names if name != "campaign"]
        with tempfile.TemporaryFile(dir=self._folder) as rows:
            with (
                connection.cursor() as cursor,
                cursor.copy(b"COPY (" + statement.rstrip(b"; \n") + b") TO STDOUT (FORMAT csv)") as copy,
            ):
                for piece in copy:
                    rows.write(piece)
            if rows.tell() == 0:
                return
            rows.seek(0)
            batches = pyarrow.csv.open_csv(
                rows,
                read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=8 << 20),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={name: schema.field(name).type for name in names if schema.field(name).type != _NAME}
                    | {name: pa.string() for name in names if schema.field(name).type == _NAME},
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=[""],
                ),
            )
            for batch in batches:
                table = pa.Table.from_batches([batch])
                table = table.append_column("campaign", pa.array([campaign] * table.num_rows, pa.string()))
                self._writer(kind).write_table(table.select(schema.names).cast(schema))

    def _writer(self, kind: Kind) -> Any:
        if kind not in self._writers:
            path = self._folder / f"{kind}.parquet"
            self._writers[kind] = pyarrow.parquet.ParquetWriter(path, SCHEMAS[kind], compression="zstd")
        return self._writers[kind]

    def close(self) -> list[Kind]:
        """Finish the files; answers which there are."""
        for writer in self._writers.values():
            writer.close()
        return list(self._writers)


@contextmanager
def writing(folder: Path, day: date) -> Iterator[Day]:
    """Write a day. Its files take their places when the context ends well; a kind without rows leaves no file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as temporary:
        made = Day(Path(temporary))
        try:
            yield made
        finally:
            present = made.close()
        for kind in SCHEMAS:
            place = partition(folder, kind, day)
            if kind in present:
                place.mkdir(parents=True, exist_ok=True)
                (Path(temporary) / f"{kind}.parquet").replace(place / FILE)
            else:
                shutil.rmtree(place, ignore_errors=True)


def partition(folder: Path, kind: Kind, day: date) -> Path:
    return folder / kind / f"day={day.isoformat()}"


def days(folder: Path, kind: Kind) -> list[date]:
    """The days that are there, in order."""
    return sorted(date.fromisoformat(one.name.removeprefix("day=")) for one in (folder / kind).glob("day=????-??-??"))


def read(folder: Path, kind: Kind, first: date, last: date) -> Any:
    """The rows of these days (both included) as a pyarrow Table."""
    files = [partition(folder, kind, day) / FILE for day in days(folder, kind) if first <= day <= last]
    if not files:
        return SCHEMAS[kind].empty_table()
    return pyarrow.dataset.dataset(files, schema=SCHEMAS[kind], format="parquet").to_table()


def drop(folder: Path, last: date, keep_days: int) -> int:
    """Remove the days that are more than `keep_days` before `last`. Answers how many."""
    old = [(kind, day) for kind in SCHEMAS for day in days(folder, kind) if day < last - timedelta(days=keep_days)]
    for kind, day in old:
        shutil.rmtree(partition(folder, kind, day), ignore_errors=True)
    return len({day for _, day in old})
