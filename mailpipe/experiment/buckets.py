"""Who is in which arm: salted hashes of people, in the same way in Python and in SQL. Pure.

A person's position depends on the salt and their id alone, never on the order of rows, the number of people or the release of the
database. Another salt is another shuffle: whoever was a control last week is a control this week no more often than anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from itertools import accumulate

POSITIONS = 2**60
"""Positions are whole numbers from 0 to POSITIONS - 1."""
SQL = "CAST(CAST('x' || left(md5(CAST(:salt AS text) || ':' || person.user_id), 15) AS bit(60)) AS bigint)"
"""`position` of the people `person`, for a statement with the parameter `salt`."""


def position(salt: str, user_id: str) -> int:
    """Where a person stands in the shuffle of this salt: the first 60 bits of an MD5, which every database can make too."""
    return int(md5(f"{salt}:{user_id}".encode(), usedforsecurity=False).hexdigest()[:15], 16)


def split_salt(campaign: str, series: str | None) -> str:
    """Of the arms. Campaigns of one series share it, so that everybody stays in their arm."""
    return f"series {series}" if series else f"split {campaign}"


def holdout_salt(campaign: str, series: str | None) -> str:
    """Of who is left out. Another one than that of the arms: whoever is left out says nothing about who gets which arm."""
    return f"holdout of series {series}" if series else f"holdout {campaign}"


def ends(people: int, shares: Sequence[float]) -> list[int]:
    """How many people stand before the end of each share. Each share has its number to one person, and nobody is in two."""
    return [round(people * end) for end in accumulate(shares)]


def bounds(shares: Sequence[float]) -> list[int]:
    """The same in positions, for a series: an arm holds its share on average only (of a million people to 0.1 %), but a person
    stays in it whoever else is in the audience."""
    return ends(POSITIONS, shares)
