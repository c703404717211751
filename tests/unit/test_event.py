"""Reading what SES publishes: both shapes, every kind, and nothing that is not about one of our people."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.event import Event, parse


def line(name: str | None = "Delivery", *, key: str = "eventType", tags: Any = "ours", **more: Any) -> str:
    ours = {"campaign": ["flash-sale"], "seq": ["17"], "attempt": ["1"], "ses:caller-identity": ["mailpipe"]}
    mail: dict[str, Any] = {"messageId": "x", "destination": ["a@mail.example.com"]}
    if tags is not None:
        mail["tags"] = ours if tags == "ours" else tags
    content = {"mail": mail, **more}
    if name is not None:
        content[key] = name
    return json.dumps(content)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Send", "send"),
        ("Delivery", "delivery"),
        ("Bounce", "bounce"),
        ("Complaint", "complaint"),
        ("Reject", "reject"),
        ("Rendering Failure", "rendering_failure"),
        ("DeliveryDelay", "delivery_delay"),
        ("Open", "open"),
        ("Click", "click"),
    ],
)
@pytest.mark.parametrize("key", ["eventType", "notificationType"])
def test_every_kind_is_read_in_both_shapes(name: str, kind: Any, key: str) -> None:
    """Event publishing says `eventType`, identity notifications say `notificationType`."""
    assert parse(line(name, key=key)) == Event(kind, "flash-sale", 17)


@pytest.mark.parametrize(
    "foreign",
    [
        line("Subscription"),
        line(tags=None),
        line(tags={}),
        line(tags={"campaign": ["x"]}),
        line(tags={"seq": ["1"]}),
        line(tags={"campaign": [], "seq": ["1"]}),
        line(tags={"campaign": ["x"], "seq": ["one"]}),
        line(tags={"campaign": ["x"], "seq": ["0"]}),
        line(tags={"campaign": ["x"], "seq": ["-4"]}),
        line(tags={"campaign": ["x"], "seq": ["99999999999"]}),
        line(tags={"campaign": [7], "seq": ["1"]}),
        line(tags={"campaign": ["x"], "seq": ["1"], "attempt": ["0"]}),
        line(tags={"campaign": ["x"], "seq": ["1"], "attempt": ["many"]}),
        line(tags=["campaign"]),
    ],
)
def test_events_that_are_not_about_our_people_are_left_alone(foreign: str) -> None:
    assert parse(foreign) is None


def test_an_event_tells_its_attempt() -> None:
    assert parse(line(tags={"campaign": ["x"], "seq": ["5"], "attempt": ["2"]})) == Event("delivery", "x", 5, 2)
    assert parse(line(tags={"campaign": ["x"], "seq": ["5"]})) == Event("delivery", "x", 5, 1)


@pytest.mark.parametrize(
    "broken", ["", "x", "[]", "null", "{}", '{"mail": 7}', '{"eventType": "Send"}', line(None), line(7)]  # type: ignore[arg-type]
)  # fmt: skip
def test_what_is_no_event_is_said_to_be_none(broken: str) -> None:
    with pytest.raises(ValueError):
        parse(broken)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_an_event_or_is_not(content: Any) -> None:
    with contextlib.suppress(ValueError):
        assert parse(json.dumps(content)) is None


@given(
    st.dictionaries(
        st.sampled_from(["campaign", "seq", "attempt"]), st.none() | st.lists(st.text() | st.integers() | st.none())
    )
)
def test_any_tags_are_read_or_left_alone(tags: Any) -> None:
    found = parse(line(tags=tags))
    assert found is None or (found.seq > 0 and found.attempt > 0)
