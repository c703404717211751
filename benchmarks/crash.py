"""Random faults while a campaign is sent: how many people are mailed twice, lost, or left unknown without a reason.

Several sender processes work one campaign after the other. Between two kills of a sender or of the whole database server,
senders are stopped for longer than their lease and connections are cut, and the provider answers 3 % of the calls ambiguously.
The provider's journal is the witness. What each step of the protocol must survive is in `tests/crash`; this is the mixture.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import psycopg

from benchmarks import ground
from benchmarks.ground import Ground, say
from mailpipe import campaign, invariant, ledger, reconcile
from mailpipe.db import Connection
from mailpipe.errors import DatabaseUnavailable
from mailpipe.feedback.ingest import ingest_lines
from mailpipe.settings import Settings
from mailpipe.simulator.child import StandIn
from tests.crash import harness, mutants, program
from tests.crash.harness import Sender, Server

T = TypeVar("T")

PROCESSES, THREADS, CALL = 4, 9, 10
"""Calls are small, so that they follow each other closely enough for three to be opened by one commit."""
LEASE = 2.0
"""Seconds. Short, so that a run of half a minute sees many take-overs."""
STANDSTILL = 1.6 * LEASE
INTERVAL = 0.5
"""Seconds between two kills, on average."""
OPEN_CALLS = 10
"""Calls that are open at the provider at any time, of at most PROCESSES * THREADS; its latency is chosen for that."""
READ_TIMEOUT = 3.0
AMBIGUOUS = (
    {"kind": "reset_before_accept", "probability": 0.008},
    {"kind": "silence_before_accept", "probability": 0.002},
    {"kind": "reset_after_accept", "probability": 0.01},
    {"kind": "silence_after_accept", "probability": 0.002},
    {"kind": "truncated_200", "probability": 0.004},
    {"kind": "http_status", "status": 500, "accept": True, "probability": 0.004},
)
"""Answers after which nobody can know whether the mail was accepted: 3 % of all calls."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=40, help="of senders and of the database server")
    parser.add_argument(
        "--recipients", type=int, default=20_000, help="of each campaign; there are as many as it takes"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the faults; the moments still vary with the machine")
    parser.add_argument("--mutant", choices=sorted(mutants.ALL), help="take a safeguard away, to see duplicates")
    parser.add_argument("--quick", action="store_true", help="12 kills, 4,000 recipients")
    chosen = parser.parse_args()
    kills, recipients = (12, 4_000) if chosen.quick else (chosen.kills, chosen.recipients)
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    rate = max(200.0, 0.8 * recipients / (kills * INTERVAL))
    latency_ms = min(1000 * OPEN_CALLS * CALL / rate, 1000.0)
    with (
        ground.make("crash", connections=4, lease=LEASE, read_timeout=READ_TIMEOUT, threads=THREADS) as base,
        ground.provider(rate, latency_ms) as stand_in,
    ):
        with base.database.connection() as connection:
            ground.build(connection, ground.people(recipients, lambda counts: counts.recipients))
        stand_in.add_faults(*AMBIGUOUS)
        run = Run(base, stand_in, random.Random(seed), kills, chosen.mutant)
        with run.ended():
            run.through()
        result = run.judge()
    ground.emit({**result, "seed": seed})
    if result["duplicates"] or result["lost"] or result["unknown_unexplained"]:
        sys.exit("the promises are broken")
    if 2 * result["kills_with_open_call"] < result["kills"]:
        sys.exit("fewer than half of the kills have hit an open call: this run proves little")


@dataclass
class Run:
    """Campaigns, their senders, and what is done to them."""

    base: Ground
    stand_in: StandIn
    chance: random.Random
    kills_wanted: int
    mutant: str | None
    keys: list[str] = field(default_factory=list)
    senders: list[Sender] = field(default_factory=list)
    frozen: dict[int, float] = field(default_factory=dict)
    """Stopped senders, and when they may go on (monotonic seconds)."""
    struck: set[int] = field(default_factory=set)
    """Senders whose open calls are still to be read: an opening may have been committed after the blow."""
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    """Who was in an opened call at some fault, by campaign and seq: only they may be unknown without an answer."""
    kills_at: list[float] = field(default_factory=list)
    """When somebody was killed (epoch seconds)."""
    did: Counter[str] = field(default_factory=Counter)

    def through(self) -> None:
        """Send campaigns until all kills are done and the last one is complete."""
        self._settings = replace(self.base.settings, ses_endpoint=self.stand_in.url)
        self._server = Server(self.base.settings.var, {})
        self._names = count(1)
        self._next_kill = 0.0
        while not self.keys or len(self.kills_at) < self.kills_wanted:
            self._campaign()
        say(f"{dict(self.did)}")

    def _campaign(self) -> None:
        key = f"crash-{len(self.keys) + 1}"
        ses = self.base.ses(self.stand_in, 1)
        self.base.create(key, ses)
        self.base.freeze(key)
        ses.close()
        self.keys.append(key)
        say(f"campaign {key}")
        while self._ask(lambda connection: campaign.get(connection, key).state) != "done":
            if self.mutant is not None and len(self.kills_at) >= self.kills_wanted:
                # A mutant may contradict itself for ever.
                return
            self._keep_up(key)
            time.sleep(self.chance.uniform(0.02, 0.1))
            self._note(key)
            begun = self._ask(lambda connection: ledger.counts(connection, self.base.campaign_id(key))).sent > 0
            if begun and len(self.kills_at) < self.kills_wanted and time.monotonic() > self._next_kill:
                self._strike(key)
                self._next_kill = time.monotonic() + self.chance.uniform(0.4, 1.6) * INTERVAL
        for pid in list(self.frozen):
            self._wake(pid)
        for sender in self.senders:
            sender.wait(60)

    def _keep_up(self, key: str) -> None:
        """As many senders as there should be; who has slept long enough is woken."""
        for pid, until in list(self.frozen.items()):
            if time.monotonic() > until:
                self._wake(pid)
        for sender in self.senders:
            if sender.process.exitcode not in (None, 0, -signal.SIGKILL):
                self._failed(sender)
        self.senders = [sender for sender in self.senders if sender.alive]
        while len(self.senders) < PROCESSES:
            name = f"sender-{next(self._names)}.log"
            self.senders.append(harness.start(self._task(key, name, self._settings)))

    def _failed(self, sender: Sender) -> None:
        """A mutant may fail of its own contradictions, and is launched again."""
        if self.mutant is None:
            raise RuntimeError(f"a sender failed:\n{sender.said()}")

    def _task(self, key: str, log: str, config: Settings) -> program.Task:
        url = self.base.database.url.render_as_string(hide_password=False)
        return program.Task(config, url, key, self.base.folder / log, mutant=self.mutant, call_size=CALL, horizon=60.0)

    def _strike(self, key: str) -> None:
        """One kill, and sometimes something beside it. The youngest sender is spared: it has hardly begun, and holds nothing."""
        older = self.senders[:-1]
        awake = [sender for sender in older if sender.pid not in self.frozen]
        if awake and self.chance.random() < 0.3:
            self._freeze(key, self.chance.choice(awake))
        if self.chance.random() < 0.3:
            self._cut()
        if self.chance.random() < 0.2:
            victim = self.chance.choice(older) if self.chance.random() < 0.5 else None
            self._kill_server(key, victim)
        else:
            self._kill_sender(key, self.chance.choice(older))

    def _kill_sender(self, key: str, victim: Sender) -> None:
        # It stands still while the ledger is asked, so that the answer holds for the moment of its death.
        victim.signal(signal.SIGSTOP)
        open_calls = self._open_calls(key, {victim.pid})
        self._kill(victim)
        self._killed("sender_kills", hit=bool(open_calls))

    def _kill_server(self, key: str, victim: Sender | None) -> None:
        self._server.kill()
        if victim is not None:
            self._kill(victim)
            self.did["sender_kills_with_server"] += 1
        time.sleep(self.chance.choice((0.0, 0.0, 0.3, 1.0)))
        alive = [sender for sender in self.senders if sender.alive]
        # Nobody moves before the ledger has said what was open when it died.
        for sender in alive:
            sender.signal(signal.SIGSTOP)
        self._server.start()
        open_calls = self._open_calls(key, None)
        for sender in alive:
            if sender.pid not in self.frozen:
                sender.signal(signal.SIGCONT)
        self._killed("server_kills", hit=bool(open_calls))

    def _kill(self, victim: Sender) -> None:
        victim.signal(signal.SIGKILL)
        victim.wait()
        self.frozen.pop(victim.pid, None)
        self.struck.add(victim.pid)

    def _killed(self, what: str, *, hit: bool) -> None:
        self.kills_at.append(time.time())
        self.did[what] += 1
        self.did["kills_with_open_call"] += hit
        if len(self.kills_at) % 50 == 0:
            say(f"{len(self.kills_at)} kills")

    def _freeze(self, key: str, victim: Sender) -> None:
        victim.signal(signal.SIGSTOP)
        self.frozen[victim.pid] = time.monotonic() + STANDSTILL
        self._open_calls(key, {victim.pid})
        self.struck.add(victim.pid)
        self.did["stops"] += 1

    def _wake(self, pid: int) -> None:
        del self.frozen[pid]
        os.kill(pid, signal.SIGCONT)

    def _cut(self) -> None:
        """Cut one connection of a sender."""
        found = self._ask(
            lambda connection: connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'mailpipe' AND pid <> pg_backend_pid() ORDER BY pid"
            ).fetchall()
        )
        own = self._ask(lambda connection: connection.info.backend_pid)
        pids = [row[0] for row in found if row[0] != own]
        if pids:
            program.cut(self.base.database.url.render_as_string(hide_password=False), [self.chance.choice(pids)])
            self.did["connections_cut"] += 1

    def _note(self, key: str) -> None:
        """Read once more what those held who were struck a moment ago: their last statement has ended by now."""
        if self.struck:
            self._open_calls(key, self.struck)
            self.struck.clear()

    def _open_calls(self, key: str, pids: set[int] | None) -> set[int]:
        """Who is in an opened call of these senders (None: of anybody) now; they are noted as in flight."""
        rows = self._ask(
            lambda connection: connection.execute(
                "SELECT c.owner, c.first_seq + i FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id),"
                " generate_series(0, c.size - 1) AS i WHERE g.key = %s AND c.state = 'leased' AND get_bit(c.opened, i) = 1",
                (key,),
            ).fetchall()
        )
        people = {seq for owner, seq in rows if pids is None or int(owner.split(":")[1]) in pids}
        self.in_flight |= {(key, seq) for seq in people}
        return people

    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Ask the database, which may have just been killed below us."""
        for _ in range(5):
            try:
                with self.base.database.connection() as connection:
                    return question(connection)
            except (psycopg.OperationalError, DatabaseUnavailable):
                time.sleep(0.2)
        raise RuntimeError("the database does not come back")

    @contextmanager
    def ended(self) -> Iterator[None]:
        """No sender outlives the run."""
        try:
            yield
        finally:
            for sender in self.senders:
                sender.signal(signal.SIGKILL)

    def judge(self) -> dict[str, Any]:
        """Let the provider's events speak, and count."""
        before = sum(len(self._of_state(key, "unknown")) for key in self.keys)
        with self.stand_in.events_file.open() as lines:
            ingest_lines(self.base.database, lines)
        self._ask(reconcile.run)
        accepted: dict[str, Counter[int]] = {key: Counter() for key in self.keys}
        times = []
        for line in self.stand_in.journal():
            accepted[line["campaign"]][int(line["seq"])] += 1
            times.append(float(line["at"]))
        sums: Counter[str] = Counter()
        for key in self.keys:
            sums.update(self._count(key, accepted[key]))
        pauses = [min(at for at in times if at > kill) - kill for kill in self.kills_at if kill < max(times)]
        return {
            "kills": len(self.kills_at),
            "kills_with_open_call": self.did["kills_with_open_call"],
            "recipients": sums["recipients"],
            "accepted": len(times),
            "duplicates": sums["duplicates"],
            "lost": sums["lost"],
            "unknown": sums["unknown"],
            "unknown_unexplained": sums["unexplained"],
            "resumed_seconds": round(max(pauses, default=0.0), 2),
            "unknown_before_events": before,
            "ambiguous_calls": sum(self.stand_in.state()["faults"].values()),
            **{name: self.did[name] for name in ("sender_kills", "server_kills", "stops", "connections_cut")},
            "campaigns": len(self.keys),
        }

    def _count(self, key: str, accepted: Counter[int]) -> dict[str, int]:
        """One campaign's people against the journal."""
        sent, unknown = self._of_state(key, "sent"), self._of_state(key, "unknown")
        failed_later = {seq for seq, reason in self._of_state(key, "failed").items() if reason == "rendering_failure"}
        with self.base.database.connection() as connection:
            counts = ledger.counts(connection, self.base.campaign_id(key))
            rules = (invariant.unaccounted_rows, invariant.missing_people, invariant.stateless_people)
            missing = sum(rule(connection, key) for rule in rules)
        contradicted = (sent.keys() - accepted.keys()) | (accepted.keys() - sent.keys() - unknown.keys() - failed_later)
        unexplained = [
            seq
            for seq, reason in unknown.items()
            if seq in accepted or (reason == "no_answer" and (key, seq) not in self.in_flight)
        ]
        return {
            "recipients": counts.total,
            "duplicates": sum(times - 1 for times in accepted.values()),
            "lost": counts.pending + counts.sending + missing + len(contradicted),
            "unknown": len(unknown),
            "unexplained": len(unexplained),
        }

    def _of_state(self, key: str, state: str) -> dict[int, str | None]:
        """Everybody of a state, by seq, with the reason."""
        rows = self._ask(
            lambda connection: connection.execute(
                "SELECT d.seq, d.reason FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
                " WHERE g.key = %s AND d.state = %s",
                (key, state),
            ).fetchall()
        )
        return dict(rows)


if __name__ == "__main__":
    main()
