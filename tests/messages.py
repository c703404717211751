"""What tests about messages share: a published template, and messages in the outbox."""

from __future__ import annotations

from typing import Any

from mailpipe import campaign, outbox
from mailpipe.outbox import Accepted, Message
from tests.support import World

TEMPLATE = {
    "template.yaml": "description: For tests\ntransactional: true\n"
    "variables:\n  code: {sample: '123456'}\n  minutes: {sample: 10, default: 10}\n",
    "subject.txt": "Your code {{code}}\n",
    "body.html": "<p>{{code}}, for {{minutes}} minutes</p>\n",
    "body.txt": "{{code}}, for {{minutes}} minutes\n",
}


def publish(world: World, name: str = "code", **parts: str) -> str:
    """Publish a transactional template, with some parts changed; answers its version."""
    home = world.settings.templates / name
    home.mkdir(parents=True, exist_ok=True)
    for part, text in {**TEMPLATE, **{part.replace("_", "."): text for part, text in parts.items()}}.items():
        (home / part).write_text(text)
    with world.database.connection() as connection:
        return campaign.publish(connection, world.settings, world.ses, name)


def spec(number: int = 1, **fields: Any) -> outbox.MessageSpec:
    """A login code for person `number`; `fields` change it."""
    content = {"template": "code", "variables": {"code": f"{number:06d}"}}
    if "subject" in fields:
        content = {}
    return outbox.parse({"to": f"person{number}@mail.example.com", "lane": "critical", **content, **fields})


def enqueue(world: World, *specs: outbox.MessageSpec) -> list[Accepted]:
    with world.database.connection() as connection:
        return outbox.enqueue_many(connection, specs)


def look(world: World, message_id: str) -> Message:
    with world.database.connection() as connection:
        found = outbox.get(connection, message_id)
    assert found is not None
    return found


def queued(world: World) -> list[str]:
    """Ids of the messages that wait in the queue."""
    return [str(row[0]) for row in world.execute("SELECT message_id FROM mailpipe.outbox ORDER BY due_at")]


def clean(world: World) -> None:
    """No messages, no workers."""
    world.execute(
        "TRUNCATE mailpipe.message, mailpipe.outbox, mailpipe.outbox_claim, mailpipe.message_call, mailpipe.lane_worker"
    )
