"""What it costs to look after an idle campaign of a million people: `python -m benchmarks.reconcile`.

One JSON line: `recipients`, `reconcile_ms` (one look at everything), `unattended_ms` (whom nobody works on); medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks import ground
from mailpipe import reconcile

LOOKS = 51


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipients", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="100,000 people")
    given = parser.parse_args()
    wanted = 100_000 if given.quick else given.recipients
    with ground.make("reconcile", connections=3) as base, ground.provider(rate=1e6) as stand_in:
        number = ground.people(wanted, lambda counts: counts.recipients)
        with base.database.connection() as connection:
            ground.build(connection, number)
        base.create("idle", base.ses(stand_in, 2), due_at="2099-01-01T00:00:00Z")
        ground.say("freezing")
        recipients = base.freeze("idle").recipients
        with base.database.connection() as connection:
            connection.execute("UPDATE mailpipe.campaign SET state = 'sending'")
            connection.execute("ANALYZE")
            line = {
                "recipients": recipients,
                "reconcile_ms": _median(lambda: reconcile.run(connection)),
                "unattended_ms": _median(lambda: reconcile.unattended(connection)),
            }
    ground.emit(line)


def _median(look: Callable[[], object]) -> float:
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1000, 2)


if __name__ == "__main__":
    main()
