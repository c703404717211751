"""One asset per file of `segments/`: who would be selected on a day, in numbers.

A file that is wrong breaks nothing: it stays in the group as an asset whose description is the error, and running it fails
with the same words. What only PostgreSQL can find wrong appears when the asset is materialised.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from assets.failure import explained
from assets.metadata import Metadata, moment, sql, table
from assets.partitions import DAYS, OWNERS
from assets.resources import DatabaseResource, load_settings
from mailpipe import segment as segments
from mailpipe.errors import SegmentError
from mailpipe.segment import Parameter, Segment

LOG = logging.getLogger("mailpipe.assets")
GROUP = "segments"
RESERVED = ("snapshot", "deliveries", "campaign_report", "engagement", "send_hours")
"""Keys of other assets: a segment of that name would replace them."""

_FORM: Mapping[str, type] = {"int": int, "float": float, "text": str, "date": str, "bool": bool}


def build(folder: Path) -> list[dg.AssetsDefinition]:
    """An asset for each file of the folder, broken ones included."""
    found, problems = segments.load_all(folder)
    names = {segment.name for segment in found}
    wrong = [path for path in sorted(folder.glob("*.sql")) if path.stem not in names]
    broken = [(path, str(problem)) for path, problem in zip(wrong, problems, strict=True)]
    broken += [
        (segment.path, f"{segment.path}: the asset {segment.name} is mailpipe's own. Give the file another name")
        for segment in found
        if segment.name in RESERVED
    ]
    assets = [_asset(segment) for segment in found if segment.name not in RESERVED]
    taken = names | set(RESERVED)
    for number, (path, problem) in enumerate(broken):
        LOG.warning("segment left out: %s", problem)
        plain = path.stem.isidentifier() and path.stem.isascii() and path.stem not in taken
        assets.append(_broken(path.stem if plain else f"broken_segment_{number}", problem))
    return assets


def as_of(end_of_day: datetime, now: datetime) -> datetime:
    """The instant that a day stands for: its end, today the present."""
    return min(end_of_day, now)


def _asset(segment: Segment) -> dg.AssetsDefinition:
    # The op's name is kept apart from those of jobs, which a file may share.
    @dg.multi_asset(
        name=f"segment_{segment.name}",
        specs=[
            dg.AssetSpec(
                segment.name,
                group_name=GROUP,
                kinds={"sql", "postgres"},
                owners=[segment.owner],
                description=_description(segment),
                code_version=segment.sha256[:12],
                metadata={"file": f"assets/segments/{segment.path.name}"},
            )
        ],
        partitions_def=DAYS,
        config_schema={parameter.name: _field(parameter) for parameter in segment.parameters},
    )
    def preview(context: dg.AssetExecutionContext, database: DatabaseResource) -> dg.MaterializeResult[Any]:
        from mailpipe.preview import preview as look  # noqa: PLC0415 - pandas, which nothing else here needs

        with explained():
            config = load_settings()
            # Read again: the file may have changed since the code location was loaded.
            current = segments.find(config.segments, segment.name)
            moment_of_day = as_of(context.partition_time_window.end, datetime.now(UTC))
            bound = segments.bind(current, context.op_execution_context.op_config or {}, moment_of_day)
            with database.connect() as pool:
                seen = look(pool, current, bound, timeout=config.segment_timeout)
        breakdowns = {
            f"by_{name}": table(rows.to_dict(orient="records"), {"value": str, "people": int, "share": float})
            for name, rows in seen.breakdowns.items()
        }
        missing = [{"column": name, "rows": number} for name, number in seen.nulls.items()]
        metadata: Metadata = {
            "people": seen.people,
            "rows": seen.rows,
            "seconds": round(seen.seconds, 3),
            "as_of": moment(moment_of_day),
            "parameters": {name: str(value) for name, value in bound.items() if name != "as_of"},
            "sample": table(
                [
                    {str(name): _text(value) for name, value in row.items()}
                    for row in seen.sample.to_dict(orient="records")
                ],
                {column.name: str for column in seen.columns},
            ),
            "missing": table(missing, {"column": str, "rows": int}),
            **breakdowns,
            "sql": dg.MetadataValue.md(sql(current.sql)),
            "sha256": current.sha256,
        }
        context.log.info(f"{segment.name}: {seen.people} people in {seen.seconds:.1f} s")
        return dg.MaterializeResult(metadata=metadata)

    return preview


def _broken(name: str, problem: str) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=f"segment_{name}",
        specs=[
            dg.AssetSpec(
                name,
                group_name=GROUP,
                kinds={"sql"},
                owners=OWNERS,
                description=f"**This segment cannot be used.**\n\n{problem}\n\nMend the file and reload the code location.",
                tags={"mailpipe/broken": "true"},
            )
        ],
        partitions_def=DAYS,
    )
    def refuse() -> dg.MaterializeResult[Any]:
        with explained():
            raise SegmentError(problem)

    return refuse


def _field(parameter: Parameter) -> dg.Field:
    kind: Any = _FORM[parameter.type]
    default = parameter.default
    if default is None:
        kind = dg.Noneable(kind)
    elif parameter.type == "date":
        default = str(default)
    return dg.Field(kind, is_required=False, default_value=default, description=parameter.description or None)


def _description(segment: Segment) -> str:
    lines = [f"**{segment.title}**", segment.description]
    if segment.parameters:
        lines.append(
            "\n".join(
                f"- `{parameter.name}` ({parameter.type}, {parameter.default}): {parameter.description}"
                for parameter in segment.parameters
            )
        )
    return "\n\n".join([*lines, sql(segment.sql)])


def _text(value: object) -> str:
    return "" if value is None else str(value)


ASSETS = build(load_settings().segments)
