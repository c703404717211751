"""Ids and bodies of messages."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from mailpipe import outbox


def test_ids_grow_with_time_and_are_of_version_seven() -> None:
    first = outbox.new_id()
    time.sleep(0.002)
    second = outbox.new_id()
    assert first < second
    assert first.version == second.version == 7
    assert abs((first.int >> 80) / 1000 - time.time()) < 5
    assert len({outbox.new_id() for _ in range(1000)}) == 1000


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4), st.text(min_size=1, max_size=20))
def test_the_same_mail_has_the_same_body_whatever_its_key(variables: dict[str, str], key: str) -> None:
    content = {"to": "ana@mail.example.com", "template": "code", "variables": variables}
    body = outbox.parse(content).body_sha256()
    turned = dict(reversed(list(variables.items())))
    assert outbox.parse({**content, "variables": turned, "idempotency_key": key}).body_sha256() == body
    assert outbox.parse({**content, "to": "ben@mail.example.com"}).body_sha256() != body
    assert outbox.parse({**content, "lane": "low"}).body_sha256() != body
    assert outbox.parse({**content, "delay": 5}).body_sha256() != body
