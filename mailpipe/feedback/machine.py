"""Which opens and clicks are machines': Apple's prefetch, image proxies, security gateways that follow every link.

Raw events stay as they are; what counts as a person is derived from them by a rule with a version, and can be derived again by a
later one. One sign alone is weak, so the signs of a click are added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import groupby
from typing import Any, Literal

from psycopg.rows import class_row

from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

RULE = 1
"""The version of this rule. Another rule is another number: what was reported by the old one can be told apart."""
MACHINE_SCORE = 3
SETTLED = timedelta(seconds=60)
"""A click counts when it is so old: what makes it a machine's may come after it."""
SUSPECT_OPEN = timedelta(seconds=10)
_AT_ONCE, _SOON, _BURST = timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=2)
_LATER = timedelta(minutes=10)
_MANY_LINKS = 3

Agent = Literal["apple_mpp", "proxy", "scanner", "browser"]
Network = IPv4Network | IPv6Network

_proxy = re.compile(r"GoogleImageProxy|ggpht\.com|YahooMailProxy", re.IGNORECASE).search
_scanner = re.compile(
    r"barracuda|mimecast|proofpoint|symantec|messagelabs|forcepoint|trend ?micro|sophos|ironport|safelinks|headless|curl/|wget/"
    r"|python-requests|python-urllib|go-http-client|okhttp|java/|libwww|\bbot\b|crawler|spider",
    re.IGNORECASE,
).search


@dataclass(frozen=True, slots=True)
class Visit:
    """An open or a click of one person, as it was told. Times are UTC."""

    seq: int
    kind: Literal["open", "click"]
    at: datetime
    delivered_at: datetime | None
    agent: str
    ip: str | None
    link: str | None


@dataclass(frozen=True)
class Counts:
    """People by what they did. `apple` are those whose only opens are Apple's prefetch: whether they read it, nobody knows. `raw_`
    numbers count everything that was told, machines too."""

    rule: int
    openers: int
    clickers: int
    apple: int
    machine_openers: int
    machine_clickers: int
    raw_openers: int
    raw_clickers: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def agent(text: str, ip: str | None, apple: Sequence[Network] = ()) -> Agent:
    """Who fetched it, by its User-Agent. Apple's prefetch says `Mozilla/5.0` and not a letter more; with `apple`, its published
    networks, it must come from one of them too."""
    if text.strip() == "Mozilla/5.0":
        if not apple:
            return "apple_mpp"
        return "apple_mpp" if ip is not None and _inside(ip, apple) else "scanner"
    return _by_text(text)


def score(click: Visit, others: Sequence[Visit]) -> int:
    """How many signs say that a click is a machine's; from MACHINE_SCORE on it is one. `others` are all visits of this person."""
    points = 0
    if agent(click.agent, click.ip) in ("scanner", "apple_mpp"):
        points += 3
    if click.delivered_at is not None:
        age = click.at - click.delivered_at
        points += 3 if age < timedelta() else 2 if age <= _AT_ONCE else 1 if age <= _SOON else 0
    burst = {other.link for other in others if other.kind == "click" and abs(other.at - click.at) <= _BURST}
    if len(burst) >= _MANY_LINKS:
        points += 2
    opened = any(other.kind == "open" for other in others)
    apple = any(other.kind == "open" and agent(other.agent, other.ip) == "apple_mpp" for other in others)
    points += 0 if opened or apple else 1
    returns = any(
        other.kind == "click"
        and other.delivered_at is not None
        and other.at - other.delivered_at > _LATER
        and other.at > click.at
        for other in others
    )
    return points - (2 if returns else 0)


def is_human(visit: Visit, others: Sequence[Visit], *, now: datetime) -> bool:
    """Whether a visit counts as a person's. An open through a proxy does, unless it came with the delivery; Apple's never does."""
    if visit.kind == "click":
        return now - visit.at >= SETTLED and score(visit, others) < MACHINE_SCORE
    who = agent(visit.agent, visit.ip)
    if who == "proxy":
        return visit.delivered_at is None or visit.at - visit.delivered_at > SUSPECT_OPEN
    return who == "browser" and not _with_machine_clicks(visit, others)


def count(visits: Iterable[Visit], *, now: datetime) -> Counts:
    """People by what they did; `visits` in the order of `seq`. Pure."""
    told: dict[str, int] = dict.fromkeys(Counts.__dataclass_fields__, 0)
    for _, group in groupby(visits, key=lambda one: one.seq):
        own = list(group)
        by_kind: Mapping[str, list[bool]] = {
            kind: [is_human(one, own, now=now) for one in own if one.kind == kind] for kind in ("open", "click")
        }
        apple = any(one.kind == "open" and agent(one.agent, one.ip) == "apple_mpp" for one in own)
        for kind, people, machines, raw in (
            ("open", "openers", "machine_openers", "raw_openers"),
            ("click", "clickers", "machine_clickers", "raw_clickers"),
        ):
            if by_kind[kind]:
                told[raw] += 1
                told[people if any(by_kind[kind]) else machines] += 1
        if apple and not any(by_kind["open"]):
            told["apple"] += 1
    return Counts(**{**told, "rule": RULE})


def counts(connection: Connection, campaign_id: int) -> Counts:
    """The counts of a campaign, derived now from the events that are still kept."""
    with connection.transaction(), connection.cursor("visits", row_factory=class_row(Visit)) as cursor:
        cursor.itersize = 10_000
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        return count(cursor.execute(QUERIES["visits"], {"campaign_id": campaign_id}), now=row[0])


def _with_machine_clicks(visit: Visit, others: Sequence[Visit]) -> bool:
    """A gateway that follows the links fetches the picture too."""
    near = [one for one in others if one.kind == "click" and one.ip == visit.ip and abs(one.at - visit.at) <= _SOON]
    return bool(near) and all(score(one, others) >= MACHINE_SCORE for one in near)


@lru_cache(maxsize=8192)
def _by_text(text: str) -> Agent:
    # Remembered: there are few agents, and the patterns took half of the time of a visit.
    if _proxy(text):
        return "proxy"
    return "scanner" if not text.strip() or _scanner(text) else "browser"


def _inside(ip: str, networks: Sequence[Network]) -> bool:
    try:
        found = ip_address(ip)
    except ValueError:
        return False
    return any(found in network for network in networks)
