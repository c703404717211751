"""Signatures of posts, and what every answer of a webhook means for each mail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.adapters import signature
from mailpipe.adapters.webhook import target
from mailpipe.adapters.webhook_answer import of_loss, of_response
from mailpipe.errors import SettingsError
from mailpipe.ses.answer import Kind

SECRET = "a throw-away secret of 32 letters"
NOW = 1_796_000_000.5
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["sent", "failed", "retry"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["results", "status", "id", "reason", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def body(*results: Any) -> bytes:
    return json.dumps({"results": results}).encode()


@given(st.binary(max_size=200))
def test_a_post_is_proved_by_its_secret_time_and_body(content: bytes) -> None:
    made = signature.headers(SECRET, content, at=NOW)
    assert signature.verify(SECRET, made, content, now=NOW)
    assert signature.verify(SECRET, {name.lower(): value for name, value in made.items()}, content, now=NOW + 299)
    assert not signature.verify(SECRET + "x", made, content, now=NOW)
    assert not signature.verify(SECRET, made, content + b"x", now=NOW)
    assert not signature.verify(SECRET, made, content, now=NOW + 302)
    assert not signature.verify(SECRET, made, content, now=NOW - 302)
    other_time = {**made, signature.TIMESTAMP: str(int(NOW) + 1)}
    assert not signature.verify(SECRET, other_time, content, now=NOW)


@pytest.mark.parametrize(
    "given", [{}, {"Mailpipe-Timestamp": "x"}, {"Mailpipe-Signature": "v1=\u00e9", "mailpipe-timestamp": "1"}]
)
def test_strange_headers_prove_nothing(given: dict[str, str]) -> None:
    assert not signature.verify(SECRET, given, b"", now=1)


def test_a_signature_is_as_documented() -> None:
    made = signature.headers("key", b"{}", at=1_764_412_800)
    assert made == {
        "Mailpipe-Timestamp": "1764412800",
        # printf '1764412800.{}' | openssl dgst -sha256 -hmac key
        "Mailpipe-Signature": "v1=6d587002880fc063b656fd041e507665f82327f1ead8dae200bcb15db658b607",
    }


def test_each_mail_has_its_own_result() -> None:
    answer = of_response(
        200,
        body(
            {"status": "sent", "id": "theirs-1"},
            {"status": "sent"},
            {"status": "failed", "reason": "unknown_user", "detail": "no anna@mail.example.com here"},
            {"status": "retry", "reason": "Some text about anna@mail.example.com"},
            {"status": "again"},
            {"status": "queued"},
            {"status": "sent", "id": "not an id"},
        ),
        [f"ours-{number}" for number in range(7)],
    )
    assert [(result.kind, result.reason, result.message_id) for result in answer.results] == [
        (Kind.SENT, "", "theirs-1"),
        (Kind.SENT, "", "ours-1"),
        (Kind.FAILED, "unknown_user", None),
        (Kind.RETRY, "deferred", None),
        (Kind.AGAIN, "deferred", None),
        (Kind.UNKNOWN, "unrecognised_status", None),
        (Kind.SENT, "", "ours-6"),
    ]
    assert answer.halt is None
    assert "anna" not in repr(answer)


@pytest.mark.parametrize(
    ("status", "kind", "halts"),
    [
        (200, Kind.UNKNOWN, False),
        (202, Kind.UNKNOWN, False),
        (301, Kind.UNKNOWN, True),
        (308, Kind.UNKNOWN, True),
        (401, Kind.AGAIN, True),
        (404, Kind.AGAIN, True),
        (408, Kind.UNKNOWN, False),
        (429, Kind.AGAIN, False),
        (500, Kind.UNKNOWN, False),
        (503, Kind.UNKNOWN, False),
    ],
)
def test_only_a_refusal_proves_that_nothing_was_taken(status: int, kind: Kind, halts: bool) -> None:
    answer = of_response(status, b"", ["a", "b"])
    assert [result.kind for result in answer.results] == [kind, kind]
    assert (answer.halt is not None) == halts


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_post_that_is_refused_perhaps_for_one_mail_is_halved(status: int) -> None:
    both = of_response(status, b"", ["a", "b"])
    assert ([result.kind for result in both.results], both.split) == ([Kind.AGAIN] * 2, True)
    alone = of_response(status, b"", ["a"])
    assert ([result.kind for result in alone.results], alone.split, alone.halt) == ([Kind.FAILED], False, None)


def test_a_post_that_is_refused_for_everybody_halts() -> None:
    identities = [str(number) for number in range(10)]
    answer = of_response(200, body(*[{"status": "failed", "reason": "closed"}] * 10), identities)
    assert answer.halt is not None
    assert "closed" in answer.halt


@given(JSON | st.just(None), st.integers(1, 4))
def test_no_answer_is_believed_beyond_what_it_says(document: Any, size: int) -> None:
    answer = of_response(200, json.dumps(document).encode(), [str(number) for number in range(size)])
    assert len(answer.results) == size
    said = document.get("results") if isinstance(document, dict) else None
    complete = isinstance(said, list) and len(said) == size
    for position, result in enumerate(answer.results):
        entry = said[position] if complete and said is not None else None
        status = entry.get("status") if isinstance(entry, dict) else None
        assert (result.kind is Kind.SENT) == (status == "sent")
        assert (result.kind is Kind.UNKNOWN) == (status not in ("sent", "failed", "retry", "again"))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_answer_leave_doubt(content: bytes) -> None:
    assert [result.kind for result in of_response(200, content, ["a", "b"]).results] == [Kind.UNKNOWN] * 2


def test_a_loss_leaves_doubt_only_once_the_post_may_have_left() -> None:
    assert {result.kind for result in of_loss(OSError(), 2, left=False).results} == {Kind.AGAIN}
    assert {result.reason for result in of_loss(TimeoutError(), 2, left=True).results} == {"read_timeout"}
    assert {result.reason for result in of_loss(OSError(), 2, left=True).results} == {"connection_lost"}


@pytest.mark.parametrize(
    ("url", "secret", "word"),
    [
        ("http://hooks.example.com/x", SECRET, "https://"),
        ("ftp://hooks.example.com/x", SECRET, "https://host"),
        ("https:///x", SECRET, "https://host"),
        ("https://user:pass@hooks.example.com/x", SECRET, "without a user"),
        ("https://hooks.example.com/a b", SECRET, "space"),
        ("https://hooks.example.com:port/", SECRET, "not a URL"),
        ("https://hooks.example.com/", None, "MAILPIPE_WEBHOOK_SECRET"),
        ("https://hooks.example.com/", "short", "at least 32"),
    ],
)
def test_unusable_settings_are_refused_without_being_quoted(url: str, secret: str | None, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as refused:
        target(url, secret=secret, connect_timeout=1, read_timeout=1)
    assert "hooks" not in str(refused.value)
    assert "pass@" not in str(refused.value)


def test_a_receiver_on_this_machine_needs_no_encryption() -> None:
    found = target("http://127.0.0.1:8080/x?y=1", secret=SECRET, connect_timeout=1, read_timeout=1)
    assert (found.host, found.port, found.path, found.tls) == ("127.0.0.1", 8080, "/x?y=1", False)
    assert SECRET not in repr(found)
