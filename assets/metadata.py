"""How numbers look in Dagster: tables with typed columns, texts as Markdown. Counts only, never a person."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

Metadata = dict[str, Any]

_TYPES: Mapping[type, str] = {bool: "bool", int: "int", float: "float"}


def table(records: Sequence[Mapping[Any, Any]], columns: Mapping[str, type]) -> dg.TableMetadataValue:
    """A table; `columns` gives names and types, also for a table without rows."""
    schema = dg.TableSchema([dg.TableColumn(name, _TYPES.get(kind, "string")) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord({name: row[name] for name in columns}) for row in records], schema)


def moment(when: datetime) -> dg.TimestampMetadataValue:
    """An aware instant, shown in the reader's own zone."""
    return dg.MetadataValue.timestamp(when)


def sql(text: str) -> str:
    """A statement as a Markdown block."""
    return f"```sql\n{text.strip()}\n```"
