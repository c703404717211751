"""A run: sends a range of slices of one campaign in one process, with as many senders and calls at once as the pace needs.

Safe to launch at any time, twice, or beside others: the ledger decides who is mailed. A run never unpauses anything. How one
chunk is worked is told in `worker`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import psycopg

from mailpipe import campaign, event, identity, ledger, pace, plan, settings
from mailpipe.adapters import MOST
from mailpipe.adapters import connect as adapters
from mailpipe.adapters.protocol import Adapter
from mailpipe.db import Connection, Database
from mailpipe.db.steps import Steps
from mailpipe.errors import CampaignError, DatabaseUnavailable, ServiceError
from mailpipe.experiment import decision
from mailpipe.flight import Flight
from mailpipe.interpreter import Processor, collector_at_rest
from mailpipe.job import Job, Letters
from mailpipe.ledger import SliceCounts
from mailpipe.links import Signer
from mailpipe.message import Forms
from mailpipe.schedule import launch, window
from mailpipe.schedule.launch import AHEAD
from mailpipe.sendtime.spec import STEP
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings
from mailpipe.worker import Tally, Worker

LOG = logging.getLogger("mailpipe.send")

HORIZON = 180.0
"""Seconds that a run waits for people who are not due yet; launches come about two minutes ahead."""
BEATS = 4
"""Renewals within one lease: three may be missed before another worker takes the chunk."""
ACCOUNT_EVERY = 60.0
"""Seconds between two reads of the account's limits (GetAccount allows one a second)."""
BEGIN_PATIENCE = 30.0
"""Seconds that a run waits for its database at the beginning. Later it waits until it is told to stop: it has work in its hands."""
_IDLE = 0.25


class End(StrEnum):
    """Why a run ended."""

    COMPLETE = "complete"
    """Nobody of its slices is pending or in a call."""
    NOTHING_DUE = "nothing_due"
    """People are pending, but none is due within the horizon, or others are working on them."""
    NOT_SENDING = "not_sending"
    """The campaign is paused, cancelled or not approved: nothing was sent."""
    STOPPED = "stopped"
    """The process was told to stop; answers are recorded and chunks given back."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, in counts. `text` is for people; `seconds` is the length of the run."""

    end: End
    text: str
    calls: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    database: Database,
    config: Settings,
    ses: Ses,
    key: str,
    slices: tuple[int, int] = (0, 99),
    *,
    actor: str = "mailpipe",
    on_slice: Callable[[SliceCounts], None] | None = None,
    on_tick: Callable[[Connection], None] | None = None,
    stop: threading.Event | None = None,
    horizon: float = HORIZON,
    accept_plan: bool = False,
    late: bool = False,
) -> Outcome:
    """Send the slices `slices[0]`..`slices[1]` of a campaign; an approved campaign is started by it, unless its plan cannot
    be met and nobody accepts that, or it was missed and nobody starts it `late`.

    `on_slice` is told of each slice once nobody of it is pending or in a call, whoever finished it. `on_tick` is called
    about once a second. Setting `stop`, or an exception in the calling thread (an interrupt), ends the run gracefully: no
    call is opened any more, answers in flight are recorded, chunks are given back.

    Raises:
        CampaignError: there is no such campaign, no such slices, a plan that cannot be met, or a missed due time.
        RestoredDatabase: the database is not what this machine has sent with; nothing is changed.
        ServiceError: SES's account limits cannot be read.
        DatabaseUnavailable: the database was away for BEGIN_PATIENCE at the beginning, or when the run was told to stop.
    """
    if not 0 <= slices[0] <= slices[1] <= 99:
        raise CampaignError(f"slices {slices[0]}..{slices[1]}: expected a range within 0..99")
    asked = stop or threading.Event()
    started = time.monotonic()
    tick = on_tick or (lambda _: None)
    steps = Steps(database, asked)

    def begin(connection: Connection) -> tuple[campaign.Campaign, Adapter | None, identity.Guard | None]:
        return _begin(connection, config, ses, key, slices, horizon, actor=actor, accept_plan=accept_plan, late=late)

    found, adapter, guard = steps.run(begin, seconds=BEGIN_PATIENCE)
    reporter = _Slices(found.campaign_id, slices, on_slice)
    if guard is None or found.state != "sending":
        steps.run(reporter.report)
        return Outcome(End.COMPLETE if found.state == "done" else End.NOT_SENDING, _refusal(found))
    shared = pace.Pace(found.spec.lane, found.campaign_id, apart=MOST.get(found.spec.adapter))
    limits = steps.run(shared.limits)
    threads, halted = config.threads or plan.threads(limits), threading.Event()
    job = Job(
        campaign=found,
        letters=Letters(Signer(settings.unsubscribe_keys(config), config.public_url, config.unsubscribe_mailto), found),
        forms=Forms(found.key),
        database=database,
        steps=steps,
        ses=ses,
        pace=shared,
        flight=_flight(config, limits, threads, halted),
        configuration_set=config.configuration_set,
        adapter=adapter,
        lease=config.lease,
        stop=halted,
        single=config.ses_operation == "single",
        opening=ledger.opening(found.campaign_id, found.spec.topic, consent=config.consent),
    )
    # Where people are due every five minutes, one run stays for all of them.
    patience = max(horizon, STEP + AHEAD.total_seconds()) if found.spec.mode else horizon
    crew = _Crew(job, slices, patience, config.threads or min(threads, plan.MAX_SENDERS), asked)

    def look(connection: Connection) -> None:
        crew.look(connection, config)
        guard.advance(connection)
        reporter.report(connection)
        tick(connection)

    def finish(connection: Connection) -> None:
        guard.advance(connection)
        if crew.halt is not None:
            campaign.halt(connection, key, reason=crew.halt)
        event.settle(connection, found.campaign_id)
        campaign.reopen(connection, found.campaign_id)
        campaign.finish(connection, found.campaign_id)
        reporter.report(connection)
        tick(connection)

    with collector_at_rest():
        try:
            crew.start()
            crew.attend(look)
        except BaseException:
            asked.set()
            raise
        finally:
            interrupted = asked.is_set() and crew.halt is None
            job.stop.set()
            crew.join()
    try:
        steps.run(finish)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(f"{error}. {crew.loss}") from error
    # Only now: what was completed before the fault has been told.
    crew.check()
    end, text = steps.run(lambda connection: _ending(connection, key, slices, interrupted=interrupted))
    return Outcome(end, text, crew.calls, crew.accepted, time.monotonic() - started)


