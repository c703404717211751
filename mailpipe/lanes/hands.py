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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

import psycopg

from mailpipe import address, campaign, pace
from mailpipe.adapters.mime import Unfit
from mailpipe.adapters.protocol import Adapter, Inline, Mail, Templated
from mailpipe.db import Connection, Database
from mailpipe.errors import CampaignError, DatabaseUnavailable
from mailpipe.lane import Lane
from mailpipe.lanes import claims, outcome
from mailpipe.lanes.claims import Claimed, Opened, Told
from mailpipe.ses.answer import Kind, Result
from mailpipe.ses.punctual import SlotMissed
from mailpipe.ses.request import MAX_ENTRIES
from mailpipe.template import MissingVariable, Template

LOG = logging.getLogger("mailpipe.lanes")
T = TypeVar("T")

PATIENCE = 5.0
"""Seconds ahead that a slot may lie. What lies further is asked for again: meanwhile the messages can be cancelled and expire."""
_LEAD = 0.05
"""Seconds that a call is opened before its slot, beside twice the time of a commit."""
_LEAST_LEAD = 0.01
"""The same for slots that are free at once: they are asked for so much later than now."""
_EXPIRY_EVERY = 1.0
_RECONNECT = 0.25


@dataclass(frozen=True, slots=True)
class Item:
    """A message that is ready to be sent, claimed under the id `owner`; `key` is that of its address."""

    owner: UUID
    claimed: Claimed
    mail: Mail
    key: str
    since: float
    """When it came into our hands (monotonic clock)."""
    most: int = MAX_ENTRIES
    """Messages of its next call: fewer after a call was refused as a whole."""

    @property
    def message_id(self) -> UUID:
        return self.claimed.message_id


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

    def prepare(self, owner: UUID, taken: Sequence[Claimed]) -> list[Item]:
        """Everybody's mail. Those that cannot be made end here, each alone."""
        ready: list[Item] = []
        unfit: list[tuple[UUID, str, str, str]] = []
        for claimed in taken:
            try:
                # SQL can enqueue what the models of the API refuse.
                if claimed.sender is not None and self._is_marketing(claimed.sender):
                    unfit.append((claimed.message_id, "failed", "marketing_domain", "sender"))
                    continue
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
            except Unfit as error:
                unfit.append((claimed.message_id, "failed", error.reason, str(error)))
            except CampaignError:
                unfit.append((claimed.message_id, "failed", "template_not_found", str(claimed.template_version)))
            else:
                ready.append(Item(owner, claimed, mail, address.key(to), time.monotonic()))
        if unfit:
            self.safely(lambda connection: claims.refuse(connection, owner, unfit))
        return ready

    def slot(self, items: list[Item]) -> pace.Slot | None:
        """The slot of their call; what expires before it comes is taken out of `items`. None: no call may be made."""
        lead = 2 * self._open_seconds + _LEAST_LEAD
        look_at = items[0].since + _EXPIRY_EVERY
        while items and not self._job.stop.is_set():
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _EXPIRY_EVERY
                self.expire(items)
                continue
            slot = self.safely(lambda connection: self._take(connection, len(items), lead))
            if isinstance(slot, pace.Slot):
                return slot
            self._job.stop.wait(min(slot.wait, 1.0))
        return None

    def _take(self, connection: Connection, number: int, lead: float) -> pace.Slot | pace.Refusal:
        return self._job.pace.take(connection, patience=PATIENCE, lead=lead, recipients=number, roomy=True)

    def expire(self, items: list[Item]) -> None:
        """None of them shall use up a slot that comes too late for it."""
        owner, validity = items[0].owner, self._job.lane.validity
        ids = [item.message_id for item in items]
        ended = self.safely(lambda connection: claims.expire(connection, owner, ids, validity=validity))
        items[:] = [item for item in items if item.message_id not in ended]

    def release(self, items: Sequence[Item]) -> None:
        """Give messages back to the outbox."""
        for owner in {item.owner for item in items}:
            ids = [item.message_id for item in items if item.owner == owner]
            self.safely(lambda connection: claims.release(connection, owner, ids))  # noqa: B023

    def call(self, items: Sequence[Item], slot: pace.Slot) -> list[Item]:
        """Make one call, of no more than the slot allows. Answers what is still to be sent, at once and by whoever is free."""
        if self._job.stop.wait(max(0.0, slot.wait - 2 * self._open_seconds - _LEAD)):
            return list(items)
        opened = self._open(items)
        chosen = [item for item in items if item.message_id in opened]
        if not chosen:
            self._job.pace.give_back(slot.call_size)
            return []
        mails = [replace(item.mail, tags=_tags(item.message_id, opened[item.message_id].attempt)) for item in chosen]
        try:
            answer = self._job.adapter.send(mails, slot_at=slot.at, lateness=slot.lateness)
        except SlotMissed:
            self._job.pace.give_back(slot.call_size)
            return self._retract(chosen, opened)
        self._job.pace.give_back(slot.call_size - sum(result.kind is not Kind.AGAIN for result in answer.results))
        if answer.halt is not None:
            LOG.error("lane %s: %s", self._job.lane.name, answer.halt)
        if answer.blocked is not None:
            reason = answer.blocked
            self.safely(lambda connection: self._job.pace.block(connection, reason))
        if answer.split and len(chosen) > 1:
            half = (len(chosen) + 1) // 2
            return [replace(item, most=half) for item in self._retract(chosen, opened)]
        told = [
            self._told(item, opened[item.message_id], result)
            for item, result in zip(chosen, answer.results, strict=True)
        ]
        self._record(chosen[0].owner, told, seconds=answer.seconds)
        return []

    def safely(self, step: Callable[[Connection], T]) -> T:
        """Run a step that may be repeated; a lost database is waited for."""
        while True:
            try:
                with self._job.database.connection() as connection:
                    return step(connection)
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("database not available, waiting: %s", type(error).__name__)
                time.sleep(_RECONNECT)

    def _open(self, batch: Sequence[Item]) -> dict[UUID, Opened]:
        owner = batch[0].owner
        keys = {item.message_id: item.key for item in batch}
        start = time.monotonic()
        try:
            with self._job.database.connection() as connection:
                opened = claims.open_call(connection, owner, keys, validity=self._job.lane.validity)
        except (psycopg.OperationalError, DatabaseUnavailable):
            # Nobody knows whether this commit happened. Nothing was sent, so what it may have opened is closed and given back.
            LOG.warning("database lost while a call was opened; it is not made")
            self.safely(lambda connection: claims.retract(connection, owner, keys))
            self.release(batch)
            return {}
        self._open_seconds += (min(time.monotonic() - start, 0.1) - self._open_seconds) / 8
        return opened

    def _retract(self, chosen: Sequence[Item], opened: Mapping[UUID, Opened]) -> list[Item]:
        """The call was not made, or refused as a whole: it is closed. Answers what is still in our hands."""
        owner = chosen[0].owner
        ids = [item.message_id for item in chosen]
        ours = self.safely(lambda connection: claims.retract(connection, owner, ids))
        lost = [item for item in chosen if item.message_id not in ours]
        if lost:
            never = Result(Kind.AGAIN, "not_sent")
            told = [
                Told(
                    item.message_id,
                    opened[item.message_id],
                    never,
                    outcome.Next("pending", opened[item.message_id].attempt, item.claimed.tries),
                )
                for item in lost
            ]
            self._record(owner, told, seconds=None)
        return [item for item in chosen if item.message_id in ours]

    def _told(self, item: Item, opened: Opened, result: Result) -> Told:
        becomes = outcome.after(self._job.lane, result, attempt=opened.attempt, tries=item.claimed.tries)
        return Told(item.message_id, opened, result, becomes)

    def _record(self, owner: UUID, told: Sequence[Told], *, seconds: float | None) -> None:
        self.safely(lambda connection: claims.record(connection, owner, told, seconds=seconds))

    def _is_marketing(self, sender: str) -> bool:
        """Raises Unfit."""
        try:
            return address.domain(sender) in self._job.marketing
        except address.AddressError:
            raise Unfit("invalid_mail", "sender") from None

    def _content(self, claimed: Claimed) -> Templated | Inline:
        """Raises MissingVariable, Unfit, or CampaignError where the template is not known."""
        version = claimed.template_version
        if version is None:
            return Inline(str(claimed.subject), html=claimed.body_html, text=claimed.body_text)
        template = self._job.templates.get(version)
        if template is None:
            template = self.safely(lambda connection: campaign.published_template(connection, version))
            self._job.templates[version] = template
        if not template.transactional:
            raise Unfit("marketing_template", template.name)
        if not isinstance(claimed.variables, Mapping):
            raise Unfit("invalid_mail", "variables")
        return Templated(template, template.data(claimed.variables, unsubscribe_url=None))


def _tags(message_id: UUID, attempt: int) -> dict[str, str]:
    return {"message": str(message_id), "attempt": str(attempt)}
