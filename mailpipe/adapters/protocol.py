"""What a mail is, whatever carries it, and what each adapter promises about a call.

The promise is that of `ses.answer`: one result for each mail, in their order, and `again` only where the mail certainly did not
leave. Each mail has exactly one recipient.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mailpipe.ses.answer import Answer
from mailpipe.ses.punctual import SlotMissed
from mailpipe.template import Template


@dataclass(frozen=True, slots=True)
class Templated:
    """A published template and one person's replacement data, as `Template.data` makes it."""

    template: Template
    data: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inline:
    """Content that a mail brings along, ready to be read; nothing is put into it or escaped. At least one of html and text."""

    subject: str
    html: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One mail to one person. `sender`, `to` and `reply_to` are `address` or `Name <address>`, the name in any language.

    `headers` are those beyond From, To, Subject, Date and the like, which belong to mailpipe (`header`). `tags` come back with
    the provider's events. `configuration_set` is SES's alone.
    """

    sender: str
    to: str
    content: Templated | Inline
    configuration_set: str
    headers: Sequence[tuple[str, str]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    reply_to: str | None = None


class Adapter(Protocol):
    """A way for mails to leave. Safe to share between threads."""

    @property
    def name(self) -> str:
        """`ses`, `smtp` or `webhook`."""

    @property
    def most(self) -> int:
        """Recipients of one call at most."""

    def shares(self, mail: Mail) -> Hashable | None:
        """Mails may share a call when this is equal for them; None: the mail needs a call of its own."""

    def send(self, mails: Sequence[Mail], *, slot_at: float | None = None, lateness: float = 0.0) -> Answer:
        """Make one call. What is slow and needs no network (rendering, MIME, signing) comes before its time.

        `slot_at` is when the mails may leave (monotonic clock, seconds), at most `lateness` seconds later; None is at once. Never
        raises for anything that a mail, the network or the other side does; the answer says it. A mail that cannot be made
        is `failed`, and the others leave.

        Raises:
            SlotMissed: the call was ready later than that, and certainly nothing left.
        """

    def close(self) -> None:
        """Close idle connections; a later call opens new ones."""


def divide(adapter: Adapter, mails: Sequence[Mail], *, most: int | None = None) -> list[list[int]]:
    """The calls that these mails need: the positions of the mails of each one, in their order. `most` is a smaller limit than
    the adapter's own, such as the pace's.
    """
    limit = adapter.most if most is None else max(1, min(most, adapter.most))
    calls: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    for position, mail in enumerate(mails):
        group = adapter.shares(mail)
        call = None if group is None else filling.get(group)
        if call is None or len(call) >= limit:
            call = []
            calls.append(call)
            if group is not None:
                filling[group] = call
        call.append(position)
    return calls


def wait(slot_at: float | None, lateness: float) -> float:
    """Wait for the slot; answers when the call began (monotonic clock).

    Raises:
        SlotMissed: it is later than that.
    """
    if slot_at is not None:
        time.sleep(max(0.0, slot_at - time.monotonic()))
        if time.monotonic() > slot_at + lateness:
            raise SlotMissed
    return time.monotonic()
