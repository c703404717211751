"""One thread's protocol for one call: pace, open, call, record. The order of these steps is the promise, as it is for campaigns.

- The wait for the pace comes before anything is opened; a message can be cancelled, and expires, while it waits.
- A call is opened by a synchronous commit; only then may the request leave, and only within its slot.
- An answer is recorded however long that takes; it is never dropped while the process lives.

Which messages, and how many threads, is decided in `crew`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

import psycopg

from mailpipe import address, campaign, pace
from mailpipe.adapters.protocol import Adapter, Inline, Mail, Templated
from mailpipe.db import Connection, Database
from mailpipe.errors import CampaignError, DatabaseUnavailable
from mailpipe.lane import Lane
from mailpipe.lanes import claims, outcome
from mailpipe.lanes.claims import Claimed, Opened, Told
from mailpipe.ses.answer import Kind, Result
from mailpipe.ses.client import SlotMissed
from mailpipe.template import MissingVariable, Template

LOG = logging.getLogger("mailpipe.lanes")
T = TypeVar("T")

PATIENCE = 5.0
"""Seconds ahead that a slot may lie. What lies further is asked for again: meanwhile the messages can be cancelled and expire."""
_LEAD = 0.05
"""Seconds that a call is opened before its slot, beside twice the time of a commit."""
_LEAST_LEAD = 0.01
"""The same for slots that are free at once: they are asked for so much later than now."""
_RECONNECT = 0.25


@dataclass(frozen=True, slots=True)
class Item:
    """A claimed message that is ready to be sent; `key` is that of its address."""

    claimed: Claimed
    mail: Mail
    key: str


@dataclass(frozen=True)
class Job:
    """What all threads of a lane share and none changes."""

    lane: Lane
    database: Database
    adapter: Adapter
    pace: pace.Pace
    sender: str
    marketing: frozenset[str]
    """Domains of campaigns, from which no message is sent."""
    configuration_set: str
    templates: dict[str, Template]
    stop: threading.Event


class Hands:
    """What a thread does with its messages. Not shared between threads."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._open_seconds = 0.005
        self._expires_at = 0.0

    def prepare(self, owner: UUID, taken: Sequence[Claimed]) -> list[Item]:
        """Everybody's mail. Those that cannot be made end here, each alone."""
        ready: list[Item] = []
        unfit: list[tuple[UUID, str, str, str]] = []
        for claimed in taken:
            if claimed.sender is not None and address.domain(claimed.sender) in self._job.marketing:
                unfit.append((claimed.message_id, "failed", "marketing_domain", "sender"))
                continue
            try:
                to = address.send_form(claimed.email)
                mail = Mail(
                    sender=claimed.sender or self._job.sender,
                    to=to,
                    content=self._content(claimed),
                    configuration_set=self._job.configuration_set,
                    tags=_tags(claimed.message_id, claimed.attempt),
                    reply_to=claimed.reply_to,
                )
            except address.AddressError as error:
                unfit.append((claimed.message_id, "skipped", error.reason, "email"))
            except MissingVariable as error:
                unfit.append((claimed.message_id, "failed", "missing_variable", error.name))
            except CampaignError:
                unfit.append((claimed.message_id, "failed", "template_not_found", str(claimed.template_version)))
            else:
                ready.append(Item(claimed, mail, address.key(to)))
        if unfit:
            self.safely(lambda connection: claims.refuse(connection, owner, unfit))
        return ready

    def work(self, owner: UUID, items: Sequence[Item]) -> None:
        """Send the mails of one call, in more than one where the pace or the provider wants it so; or give them back at a stop."""
        todo = deque([list(items)])
        self._expires_at = time.monotonic() + 1.0
        try:
            while todo and not self._job.stop.is_set():
                self._next_call(owner, todo)
        finally:
            if left := [item.claimed.message_id for batch in todo for item in batch]:
                self.safely(lambda connection: claims.release(connection, owner, left))

    def safely(self, step: Callable[[Connection], T]) -> T:
        """Run a step that may be repeated; a lost database is waited for."""
        while True:
            try:
                with self._job.database.connection() as connection:
                    return step(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("database not available, waiting: %s", type(error).__name__)
                time.sleep(_RECONNECT)

    def _next_call(self, owner: UUID, todo: deque[list[Item]]) -> None:
        waiting = todo.popleft()
        self._expire(owner, waiting)
        slot = self._slot(owner, waiting)
        if slot is None or self._job.stop.wait(max(0.0, slot.wait - 2 * self._open_seconds - _LEAD)):
            todo.appendleft(waiting)
            return
        batch, rest = waiting[: slot.call_size], waiting[slot.call_size :]
        if rest:
            todo.appendleft(rest)
        opened = self._open(owner, batch)
        chosen = [item for item in batch if item.claimed.message_id in opened]
        if not chosen:
            return
        mails = [
            replace(item.mail, tags=_tags(item.claimed.message_id, opened[item.claimed.message_id].attempt))
            for item in chosen
        ]
        try:
            answer = self._job.adapter.send(mails, slot_at=slot.at, lateness=slot.lateness)
        except SlotMissed:
            self._job.pace.give_back(slot.call_size)
            self._retract(owner, chosen, opened, todo)
            return
        self._job.pace.give_back(slot.call_size - sum(result.kind is not Kind.AGAIN for result in answer.results))
        if answer.halt is not None:
            LOG.error("lane %s: %s", self._job.lane.name, answer.halt)
        if answer.blocked is not None:
            reason = answer.blocked
            self.safely(lambda connection: self._job.pace.block(connection, reason))
        if answer.split and len(chosen) > 1:
            half = len(chosen) // 2
            self._retract(owner, chosen[half:], opened, todo)
            self._retract(owner, chosen[:half], opened, todo)
            return
        told = [
            Told(
                item.claimed.message_id,
                opened[item.claimed.message_id],
                result,
                outcome.after(
                    self._job.lane,
                    result,
                    attempt=opened[item.claimed.message_id].attempt,
                    tries=item.claimed.tries,
                ),
            )
            for item, result in zip(chosen, answer.results, strict=True)
        ]
        self.safely(lambda connection: claims.record(connection, owner, told, seconds=answer.seconds))

    def _slot(self, owner: UUID, waiting: list[Item]) -> pace.Slot | None:
        """The next slot; what expires before it comes is taken out of `waiting`. None: no call may be made."""
        lead = 2 * self._open_seconds + _LEAST_LEAD
        while waiting and not self._job.stop.is_set():
            wanted = len(waiting)
            slot = self.safely(
                lambda connection: self._job.pace.take(connection, patience=PATIENCE, lead=lead, recipients=wanted)  # noqa: B023
            )
            if isinstance(slot, pace.Slot):
                return slot
            self._job.stop.wait(min(slot.wait, 1.0))
            self._expire(owner, waiting)
        return None

    def _expire(self, owner: UUID, waiting: list[Item]) -> None:
        """Where the pace makes messages wait, about once a second: none of them shall use up a slot that came too late for it."""
        if time.monotonic() < self._expires_at:
            return
        self._expires_at = time.monotonic() + 1.0
        ids, validity = [item.claimed.message_id for item in waiting], self._job.lane.validity
        ended = self.safely(lambda connection: claims.expire(connection, owner, ids, validity=validity))
        waiting[:] = [item for item in waiting if item.claimed.message_id not in ended]

    def _open(self, owner: UUID, batch: Sequence[Item]) -> dict[UUID, Opened]:
        keys = {item.claimed.message_id: item.key for item in batch}
        start = time.monotonic()
        try:
            with self._job.database.connection() as connection:
                opened = claims.open_call(connection, owner, keys, validity=self._job.lane.validity)
        except (psycopg.OperationalError, DatabaseUnavailable):
            # Nobody knows whether this commit happened. Nothing was sent, so what it may have opened is closed and given back.
            LOG.warning("database lost while a call was opened; it is not made")
            self.safely(lambda connection: claims.retract(connection, owner, keys))
            self.safely(lambda connection: claims.release(connection, owner, keys))
            return {}
        self._open_seconds += (min(time.monotonic() - start, 0.1) - self._open_seconds) / 8
        return opened

    def _retract(
        self, owner: UUID, chosen: Sequence[Item], opened: dict[UUID, Opened], todo: deque[list[Item]]
    ) -> None:
        """The call was not made, or refused as a whole: it is closed, and its messages come next."""
        ids = [item.claimed.message_id for item in chosen]
        ours = self.safely(lambda connection: claims.retract(connection, owner, ids))
        if again := [item for item in chosen if item.claimed.message_id in ours]:
            todo.appendleft(again)
        never = Result(Kind.AGAIN, "not_sent")
        lost = [
            Told(one, opened[one], never, outcome.Next("pending", opened[one].attempt, item.claimed.tries))
            for item in chosen
            if (one := item.claimed.message_id) not in ours
        ]
        if lost:
            self.safely(lambda connection: claims.record(connection, owner, lost, seconds=None))

    def _content(self, claimed: Claimed) -> Templated | Inline:
        version = claimed.template_version
        if version is None:
            return Inline(str(claimed.subject), html=claimed.body_html, text=claimed.body_text)
        template = self._job.templates.get(version)
        if template is None:
            template = self.safely(lambda connection: campaign.published_template(connection, version))
            self._job.templates[version] = template
        return Templated(template, template.data(claimed.variables, unsubscribe_url=None))


def _tags(message_id: UUID, attempt: int) -> dict[str, str]:
    return {"message": str(message_id), "attempt": str(attempt)}
