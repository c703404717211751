"""Who said no is not mailed by the very next call, whatever was frozen before; and only by the mail that they said no to."""

from __future__ import annotations

import pytest

from mailpipe import suppression
from mailpipe.suppression import Entry
from tests.support import World


def say_no(scene: World) -> None:
    """1 to 4 say no to the campaign's topic in every way there is; 5 and 6 to other mail."""
    with scene.database.connection() as connection:
        for person, scope in ((1, "all"), (2, "marketing"), (5, "topic:receipts")):
            entry = Entry(f"PERSON{person}@Mail.example.com", scope, "unsubscribe", "test")
            suppression.suppress(connection, [entry])
        for person, topic in ((3, "news"), (4, "marketing"), (6, "receipts")):
            suppression.unsubscribe(connection, str(person), topic)
        suppression.suppress(connection, [Entry("person7@mail.example.com", "topic:news", "manual", "test")])


@pytest.mark.parametrize("frozen_before", [True, False])
def test_a_no_after_the_snapshot_is_as_good_as_one_before_it(scene: World, frozen_before: bool) -> None:
    scene.people(8)
    if not frozen_before:
        say_no(scene)
    key = scene.ready(topic="news")
    if frozen_before:
        say_no(scene)
    scene.send(key)
    mailed = {line["to"] for line in scene.journal(key)}
    assert mailed == {f"person{number}@mail.example.com" for number in (5, 6, 8)}


def test_who_takes_it_back_is_mailed_again(scene: World) -> None:
    scene.people(2)
    key = scene.ready(topic="news")
    with scene.database.connection() as connection:
        suppression.unsubscribe(connection, "1", "news")
        suppression.resubscribe(connection, "1", "news")
        suppression.unsubscribe(connection, "2", "news")
    scene.send(key)
    assert {line["to"] for line in scene.journal(key)} == {"person1@mail.example.com"}
    assert scene.keep_promises(key) == {"sent": 1, "skipped": 1}
