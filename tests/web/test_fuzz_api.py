"""Whatever is sent to the API is accepted or refused in words; never a fault of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.conftest import Web

FIELDS = (
    "to", "template", "variables", "subject", "text", "html", "lane", "sender", "reply_to", "idempotency_key", "send_at",
    "delay", "cancel_key", "expires_in", "other",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(max_size=20),
    st.sampled_from(
        ["a@example.com", '"A, B" <b@example.com>', "x@\u00fc.example.com", "critical", "24h", "99999999h", "\x00", "a\r\nBcc: b",
         "2030-01-01T00:00:00Z", "2030-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "{{x}}", "\ud800"]
    ),
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
GOOD = {"to": "a@example.com", "subject": "s", "text": "t"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), good=st.booleans())
def test_whatever_the_fields_hold(web: Web, changes: dict[str, Any], good: bool) -> None:
    answer = web.api(
        "POST", "/messages", json.dumps({**(GOOD if good else {}), **changes}), **{"Content-Type": "application/json"}
    )
    assert answer.status in (202, 400, 409, 422), answer.data
    if answer.status != 202:
        assert answer.json()["detail"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_body_is(web: Web, body: bytes) -> None:
    for path in ("/messages", "/messages:cancel"):
        answer = web.api("POST", path, body, **{"Content-Type": "application/json"})
        assert answer.status in (400, 422), answer.data
