"""One sender thread working one chunk: lease, pace, open, call, record. The order of these steps is the promise.

- The wait for the pace comes before anything is opened, so a long wait ages nothing.
- A call is opened by a synchronous commit; only then may the request leave, and only within its slot.
- An answer is recorded however long that takes; it is never dropped while the process lives.
- Only operational errors of the database are tried again, and only where a second time can do no harm.

Which chunks, how many threads and when to stop is decided in `send`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from mailpipe import ledger, message, pace
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, Database
from mailpipe.errors import DatabaseUnavailable
from mailpipe.ledger import Lease, Opened, Unfit
from mailpipe.links import Signer
from mailpipe.message import Recipient
from mailpipe.ses import request
from mailpipe.ses.answer import SPLIT_REASONS, Answer, Kind
from mailpipe.ses.client import Ses, SlotMissed
from mailpipe.template import Template

LOG = logging.getLogger("mailpipe.send")
T = TypeVar("T")

RETRY_DELAY = 15.0
"""Seconds before people whom SES refused for the moment (TRANSIENT_FAILURE) are tried again; twice as long each time."""
_OPEN_AHEAD = 0.2
"""Slots nearer than this are opened together with the record of the call before: one flush to disk instead of two."""
_LEAD = 0.05
"""Seconds that a call is opened before its slot, beside twice the time of a commit: with 20 ms a busy machine missed 2 % of the
slots. A call waits them in its thread, of which there are enough."""
_RECONNECT = 0.5
HOPELESS_CALLS = 5
"""So many calls in a row without a usable answer, or refused as a whole down to single people, stop the campaign: the fault
is not theirs, and each further call would only add to the `unknown` or the `failed`."""


class Streak:
    """Counts what happens in a row, over all threads of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._length = 0

    def add(self, *, hit: bool) -> int:
        """Note one more; answers how many have hit in a row by now."""
        with self._lock:
            self._length = self._length + 1 if hit else 0
            return self._length


@dataclass(frozen=True)
class Job:
    """What all threads of a run share and none changes."""

    campaign: Campaign
    template: Template
    signer: Signer
    database: Database
    ses: Ses
    pace: pace.Pace
    configuration_set: str
    consent: str
    lease: float
    stop: threading.Event
    unanswered: Streak = field(default_factory=Streak)
    refused: Streak = field(default_factory=Streak)

    @property
    def open_statement(self) -> bytes:
        return ledger.open_statement(self.consent)


@dataclass
class Tally:
    """What one thread did. `halt` is why the provider wants the campaign to stop."""

    calls: int = 0
    accepted: int = 0
    halt: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    person: Recipient
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Answered:
    opened: Opened
    answer: Answer
    tries: dict[int, int]


