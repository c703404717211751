"""One sender thread working one chunk: lease, pace, open, call, record. The order of these steps is the promise.

- The wait for the pace comes before anything is opened, so a long wait ages nothing.
- A call is opened by a synchronous commit; only then may the request leave, and only within its slot.
- An answer is recorded however long that takes, unless the process is told to stop while the database is away (`db.steps`).
- Only operational errors of the database are tried again, and only where a second time can do no harm.

Which chunks, how many threads and when to stop is decided in `send`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import psycopg

from mailpipe import ledger, message, pace, provider, snapshot
from mailpipe.adapters import entry as adapter_entry
from mailpipe.adapters.protocol import Adapter
from mailpipe.campaign import Campaign, published_template
from mailpipe.db import Connection, Database, Kept
from mailpipe.db.steps import Steps
from mailpipe.errors import DatabaseUnavailable
from mailpipe.ledger import Answered, Lease, Opened, Opening, Unfit
from mailpipe.links import Signer
from mailpipe.message import Filled, Form, Letter
from mailpipe.ses import request, single
from mailpipe.ses.answer import SPLIT_REASONS, Answer, Kind
from mailpipe.ses.client import Ses
from mailpipe.ses.punctual import SlotMissed
from mailpipe.template import Template

LOG = logging.getLogger("mailpipe.send")
T = TypeVar("T")

RETRY_DELAY = 15.0
"""Seconds before people whom SES refused for the moment (TRANSIENT_FAILURE) are tried again; twice as long each time."""
PATIENCE = 75.0
"""Seconds that a thread waits for a slot with a chunk in its hands, whose lease is renewed meanwhile. Longer than the wait for the
daily quota: else each of thousands of chunks would be leased, made ready and given back again in every minute of it."""
_OPEN_AHEAD = 0.2
"""Slots nearer than this are opened together with the record of the call before: one flush to disk instead of two."""
_LEAD = 0.05
"""Seconds that a call is opened before its slot, beside twice the time of a commit: with 20 ms a busy machine missed 2 % of the
slots. A call waits them in its thread, of which there are enough."""
_LEAST_LEAD = 0.02
"""The same for slots that are free at once: they are asked for so much later than now."""
_RECONNECT = 0.5
_BRIEF = 0.02
"""Seconds of waiting for which a thread keeps its connection."""
_LONGEST_REST = 15.0
"""Seconds between two attempts to reach SES, growing from the first to the last; nobody's attempt is counted."""
HOPELESS_CALLS = 5
"""So many calls in a row without a usable answer, or so many refused as a whole down to single people, stop the campaign: the
fault is not theirs, and each further call would only add to the `unknown` or the `failed`."""


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


class Refusals:
    """Judges over all threads of a run whether SES refuses single people for a fault of theirs, or everybody.

    Bad people can stand side by side, so once somebody was accepted it takes those of two calls, with nobody accepted in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted = False
        self._people = 0
        self._calls: set[tuple[int, int]] = set()

    def accepted(self) -> None:
        """SES has accepted somebody."""
        with self._lock:
            self._accepted = True
            self._people = 0
            self._calls.clear()

    def alone(self, call: tuple[int, int]) -> bool:
        """SES has refused a call of one person, which halving has left of this `call`. Answers whether it refuses everybody."""
        with self._lock:
            self._people += 1
            self._calls.add(call)
            return self._people >= HOPELESS_CALLS and (len(self._calls) > 1 or not self._accepted)


class Letters:
    """What a run has made ready of its campaign's templates, by their versioned names: it can change while a campaign is paused."""

    def __init__(self, signer: Signer, about: Campaign) -> None:
        self._signer = signer
        self._about = about
        self._known: dict[str, Letter] = {}

    def get(self, connection: Connection, held: Lease) -> Letter:
        version = held.template_version
        if version not in self._known:
            template = published_template(connection, version)
            taken = snapshot.get(connection, held.campaign_id)
            assert taken is not None, "a chunk of a campaign without a snapshot"
            self._known[version] = Letter(
                template, taken.variables, self._signer, campaign=self._about.key, topic=self._about.spec.topic
            )
        return self._known[version]

    def template(self, held: Lease) -> Template:
        """The template of a letter that `get` has answered before."""
        return self._known[held.template_version].template


