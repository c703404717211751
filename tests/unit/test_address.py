"""Addresses: what SES can take, in which form, and when two spellings are one person."""

import time

import pytest
from email_validator import EmailNotValidError, validate_email
from hypothesis import example, given
from hypothesis import strategies as st

from mailpipe.address import TRIMMED, AddressError, key, mailbox, parts, send_form

LABELS = st.text("abZ09-_é", min_size=1, max_size=8) | st.sampled_from(
    [
        "xn--bcher-kva",
        "xn--",
        "ab--cd",
        "a" * 63,
        "a" * 64,
        "test",
        "local",
        "onion",
        "arpa",
        "invalid",
        "com",
        "straße",
    ]
)
LOCALS = st.text("abZ09.+-_'!#\"@ é\u212a\n", max_size=10) | st.sampled_from(
    ["Info", "a" * 64, "a" * 65, '"a b"', "postmaster"]
)
ADDRESSES = st.builds(
    lambda local, labels, end: f"{local}@{'.'.join(labels)}{end}",
    LOCALS,
    st.lists(LABELS, min_size=1, max_size=5),
    st.sampled_from(["", ".com", ".example.org", ".c0", ".c", ".TEST", ".", ".com\n", ".\u212aom"]),
)


def accepted(text: str) -> str | None:
    """The form that email-validator's own reading gives, the local part as written."""
    trimmed = text.strip(TRIMMED)
    try:
        valid = validate_email(trimmed, check_deliverability=False, allow_smtputf8=False, strict=True)
    except EmailNotValidError:
        return None
    return f"{trimmed.rpartition('@')[0]}@{valid.ascii_domain}"


@given(ADDRESSES | st.text(max_size=40))
@example("a@" + ".".join(["a" * 60] * 4) + ".com")
@example("a" * 64 + "@" + ".".join(["a" * 60] * 3) + ".abcde")
@example("a" * 64 + "@" + ".".join(["a" * 60] * 3) + ".abcdef")
@example("a@exſample.com")
def test_an_address_is_taken_exactly_when_email_validator_takes_it(text: str) -> None:
    """So the fast path is a subset of it, and gives the same form."""
    try:
        found = send_form(text)
    except AddressError:
        assert accepted(text) is None
    else:
        assert found == accepted(text)
        assert found.isascii()
        assert send_form(found) == found


@pytest.mark.parametrize(
    ("given_text", "sent"),
    [
        ("Anna.Smith@Example.COM", "Anna.Smith@example.com"),
        ("  anna+news@mail.example.com\r\n", "anna+news@mail.example.com"),
        ("Info@example.com", "Info@example.com"),
        ("anna@bücher.example.com", "anna@xn--bcher-kva.example.com"),
        ("anna@straße.example.com", "anna@xn--strae-oqa.example.com"),
        ("bounce+x@simulator.amazonses.com", "bounce+x@simulator.amazonses.com"),
    ],
)
def test_the_send_form_keeps_the_local_part_and_makes_the_domain_ascii(given_text: str, sent: str) -> None:
    assert send_form(given_text) == sent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "anna",
        "@example.com",
        "anna@",
        "anna@example",
        "anna@example.com.",
        "anna@exa_mple.com",
        "anna@[192.0.2.1]",
        "anna..b@example.com",
        ".anna@example.com",
        "anna@example..com",
        '"anna b"@example.com',
        "Anna <anna@example.com>",
        "anna@example.com, bob@example.com",
        "anna@example.com\nBcc: bob@example.com",
        "andrée@example.com",
        "ａnna@example.com",
        "anna\u200b@example.com",
        "a" * 65 + "@example.com",
        "anna@" + "a" * 64 + ".com",
        "anna@example.test",
        "anna@localhost",
    ],
)
def test_what_ses_cannot_take_is_refused_without_naming_it(text: str) -> None:
    with pytest.raises(AddressError) as raised:
        send_form(text)
    assert "@" not in str(raised.value)
    assert raised.value.reason == "unusable_address"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("other", ["ANNA@EXAMPLE.COM", " Anna@Example.com ", "anna@example.com\n"])
def test_two_spellings_of_one_person_have_one_key(other: str) -> None:
    assert key(other) == key("anna@example.com") == "anna@example.com"


def test_a_unicode_domain_and_its_punycode_have_one_key() -> None:
    assert key("Anna@BÜCHER.example.com") == key("anna@xn--bcher-kva.example.com")


@given(ADDRESSES)
def test_the_key_is_the_lower_case_of_the_send_form(text: str) -> None:
    """SQL relies on it: lower(email) of what is stored is the key."""
    try:
        form = send_form(text)
    except AddressError:
        return
    assert key(text) == key(form) == key(form.upper()) == form.lower()


def test_long_rubbish_is_refused_quickly() -> None:
    started = time.perf_counter()
    for text in (
        "a." * 20_000 + "@x",
        "a@" + "a-" * 20_000,
        "a" * 100_000,
        "a@" + "a." * 20_000,
        "@" * 20_000,
    ):
        with pytest.raises(AddressError):
            send_form(text)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("news@Example.com", "news@example.com"),
        ("Shop <news@example.com>", "Shop <news@example.com>"),
        ('"Shop, Inc." <news@example.com>', '"Shop, Inc." <news@example.com>'),
        ("Shop, Inc. <news@example.com>", '"Shop, Inc." <news@example.com>'),
        ("<news@example.com>", "news@example.com"),
        ("Bücher <news@bücher.example.com>", "=?utf-8?q?B=C3=BCcher?= <news@xn--bcher-kva.example.com>"),
    ],
)
def test_a_sender_may_have_a_name_in_any_language(text: str, field: str) -> None:
    assert mailbox(text) == field
    assert mailbox(field) == field


@pytest.mark.parametrize("name", ["\u00fc" * 30, "\u5c71\u7530\u592a\u90ce" * 12, "\U0001f389" * 20])
def test_a_long_name_becomes_words_that_everybody_can_read(name: str) -> None:
    field = mailbox(f"{name} <news@example.com>")
    words = field.removesuffix(" <news@example.com>").split(" ")
    assert len(words) > 1
    assert all(word.startswith("=?utf-8?") and len(word) <= 75 for word in words)
    assert parts(field) == (name, "news@example.com")
    assert mailbox(field) == field


@pytest.mark.parametrize(
    "text",
    [
        "Shop\r\nBcc: x <news@example.com>",
        "=?utf-8?q?Shop=0D=0ABcc=3A?= <news@example.com>",
        "Shop <news>",
        "Shop",
        "a <b <c@example.com>>",
    ],
)
def test_a_sender_that_would_forge_a_header_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        mailbox(text)
