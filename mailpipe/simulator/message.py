"""An accepted message, as the journal, the event writer and the control endpoint see it. Deciding what is
accepted is `sending`'s duty."""

import os
import time
from dataclasses import dataclass, field

from mailpipe.simulator.fates import Fate
from mailpipe.simulator.templates import Rendered, Template
from mailpipe.simulator.wire import JsonObject


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all messages of one call share. `sender` is a bare address, `at` the instant of acceptance in
    epoch seconds."""

    operation: str
    sender: str
    configuration_set: str
    at: float
    template: Template | None = None
    default_data: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Message:
    """One accepted message. `recipients` are bare addresses, with one fate each; `missing` names the first
    variable that the template needs and the data lacks, in which case nothing is delivered."""

    envelope: Envelope
    message_id: str
    recipients: list[str]
    fates: list[Fate]
    tags: dict[str, str]
    headers: list[tuple[str, str]]
    data: JsonObject
    missing: str = ""
    content: Rendered | None = None
    """The content itself where the message brings its own instead of a template."""

    def rendered(self) -> Rendered | None:
        """The parts as the person would read them; None when a variable is missing or the message is raw
        MIME."""
        template = self.envelope.template
        if template is None or self.missing:
            return self.content
        return template.render(self.envelope.default_data | self.data)


def new_message_ids(count: int) -> list[str]:
    """`count` fresh ids in SES's form: 16 hex digits that begin with the time, a UUID, six digits."""
    prefix = f"0102{int(time.time() * 1000):012x}"
    raw = os.urandom(16 * count).hex()
    parts = [raw[i : i + 32] for i in range(0, 32 * count, 32)]
    return [f"{prefix}-{p[:8]}-{p[8:12]}-{p[12:16]}-{p[16:20]}-{p[20:]}-000000" for p in parts]