def _flight(config: Settings, limits: pace.Limits, threads: int, stop: threading.Event) -> Flight:
    """Room and threads for the calls of a run. A few calls a second take no processor, wherever they are made."""
    together = plan.together(limits, threads)
    return Flight(threads, together, stop, processor=Processor() if config.one_processor and together > 1 else None)


def _begin(
    connection: Connection,
    config: Settings,
    ses: Ses,
    key: str,
    slices: tuple[int, int],
    horizon: float,
    *,
    actor: str,
    accept_plan: bool,
    late: bool,
) -> tuple[campaign.Campaign, Adapter | None, identity.Guard | None]:
    """The campaign, started if it was only approved, its way out, and the right to send it; None if nothing of it may be sent."""
    found = campaign.get(connection, key)
    adapter = _other_way(config, ses, found)
    if found.state not in ("approved", "sending"):
        return found, adapter, None
    guard = identity.admit(connection, config, account(ses, found))
    read_account(connection, config, account(ses, found))
    if found.state == "approved":
        plan.check(connection, key, accept=accept_plan, usual_factor=config.most_of_usual, actor=actor)
        found = campaign.start(connection, key, actor=actor, late=late, grace=config.misfire_grace)
    decision.catch_up(connection, config, found)
    launch.begun(connection, found.campaign_id, slices, horizon)
    return found, adapter, guard


def _other_way(config: Settings, ses: Ses, found: campaign.Campaign) -> Adapter | None:
    """The adapter of a campaign that does not leave through SES. Raises SettingsError."""
    return None if found.spec.adapter == "ses" else adapters.connect(config, found.spec.adapter, ses=lambda: ses)


def account(ses: Ses, found: campaign.Campaign) -> Ses | None:
    """The SES client of a campaign that leaves through it. None: SES's limits and counts say nothing about its mails."""
    return ses if found.spec.adapter == "ses" else None


