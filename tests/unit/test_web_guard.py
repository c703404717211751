"""Tokens, clients behind proxies, and token buckets, decided without a server."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from mailpipe.errors import SettingsError
from mailpipe.web.auth import parse
from mailpipe.web.guard import Buckets, client

GOOD = "0123456789abcdef0123456789abcdef"


def test_tokens_are_read_by_name() -> None:
    assert parse(f"shop:{GOOD}, back-office:{GOOD}x") == {"shop": GOOD, "back-office": f"{GOOD}x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "token 1: expected `name:token`"),
        (GOOD, "token 1: expected `name:token`"),
        (f"shop:{GOOD},", "token 2: expected `name:token`"),
        (f"the shop:{GOOD}", "token 1: expected `name:token`"),
        (f"shop:{GOOD[:-1]}", "token 1 \\(shop\\): needs at least 32"),
        (f"shop:{GOOD} {GOOD}", "token 1 \\(shop\\): needs at least 32"),
        (f"shop:{GOOD},shop:{GOOD}x", "token 2: the name shop occurs twice"),
    ],
)
def test_tokens_that_cannot_be_used_are_refused_without_showing_them(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        parse(text)
    assert GOOD[:-1] not in str(caught.value)


def asked_by(host: str, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    return Request({"type": "http", "client": (host, 1), "headers": headers})


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, ("203.0.113.9",), "198.51.100.1"),  # nobody of ours wrote that
        (1, ("203.0.113.9",), "203.0.113.9"),
        (1, ("10.0.0.1, 203.0.113.9",), "203.0.113.9"),  # the first was invented by the client
        (2, ("10.0.0.1, 203.0.113.9", "192.0.2.7"), "203.0.113.9"),
        (2, ("192.0.2.7",), "192.0.2.7"),
        (1, (), "198.51.100.1"),
        (1, ("nonsense",), "unknown"),
        (1, ("2001:db8:1:2:3:4:5:6",), "2001:db8:1:2::/64"),
        (1, ("::ffff:203.0.113.9",), "203.0.113.9"),
    ],
)
def test_the_client_is_who_came_to_the_outermost_proxy_of_ours(
    proxies: int, forwarded: tuple[str, ...], found: str
) -> None:
    assert client(asked_by("198.51.100.1", *forwarded), proxies=proxies) == found


def test_a_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    buckets = Buckets(rate=2.0, burst=3)
    assert [buckets.take("a", now=0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert buckets.take("b", now=0.0) == 0.0
    assert buckets.take("a", now=0.5) == 0.0
    assert buckets.take("a", now=0.5) == 0.5
    assert [buckets.take("a", now=100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_looking_at_a_bucket_takes_nothing() -> None:
    buckets = Buckets(rate=1.0, burst=1)
    assert [buckets.wait("a", now=0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take("a", now=0.0) == 0.0
    assert buckets.wait("a", now=0.0) == 1.0


def test_invented_clients_do_not_fill_the_memory() -> None:
    buckets = Buckets(rate=1.0, burst=1)
    for number in range(Buckets.MOST + 100):
        buckets.take(str(number), now=0.0)
    assert len(buckets._levels) == Buckets.MOST
