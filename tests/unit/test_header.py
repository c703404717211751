"""Whatever stands in a name, a subject or a header: no second header comes of it, and it reads as it was written."""

from __future__ import annotations

from email import policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import parseaddr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe import header
from mailpipe.header import HeaderError

ADDRESS = "anna@mail.example.com"
READABLE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=64)
ANYTHING = st.text(max_size=80) | st.text(
    st.sampled_from('\r\n\t\x00\x85\u2028\u202eBcc: <>,;"\\=?utf8_qQ@.é🎉'), max_size=80
)
NAMES = [
    "Plain",
    "Shop, Inc.",
    'The "best" shop',
    "Nguyễn Văn Ánh",
    "Party \N{PARTY POPPER} time",
    "O'Neil (sales); @home",
    "back\\slash",
    "=?no encoded word?=",
    "山田太郎" * 10,
    "a" * 64,
    "two  spaces",
]


def parsed(written: bytes) -> EmailMessage:
    return BytesParser(policy=policy.SMTP).parsebytes(written + b"\r\n")


def lines_of(written: bytes) -> list[bytes]:
    """The lines of one header: the first one names it, each other one begins with a space."""
    assert written.endswith(b"\r\n")
    lines = written[:-2].split(b"\r\n")
    assert not any(b"\r" in line or b"\n" in line for line in lines)
    assert all(line.startswith(b" ") and line.strip() for line in lines[1:])
    assert all(len(line) <= 998 for line in lines)
    assert written.isascii()
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_names_read_as_they_were_written(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    for field in ("From", "To", "Reply-To"):
        written = header.mailbox(field, f'"{quoted}" <{ADDRESS}>')
        assert all(len(line) <= 78 for line in lines_of(written))
        [found] = parsed(written)[field].addresses
        assert found.addr_spec == ADDRESS
        # The newer parser of Python 3.11 keeps the space between encoded words, which RFC 2047 takes out; the older one does not.
        display, address = parseaddr(written.decode().partition(": ")[2].replace("\r\n", ""))
        shown = str(make_header(decode_header(display)))
        assert (" ".join(shown.split()), address) == (" ".join(name.split()), ADDRESS)


@given(READABLE)
def test_subjects_read_as_they_were_written(text: str) -> None:
    if not text.strip():
        with pytest.raises(HeaderError):
            header.subject(text)
        return
    written = header.subject(text)
    assert all(len(line) <= 78 for line in lines_of(written))
    assert str(parsed(written)["Subject"]) == text.strip()


@given(ANYTHING)
def test_no_name_makes_a_second_header(name: str) -> None:
    for field in ("From", "To"):
        try:
            written = header.mailbox(field, f"{name} <{ADDRESS}>")
        except HeaderError:
            continue
        lines_of(written)
        message = parsed(written)
        assert [key for key, _ in message.items()] == [field]
        assert [one.addr_spec for one in message[field].addresses] == [ADDRESS]


@given(ANYTHING)
def test_a_recipient_never_goes_without_mail_for_a_strange_name(name: str) -> None:
    harmless = name.replace("<", "").replace(">", "")
    assert ADDRESS.encode() in header.mailbox("To", f"{harmless} <{ADDRESS}>")
    cleaned = header.clean_name(name)
    assert len(cleaned) <= header.MAX_NAME
    assert header.clean_name(cleaned) == cleaned


@given(ANYTHING, ANYTHING)
def test_no_header_of_a_caller_makes_a_second_one(name: str, value: str) -> None:
    try:
        header.check([(name, value)])
    except HeaderError:
        return
    [only] = lines_of(header.line(name, value))
    assert only.decode() == f"{name}: {value}"
    assert name.lower() not in header.OWN


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([("Bcc", "x@mail.example.com")], "Bcc"),
        ([("SUBJECT", "x")], "SUBJECT"),
        ([("X-A", "1"), ("x-a", "2")], "twice"),
        ([("X A", "1")], "name"),
        ([("X-A", "")], "X-A"),
        ([("X-A", "1\r\nBcc: x")], "X-A"),
        ([("X-A", "é")], "ASCII"),
        ([("X-A", "a" * 996)], "995"),
        ([(f"X-{number}", "1") for number in range(16)], "15"),
    ],
)
def test_headers_that_a_mail_must_not_bring_are_refused(headers: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(HeaderError, match=text):
        header.check(headers)


def test_long_links_stay_on_one_line() -> None:
    value = "<https://u.example.com/" + "a" * 900 + ">"
    assert header.line("List-Unsubscribe", value) == f"List-Unsubscribe: {value}\r\n".encode()


def test_tags_travel_in_a_header_of_their_own() -> None:
    assert header.tags({"campaign": "spring", "seq": "7"}.items()) == b"X-Mailpipe-Tags: campaign=spring; seq=7\r\n"
    assert header.tags([]) == b""
    with pytest.raises(HeaderError):
        header.tags([("campaign", "a; b")])
    with pytest.raises(HeaderError):
        header.tags([(f"tag{number}", "x" * 256) for number in range(5)])


@pytest.mark.parametrize(
    "address",
    ["nobody", "a b@mail.example.com", "a@mail.example.com\r\nBcc: b@mail.example.com", "andr\u00e9e@mail.example.com"],
)
def test_unusable_addresses_are_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(HeaderError) as refused:
        header.mailbox("To", address)
    assert address not in str(refused.value)


def test_international_domains_leave_as_a_labels() -> None:
    assert (
        header.mailbox("To", "Anna <anna@stra\u00dfe.example.com>") == b"To: Anna <anna@xn--strae-oqa.example.com>\r\n"
    )