@dataclass(frozen=True)
class Job:
    """What all threads of a run share and none changes."""

    campaign: Campaign
    letters: Letters
    database: Database
    steps: Steps
    ses: Ses
    pace: pace.Pace
    configuration_set: str
    adapter: Adapter | None
    """Another way than SES; None: requests go to `ses`."""
    lease: float
    single: bool
    stop: threading.Event
    opening: Opening
    unanswered: Streak = field(default_factory=Streak)
    refused: Refusals = field(default_factory=Refusals)


@dataclass
class Tally:
    """What one thread did. `halt` is why the provider wants the campaign to stop; `unwritten` are people whose answer the database
    never took."""

    calls: int = 0
    accepted: int = 0
    unwritten: int = 0
    halt: str | None = None


_SEQ = attrgetter("seq")


@dataclass
class _Chunk:
    """A leased chunk at work: batches still to be called, counted refusals by seq, an answer that is not written yet, the seconds
    for which the chunk is left alone afterwards, and for who is in a half of a refused call the first person of that call."""

    held: Lease
    todo: deque[list[Filled]]
    tries: dict[int, int]
    answered: Answered | None = None
    delay: float = 0.0
    origin: dict[int, int] = field(default_factory=dict)

    def next_batch(self, size: int) -> list[Filled]:
        """The people of the next call, in sending order: the ledger looks from the first of them to the last for who must not be
        mailed, and whoever was brought to the front can have any place."""
        first = self.todo.popleft()
        if len(first) > size:
            self.todo.appendleft(first[size:])
        return sorted(first[:size], key=_SEQ)


