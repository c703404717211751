"""Who of an audience tries which variant, who waits for the decision, and who gets no mail so that its effect can be seen.

Run in the transaction of the snapshot. Which position a person has is told in `buckets`; arms are mixed in sending order,
so that all of them go out at the same time. The rest is planned for the time of the decision: at once then, or, where
people are due by their own clocks, at the same time of another day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from mailpipe.campaign import Campaign
from mailpipe.campaign_file import Spec
from mailpipe.cells import Cell, Column
from mailpipe.db import Connection, queries
from mailpipe.errors import SnapshotError
from mailpipe.experiment import buckets
from mailpipe.experiment.spec import Experiment, Variant
from mailpipe.schedule.when import PAST_GRACE, Quiet, Window, after_quiet

QUERIES = queries.beside(__file__)

TEST, REST = "test", "rest"
"""Labels of cells."""
DAY = timedelta(days=1)
_LAST = 2**31
"""The rest comes after all parts of the arms."""
_MOST_PARTS = 200
"""Parts of an arm in sending order; more would not mix it better."""
_CLOCKS = 24
"""By so many due times people are spread where they are due by their own clocks, roughly: a chunk holds people of one."""


def hold_out(connection: Connection, found: Campaign, staged: str) -> None:
    """Leave a part of the staged people out, for the reason `holdout`, and keep who they are."""
    share = found.spec.holdout
    if share is None:
        return
    series = found.spec.experiment.series if found.spec.experiment else None
    connection.execute(
        QUERIES.filled("hold_out", staged=staged, position=buckets.SQL),
        {
            "campaign_id": found.campaign_id,
            "salt": buckets.holdout_salt(found.key, series),
            "share": share,
            "exact": series is None,
            "bound": buckets.bounds([share])[0],
        },
    )


def is_by_clock(spec: Spec) -> bool:
    """Whether people are due at a time of their day, which the rest has to keep; otherwise it is due at the decision."""
    return spec.is_local or spec.mode == "optimised" or (spec.experiment is not None and spec.experiment.by_hour)


def shift(spec: Spec, variant: Variant) -> timedelta:
    """By how much a variant is due later than the campaign says."""
    if variant.hour is None or spec.send_at is None:
        return timedelta()
    return timedelta(hours=variant.hour - spec.send_at.hour, minutes=-spec.send_at.minute, seconds=-spec.send_at.second)


def days_until(earliest: datetime, at: datetime) -> int:
    """Whole days by which people who are due from `earliest` on have to be put off, so that nobody is due before `at`."""
    return max(0, ceil((at - earliest) / DAY))


@dataclass
class Split:
    """Tells the people of an experiment apart. `now` is when the audience is frozen, `rate` recipients per second, if known."""

    spec: Spec
    now: datetime
    rate: float | None
    tested: int = field(default=0, init=False)
    decide_at: datetime | None = field(default=None, init=False)
    days: int = field(default=0, init=False)

    @classmethod
    def of(cls, found: Campaign) -> Split:
        return cls(found.spec, found.now, found.rate)

    @property
    def experiment(self) -> Experiment:
        assert self.spec.experiment is not None
        return self.spec.experiment

    def columns(self, connection: Connection, staged: str) -> Sequence[Column]:
        """The number of the arm, from 1 on, the rest being the last; and the part of the arm, in sending order."""
        experiment = self.experiment
        exact = experiment.series is None
        salt = buckets.split_salt(self.spec.key, experiment.series)
        connection.execute(QUERIES.filled("rank", staged=staged, position=buckets.SQL), {"salt": salt, "exact": exact})
        connection.execute(QUERIES["analyze"])
        row = connection.execute(QUERIES["people"], {"exact": exact}).fetchone()
        people = int(row[0]) if row else 0
        # With hours of their own people of all arms are mixed as they are.
        clocks = people if self.spec.mode == "optimised" else _CLOCKS if self.spec.is_local else 1
        block = self.spec.chunk_size * max(1, clocks)
        ends = [0, *(buckets.ends(people, experiment.shares) if exact else buckets.bounds(experiment.shares))]
        self.tested = ends[-1] if exact else round(people * sum(experiment.shares))
        widths = []
        for start, end, share in zip(ends, ends[1:], experiment.shares, strict=False):
            parts = min(_MOST_PARTS, max(1, ceil(people * share / block)))
            widths.append(max(1, block if exact and parts < _MOST_PARTS else ceil((end - start) / parts)))
        last = len(widths) + 1
        arm = f"coalesce(width_bucket(experiment_rank.value, {_array(ends)}), {last})"
        part = (
            f"CASE WHEN experiment_rank.value < {ends[-1]}"
            f" THEN (experiment_rank.value - ({_array(ends)})[{arm}]) / ({_array(widths)})[{arm}] ELSE 0 END"
        )
        return [
            Column("arm", arm, "LEFT JOIN experiment_rank ON experiment_rank.place = person.place"),
            Column("part", part),
        ]

    def cell(self, keys: Mapping[str, Any], so_far: Cell) -> Cell:
        arm, part = int(keys["arm"]), int(keys["part"])
        if arm > len(self.experiment.variants):
            return replace(so_far, held="experiment", labels=(*so_far.labels, REST), order=(*so_far.order, _LAST))
        variant = self.experiment.variants[arm - 1]
        window = self._moved(so_far.window, shift(self.spec, variant))
        if window.due_at < self.now - PAST_GRACE <= so_far.window.due_at:
            window = self._moved(window, DAY)
        return replace(
            so_far,
            window=window,
            variant=variant.name,
            labels=(*so_far.labels, TEST),
            order=(*so_far.order, part, arm),
        )

    def oversee(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Plan the rest for the decision.

        Raises:
            SnapshotError: the mails expire before it.
        """
        tests = [cell.window.due_at for cell in cells if cell.held is None]
        rest = [cell.window.due_at for cell in cells if cell.held == "experiment"]
        if not tests or not rest:
            return cells
        sending = timedelta(seconds=self.tested / self.rate) if self.rate else timedelta()
        decide_at = max(*tests, self.now) + sending + timedelta(seconds=self.experiment.decide_after)
        self.decide_at = decide_at
        if is_by_clock(self.spec):
            first = min(shift(self.spec, variant) for variant in self.experiment.variants)
            self.days = days_until(min(rest) + first, decide_at)
        return [self._planned(cell, decide_at) if cell.held == "experiment" else cell for cell in cells]

    def to_json(self, people: Mapping[Cell, int]) -> dict[str, Any]:
        arms = {
            name: sum(number for cell, number in people.items() if cell.variant == name and TEST in cell.labels)
            for name in self.experiment.names
        }
        rest = {cell.window.due_at: number for cell, number in people.items() if cell.held == "experiment" and number}
        held = sum(number for cell, number in people.items() if cell.held == "experiment")
        return {
            "experiment": {
                "arms": arms,
                "rest": held,
                "decide_at": self.decide_at.isoformat() if self.decide_at and held else None,
                "rest_from": min(rest).isoformat() if rest else None,
                "days": self.days,
            }
        }

    def _planned(self, cell: Cell, decide_at: datetime) -> Cell:
        if is_by_clock(self.spec):
            window = self._moved(cell.window, self.days * DAY)
        else:
            window = self._moved(cell.window, max(timedelta(), decide_at - cell.window.due_at))
            if self.spec.quiet_hours is not None and cell.zone is not None:
                window = after_quiet(window, Quiet.parse(self.spec.quiet_hours), cell.zone, window.due_at)
        if window.expires_at is not None and window.expires_at <= window.due_at:
            raise SnapshotError(
                f"campaign {self.spec.key!r}: the experiment is decided at {decide_at:%Y-%m-%d %H:%M} UTC, and its rest would"
                f" be due at {window.due_at:%Y-%m-%d %H:%M} UTC, when its mails have expired. Choose a later expires_at,"
                " expires_after, or a shorter decide_after. Nothing was kept"
            )
        return replace(cell, window=window)

    def _moved(self, window: Window, by: timedelta) -> Window:
        """Later; an end that is counted from the due time, and quiet hours where they follow the clock, move along."""
        ends = window.expires_at
        if ends is not None and self.spec.expires_after is not None:
            ends += by
        quiet = window.quiet_at
        if quiet is not None and is_by_clock(self.spec):
            quiet += by
        return Window(window.due_at + by, ends, quiet)


def _array(numbers: Sequence[int]) -> str:
    return f"CAST(ARRAY[{', '.join(map(str, numbers))}] AS bigint[])"
