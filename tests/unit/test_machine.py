"""Opens and clicks told apart: who fetched it, how soon, and how many links at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest

from mailpipe.feedback.machine import RULE, Visit, agent, count, is_human, score

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0"
DELIVERED = datetime(2026, 3, 2, 9, tzinfo=UTC)
NOW = DELIVERED + timedelta(days=1)


def visit(
    kind: Any, after: float, *, seq: int = 1, who: str = BROWSER, ip: str = "203.0.113.9", link: str | None = None
) -> Visit:
    at = DELIVERED + timedelta(seconds=after)
    return Visit(seq, kind, at, DELIVERED, who, ip, link or ("https://a.example.com/" if kind == "click" else None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Mozilla/5.0", "apple_mpp"), (BROWSER, "browser"), (f"{BROWSER} (via ggpht.com GoogleImageProxy)", "proxy"),
     ("YahooMailProxy; https://help.yahoo.com", "proxy"), ("", "scanner"), ("python-requests/2.32", "scanner"),
     ("Barracuda Sentinel (EE)", "scanner"), ("Mozilla/5.0 HeadlessChrome/120", "scanner")],
)  # fmt: skip
def test_agents_are_told_apart(text: str, expected: str) -> None:
    assert agent(text, None) == expected


def test_apple_s_prefetch_comes_from_apple_s_networks_where_they_are_known() -> None:
    apple = [ip_network("192.0.2.0/24")]
    assert agent("Mozilla/5.0", "192.0.2.9", apple) == "apple_mpp"
    assert agent("Mozilla/5.0", "203.0.113.9", apple) == "scanner"
    assert agent("Mozilla/5.0", "no address", apple) == "scanner"


def test_a_gateway_that_follows_every_link_is_no_person_and_its_open_neither() -> None:
    links = [visit("click", 2 + number / 4, link=f"https://a.example.com/{number}") for number in range(3)]
    own = [visit("open", 1), *links]
    assert all(score(one, own) >= 3 for one in links)
    assert not any(is_human(one, own, now=NOW) for one in own)


def test_a_gateway_that_waits_half_a_minute_is_noticed_by_its_burst_and_missing_open() -> None:
    links = [visit("click", 40 + number / 4, link=f"https://a.example.com/{number}") for number in range(3)]
    assert not any(is_human(one, links, now=NOW) for one in links)


def test_a_person_who_reads_and_clicks_counts_and_so_does_one_who_comes_back_after_a_gateway() -> None:
    own = [visit("open", 300), visit("click", 330)]
    assert all(is_human(one, own, now=NOW) for one in own)
    links = [
        visit("click", 2 + number / 4, ip="192.0.2.7", link=f"https://a.example.com/{number}") for number in range(3)
    ]
    late = visit("click", 4_000)
    assert is_human(late, [*links, late], now=NOW)


def test_a_click_before_its_delivery_or_within_seconds_of_it_is_suspicious() -> None:
    assert score(visit("click", -5), [visit("click", -5)]) >= 3
    assert score(visit("click", 3), [visit("click", 3)]) >= 3
    assert score(visit("click", 15), [visit("open", 14), visit("click", 15)]) == 1


def test_a_click_waits_a_minute_before_it_counts() -> None:
    own = [visit("open", 300), visit("click", 330)]
    assert not is_human(own[1], own, now=own[1].at + timedelta(seconds=59))
    assert is_human(own[1], own, now=own[1].at + timedelta(seconds=60))


def test_apple_hides_its_people_and_a_proxy_shows_them() -> None:
    assert not is_human(visit("open", 500, who="Mozilla/5.0"), [], now=NOW)
    proxied = f"{BROWSER} GoogleImageProxy"
    assert is_human(visit("open", 500, who=proxied), [], now=NOW)
    assert not is_human(visit("open", 2, who=proxied), [], now=NOW)


def test_people_are_counted_once_and_machines_apart() -> None:
    visits = [
        visit("open", 300, seq=1), visit("open", 900, seq=1), visit("click", 330, seq=1),
        visit("open", 90, seq=2, who="Mozilla/5.0"),
        visit("open", 1, seq=3), *(visit("click", 2 + n / 4, seq=3, link=f"https://a.example.com/{n}") for n in range(3)),
        visit("open", 90, seq=4, who="Mozilla/5.0"), visit("click", 500, seq=4),
    ]  # fmt: skip
    found = count(visits, now=NOW)
    assert found.rule == RULE
    assert (found.openers, found.clickers, found.apple) == (1, 2, 2)
    assert (found.machine_openers, found.machine_clickers) == (3, 1)
    assert (found.raw_openers, found.raw_clickers) == (4, 3)
