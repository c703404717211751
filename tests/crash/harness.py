"""Starts senders that die, kills the server below them, and counts afterwards what the provider's journal says.

The provider is never killed: it is the witness. What happens inside a sender is `program`'s.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mailpipe import embedded_postgres, reconcile
from mailpipe.feedback.ingest import ingest_lines
from mailpipe.send import End
from tests.crash import program
from tests.crash.program import Fault
from tests.support import World, wait_for

THREADS = 3
IN_WINDOWS = 9
"""As many threads, of three senders that open three calls by one commit each."""
CALL = program.Task.call_size
LEASE = 0.7
"""Seconds. Long enough that a living sender on a busy machine keeps its chunk, short enough to wait for."""

# A fresh interpreter takes most of a second to import everything; a fork of one that has done so takes nothing.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.crash.program", "pytest"])


@dataclass
class Sender:
    """A sender process."""

    process: BaseProcess
    log: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def stopped(self) -> bool:
        return _state(self.pid) == "T"

    def wait_stopped(self) -> None:
        wait_for(lambda: self.stopped or not self.alive, "the sender to stop")
        assert self.stopped, f"the sender ended instead of stopping:\n{self.said()}"

    def wait_killed(self) -> None:
        """Wait for its death by SIGKILL."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"the sender was not killed, its exit code is {code}:\n{self.said()}"

    def wait_done(self) -> None:
        """Wait for its end after a run that it could end itself."""
        code = self.wait()
        assert code == 0, f"the sender failed with {code}:\n{self.said()}"

    def wait(self, seconds: float = 30.0) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            # It writes what each of its threads is doing.
            self.signal(signal.SIGUSR1)
            self.process.join(1)
        assert self.process.exitcode is not None, f"the sender does not end:\n{self.said()}"
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def said(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""


def start(task: program.Task) -> Sender:
    """Start a sender process."""
    process = _CONTEXT.Process(target=program.main, args=(task,), daemon=True)
    process.start()
    return Sender(process, task.log)


@dataclass
class Server:
    """A PostgreSQL server of its own that makes every commit durable, and can be killed."""

    var: Path
    settings: Mapping[str, str]

    def start(self) -> embedded_postgres.Server:
        return embedded_postgres.ensure_running(self.var, settings=self.settings)

    def kill(self) -> None:
        """End the server and all its processes at the same moment, as a machine does that loses its power."""
        running = embedded_postgres.status(self.var)
        assert running is not None, "there is no server to kill"
        postmaster = int((running.data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(postmaster, signal.SIGSTOP)
        for pid in [*_children(postmaster), postmaster]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: _state(postmaster) in (None, "Z"), "the server to die")


@dataclass
class Crash:
    """A world whose senders and whose server die."""

    world: World
    server: Server
    folder: Path
    senders: list[Sender] = field(default_factory=list)

    def start(self, key: str, *faults: Fault, **options: Any) -> Sender:
        """Start a sender of this campaign; `options` are those of `program.Task`, and the settings `threads` and `lease`."""
        config = self.world.with_settings(threads=options.pop("threads", THREADS), lease=options.pop("lease", LEASE))
        url = self.world.database.url.render_as_string(hide_password=False)
        log = self.folder / f"sender-{len(self.senders)}.log"
        sender = start(program.Task(config, url, key, log, faults, **options))
        self.senders.append(sender)
        return sender

    def end(self) -> None:
        """No sender outlives its test."""
        for sender in self.senders:
            if sender.alive:
                sender.signal(signal.SIGKILL)
                sender.process.join(10)

    def wait_noticed(self) -> None:
        """Wait until nothing is done any more for the dead. A statement that reached the server just before its sender was killed
        still is."""
        if not any(sender.alive for sender in self.senders):
            backends = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mailpipe'"
            wait_for(lambda: self.world.execute(backends) == [(0,)], "the server to notice that its clients are dead")

    def in_flight(self, key: str) -> set[int]:
        """Who is in an opened call, or was in one whose answer has not been written in time."""
        self.wait_noticed()
        return self.of_state(key, "sending") | self.of_state(key, "unknown")

    def of_state(self, key: str, state: str) -> set[int]:
        return {seq for seq, (found, _) in self.world.states(key).items() if found == state}

    def accepted(self, key: str) -> Counter[int]:
        """How often the provider has accepted each person."""
        return Counter(int(line["seq"]) for line in self.world.journal(key))

    def duplicates(self, key: str) -> int:
        """Acceptances beyond the first of each person."""
        return sum(times - 1 for times in self.accepted(key).values())

    def leased(self, key: str, condition: str = "true") -> int:
        """How many chunks are in somebody's hands, under a condition."""
        rows = self.world.execute(
            "SELECT count(*) FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)"
            f" WHERE g.key = %(key)s AND c.state = 'leased' AND {condition}",
            {"key": key},
        )
        return int(rows[0][0])

    def reconcile(self, key: str) -> reconcile.Reconciled:
        with self.world.database.connection() as connection:
            return reconcile.run(connection, key)

    def sweep(self, key: str) -> None:
        """Reconcile until every lease of the dead has run out."""

        def free() -> bool:
            self.reconcile(key)
            return not self.leased(key)

        wait_for(free, "the leases of the dead to run out")

    def suppress(self, seqs: Iterable[int], key: str) -> None:
        self.world.execute(
            "INSERT INTO mailpipe.suppression (email_key, reason, source)"
            " SELECT lower(r.email), 'complaint', 'test' FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s AND r.seq = ANY(%(seqs)s) ON CONFLICT DO NOTHING",
            {"key": key, "seqs": list(seqs)},
        )

    def refuse_last_calls(self, key: str) -> None:
        """Suppress everybody of the last call of each chunk: what is done with its last answer needs no giving back, a chunk whose
        last call is not made does."""
        chunks = self.world.execute(
            "SELECT first_seq, size FROM mailpipe.chunk JOIN mailpipe.campaign USING (campaign_id) WHERE key = %(key)s",
            {"key": key},
        )
        self.suppress((seq for first, size in chunks for seq in range(first + size - CALL, first + size)), key)

    def complete(self, key: str, in_flight: set[int]) -> dict[str, int]:
        """What follows a fault: the leases run out, a second run sends the rest, events come in. Checks all promises; answers
        people by state at the end.

        `in_flight` were in opened calls at the fault: nobody else may be `unknown`. Somebody who complains between the two runs
        gets nothing any more.
        """
        self.sweep(key)
        skipped = self.of_state(key, "skipped")
        unknown = self.of_state(key, "unknown")
        assert unknown <= in_flight, "somebody is unknown who was in no call at the fault"
        waiting = sorted(self.of_state(key, "pending"))
        complaining = {seq for seq in waiting[-1:] if not self.accepted(key)[seq]}
        self.suppress(complaining, key)
        self.send(key)
        states = self.world.keep_promises(key)
        assert not states.get("pending") and not states.get("sending"), "somebody was left behind"
        assert self.of_state(key, "unknown") == unknown, "a run made somebody unknown, or sent to somebody unknown"
        assert skipped <= self.of_state(key, "skipped")
        assert complaining <= self.of_state(key, "skipped")
        assert not complaining & self.accepted(key).keys(), "somebody was mailed after a complaint"
        return self.settle(key)

    def send(self, key: str) -> None:
        """A second run, in this process."""
        outcome = self.world.send(key)
        assert outcome.end is End.COMPLETE, outcome.text

    def settle(self, key: str) -> dict[str, int]:
        """Let the provider's events speak. Whoever is unknown after that was never accepted; another run changes nothing."""
        with self.world.stand_in.events_file.open() as lines:
            ingest_lines(self.world.database, lines)
        self.reconcile(key)
        unsure = self.of_state(key, "unknown") & self.accepted(key).keys()
        assert not unsure, f"{len(unsure)} people are unknown although the provider accepted them"
        states = self.world.keep_promises(key)
        self.reconcile(key)
        assert self.world.send(key).calls == 0, "a run that had nothing to do made a call"
        assert self.world.keep_promises(key) == states
        assert self.world.campaign(key).state == "done"
        return states


def _state(pid: int) -> str | None:
    """The state of a process as Linux writes it; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found
