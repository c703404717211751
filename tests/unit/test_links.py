"""Unsubscribe tokens and headers: what is made is read again, and nothing else is."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mailpipe.errors import SettingsError
from mailpipe.links import BadToken, Person, Signer

SECRET = "an old secret of the shop 1"
KEYS = f"k1:{SECRET}"
URL = "https://mail.example.com"
USER_IDS = st.text(min_size=1, max_size=60)
TOPICS = st.from_regex(r"[a-z0-9_-]{1,32}", fullmatch=True)

signer = Signer(KEYS, URL, None)


@given(USER_IDS, TOPICS)
def test_a_token_gives_back_its_person_and_topic(user_id: str, topic: str) -> None:
    token = signer.token(user_id, topic)
    assert signer.read(token) == Person(user_id, topic)
    assert re.fullmatch(r"[A-Za-z0-9._-]+[A-Za-z0-9]", token)


def test_the_format_is_final() -> None:
    """Written out by hand: a token in a mail of today must be readable for ever."""
    payload = urlsafe_b64encode(b"marketing:42").rstrip(b"=")
    head = b"1.k1." + payload
    mac = hmac.digest(SECRET.encode(), b"mailpipe unsubscribe\0" + head, hashlib.sha256)[:16]
    token = (head + b"." + urlsafe_b64encode(mac).rstrip(b"=")).decode()
    assert token == "1.k1.bWFya2V0aW5nOjQy.8Tyy9wjvFauFKE76ZQ36tw"
    assert signer.token("42", "marketing") == token
    assert signer.read(token) == Person("42", "marketing")


@given(USER_IDS, st.data())
def test_a_token_with_one_character_changed_is_refused(user_id: str, data: st.DataObject) -> None:
    token = signer.token(user_id, "marketing")
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABab01-_.~é "))
    assume(other != token[at])
    with pytest.raises(BadToken):
        signer.read(token[:at] + other + token[at + 1 :])


@given(USER_IDS, st.integers(0, 200))
def test_a_truncated_or_lengthened_token_is_refused(user_id: str, cut: int) -> None:
    token = signer.token(user_id, "marketing")
    for changed in (
        token[: cut % len(token)],
        token[cut % len(token) + 1 :],
        token + "A",
        token + "=",
        f" {token}",
    ):
        with pytest.raises(BadToken):
            signer.read(changed)


@given(st.text(max_size=200))
def test_what_we_did_not_make_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        signer.read(text)


def test_a_token_of_a_foreign_key_is_refused_even_under_our_id() -> None:
    for keys in ("k2:another secret of the shop", "k1:another secret of the shop"):
        with pytest.raises(BadToken):
            signer.read(Signer(keys, URL, None).token("42", "marketing"))


def test_after_a_rotation_the_new_key_signs_and_the_old_one_still_verifies() -> None:
    old = signer.token("42", "marketing")
    rotated = Signer(f"k2:another secret of the shop, {KEYS}", URL, None)
    assert rotated.read(old) == Person("42", "marketing")
    assert rotated.token("42", "marketing").startswith("1.k2.")
    assert rotated.read(rotated.token("42", "marketing")) == Person("42", "marketing")
    with pytest.raises(BadToken):
        signer.read(rotated.token("42", "marketing"))


def test_topics_and_persons_cannot_be_shifted_into_each_other() -> None:
    assert signer.read(signer.token("b:c", "a")) == Person("b:c", "a")
    with pytest.raises(ValueError, match="a token needs"):
        signer.token("c", "a:b")
    with pytest.raises(ValueError, match="a token needs"):
        signer.token("", "a")


def test_a_person_id_too_long_for_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 1024"):
        signer.token("x" * 800, "marketing")


def test_the_headers_are_one_line_each_in_the_order_of_the_rfcs() -> None:
    with_mailto = Signer(KEYS, URL, "unsub+news@example.com")
    url, token = with_mailto.url("42", "marketing"), with_mailto.token("42", "marketing")
    assert url == f"https://mail.example.com/u/{token}"
    assert with_mailto.headers("42", "marketing") == [
        ("List-Unsubscribe", f"<{url}>, <mailto:unsub%2Bnews@example.com?subject=unsubscribe%20{token}>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
    ]
    assert signer.headers("42", "marketing")[0] == ("List-Unsubscribe", f"<{url}>")
    assert with_mailto.header(url) == with_mailto.headers("42", "marketing")[0][1]


@given(USER_IDS)
def test_a_header_fits_or_is_refused_and_never_holds_anything_but_ascii(user_id: str) -> None:
    with_mailto = Signer(KEYS, URL, "unsub@example.com")
    _name, value = with_mailto.headers(user_id, "marketing")[0]
    assert re.fullmatch(r"<https://[!-~]+>, <mailto:[!-~]+>", value)
    assert len(value) <= 995
    with pytest.raises(ValueError, match="longer than 995"):
        with_mailto.headers("x" * 400 + user_id, "marketing")


@pytest.mark.parametrize(
    ("keys", "url", "mailto", "text"),
    [
        ("", URL, None, "key 1"),
        ("only-a-secret-of-24-chars", URL, None, "key 1"),
        ("UPPER:0123456789abcdef", URL, None, "key 1"),
        ("toolongid:0123456789abcdef", URL, None, "key 1"),
        ("k1:0123456789abcde", URL, None, "16 characters"),
        ("k1:0123456789abcdef,", URL, None, "key 2"),
        ("k1:0123456789abcdef,k1:0123456789abcdeg", URL, None, "twice"),
        (KEYS, "mail.example.com", None, "MAILPIPE_PUBLIC_URL"),
        (KEYS, "https://mail.example.com/?x=1", None, "MAILPIPE_PUBLIC_URL"),
        (KEYS, "https://mail.example.com/a b", None, "MAILPIPE_PUBLIC_URL"),
        (KEYS, "https://mail.example.com>\r\nBcc: x", None, "MAILPIPE_PUBLIC_URL"),
        (KEYS, URL, "unsub", "MAILPIPE_UNSUBSCRIBE_MAILTO"),
        (KEYS, URL, "unsub@example.com>, <https://evil.example.com", "MAILPIPE_UNSUBSCRIBE_MAILTO"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(keys: str, url: str, mailto: str | None, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as raised:
        Signer(keys, url, mailto)
    assert "0123456789" not in str(raised.value)
    assert "secret-of-24" not in str(raised.value)
