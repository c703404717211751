"""What all senders of one run share: its campaign, its letters, and what is judged over all of their calls. What a sender does with
it is `worker`'s duty; no Dagster job.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from mailpipe import pace, snapshot
from mailpipe.adapters.protocol import Adapter
from mailpipe.campaign import Campaign, published_template
from mailpipe.db import Connection, Database
from mailpipe.db.steps import Steps
from mailpipe.flight import Flight
from mailpipe.ledger import Lease, Opening
from mailpipe.links import Signer
from mailpipe.message import Forms, Letter
from mailpipe.ses.client import Ses
from mailpipe.template import Template

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
    """What all senders of a run share and none changes."""

    campaign: Campaign
    letters: Letters
    forms: Forms
    database: Database
    steps: Steps
    ses: Ses
    pace: pace.Pace
    flight: Flight
    configuration_set: str
    adapter: Adapter | None
    """Another way than SES; None: requests go to `ses`."""
    lease: float
    single: bool
    stop: threading.Event
    opening: Opening
    unanswered: Streak = field(default_factory=Streak)
    refused: Refusals = field(default_factory=Refusals)