@dataclass
class Worker:
    """A sender thread's hands. Not shared between threads."""

    job: Job
    owner: str
    tally: Tally = field(default_factory=Tally)
    _open_seconds: float = 0.005

    def work(self, held: Lease) -> None:
        """Work a leased chunk until nobody in it is left, the campaign stops, or the lease is lost."""
        statement = self.job.open_statement
        todo, tries = self._prepare(held)
        answered: _Answered | None = None
        delay = 0.0
        holding = True
        while todo and holding and not self.job.stop.is_set() and self.tally.halt is None:
            batch = self._next_batch(todo)
            slot = self._slot()
            if isinstance(slot, pace.Refusal):
                todo.appendleft(batch)
                delay = slot.wait
                break
            if answered is not None and slot.wait > _OPEN_AHEAD:
                holding, answered = self._record(held, answered), None
            # Opened just before its slot: the commit and the making of the request take about this long.
            if self.job.stop.wait(max(0.0, slot.wait - 2 * self._open_seconds - _LEAD)):
                todo.appendleft(batch)
                break
            opened = self._open(held, batch, statement, answered)
            answered = None
            if opened is None:
                holding = False
                break
            if not opened.seqs:
                continue
            chosen = [one for one in batch if one.person.seq in set(opened.seqs)]
            answer = self._call(chosen, slot)
            if answer is None:
                self._retract(held, opened)
                todo.appendleft(chosen)
                continue
            answered = _Answered(opened, answer, {seq: tries[seq] for seq in opened.seqs if tries.get(seq)})
            delay = max(delay, self._consider(answer, chosen, todo, tries))
        if answered is not None:
            self._record(held, answered)
        # Does nothing to a chunk that is done, or no longer ours.
        self._safely(lambda connection: ledger.release(connection, held, delay=delay))

    def _prepare(self, held: Lease) -> tuple[deque[list[_Entry]], dict[int, int]]:
        """Everybody's entry; who cannot be mailed gets a final state at once, and alone."""
        people = self._safely(lambda connection: ledger.people(connection, held))
        entries: list[_Entry] = []
        unfit: list[Unfit] = []
        for person in people:
            try:
                entries.append(
                    _Entry(
                        person,
                        message.entry(
                            self.job.template,
                            person,
                            self.job.signer,
                            campaign=self.job.campaign.key,
                            attempt=held.attempt,
                            topic=self.job.campaign.spec.topic,
                        ),
                    )
                )
            except message.Unfit as error:
                # An address that SES cannot take is skipped here as it is at the snapshot.
                state = "skipped" if error.reason == "unusable_address" else "failed"
                unfit.append(Unfit(person.seq, state, error.reason, error.detail))
        if unfit:
            self._safely(lambda connection: ledger.refuse(connection, held, unfit))
        tries = {person.seq: person.tries for person in people if person.tries}
        return deque([entries] if entries else []), tries

    def _next_batch(self, todo: deque[list[_Entry]]) -> list[_Entry]:
        size = self._safely(self.job.pace.limits).call_size
        first = todo.popleft()
        if len(first) > size:
            todo.appendleft(first[size:])
        return first[:size]

    def _slot(self) -> pace.Slot | pace.Refusal:
        """The next slot. A wait of more than half a lease is not waited for: the chunk goes back."""
        patience = self.job.lease / 2
        give_up = time.monotonic() + patience
        while True:
            slot = self._safely(lambda connection: self.job.pace.take(connection, patience=patience))
            if isinstance(slot, pace.Slot) or slot.wait > patience or time.monotonic() > give_up:
                return slot
            if self.job.stop.wait(min(slot.wait, 1.0)):
                return slot

    def _open(
        self, held: Lease, batch: Sequence[_Entry], statement: bytes, answered: _Answered | None
    ) -> Opened | None:
        """Open a call, in one commit with the record of the one before. None: no call may be made."""
        people = [one.person for one in batch]

        def step(connection: Connection) -> Opened | None:
            with connection.transaction():
                holding = True
                if answered is not None:
                    holding = self._write(connection, held, answered)
                if not holding:
                    return None
                return ledger.open_call(connection, held, people, statement=statement, seconds=self.job.lease)

        start = time.monotonic()
        try:
            with self.job.database.connection() as connection:
                opened = step(connection)
        except (psycopg.OperationalError, DatabaseUnavailable):
            # Nobody knows whether this commit happened. Nothing was sent, so what it may have opened is closed again.
            LOG.warning("database lost while a call was opened; it is not made")
            self._retract(held, Opened(0, tuple(person.seq for person in people)))
            if answered is not None:
                self._record(held, answered)
            return None
        self._open_seconds += (min(time.monotonic() - start, 0.1) - self._open_seconds) / 8
        return opened

    def _call(self, chosen: Sequence[_Entry], slot: pace.Slot) -> Answer | None:
        """Make the call within its slot; None: the slot was missed, or the request was never made."""
        spec = self.job.campaign.spec
        made = request.bulk_request(
            sender=spec.sender,
            template_name=self.job.template.version,
            configuration_set=self.job.configuration_set,
            entries=[one.entry for one in chosen],
            reply_to=spec.reply_to,
        )
        try:
            request.check_bulk(made)
            answer = self.job.ses.send(made, at=slot.at, lateness=pace.LATENESS)
        except SlotMissed:
            return None
        except request.RequestError as error:
            self.tally.halt = f"a request that SES would refuse was not sent: {error}"
            return None
        self.tally.calls += 1
        self.tally.accepted += sum(result.kind is Kind.SENT for result in answer.results)
        return answer

    def _consider(
        self, answer: Answer, chosen: Sequence[_Entry], todo: deque[list[_Entry]], tries: dict[int, int]
    ) -> float:
        """Who is tried again, and when: at once, in halves, or (the seconds answered) with the chunk's next lease."""
        self.tally.halt = answer.halt or self.tally.halt or self._hopeless(answer)
        if answer.blocked is not None:
            reason = answer.blocked
            self._safely(lambda connection: self.job.pace.block(connection, reason))
        again = [one for one, result in zip(chosen, answer.results, strict=True) if result.kind is Kind.AGAIN]
        if answer.split and len(again) > 1:
            half = len(again) // 2
            todo.extendleft([again[half:], again[:half]])
        elif again:
            todo.append(again)
            if answer.blocked is None and answer.halt is None:
                # SES could not be reached: a moment's rest instead of a storm of attempts.
                self.job.stop.wait(_RECONNECT)
        delay = 0.0
        for one, result in zip(chosen, answer.results, strict=True):
            if result.kind is Kind.RETRY:
                seq = one.person.seq
                tries[seq] = tries.get(seq, 0) + 1
                delay = max(delay, RETRY_DELAY * 2 ** (tries[seq] - 1))
        return delay

    def _hopeless(self, answer: Answer) -> str | None:
        unanswered = all(result.kind is Kind.UNKNOWN for result in answer.results)
        if self.job.unanswered.add(hit=unanswered) >= HOPELESS_CALLS:
            return f"{HOPELESS_CALLS} calls in a row got no usable answer; look at SES and its endpoint before resuming"
        if not answer.split:
            refused = len(answer.results) == 1 and answer.results[0].reason in SPLIT_REASONS
            if self.job.refused.add(hit=refused) >= HOPELESS_CALLS:
                return f"SES refuses every request as a whole ({answer.results[0].reason}: {answer.results[0].detail})"
        return None

    def _record(self, held: Lease, answered: _Answered) -> bool:
        """Write an answer, again and again until the database has it: writing it twice changes nothing."""
        return self._safely(lambda connection: self._write(connection, held, answered))

    def _write(self, connection: Connection, held: Lease, answered: _Answered) -> bool:
        return ledger.record(connection, held, answered.opened, answered.answer, answered.tries)

    def _retract(self, held: Lease, opened: Opened) -> None:
        self._safely(lambda connection: ledger.retract(connection, held, opened))

    def _safely(self, step: Callable[[Connection], T]) -> T:
        """Run a step that may be repeated; a lost database is waited for."""
        while True:
            try:
                with self.job.database.connection() as connection:
                    return step(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("database not available, waiting: %s", type(error).__name__)
                time.sleep(_RECONNECT)