@dataclass
class Worker:
    """A sender thread's hands. Not shared between threads, except that the heartbeat reads what is `held`."""

    job: Job
    owner: str
    tally: Tally = field(default_factory=Tally)
    held: Lease | None = None
    _open_seconds: float = 0.005
    _rest: float = _RECONNECT
    _forms: list[Form] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = Kept(self.job.database)

    def work(self, held: Lease) -> None:
        """Work a leased chunk until nobody in it is left, the campaign stops, or the lease is lost."""
        self.held = held
        try:
            chunk = self._prepare(held)
            try:
                self._work(chunk)
            finally:
                if chunk.answered is not None:
                    self.tally.unwritten += len(chunk.answered.opened.seqs)
        finally:
            self.held = None

    def _work(self, chunk: _Chunk) -> None:
        try:
            while chunk.todo and not self.job.stop.is_set() and self.tally.halt is None:
                if not self._next_call(chunk):
                    break
        finally:
            # Also after a fault: an answer that is known is written. A chunk that is done, or no longer ours, needs nothing more.
            if self._record(chunk):
                self._safely(lambda connection: ledger.release(connection, chunk.held, delay=chunk.delay))

    def _next_call(self, chunk: _Chunk) -> bool:
        """Take a slot, open a call, make it. Answers whether the chunk can be gone on with."""
        slot = self._slot(chunk)
        if slot is None:
            return False
        # Opened just before its slot: the commit and the making of the request take about this long.
        if self._pause(slot.wait - 2 * self._open_seconds - _LEAD):
            return False
        batch = chunk.next_batch(slot.call_size)
        opened = self._open(chunk, batch)
        if opened is None:
            return False
        people = opened.people
        chosen = batch if len(people) == len(batch) else [one for one in batch if one.seq in people]
        answer = self._call(chunk, chosen, slot) if chosen else None
        # Whom SES certainly did not take does not count for its day.
        handed = 0 if answer is None else len(chosen) - answer.count(Kind.AGAIN)
        self.job.pace.give_back(slot.call_size - handed)
        if not chosen:
            return True
        if answer is None:
            self._retract(chunk.held, opened)
            chunk.todo.appendleft(chosen)
            return True
        earlier = {seq: tries for seq, tries in chunk.tries.items() if tries and seq in people}
        chunk.answered = Answered(opened, answer, earlier)
        if self._consider(chunk, answer, chosen):
            return True
        # SES could not be reached: a rest instead of a storm of attempts. What is known is written before.
        holding = self._record(chunk)
        self._pause(self._rest)
        self._rest = min(self._rest * 2, _LONGEST_REST)
        return holding

    def _prepare(self, held: Lease) -> _Chunk:
        """What everybody is told; who cannot be mailed gets a final state at once, and alone."""
        people = self._safely(lambda connection: ledger.people(connection, held))
        letter = self._safely(lambda connection: self.job.letters.get(connection, held))
        entries: list[Filled] = []
        unfit: list[Unfit] = []
        for person in people:
            try:
                entries.append(letter.fill(person))
            except message.Unfit as error:
                # An address that SES cannot take is skipped here as it is at the snapshot.
                state = "skipped" if error.reason == "unusable_address" else "failed"
                unfit.append(Unfit(person.seq, state, error.reason, error.detail))
        if unfit:
            self._safely(lambda connection: ledger.refuse(connection, held, unfit))
        tries = {person.seq: person.tries for person in people if person.tries}
        return _Chunk(held, deque([entries] if entries else []), tries)

    def _slot(self, chunk: _Chunk) -> pace.Slot | None:
        """The next slot. A wait of more than PATIENCE is not waited for: the chunk goes back. None: no call may be made.

        An answer is not kept waiting for a distant slot: it is written first.
        """
        if chunk.answered is not None:
            slot = self._take(chunk, _OPEN_AHEAD)
            if isinstance(slot, pace.Slot):
                return slot
            if not self._record(chunk):
                return None
        give_up = time.monotonic() + PATIENCE
        while True:
            slot = self._take(chunk, PATIENCE)
            if isinstance(slot, pace.Slot):
                return slot
            if slot.wait > PATIENCE or time.monotonic() > give_up:
                chunk.delay = max(chunk.delay, slot.wait)
                return None
            if self._pause(min(slot.wait, 1.0)):
                return None

    def _take(self, chunk: _Chunk, patience: float) -> pace.Slot | pace.Refusal:
        lead = 2 * self._open_seconds + _LEAST_LEAD

        def take(connection: Connection) -> pace.Slot | pace.Refusal:
            recipients, families = self._arrange(connection, chunk)
            return self.job.pace.take(
                connection, patience=patience, lead=lead, recipients=recipients, families=families
            )

        return self._safely(take)

    def _arrange(self, connection: Connection, chunk: _Chunk) -> tuple[int, Mapping[str, int]]:
        """Bring those to the front who may be in the next call; answers how many, and how many of each provider with a limit."""
        first = chunk.todo[0]
        known: list[str] = []

        def families() -> Sequence[str]:
            known.extend(provider.family(one.to) for one in first)
            return known

        chosen = self.job.pace.fit(connection, families)
        if chosen is None:
            return len(first), {}
        front = set(chosen)
        chunk.todo[0] = [first[i] for i in chosen] + [one for i, one in enumerate(first) if i not in front]
        return len(chosen), Counter(known[i] for i in chosen)

    def _open(self, chunk: _Chunk, batch: Sequence[Filled]) -> Opened | None:
        """Open a call, in one commit with the record of the one before. None: no call may be made."""
        if chunk.answered is not None and chunk.answered.tries and not self._record(chunk):
            return None
        start = time.monotonic()
        try:
            with self.kept.use() as connection:
                opened = ledger.open_call(
                    connection,
                    chunk.held,
                    batch,
                    opening=self.job.opening,
                    seconds=self.job.lease,
                    answered=chunk.answered,
                )
        except (psycopg.OperationalError, DatabaseUnavailable):
            # Nobody knows whether this commit happened. Nothing was sent, so what it may have opened is closed again.
            LOG.warning("database lost while a call was opened; it is not made")
            self._retract(chunk.held, Opened(0, tuple(person.seq for person in batch)))
            self._record(chunk)
            return None
        if opened is not None:
            chunk.answered = None
            self._open_seconds += (min(time.monotonic() - start, 0.1) - self._open_seconds) / 8
        return opened

    def _call(self, chunk: _Chunk, chosen: Sequence[Filled], slot: pace.Slot) -> Answer | None:
        """Make the call within its slot; None: the slot was missed, or the request was never made."""
        spec = self.job.campaign.spec
        try:
            if self.job.adapter is not None:
                return self._counted(self._hand_over(self.job.adapter, chunk, chosen, slot))
            made = request.bulk_request(
                sender=spec.sender,
                template_name=chunk.held.template_version,
                configuration_set=self.job.configuration_set,
                entries=self._entries(chosen),
                reply_to=spec.reply_to,
            )
            request.check_frame(made)
            if self.job.single:
                one = single.single_request(made)
                answer = self.job.ses.send_single(one, at=slot.at, lateness=slot.lateness)
            else:
                answer = self.job.ses.send(made, at=slot.at, lateness=slot.lateness)
        except SlotMissed:
            return None
        except request.RequestError as error:
            self.tally.halt = f"a request that SES would refuse was not sent: {error}"
            return None
        return self._counted(answer)

    def _entries(self, chosen: Sequence[Filled]) -> list[dict[str, Any]]:
        """The entries of a call. They are written over for the next one."""
        while len(self._forms) < len(chosen):
            self._forms.append(Form(self.job.campaign.key))
        return [form.write(one) for form, one in zip(self._forms, chosen, strict=False)]

    def _hand_over(self, adapter: Adapter, chunk: _Chunk, chosen: Sequence[Filled], slot: pace.Slot) -> Answer:
        """Make the call another way than through SES. Raises SlotMissed."""
        template = self.job.letters.template(chunk.held)
        mails = [adapter_entry.mail(entry, template, self.job.campaign.spec) for entry in self._entries(chosen)]
        return adapter.send(mails, slot_at=slot.at, lateness=slot.lateness)

    def _counted(self, answer: Answer) -> Answer:
        self.tally.calls += 1
        self.tally.accepted += answer.count(Kind.SENT)
        return answer

    def _consider(self, chunk: _Chunk, answer: Answer, chosen: Sequence[Filled]) -> bool:
        """Who is tried again, and when: at once, in halves, or with the chunk's next lease. False: SES was not reached."""
        self.tally.halt = answer.halt or self.tally.halt or self._hopeless(chunk, answer, chosen)
        if answer.blocked is not None:
            reason = answer.blocked
            self._safely(lambda connection: self.job.pace.block(connection, reason))
        if answer.count(Kind.SENT) == len(chosen):
            self._rest = _RECONNECT
            return True
        for one, result in zip(chosen, answer.results, strict=True):
            if result.kind is Kind.RETRY:
                seq = one.seq
                chunk.tries[seq] = chunk.tries.get(seq, 0) + 1
                chunk.delay = max(chunk.delay, RETRY_DELAY * 2 ** (chunk.tries[seq] - 1))
        again = [one for one, result in zip(chosen, answer.results, strict=True) if result.kind is Kind.AGAIN]
        if answer.split and len(again) > 1:
            for one in again:
                chunk.origin.setdefault(one.seq, again[0].seq)
            half = len(again) // 2
            chunk.todo.extendleft([again[half:], again[:half]])
            return True
        if again:
            chunk.todo.append(again)
        reached = not again or answer.blocked is not None or answer.halt is not None
        if reached:
            self._rest = _RECONNECT
        return reached

    def _hopeless(self, chunk: _Chunk, answer: Answer, chosen: Sequence[Filled]) -> str | None:
        unanswered = answer.count(Kind.UNKNOWN) == len(chosen)
        if self.job.unanswered.add(hit=unanswered) >= HOPELESS_CALLS:
            return f"{HOPELESS_CALLS} calls in a row got no usable answer; look at the provider before resuming"
        first = answer.results[0]
        if answer.count(Kind.SENT):
            self.job.refused.accepted()
        elif len(answer.results) == 1 and first.reason in SPLIT_REASONS:
            seq = chosen[0].seq
            # Where every call has one person, neighbours stand for a call.
            if self.job.refused.alone((chunk.held.chunk_no, chunk.origin.get(seq, seq - seq % pace.rule.MAX_CALL))):
                return f"SES refuses every request as a whole ({first.reason}: {first.detail})"
        return None

    def _record(self, chunk: _Chunk) -> bool:
        """Write the answer that is not written yet, again and again until the database has it: writing it twice changes nothing.

        Answers whether the chunk still belongs to this worker.
        """
        answered = chunk.answered
        if answered is None:
            return True
        holding = self._safely(lambda connection: self._write(connection, chunk.held, answered))
        chunk.answered = None
        return holding

    def _write(self, connection: Connection, held: Lease, answered: Answered) -> bool:
        return ledger.record(connection, held, answered)

    def _retract(self, held: Lease, opened: Opened) -> None:
        self._safely(lambda connection: ledger.retract(connection, held, opened))

    def _pause(self, seconds: float) -> bool:
        """Wait, and leave the connection to others if it is long. Answers whether the run was told to stop."""
        if seconds > _BRIEF:
            self.kept.give_back()
        return self.job.stop.wait(max(0.0, seconds))

    def _safely(self, step: Callable[[Connection], T]) -> T:
        """Run a step that may be repeated; a lost database is waited for."""
        return self.job.steps.run(step, use=self.kept.use)
