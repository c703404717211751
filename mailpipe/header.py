"""The rules of mail headers: which a caller may add, what a value may hold, and how a line of a header is written. Pure.

Every line that is written here is ASCII and ends where its value ends: nothing that a person, a segment or a caller supplies can
begin another one (RFC 5322, section 2.2). No text of an error holds a value.
"""

import re
from collections.abc import Iterable, Sequence
from email.header import Header
from email.utils import formataddr

from mailpipe.address import AddressError, parts

MAX_HEADERS = 15
"""Headers that a mail may bring along (SES service model, `MessageHeaderList`)."""
MAX_VALUE = 995
MAX_HEADER = 996
"""Characters of a value, and of name and value together (SES service model, `MessageHeaderValue`); a line has at most 998 (RFC
5322, section 2.1.1)."""
MAX_NAME = 64
"""Characters of a display name; what is longer helps nobody, and some mail programs cut it anyway."""
MAX_SUBJECT = 998
OWN = frozenset(
    (
        *("bcc", "cc", "content-disposition", "content-id", "content-transfer-encoding", "content-type", "date"),
        *("dkim-signature", "from", "message-id", "mime-version", "received", "reply-to", "resent-from", "resent-to"),
        *("return-path", "sender", "subject", "to", "x-mailpipe-tags"),
    )
)
"""Headers, in lower case, that are made from a mail's fields; nobody adds them a second time."""

name_fits = re.compile(r"[!-9;-@A-~]{1,126}").fullmatch
value_fits = re.compile(r"[ -~]{1,995}").fullmatch

# Line ends and controls, line and paragraph separators, bidirectional overrides and isolates: they forge or garble.
_unfit = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_LINE = 76
_plain = re.compile(r"[ -~]*").fullmatch
_token = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch


class HeaderError(ValueError):
    """A header that must not be written. The text names the header and the rule."""


def check(headers: Sequence[tuple[str, str]]) -> None:
    """Refuse headers that a mail must not bring along.

    Raises:
        HeaderError: one is mailpipe's own, is there twice, or cannot be written on one line of ASCII.
    """
    if len(headers) > MAX_HEADERS:
        raise HeaderError(f"headers: more than {MAX_HEADERS}")
    seen = set()
    for number, (name, value) in enumerate(headers, 1):
        if not name_fits(name):
            raise HeaderError(f"header {number}: a name has 1 to 126 printable ASCII characters without `:`")
        if name.lower() in OWN:
            raise HeaderError(f"header {name}: is made from the mail itself; remove it")
        if name.lower() in seen:
            raise HeaderError(f"header {name}: is there twice")
        if not value_fits(value) or len(name) + len(value) > MAX_HEADER:
            raise HeaderError(
                f"header {name}: a value has 1 to {MAX_VALUE} printable ASCII characters, with its name {MAX_HEADER}"
            )
        seen.add(name.lower())


def check_subject(text: str) -> None:
    """Refuse a subject that is empty, too long or more than one line.

    Raises:
        HeaderError: as said.
    """
    if not text.strip():
        raise HeaderError("subject: is empty")
    if len(text) > MAX_SUBJECT:
        raise HeaderError(f"subject: longer than {MAX_SUBJECT} characters")
    if _unfit.search(text):
        raise HeaderError("subject: is one line without control characters")


def clean_name(text: str) -> str:
    """The name of a recipient as it may stand in a header: what is unfit becomes a space, at most 64 characters. It can be
    empty: a strange name costs nobody their mail.
    """
    return " ".join(_unfit.sub(" ", text).split())[:MAX_NAME].strip()


def line(name: str, value: str) -> bytes:
    """A header as it is, on one line: a link that is folded or encoded is no link for many programs.

    Raises:
        HeaderError: as `check`, but for mailpipe's own headers.
    """
    if not name_fits(name) or not value_fits(value) or len(name) + len(value) > MAX_HEADER:
        raise HeaderError(f"header {name if name_fits(name) else ''}: cannot be written on one line of ASCII")
    return f"{name}: {value}\r\n".encode("ascii")


def subject(text: str) -> bytes:
    """The line of the subject; what is not ASCII becomes encoded words (RFC 2047), folded at 76 characters.

    Raises:
        HeaderError: as `check_subject`.
    """
    check_subject(text)
    text = text.strip()
    return f"Subject: {_text(text, 'Subject')}\r\n".encode("ascii")


def mailbox(name: str, text: str) -> bytes:
    """The line of From, To or Reply-To with `address` or `Name <address>`. An unfit name of the sender is refused, that of a
    recipient is cleaned.

    Raises:
        HeaderError: the address cannot be used, or the sender's name has control characters.
    """
    try:
        display, form = parts(text)
    except AddressError as error:
        raise HeaderError(f"{name}: {error}") from None
    if name == "To":
        display = clean_name(display)
    elif _unfit.search(display):
        raise HeaderError(f"{name}: the name before the address holds control characters")
    if not display:
        return f"{name}: {form}\r\n".encode("ascii")
    if not _is_plain(display) or len(display) > MAX_NAME:
        return f"{name}: {_encoded(display, name)}\r\n <{form}>\r\n".encode("ascii")
    written = formataddr((display, form))
    if len(name) + 2 + len(written) > _LINE:
        written = f"{written.removesuffix(f' <{form}>')}\r\n <{form}>"
    return f"{name}: {written}\r\n".encode("ascii")


def tags(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The line that carries a mail's tags through servers that know none; empty without tags.

    Raises:
        HeaderError: a name or value has other characters than `A-Z a-z 0-9 _ -`, or they are too long together.
    """
    given = list(pairs)
    if not given:
        return b""
    if not all(_token(part) for pair in given for part in pair):
        raise HeaderError("tags: names and values have 1 to 256 of A-Z a-z 0-9 _ -")
    return line("X-Mailpipe-Tags", "; ".join(f"{name}={value}" for name, value in given))


def _text(text: str, name: str) -> str:
    if _is_plain(text) and len(name) + 2 + len(text) <= _LINE:
        return text
    return _encoded(text, name)


def _is_plain(text: str) -> bool:
    """Whether readers would take the text as it is: ASCII, and nothing that looks like an encoded word."""
    return _plain(text) is not None and "=?" not in text


def _encoded(text: str, name: str) -> str:
    return Header(text, "utf-8", maxlinelen=_LINE, header_name=name).encode(linesep="\r\n")
