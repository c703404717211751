"""Unsubscribe links: signed tokens, the addresses that carry them, and the two mail headers of one-click
unsubscribe.

A token names a person and a topic, and is verified by its key alone: no database row is needed, ever. It does
not expire, because a mail can be opened years later. What a click does is decided by the web application.

The token, final for ever (readers of a later version keep reading this one):

    token   = version "." key-id "." payload "." mac       e.g. 1.k1.bWFya2V0aW5nOjQy.hnYQ6cGqBnMkXGqG9mJ2Dw
    version = "1"
    key-id  = 1 to 8 of a-z 0-9
    payload = base64url without padding of UTF-8  topic ":" user-id
    mac     = base64url without padding of the first 16 bytes of
              HMAC-SHA256(secret, "mailpipe unsubscribe" NUL version "." key-id "." payload)

A MAC of 16 bytes ends in A, Q, g or w, so no mail program cuts a `-` or `_` off the end of the link. Whoever
has the link can read the person id in it: it is signed, not secret, and so it should not be an address.
"""

import hmac
import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from binascii import b2a_base64
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from mailpipe.address import AddressError, send_form
from mailpipe.errors import SettingsError

ONE_CLICK = ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")
MAX_HEADER_VALUE = 995
"""Characters of a header's value that SES takes (service model, `MessageHeaderValue`)."""
MAX_TOKEN = 1024

_VERSION = "1"
_PURPOSE = b"mailpipe unsubscribe\0"
_MAC_BYTES = 16
_MIN_SECRET = 16
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

_key_id = re.compile(r"[a-z0-9]{1,8}").fullmatch
_topic = re.compile(r"[a-z0-9_-]{1,32}").fullmatch
# Nothing that a mail header, an HTML attribute or a path that follows would have to escape.
_public_url = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*").fullmatch
_token = re.compile(r"(1\.([a-z0-9]{1,8})\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]{22})").fullmatch


class BadToken(Exception):
    """The token was not made by one of our keys, or was changed. On purpose the text does not say which."""


class Person(NamedTuple):
    """Who a token speaks for, and what they do not want any more."""

    user_id: str
    topic: str


