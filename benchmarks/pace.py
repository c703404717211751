"""The pace alone: many processes hand over as much as they may, and every second is looked at.

    python -m benchmarks.pace [--processes 16] [--rate 600] [--seconds 20] [--quick] [--lanes] [--kill] [--halve] [--snapshot]

Real processes on one machine book slots, wait for them, and note the time after the check that the slot is not missed, where a
sender would write the request to its socket; nothing is sent. CLOCK_MONOTONIC is one clock for all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import struct
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from sqlalchemy.engine import make_url

from benchmarks import ground
from benchmarks.ground import Ground, say
from mailpipe.db import Database
from mailpipe.lane import NAMES, LaneName
from mailpipe.pace import Pace, Slot, rule

HURRIED = 900_000.0
"""Recipients per second that leave no time between slots: what an acquisition costs."""
SETTLED = 1.5
"""Seconds before counting begins: everybody has booked, and limits are known."""
CHANGE = 1.0
"""Seconds within which a changed limit holds."""
MAILS = 0.1
"""Seconds between two transactional mails of one process, in `--lanes`."""
_HAND_OVER = struct.Struct("ddii")


@dataclass(frozen=True)
class HandOver:
    at: float
    booked: float
    recipients: int
    lane: LaneName


@dataclass(frozen=True)
class Task:
    """What one process does: take slots for a lane until `seconds` are over; a pause between them in seconds."""

    lane: LaneName
    seconds: float
    pause: float = 0.0
    recipients: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pace", description="The pace under many processes.")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rate", type=float, default=600.0, help="recipients per second of the account")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--transit", type=float, help="seconds by which ways to SES may differ (MAILPIPE_TRANSIT)")
    parser.add_argument("--quick", action="store_true", help="6 seconds")
    parser.add_argument(
        "--lanes", action="store_true", help="all four lanes at once, transactional ones with single mails"
    )
    parser.add_argument("--kill", action="store_true", help="a process that holds slots is killed every second")
    parser.add_argument("--halve", action="store_true", help="the limit is halved midway")
    parser.add_argument("--snapshot", action="store_true", help="a dump holds a snapshot open all the time")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds = 6.0
    with ground.make("pace", connections=4) as base:
        speed = acquisitions(base)
        say(f"{speed:,.0f} acquisitions a second")
        ground.emit(run(base, chosen) | {"acquisitions_per_second": round(speed)})


def run(base: Ground, chosen: argparse.Namespace) -> dict[str, object]:
    limit(base, chosen.rate, chosen.transit)
    seconds = SETTLED + chosen.seconds + (rule.SETTLE if chosen.lanes else 0.0)
    tasks = [Task("normal", seconds) for _ in range(chosen.processes)]
    if chosen.lanes:
        single = [Task(lane, seconds, MAILS, 1) for lane in ("critical", "high")]
        tasks = single + [Task("normal" if number % 2 else "low", seconds) for number in range(chosen.processes - 2)]
    with base.database.connection() as holder:
        if chosen.snapshot:
            holder.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute(b"SELECT count(*) FROM mailpipe.campaign")
        crew = Crew(base, tasks)
        changed = None
        with crew:
            started = crew.start() + SETTLED + (rule.SETTLE if chosen.lanes else 0.0)
            end = started + chosen.seconds
            while time.monotonic() < end:
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))
                if chosen.kill:
                    crew.kill_one()
                if chosen.halve and changed is None and time.monotonic() >= started + chosen.seconds / 2:
                    limit(base, chosen.rate / 2)
                    changed = time.monotonic()
        found = crew.hand_overs()
        if chosen.snapshot:
            holder.execute(b"ROLLBACK")
    return summary(found, chosen, started, end, changed)


def summary(
    found: list[HandOver], chosen: argparse.Namespace, started: float, end: float, changed: float | None
) -> dict[str, object]:
    counted = [one for one in found if started <= one.at < end]
    most = most_in_a_second(found)
    over = most - chosen.rate
    expected = chosen.rate * chosen.seconds
    result: dict[str, object] = {"rate": chosen.rate, "processes": chosen.processes, "seconds": chosen.seconds}
    if changed is not None:
        later = most_in_a_second([one for one in found if one.at >= changed + CHANGE])
        result["max_in_any_1s_after"] = later
        over = max(over, later - chosen.rate / 2)
        # A second of neither limit: the old one is given up at once.
        expected = chosen.rate * (changed - started) + chosen.rate / 2 * (end - changed)
    by_lane = Counter[str]()
    for one in counted:
        by_lane[one.lane] += one.recipients
    granted = by_lane.total()
    if chosen.lanes:
        held = rule.split(chosen.rate, reserve=0.05, held=True).bulk
        granted = by_lane["normal"] + by_lane["low"]
        # What single mails borrowed from bulk is missing here; that they leave a part of the reserve unused, in all lanes.
        expected = held.size * held.calls * chosen.seconds
        waits = sorted(one.at - one.booked for one in counted if one.lane in rule.TRANSACTIONAL)
        result |= {
            "by_lane": {lane: by_lane[lane] for lane in NAMES},
            "utilisation_all_lanes": round(by_lane.total() / (chosen.rate * chosen.seconds), 3),
            "transactional_p99_ms": round(waits[int(len(waits) * 0.99)] * 1000, 1),
        }
    return result | {
        "granted": granted,
        "expected": round(expected),
        "utilisation": round(granted / expected, 3),
        "max_in_any_1s": most,
        "worst_window_over_limit": round(over, 3),
    }


def most_in_a_second(found: list[HandOver]) -> int:
    """The most recipients in any closed window of a second."""
    found = sorted(found, key=lambda one: one.at)
    best = total = first = 0
    for one in found:
        total += one.recipients
        while found[first].at < one.at - rule.WINDOW:
            total -= found[first].recipients
            first += 1
        best = max(best, total)
    return best


def limit(base: Ground, rate: float, transit: float | None = None) -> None:
    with base.database.connection() as connection:
        connection.execute(
            "UPDATE mailpipe.pace SET account_rate = %s, transit = coalesce(%s, transit)", (rate, transit)
        )


def acquisitions(base: Ground) -> float:
    """Slots a second that four processes get when there is always one."""
    limit(base, HURRIED)
    seconds = 2.0
    with Crew(base, [Task("normal", seconds) for _ in range(4)], hurried=True) as crew:
        crew.start()
    return len(crew.hand_overs()) / seconds


class Crew:
    """The processes, each with a file of what it has handed over: what a killed one wrote is there."""

    def __init__(self, base: Ground, tasks: list[Task], *, hurried: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=base.folder))
        self._tasks = tasks
        # Forked from one process that has imported all of it: sixteen imports at once take a minute of a busy machine.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.ground", "mailpipe.pace"])
        self._ready = context.Barrier(len(tasks) + 1)
        url = base.database.url.render_as_string(hide_password=False)
        self._processes: list[ForkServerProcess] = [
            context.Process(target=work, args=(url, task, self._ready, str(self._folder / str(number)), hurried))
            for number, task in enumerate(tasks)
        ]

    def __enter__(self) -> Crew:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.join(60)
            if process.is_alive():
                process.kill()

    def start(self) -> float:
        """Let all of them begin; answers when that was."""
        self._ready.wait(60)
        return time.monotonic()

    def kill_one(self) -> None:
        """Kill one with whatever it holds, as long as half of them are left."""
        living = [process for process in self._processes if process.is_alive() and process.pid is not None]
        if len(living) > len(self._processes) / 2:
            assert living[-1].pid is not None
            os.kill(living[-1].pid, signal.SIGKILL)

    def hand_overs(self) -> list[HandOver]:
        return [
            HandOver(at, booked, recipients, NAMES[lane])
            for number in range(len(self._tasks))
            for at, booked, recipients, lane in _HAND_OVER.iter_unpack((self._folder / str(number)).read_bytes())
        ]


def work(url: str, task: Task, ready: Barrier, path: str, hurried: bool) -> None:
    """One process: a sender without its mails. `hurried`: slots are counted as they are booked."""
    shared, lane = Pace(task.lane), NAMES.index(task.lane)
    out = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    with Database(make_url(url), pool_size=1).connection() as connection:
        shared.limits(connection)
        ready.wait(60)
        until = time.monotonic() + task.seconds
        while (asked := time.monotonic()) < until:
            slot = shared.take(connection, patience=60, lead=0.0 if hurried else 0.01, recipients=task.recipients)
            while not isinstance(slot, Slot) and time.monotonic() < until:
                time.sleep(min(slot.wait, 1.0))
                slot = shared.take(connection, patience=60, lead=0.0 if hurried else 0.01, recipients=task.recipients)
            if not isinstance(slot, Slot):
                return
            if not hurried:
                time.sleep(max(0.0, slot.wait))
            now = time.monotonic()
            if hurried or now <= slot.at + slot.lateness:
                os.write(out, _HAND_OVER.pack(now, asked, slot.call_size, lane))
            if task.pause:
                time.sleep(task.pause)


if __name__ == "__main__":
    main()