def read_account(connection: Connection, config: Settings, ses: Ses | None) -> None:
    """Note what the account may do now, and what our settings allow. A failed read is fatal only when nothing is known yet. None:
    nobody asks for an account."""
    if ses is None:
        pace.configure(connection, config)
        return
    try:
        pace.keep_account(connection, ses.account(), config)
    except ServiceError:
        if pace.state(connection).account_rate is None:
            raise
        LOG.warning("SES account limits could not be read; the last known ones stay in force")


class _Slices:
    """Tells of each slice once, when it is complete."""

    def __init__(self, campaign_id: int, slices: tuple[int, int], tell: Callable[[SliceCounts], None] | None) -> None:
        self._campaign_id = campaign_id
        self._range = slices
        self._tell = tell
        self._told: set[int] = set()

    def report(self, connection: Connection) -> None:
        if len(self._told) == self._range[1] - self._range[0] + 1:
            return
        if ledger.counts(connection, self._campaign_id).chunks == 0 and not self._has_snapshot(connection):
            return
        for number, counts in ledger.slices(connection, self._campaign_id, self._range).items():
            if counts.complete and number not in self._told:
                self._told.add(number)
                if self._tell is not None:
                    self._tell(counts)

    def _has_snapshot(self, connection: Connection) -> bool:
        row = connection.execute(campaign.QUERIES["has_snapshot"], {"campaign_id": self._campaign_id}).fetchone()
        return row is not None