class Signer:
    """Makes and reads tokens.

    `keys` is `id:secret,id:secret`, newest first: the first one signs, all of them verify. `public_url` is
    where the links lead, without a path at its end; it must be https for one-click to work (RFC 8058), which
    the settings check where mail leaves for real. `mailto` is an address that takes unsubscribe mails, or
    None.

    Raises SettingsError when one of them cannot be used; no text holds a secret.
    """

    def __init__(self, keys: str, public_url: str, mailto: str | None = None) -> None:
        self._keys = _parse(keys)
        self._current, self._sign = next(iter(self._keys.items()))
        self._head = f"{_VERSION}.{self._current}.".encode()
        public_url = public_url.rstrip("/")
        if not _public_url(public_url):
            raise SettingsError(
                "MAILPIPE_PUBLIC_URL: expected https://host or https://host/path in ASCII, without ? and #"
            )
        self._prefix = f"{public_url}/u/"
        self._mailto = None if mailto is None else _mailto(mailto)

    def token(self, user_id: str, topic: str) -> str:
        """The token of a person (any text that is not empty) and a topic (`[a-z0-9_-]{1,32}`).

        Raises ValueError when they cannot be told apart again, or when the token would be too long to use.
        """
        return self.tokens(topic)(user_id)

    def tokens(self, topic: str) -> Callable[[str], str]:
        """`token` for one topic, for as many people as one likes. Raises ValueError for a topic that is none."""
        if not _topic(topic):
            raise ValueError("a token needs a topic of at most 32 of a-z, 0-9, _ and -")
        about, head, key = f"{topic}:".encode(), self._head, self._sign

        def token(user_id: str) -> str:
            if not user_id:
                raise ValueError("a token needs a person")
            signed = head + _unpadded(about + user_id.encode())
            made = (signed + b"." + _mac(key, signed)).decode()
            if len(made) > MAX_TOKEN:
                raise ValueError(f"the token of this person is longer than {MAX_TOKEN} characters")
            return made

        return token

    def read(self, token: str) -> Person:
        """Who made the click. Raises BadToken for anything that `token` did not make with one of the keys."""
        match = _token(token) if len(token) <= MAX_TOKEN else None
        if match is None:
            raise BadToken("this link is not complete")
        head, key_id, payload, mac = match.groups()
        key = self._keys.get(key_id)
        if key is None or not hmac.compare_digest(_mac(key, head.encode()), mac.encode()):
            raise BadToken("this link was not made by us")
        try:
            topic, _, user_id = urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode().partition(":")
        except (Base64Error, UnicodeDecodeError):
            raise BadToken("this link was not made by us") from None
        return Person(user_id, topic)

    def url(self, user_id: str, topic: str) -> str:
        """The link of a person, made of characters that need no escaping in HTML, in a header, in JSON or in a URL."""
        return self._prefix + self.token(user_id, topic)

    def urls(self, topic: str) -> Callable[[str], str]:
        """`url` for one topic, for as many people as one likes. Raises ValueError for a topic that is none."""
        token, prefix = self.tokens(topic), self._prefix
        return lambda user_id: prefix + token(user_id)

    def headers(self, user_id: str, topic: str) -> list[tuple[str, str]]:
        """`List-Unsubscribe` (https first, then mailto if there is one), then `List-Unsubscribe-Post` (RFC
        2369, RFC 8058).

        Raises ValueError when the value would be longer than SES takes: a folded or encoded link loses the
        button.
        """
        return [("List-Unsubscribe", self.header(self.url(user_id, topic))), ONE_CLICK]

    def header(self, url: str) -> str:
        """The value of List-Unsubscribe for a link that `url` made: the send path makes one and uses it in body and header. Raises
        ValueError as `headers` does.
        """
        value = f"<{url}>"
        if self._mailto is not None:
            value += f", <{self._mailto}{url[len(self._prefix) :]}>"
        if len(value) > MAX_HEADER_VALUE:
            raise ValueError(f"the List-Unsubscribe header is longer than {MAX_HEADER_VALUE} characters")
        return value


def _unpadded(content: bytes) -> bytes:
    """base64url without padding (RFC 4648, section 5)."""
    return b2a_base64(content, newline=False).translate(_URL_SAFE, b"=")


def _mac(key: hmac.HMAC, head: bytes) -> bytes:
    code = key.copy()  # 1.0 µs; a new HMAC with the same key takes 1.6
    code.update(head)
    return _unpadded(code.digest()[:_MAC_BYTES])


def _parse(keys: str) -> dict[str, hmac.HMAC]:
    parsed: dict[str, hmac.HMAC] = {}
    for number, part in enumerate(keys.split(","), 1):
        key_id, colon, secret = part.strip().partition(":")
        where = f"MAILPIPE_UNSUBSCRIBE_KEYS: key {number}"
        if not colon or not _key_id(key_id):
            raise SettingsError(f"{where}: expected `id:secret`, the id being 1 to 8 of a-z and 0-9")
        if len(secret.encode()) < _MIN_SECRET:
            raise SettingsError(f"{where} ({key_id}): the secret needs at least {_MIN_SECRET} characters, better 32")
        if key_id in parsed:
            raise SettingsError(f"{where}: the id {key_id} occurs twice; a new key needs a new id")
        parsed[key_id] = hmac.new(secret.encode(), _PURPOSE, "sha256")
    return parsed


def _mailto(address: str) -> str:
    """The start of a mailto URI (RFC 6068) to which the token is appended: the subject tells who writes."""
    try:
        local, _, domain = send_form(address).rpartition("@")
    except AddressError:
        raise SettingsError("MAILPIPE_UNSUBSCRIBE_MAILTO: not an address that can receive mail") from None
    return f"mailto:{quote(local, safe='')}@{domain}?subject=unsubscribe%20"
