"""One sender working one chunk: lease, pace, open, call, record. The order of these steps is the promise.

- The wait for the pace comes before anything is opened, so a long wait ages nothing.
- A call is opened by a synchronous commit; only then may the request leave, and only within its slot. Where slots follow each other
  closely, one commit opens the next few calls of the chunk, and each is made in a thread of its own (`flight`).
- An answer is recorded however long that takes, unless the process is told to stop while the database is away (`db.steps`).
- Only operational errors of the database are tried again, and only where a second time can do no harm.

Which chunks, how many senders and when to stop is decided in `send`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeVar

import psycopg

from mailpipe import ledger, message, pace, provider
from mailpipe.adapters import entry as adapter_entry
from mailpipe.db import Connection, Kept
from mailpipe.errors import DatabaseUnavailable
from mailpipe.flight import Landing
from mailpipe.job import HOPELESS_CALLS, Job
from mailpipe.ledger import Answered, Lease, Opened, Unfit
from mailpipe.message import Filled
from mailpipe.ses import request, single
from mailpipe.ses.answer import SPLIT_REASONS, Answer, Kind
from mailpipe.ses.punctual import SlotMissed

LOG = logging.getLogger("mailpipe.send")
T = TypeVar("T")

RETRY_DELAY = 15.0
"""Seconds before people whom SES refused for the moment (TRANSIENT_FAILURE) are tried again; twice as long each time."""
PATIENCE = 75.0
"""Seconds that a thread waits for a slot with a chunk in its hands, whose lease is renewed meanwhile. Longer than the wait for the
daily quota: else each of thousands of chunks would be leased, made ready and given back again in every minute of it."""
_OPEN_AHEAD = 0.2
"""Slots nearer than this are opened together with the record of the calls before, and nearer than this to the first of a window
with that: one flush to disk for all of them."""
_STRAGGLING = 1.0
"""Seconds for which answers wait for those to the other calls of their window, to be recorded with them; and the longest rest
while some are under way."""
_LEAD = 0.05
"""Seconds that a call is opened before its slot, beside twice the time of a commit: with 20 ms a busy machine missed 2 % of the
slots. A call waits them in its thread, of which there are enough."""
_LEAST_LEAD = 0.02
"""The same for slots that are free at once: they are asked for so much later than now."""
_WINDOW_LEAD = 0.04
"""The same where the slots for other calls are taken before these are opened."""
_RECONNECT = 0.5
_BRIEF = 0.02
"""Seconds of waiting for which a thread keeps its connection."""
_LONGEST_REST = 15.0
"""Seconds between two attempts to reach SES, growing from the first to the last; nobody's attempt is counted."""


@dataclass
class Tally:
    """What one sender did. `halt` is why the provider wants the campaign to stop; `unwritten` are people whose answer the database
    never took."""

    calls: int = 0
    accepted: int = 0
    unwritten: int = 0
    halt: str | None = None


_SEQ = attrgetter("seq")


@dataclass(eq=False)
class _Call:
    """An opened call: for whom, and in which slot; and then what SES has answered, or why there is no answer."""

    slot: pace.Slot
    opened: Opened
    chosen: Sequence[Filled]
    answer: Answer | None = None
    fault: BaseException | None = None


