"""Who is in which arm: salted hashes of people, in the same way in Python and in SQL. Pure.

A person's position depends on the salt and their id alone, never on the order of rows, the number of people or the release of the
database. Another salt is another shuffle: whoever was a control last week is a control this week no more often than anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from itertools import accumulate, pairwise

POSITIONS = 2**64
"""Positions are whole numbers from -POSITIONS/2 on, as SQL's bigint holds them."""


def position(salt: str, user_id: str) -> int:
    """Where a person stands in the shuffle of this salt: the first eight bytes of an MD5, as SQL's bigint. See `SQL`."""
    digest = md5(f"{salt}:{user_id}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


SQL = "CAST(CAST('x' || left(md5(CAST(:salt AS text) || ':' || person.user_id), 16) AS bit(64)) AS bigint)"
"""The same of the staged people."""


def split_salt(campaign: str, series: str | None) -> str:
    """Of the arms. Campaigns of one series share it, so that everybody stays in their arm."""
    return f"series {series}" if series else f"split {campaign}"


def holdout_salt(campaign: str, series: str | None) -> str:
    """Of who is left out. Another one than that of the arms: whoever is left out says nothing about who gets which arm."""
    return f"holdout of series {series}" if series else f"holdout {campaign}"


def sizes(people: int, shares: Sequence[float]) -> list[int]:
    """How many people each share gets: off by less than one, none of them twice, and those who get none come after the last."""
    ends = [round(people * end) for end in accumulate(shares, initial=0.0)]
    return [end - start for start, end in pairwise(ends)]


def bounds(shares: Sequence[float]) -> list[int]:
    """The position at which each share ends, its own not included. Who stands beyond the last is in no arm.

    For a series: an arm by position holds its share only on average (of a million people within 0.1 %), but a person stays in it
    whoever else is in the audience.
    """
    return [
        min(round(POSITIONS * end) - POSITIONS // 2, POSITIONS // 2 - 1)
        for end in accumulate(min(share, 1.0) for share in shares)
    ]
