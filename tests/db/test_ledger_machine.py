"""The ledger's promise as a property: workers, a sweeper and people do everything in any order."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mailpipe import campaign, event, ledger
from mailpipe.ledger import Answered, Lease, Opened, Unfit
from mailpipe.message import Recipient
from mailpipe.ses.answer import Answer
from tests.db.ledger_table import (
    AGAIN,
    FAILED,
    RETRY,
    SENT,
    UNKNOWN,
    Table,
    answer,
)
from tests.support import opening


@dataclass
class Open:
    """A call that a worker has opened. `said` is what the provider answered, once it was asked; `missed`: it never will be."""

    held: Lease
    opened: Opened
    tries: dict[int, int]
    said: Answer | None = None
    missed: bool = False

    @property
    def over(self) -> bool:
        return self.said is not None or self.missed

    @property
    def answered(self) -> Answered:
        assert self.said is not None
        return Answered(self.opened, self.said, self.tries)


@dataclass
class Hands:
    """A worker of the machine below."""

    owner: str
    held: Lease | None = None
    open: list[Open] = field(default_factory=list)


KINDS = st.sampled_from([SENT, SENT, SENT, AGAIN, AGAIN, FAILED, RETRY, UNKNOWN])


class Machine(RuleBasedStateMachine):
    """Two workers and a sweeper do everything that the ledger lets them do, in any order, and the provider keeps count.

    The provider (`accepted`) accepts whom it answers SENT, and some of those whose answer is lost or says UNKNOWN. Dead workers'
    answers are kept and may be written at any later time, more than once; so is it with calls that were never made, which are
    taken back. Somebody may order `unknown` people to be mailed
    again (`ordered`): each attempt may be accepted once.
    """

    make: Any

    @initialize(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def begin(self, sizes: list[int]) -> None:
        self.table: Table = type(self).make(*sizes)
        self.people = range(1, sum(sizes) + 1)
        self.workers = [Hands("one"), Hands("two")]
        self.ghosts: list[Open] = []
        self.accepted: Counter[tuple[int, int]] = Counter()
        self.ordered: Counter[int] = Counter()
        self.believed: set[int] = set()
        self.refused: set[int] = set()
        self.paused = False

    def lease(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is None:
            worker.held = self.table.lease(worker.owner)
            assert worker.held is None or not self.paused

    def choose(
        self, worker: Hands, held: Lease, sizes: list[int], *, again: bool
    ) -> tuple[list[Open], list[list[Recipient]]]:
        """The answers that may be written with an opening, and the people of its calls; also (`again`) those whom such an answer
        gives back."""
        written = [call for call in worker.open if call.said is not None and not call.tries]
        out = {seq for call in worker.open if call not in written or not again for seq in call.opened.seqs}
        for call in written:
            assert call.said is not None
            results = zip(call.opened.seqs, call.said.results, strict=True)
            out |= {seq for seq, result in results if result.kind not in (AGAIN, RETRY)}
        left = self.table.people(replace(held, finished=self.finished(held)))
        people = [person for person in left if person.seq not in out]
        calls = [people[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
        return written, [call for call in calls if call]

    def open_calls(self, who: int, sizes: list[int]) -> None:
        """The answers that may be written with it are; calls without one stay open."""
        worker = self.workers[who]
        assert worker.held is not None
        written, calls = self.choose(worker, worker.held, sizes, again=True)
        if not calls:
            return
        opened = ledger.open_calls(
            self.table.connection,
            worker.held,
            calls,
            opening=opening(self.table.campaign_id),
            seconds=60,
            answered=[call.answered for call in written],
        )
        if opened is None:
            # What is open stays so; a worker writes the answers, and gives the chunk away.
            self.ghosts += [call for call in worker.open if call.over]
            worker.open = []
            worker.held = None
            return
        assert not self.paused
        worker.open = [call for call in worker.open if call not in written]
        for one, asked in zip(opened, calls, strict=True):
            assert not self.refused & one.people, "somebody who had said no was opened"
            assert not [seq for seq in one.seqs if self.has_it(seq)], "somebody who has the mail was opened again"
            assert one.people <= {person.seq for person in asked}
            if one.seqs:
                counted = {person.seq: person.tries for person in asked if person.seq in one.people and person.tries}
                again = {
                    seq: 1
                    for call in written
                    for seq, result in zip(call.opened.seqs, call.answered.answer.results, strict=True)
                    if result.kind is RETRY and seq in one.people
                }
                worker.open.append(Open(worker.held, one, counted | again))

    @rule(who=st.integers(0, 1), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), done=st.booleans())
    def lose_the_answer_to_an_opening(self, who: int, sizes: list[int], done: bool) -> None:
        """Its worker does not know whether it was `done`: it takes all of it back, writes the answers, and gives the chunk away."""
        worker = self.workers[who]
        if worker.held is None:
            return
        written, calls = self.choose(worker, worker.held, sizes, again=False)
        if not calls:
            return
        if done:
            self.open_in_vain(worker.held, calls, written)
        asked = tuple(person.seq for call in calls for person in call)
        ledger.retract(self.table.connection, worker.held, Opened(0, asked))
        self.write_the_answers(who, twice=False)
        self.give_back(who)

    def open_in_vain(self, held: Lease, calls: list[list[Recipient]], written: list[Open]) -> None:
        ledger.open_calls(
            self.table.connection,
            held,
            calls,
            opening=opening(self.table.campaign_id),
            seconds=60,
            answered=[call.answered for call in written],
        )

    def ask_the_provider(self, who: int, data: st.DataObject) -> None:
        """About one of the worker's open calls."""
        waiting = [call for call in self.workers[who].open if not call.over]
        if not waiting:
            return
        call = data.draw(st.sampled_from(waiting))
        if data.draw(st.integers(0, 3)) == 0:
            call.missed = True
            return
        number = len(call.opened.seqs)
        kinds = data.draw(
            st.one_of(KINDS.map(lambda kind: [kind] * number), st.lists(KINDS, min_size=number, max_size=number))
        )
        call.said = answer(*kinds, first=call.opened.seqs[0])
        taken = data.draw(st.sets(st.sampled_from(call.opened.seqs)))
        for seq, kind in zip(call.opened.seqs, kinds, strict=True):
            if kind is SENT or (kind is UNKNOWN and seq in taken):
                self.accepted[seq, call.opened.attempts.get(seq, 1)] += 1

    @rule(
        who=st.integers(0, 1),
        steps=st.integers(1, 12),
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        data=st.data(),
    )
    def work(self, who: int, steps: int, sizes: list[int], data: st.DataObject) -> None:
        """The next steps of a worker: lease a chunk, open calls, ask the provider, write the answers, and again."""
        for _ in range(steps):
            worker = self.workers[who]
            if worker.held is None and not worker.open:
                self.lease(who)
            elif worker.held is not None and (not worker.open or data.draw(st.integers(0, 3)) == 0):
                self.open_calls(who, sizes)
            elif not all(call.over for call in worker.open):
                self.ask_the_provider(who, data)
            else:
                self.write_the_answers(who, twice=data.draw(st.booleans()))

    def write_the_answers(self, who: int, twice: bool) -> None:
        """Of all calls that are over, in one statement."""
        worker = self.workers[who]
        over = [call for call in worker.open if call.over]
        told = [call for call in over if call.said is not None]
        for _ in range(1 + twice):
            if told and not ledger.record(self.table.connection, told[0].held, [call.answered for call in told]):
                worker.held = None
            for call in over:
                if call.said is None:
                    self.write(call)
        if twice:
            self.ghosts += over
        worker.open = [call for call in worker.open if not call.over]

    def write(self, call: Open) -> bool:
        """Write an answer, or take back a call that was never made. Answers whether the worker may go on with its chunk."""
        if call.said is not None:
            return self.table.record(call.held, call.opened, call.said, call.tries)
        ledger.retract(self.table.connection, call.held, call.opened)
        return True

    def write_late(self, ghost: Open) -> None:
        """A statement whose connection is gone may come to the server when the same worker has opened the same people again: the
        number of its call is taken then, and it fails."""
        with suppress(psycopg.errors.UniqueViolation):
            self.write(ghost)

    @rule(who=st.integers(0, 1))
    def take_back_a_call_in_doubt(self, who: int) -> None:
        """Its worker gives the chunk away after that."""
        worker = self.workers[who]
        doubtful = [call for call in worker.open if call.said is None]
        for call in doubtful:
            ledger.retract(self.table.connection, call.held, replace(call.opened, no=0))
            worker.open.remove(call)
        if doubtful:
            self.write_the_answers(who, twice=False)
            self.give_back(who)

    @rule(who=st.integers(0, 1))
    def give_back(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is not None and not worker.open:
            ledger.release(self.table.connection, worker.held)
            worker.held = None

    @rule(who=st.integers(0, 1))
    def refuse(self, who: int) -> None:
        worker = self.workers[who]
        if worker.held is None or worker.open:
            return
        people = self.table.people(replace(worker.held, finished=self.finished(worker.held)))
        if people:
            ledger.refuse(self.table.connection, worker.held, [Unfit(people[-1].seq, "failed", "missing_variable")])

    @rule(who=st.integers(0, 1))
    def die(self, who: int) -> None:
        worker = self.workers[who]
        self.ghosts += [call for call in worker.open if call.over]
        worker.held, worker.open = None, []

    @rule()
    def sweep(self) -> None:
        self.table.expire()

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def write_an_answer_late(self, data: st.DataObject) -> None:
        self.write_late(data.draw(st.sampled_from(self.ghosts)))

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data(), who=st.integers(0, 1), number=st.integers(1, 8), again=st.booleans())
    def write_an_answer_late_before_and_after_another_call(
        self, data: st.DataObject, who: int, number: int, again: bool
    ) -> None:
        """Those who are freed by it are opened once more, by a worker who dies; then the same answer comes a second time."""
        ghost = self.ghosts[-1]
        self.sweep()
        if again:
            self.decide_about_unknown_people(data, again=True)
        else:
            self.write_late(ghost)
        self.die(who)
        self.work(who, 3, [number], data)
        self.die(who)
        self.sweep()
        self.write_late(ghost)

    @rule(who=st.integers(0, 1), data=st.data())
    def pause_for_a_while(self, who: int, data: st.DataObject) -> None:
        campaign.pause(self.table.connection, self.table.key, actor="test", reason="why not")
        self.paused = True
        self.work(who, 3, [5], data)
        campaign.resume(self.table.connection, self.table.key, actor="test")
        self.paused = False

    @rule(data=st.data(), how=st.sampled_from(["suppress", "opt out", "delete"]))
    def say_no(self, data: st.DataObject, how: str) -> None:
        seq = data.draw(st.sampled_from(self.people))
        statement = {
            "suppress": "INSERT INTO mailpipe.suppression VALUES ('person' || %s || '@mail.example.com', 'all', 'manual', 'test')"
            " ON CONFLICT DO NOTHING",
            "opt out": "UPDATE users SET marketing_opt_in = false WHERE user_id = %s",
            "delete": "DELETE FROM users WHERE user_id = %s",
        }[how]
        self.table.connection.execute(statement.encode(), (seq,))
        self.refused.add(seq)

    @precondition(lambda self: any(self.accepted.values()))
    @rule(data=st.data(), kind=st.sampled_from(["send", "delivery", "rendering_failure"]))
    def tell_an_event(self, data: st.DataObject, kind: event.Kind) -> None:
        seq, attempt = data.draw(st.sampled_from(sorted(one for one, times in self.accepted.items() if times)))
        event.fold(self.table.connection, [event.Event(kind, self.table.key, seq, attempt)])
        event.settle(self.table.connection, self.table.campaign_id)

    @rule(data=st.data(), again=st.booleans())
    def decide_about_unknown_people(self, data: st.DataObject, again: bool) -> None:
        seqs = sorted(data.draw(st.sets(st.sampled_from(self.people), min_size=1)))
        with self.table.connection.transaction():
            campaign.lock(self.table.connection, self.table.key)
            order = ledger.send_again if again else ledger.call_sent
            changed = order(self.table.connection, self.table.campaign_id, seqs)
        assert set(changed) <= set(seqs)
        if again:
            self.ordered.update(changed)
        else:
            self.believed.update(changed)

    @invariant()
    def nobody_is_mailed_twice_and_everybody_has_one_state(self) -> None:
        assert max(self.accepted.values(), default=0) <= 1
        states = self.table.states()
        assert len(states) == len(self.people)
        for seq, state in states.items():
            if state == "sent" and seq not in self.believed:
                assert any(self.accepted[seq, i] for i in range(1, self.attempt(seq) + 1)), (
                    "somebody is called sent whom the provider never accepted"
                )
            if state in ("pending", "skipped"):
                assert not self.has_it(seq), "somebody who has the mail may be mailed again"

    def teardown(self) -> None:
        """Whatever has happened, one honest worker can finish the rest."""
        if not hasattr(self, "table"):
            return
        self.table.expire()
        worker = self.workers[0]
        worker.held, worker.open = None, []
        while (held := self.table.lease("honest")) is not None:
            people = self.table.people(held)
            window = ledger.open_calls(
                self.table.connection, held, [people], opening=opening(self.table.campaign_id), seconds=60
            )
            assert window is not None
            (opened,) = window
            if opened.seqs:
                self.accepted.update((seq, opened.attempts.get(seq, 1)) for seq in opened.seqs)
                self.table.record(held, opened, answer(*[SENT] * len(opened.seqs), first=opened.seqs[0]))
            ledger.release(self.table.connection, held)
        self.nobody_is_mailed_twice_and_everybody_has_one_state()
        assert not {"pending", "sending"} & set(self.table.states().values())
        assert campaign.finish(self.table.connection, self.table.campaign_id)

    def attempt(self, seq: int) -> int:
        """The attempt that somebody is at."""
        return 1 + self.ordered[seq]

    def has_it(self, seq: int) -> bool:
        """Whether the provider has accepted somebody's present attempt."""
        return self.accepted[seq, self.attempt(seq)] > 0

    def finished(self, held: Lease) -> str:
        """Who has a final state by now; a worker knows that from its own calls."""
        return str(self.table.chunk(held.chunk_no)["finished"])


def test_whatever_two_workers_do_nobody_is_mailed_twice_and_nobody_is_lost(make: Any) -> None:
    """Any order of leases, calls, answers (late, twice, lost), deaths, sweeps, pauses, refusals and events."""

    class Run(Machine):
        pass

    Run.make = staticmethod(make)
    run_state_machine_as_test(
        Run,
        settings=hypothesis.settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            database=None,
            # Making a failure smaller takes minutes; the steps as they were found say enough.
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
