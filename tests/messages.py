"""What tests about messages share: a published template, and messages in the outbox."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from mailpipe import campaign, outbox
from mailpipe.lane import NAMES, LaneName
from mailpipe.lanes import run
from mailpipe.outbox import Accepted, Message
from tests.support import World, wait_for

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


@contextmanager
def working(
    world: World, *, names: Sequence[LaneName] = NAMES, lease: float = 10.0, alone: bool = True, **changes: Any
) -> Iterator[Event]:
    """A process of `mailpipe lanes`, here as a thread; `changes` are fields of the settings. Ends gracefully; `alone`: and leaves
    nothing in anybody's hands."""
    config = world.with_settings(database_url=world.database.url.render_as_string(hide_password=False), **changes)
    stop, ready, faults = Event(), Event(), []

    def work() -> None:
        try:
            run.run(
                config, world.ses, endpoint=world.stand_in.url, lanes=names, stop=stop, ready=ready.set, lease=lease
            )
        except BaseException as fault:
            faults.append(fault)
        ready.set()

    thread = Thread(target=work)
    thread.start()
    assert ready.wait(20)
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
    if faults:
        raise faults[0]
    assert not thread.is_alive(), "the lanes do not stop"
    if alone:
        assert world.execute("SELECT count(*) FROM mailpipe.outbox_claim") == [(0,)], "something was not given back"
        assert world.execute("SELECT count(*) FROM mailpipe.lane_worker") == [(0,)]


def states(world: World) -> dict[str, int]:
    return dict(world.execute("SELECT state, CAST(count(*) AS int) FROM mailpipe.message GROUP BY state"))


def wait_until(world: World, **wanted: int) -> None:
    """Wait until there are so many messages in each state, and none in another."""
    wait_for(lambda: states(world) == wanted, f"{wanted}, but there are {states(world)}", seconds=30)


def accepted(world: World) -> Counter[tuple[str, int]]:
    """How often the provider has accepted each attempt of each message."""
    return Counter(
        (line["tags"]["message"], int(line["attempt"]))
        for line in world.stand_in.journal()
        if "message" in line["tags"]
    )


def keep_promises(world: World) -> None:
    """Check the messages of the database against the stand-in's journal.

    At most one accepted mail per message and attempt; a second attempt only after an open call; every `sent` is in the journal, and
    whatever is in it is `sent`, `unknown`, waits for its second attempt, or failed after the provider had taken it; a message waits
    in exactly one place.
    """
    journal = accepted(world)
    assert not [one for one, times in journal.items() if times > 1], "an attempt was accepted twice"
    rows = world.execute(
        "SELECT CAST(message_id AS text), state, attempt, calls,"
        " (SELECT count(*) FROM mailpipe.outbox o WHERE o.message_id = m.message_id),"
        " (SELECT count(*) FROM mailpipe.outbox_claim c WHERE c.message_id = m.message_id) FROM mailpipe.message m"
    )
    numbers = defaultdict(list)
    for one, number in journal:
        numbers[one].append(number)
    for message_id, state, attempt, calls, waiting, held in rows:
        attempts = numbers[message_id]
        assert all(number <= attempt <= calls + 1 for number in attempts)
        assert waiting + held == (1 if state in ("pending", "sending") else 0), f"{state}: {waiting} + {held}"
        if state == "sent":
            assert attempts, "called sent, and never accepted"
        if attempts:
            assert state in ("sent", "unknown", "sending", "failed") or (state == "pending" and attempt > max(attempts))