class _Crew:
    """The senders of a run."""

    def __init__(self, job: Job, slices: tuple[int, int], horizon: float, senders: int, asked: threading.Event) -> None:
        self._job = job
        self._asked = asked
        self._slices = slices
        self._horizon = horizon
        self._low = 0
        self._fault: BaseException | None = None
        self._account_read = time.monotonic()
        self._looking = threading.Lock()
        self._looked_at = 0.0
        self._due: float | None = None
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._workers = [Worker(job, f"{name}:{number}") for number in range(senders)]
        self._threads = [
            threading.Thread(target=self._loop, args=(worker,), name=f"sender-{number}", daemon=True)
            for number, worker in enumerate(self._workers)
        ]
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._ear = threading.Thread(target=self._listen, name="stop", daemon=True)

    def start(self) -> None:
        if self._asked.is_set():
            self._job.stop.set()
        self._job.flight.open()
        for thread in (*self._threads, self._heart, self._ear):
            thread.start()

    @property
    def working(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def _tallies(self) -> list[Tally]:
        return [worker.tally for worker in self._workers]

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self._tallies)

    @property
    def accepted(self) -> int:
        return sum(tally.accepted for tally in self._tallies)

    @property
    def halt(self) -> str | None:
        return next((tally.halt for tally in self._tallies if tally.halt), None)

    @property
    def loss(self) -> str:
        """What becomes of answers that the database did not take."""
        people = sum(tally.unwritten for tally in self._tallies)
        if not people:
            return "Every answer of SES is written; launch again to go on"
        return f"The answers for {people} people could not be written: they become unknown, and events of SES settle them later"

    def wait(self, seconds: float) -> None:
        """Wait for the end of a thread, `seconds` at the most, in steps that an interrupt can break."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < until:
                thread.join(0.05)
            if time.monotonic() >= until:
                return

    def attend(self, look: Callable[[Connection], None]) -> None:
        """Look about once a second until every thread has ended."""
        while self.working:
            self.wait(1.0)
            try:
                with self._job.database.connection() as connection:
                    look(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                # The threads wait for the database too; the next look is in a second.
                LOG.warning("database not available, waiting: %s", type(error).__name__)

    def look(self, connection: Connection, config: Settings) -> None:
        """The upkeep of a running crew, about once a second."""
        if self.halt is not None:
            campaign.halt(connection, self._job.campaign.key, reason=self.halt)
            self._job.stop.set()
        if time.monotonic() - self._account_read > ACCOUNT_EVERY:
            self._account_read = time.monotonic()
            age = pace.read(connection).account_age
            # Another process may have just done it.
            if age is not None and age < ACCOUNT_EVERY / 2:
                return
            read_account(connection, config, account(self._job.ses, self._job.campaign))

    def join(self) -> None:
        """Wait until every thread has recorded its answer. A call ends by its time-out at the latest."""
        for thread in self._threads:
            # Without an identity it was never started: the system had no more threads.
            if thread.ident is not None:
                thread.join()
        self._job.flight.close()
        if self._job.adapter is not None:
            self._job.adapter.close()

    def check(self) -> None:
        """Raise what a thread could not handle."""
        if self._fault is not None:
            raise self._fault

    def _loop(self, worker: Worker) -> None:
        self._job.flight.stay()
        try:
            while not self._job.stop.is_set() and worker.tally.halt is None:
                if not worker.make_room():
                    return
                held = worker._safely(lambda connection: self._lease(connection, worker.owner))
                if held is not None:
                    worker.work(held)
                elif not self._wait_for_work(worker):
                    return
        except BaseException as fault:
            self._fault = self._fault or fault
            self._job.stop.set()
        finally:
            worker.leave_room()
            worker.kept.give_back()

    def _listen(self) -> None:
        """Pass on that the run was asked to stop. Its own reasons to end are not the caller's: then a database is waited for."""
        while self.working:
            if self._asked.wait(0.05):
                self._job.stop.set()
                return

    def _beat(self) -> None:
        """Renew the leases of this crew while one of its threads lives: a slow call does not cost its chunk, and the chunks of
        a dead process are free after one short lease. A database that is away renews nothing, and needs nothing renewed.
        """
        while self.working:
            held = [worker.held for worker in self._workers if worker.held is not None]
            try:
                with self._job.database.connection() as connection:
                    ledger.renew(connection, self._job.campaign.campaign_id, held, seconds=self._job.lease)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("heartbeat missed: %s", type(error).__name__)
            # In short steps, so that it ends with the crew.
            rest = time.monotonic() + self._job.lease / BEATS
            while self.working and time.monotonic() < rest:
                time.sleep(0.05)

    def _lease(self, connection: Connection, owner: str) -> ledger.Lease | None:
        for low in dict.fromkeys((self._low, 0)):
            held = ledger.lease(
                connection,
                self._job.campaign.campaign_id,
                self._slices,
                owner=owner,
                seconds=self._job.lease,
                low=low,
            )
            if held is not None:
                # Everything below is taken or done; what is given back there is found by the search from 0.
                self._low = held.chunk_no
                return held
        return None

    def _wait_for_work(self, worker: Worker) -> bool:
        """Whether something of these slices can be leased within the horizon; waits a little for it.

        That can also be a chunk in the hands of a worker who died: whoever launches again need not come a second time.
        """
        worker.leave_room()
        worker.kept.give_back()
        with self._looking:
            if time.monotonic() - self._looked_at > _IDLE:
                self._due = worker._safely(self._next_due)
                worker.kept.give_back()
                self._looked_at = time.monotonic()
            due = self._due
        if due is None or due > self._horizon:
            return False
        self._job.stop.wait(min(max(due, 0.01), _IDLE))
        return True

    def _next_due(self, connection: Connection) -> float | None:
        ledger.expire_leases(connection, self._job.campaign.campaign_id)
        if self._job.campaign.spec.closes:
            window.close(connection, self._job.campaign.campaign_id)
        if campaign.get(connection, self._job.campaign.key).state != "sending":
            return None
        return ledger.next_due(connection, self._job.campaign.campaign_id, self._slices).soonest


def _refusal(found: campaign.Campaign) -> str:
    if found.state == "paused":
        return f"campaign {found.key} is paused ({found.state_reason}); nothing is sent until somebody resumes it"
    if found.state == "draft":
        return f"campaign {found.key} is not approved; nothing is sent until somebody other than its author approves it"
    return f"campaign {found.key} is {found.state}; nothing is sent"


def _ending(connection: Connection, key: str, slices: tuple[int, int], *, interrupted: bool) -> tuple[End, str]:
    found = campaign.get(connection, key)
    left = [counts for counts in ledger.slices(connection, found.campaign_id, slices).values() if not counts.complete]
    if not left:
        return End.COMPLETE, f"campaign {key}: nobody of slices {slices[0]:02d}..{slices[1]:02d} is left"
    if found.state != "sending":
        return End.NOT_SENDING, _refusal(found)
    people = sum(counts.pending + counts.sending for counts in left)
    if interrupted:
        return End.STOPPED, f"campaign {key}: stopped; {people} people of {len(left)} slices are left"
    return (
        End.NOTHING_DUE,
        f"campaign {key}: {people} people of {len(left)} slices are not due yet or in other hands",
    )