@dataclass
class _Chunk:
    """A leased chunk at work: batches still to be called, counted refusals by seq, calls under way and those of them that are
    back, answers that are not written yet, the seconds for which the chunk is left alone afterwards, and for who is in a half of a
    refused call the first person of that call."""

    held: Lease
    todo: deque[list[Filled]]
    tries: dict[int, int]
    under_way: set[_Call] = field(default_factory=set)
    landing: Landing[_Call] = field(default_factory=Landing)
    answered: list[Answered] = field(default_factory=list)
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
    """A sender. Not shared between threads, except that the heartbeat reads what is `held`, and that its calls are made in several.
    `room` is for how many calls at once."""

    job: Job
    owner: str
    tally: Tally = field(default_factory=Tally)
    held: Lease | None = None
    room: int = 0
    _open_seconds: float = 0.005
    _rest: float = _RECONNECT

    def __post_init__(self) -> None:
        self.kept = Kept(self.job.database)

    def make_room(self) -> bool:
        """Have room for the calls of another chunk. False: the run was told to stop."""
        self.room = self.job.flight.take(self.room, waiting=self.kept.give_back)
        return self.room > 0

    def leave_room(self) -> None:
        """Leave it to others."""
        self.job.flight.give_back(self.room)
        self.room = 0

    def work(self, held: Lease) -> None:
        """Work a leased chunk until nobody in it is left, the campaign stops, or the lease is lost."""
        self.held = held
        try:
            chunk = self._prepare(held)
            try:
                self._work(chunk)
            finally:
                self.tally.unwritten += sum(len(one.opened.seqs) for one in chunk.answered)
        finally:
            self.held = None

    def _work(self, chunk: _Chunk) -> None:
        try:
            while (chunk.todo or chunk.under_way) and not self.job.stop.is_set() and self.tally.halt is None:
                if self._can_call(chunk) and not self._next_calls(chunk):
                    break
                if chunk.under_way and not self._land(chunk):
                    break
        finally:
            # Also after a fault: an answer that is known is written. A chunk that is done, or no longer ours, needs nothing more.
            try:
                self._land_the_rest(chunk)
            finally:
                if self._record(chunk):
                    self._safely(lambda connection: ledger.release(connection, chunk.held, delay=chunk.delay))

    def _can_call(self, chunk: _Chunk) -> bool:
        return bool(chunk.todo) and len(chunk.under_way) < self.room

    def _next_calls(self, chunk: _Chunk) -> bool:
        """Take slots for as many calls as there is room for, open them by one commit, and let them be made. Answers whether the
        chunk can be gone on with."""
        first = self._near_slot(chunk)
        if first is None:
            # No answer is kept waiting for a distant slot: it is written first. And what is under way may be back before.
            if not self._record(chunk):
                return False
            if chunk.under_way:
                return True
            first = self._distant_slot(chunk)
        if first is None:
            return False
        slots, batches = [first], [chunk.next_batch(first.call_size)]
        while len(slots) < self.room - len(chunk.under_way) and chunk.todo:
            slot = self._take(chunk, first.wait + _OPEN_AHEAD)
            if not isinstance(slot, pace.Slot):
                break
            slots.append(slot)
            batches.append(chunk.next_batch(slot.call_size))
        # Opened just before the first slot: the commit and the making of the request take about this long.
        stopped = self._pause(first.wait - 2 * self._open_seconds - _LEAD)
        opened = None if stopped else self._open(chunk, batches)
        if opened is None:
            self.job.pace.give_back(sum(slot.call_size for slot in slots))
            return False
        for slot, batch, one in zip(slots, batches, opened, strict=True):
            if one.seqs:
                self._depart(chunk, slot, batch, one)
            else:
                self.job.pace.give_back(slot.call_size)
        return True

    def _depart(self, chunk: _Chunk, slot: pace.Slot, batch: Sequence[Filled], opened: Opened) -> None:
        """Make an opened call, for those of the batch whom it is open for. Where there is room for others it is made elsewhere."""
        people = opened.people
        chosen = batch if len(people) == len(batch) else [one for one in batch if one.seq in people]
        call = _Call(slot, opened, chosen)
        if self.room > 1:
            self.job.flight.make(partial(self._make, chunk, call))
        else:
            self._make(chunk, call)
        chunk.under_way.add(call)

    def _make(self, chunk: _Chunk, call: _Call) -> None:
        """Make a call, in whatever thread this is; whatever comes of it is taken in by the sender."""
        try:
            call.answer = self._request(chunk.held, call)
        except BaseException as fault:
            call.fault = fault
        chunk.landing.put(call)

    def _land(self, chunk: _Chunk) -> bool:
        """Take in the answers to the calls under way: to all of them, or, where one is slow, to those that are back. Answers
        whether the chunk can be gone on with."""
        landed = chunk.landing.take(len(chunk.under_way), seconds=_STRAGGLING)
        if not landed and not self._can_call(chunk):
            landed = chunk.landing.take(1)
        if self._take_in_all(chunk, landed):
            return not chunk.under_way or self._record(chunk)
        # SES could not be reached: a rest instead of a storm of attempts. What is known is written before.
        holding = self._record(chunk)
        self._pause(min(self._rest, _STRAGGLING) if chunk.under_way else self._rest)
        self._rest = min(self._rest * 2, _LONGEST_REST)
        return holding

    def _land_the_rest(self, chunk: _Chunk) -> None:
        """Take in all that is under way; a fault in one takes nothing from the others."""
        if chunk.under_way:
            try:
                # Who has told us to stop may soon kill us: nothing that is known waits for a call.
                self._record(chunk)
            finally:
                try:
                    self._take_in_all(chunk, chunk.landing.take(1))
                finally:
                    self._land_the_rest(chunk)

    def _take_in_all(self, chunk: _Chunk, landed: list[_Call]) -> bool:
        """False: SES was not reached. A fault in one of them leaves those behind it to be taken in later."""
        reached = True
        try:
            while landed:
                call = landed.pop(0)
                chunk.under_way.remove(call)
                reached = self._take_in(chunk, call) and reached
        finally:
            for call in landed:
                chunk.landing.put(call)
        return reached

    def _take_in(self, chunk: _Chunk, call: _Call) -> bool:
        """What follows from a call that was made, or was not. False: SES was not reached."""
        answer = self._answer(call)
        # Whom SES certainly did not take does not count for its day.
        handed = 0 if answer is None else len(call.chosen) - answer.count(Kind.AGAIN)
        self.job.pace.give_back(call.slot.call_size - handed)
        if answer is None:
            self._retract(chunk.held, call.opened)
            chunk.todo.appendleft(list(call.chosen))
            return True
        self.tally.calls += 1
        self.tally.accepted += answer.count(Kind.SENT)
        people = call.opened.people if chunk.tries else ()
        earlier = {seq: tries for seq, tries in chunk.tries.items() if tries and seq in people}
        chunk.answered.append(Answered(call.opened, answer, earlier))
        return self._consider(chunk, answer, call.chosen)

    def _answer(self, call: _Call) -> Answer | None:
        """What SES has answered; None: the slot was missed, or the request was never made."""
        # Taken from it, because its traceback leads back here: a cycle is left to the collector, which hardly ever looks.
        fault, call.fault = call.fault, None
        if fault is None or isinstance(fault, SlotMissed):
            return call.answer
        if not isinstance(fault, request.RequestError):
            raise fault
        self.tally.halt = f"a request that SES would refuse was not sent: {fault}"
        return None

    def _prepare(self, held: Lease) -> _Chunk:
        """What everybody is told; who cannot be mailed gets a final state at once, and alone."""
        people = self._safely(lambda connection: ledger.people(connection, held))
        letter = self._safely(lambda connection: self.job.letters.get(connection, held))
        limits = self._safely(self.job.pace.limits)
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
        self.room = self.job.flight.keep(self.room, math.ceil(len(entries) / limits.call_size))
        tries = {person.seq: person.tries for person in people if person.tries}
        return _Chunk(held, deque([entries] if entries else []), tries)

    def _near_slot(self, chunk: _Chunk) -> pace.Slot | None:
        """A slot for which answers can wait."""
        if not chunk.answered and not chunk.under_way:
            return None
        slot = self._take(chunk, _OPEN_AHEAD)
        return slot if isinstance(slot, pace.Slot) else None

    def _distant_slot(self, chunk: _Chunk) -> pace.Slot | None:
        """The next slot. A wait of more than PATIENCE is not waited for: the chunk goes back. None: no call may be made."""
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
        lead = 2 * self._open_seconds + (_LEAST_LEAD if self.room == 1 else _WINDOW_LEAD)

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

    def _open(self, chunk: _Chunk, batches: Sequence[Sequence[Filled]]) -> Sequence[Opened] | None:
        """Open calls, in one commit with the record of those before. None: no call may be made."""
        if self._must_be_recorded(chunk, batches) and not self._record(chunk):
            return None
        start = time.monotonic()
        try:
            with self.kept.use() as connection:
                opened = ledger.open_calls(
                    connection,
                    chunk.held,
                    batches,
                    opening=self.job.opening,
                    seconds=self.job.lease,
                    answered=chunk.answered,
                )
        except (psycopg.OperationalError, DatabaseUnavailable):
            # Nobody knows whether this commit happened. Nothing was sent, so what it may have opened is closed again.
            LOG.warning("database lost while a call was opened; it is not made")
            self._retract(chunk.held, Opened(0, tuple(person.seq for batch in batches for person in batch)))
            self._record(chunk)
            return None
        if opened is not None:
            chunk.answered = []
            self._open_seconds += (min(time.monotonic() - start, 0.1) - self._open_seconds) / 8
        return opened

    @staticmethod
    def _must_be_recorded(chunk: _Chunk, batches: Sequence[Sequence[Filled]]) -> bool:
        """Whether the answers cannot be recorded with the opening of these calls: there is something to tidy up; or an answer has
        given one of their people back, and if nobody knew whether the opening was done, nobody knew for which call that person's
        bit is set."""
        if any(one.tries for one in chunk.answered):
            return True
        back = {
            seq
            for one in chunk.answered
            if one.answer.count(Kind.SENT) < len(one.opened.seqs)
            for seq in one.opened.seqs
        }
        return bool(back) and any(one.seq in back for batch in batches for one in batch)

    def _request(self, held: Lease, call: _Call) -> Answer:
        """Make a call within its slot; the database is not touched. Raises SlotMissed and RequestError: it was not made."""
        job, spec, slot = self.job, self.job.campaign.spec, call.slot
        forms = job.forms.take(len(call.chosen))
        entries = [form.write(one) for form, one in zip(forms, call.chosen, strict=False)]
        if job.adapter is not None:
            template = job.letters.template(held)
            mails = [adapter_entry.mail(entry, template, spec) for entry in entries]
            job.forms.give_back(forms)
            return job.adapter.send(mails, slot_at=slot.at, lateness=slot.lateness)
        made = request.bulk_request(
            sender=spec.sender,
            template_name=held.template_version,
            configuration_set=job.configuration_set,
            entries=entries,
            reply_to=spec.reply_to,
        )
        request.check_frame(made)
        built = partial(job.forms.give_back, forms)
        if job.single:
            return job.ses.send_single(single.single_request(made), at=slot.at, lateness=slot.lateness, built=built)
        return job.ses.send(made, at=slot.at, lateness=slot.lateness, built=built)

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
        """Write the answers that are not written yet, again and again until the database has them: writing them twice changes
        nothing.

        Answers whether the chunk still belongs to this worker.
        """
        answered = chunk.answered
        if not answered:
            return True
        holding = self._safely(lambda connection: ledger.record(connection, chunk.held, answered))
        chunk.answered = []
        return holding

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
