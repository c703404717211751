"""Which mail provider a domain belongs to, as far as its name tells. No look-ups: the host of a domain is not asked for."""

from __future__ import annotations

# By the first label of a domain, because most have a domain in each country.
_PROVIDERS = {
    "gmail": "Gmail", "googlemail": "Gmail",
    "outlook": "Microsoft", "hotmail": "Microsoft", "live": "Microsoft", "msn": "Microsoft",
    "yahoo": "Yahoo", "ymail": "Yahoo", "rocketmail": "Yahoo", "aol": "Yahoo",
    "icloud": "Apple", "me": "Apple", "mac": "Apple",
    "gmx": "GMX", "web": "GMX", "proton": "Proton", "protonmail": "Proton", "naver": "Naver",
    "qq": "Tencent", "163": "NetEase", "126": "NetEase", "yandex": "Yandex", "mail": "Mail.ru",
    "wanadoo": "Orange", "orange": "Orange",
}  # fmt: skip


def of(label: str) -> str | None:
    """The provider of a domain by its first label (`gmail`); None when it is nobody whom many people share."""
    return _PROVIDERS.get(label)


FAMILIES = ("gmail", "microsoft", "yahoo", "apple", "other")
"""Providers that can have a pace of their own; all the rest is `other`."""


def family(email: str) -> str:
    """The family of an address."""
    name = (of(email.rpartition("@")[2].partition(".")[0].lower()) or "").lower()
    return name if name in FAMILIES else "other"


def number_sql(email: str) -> str:
    """The number of the family in FAMILIES, from 0 on, as an SQL expression; `email` is one too, of an address as it is sent."""
    label = f"lower(split_part(split_part({email}, '@', 2), '.', 1) COLLATE \"C\")"
    known = {name: family.lower() for name, family in _PROVIDERS.items() if family.lower() in FAMILIES}
    cases = " ".join(f"WHEN '{name}' THEN {FAMILIES.index(family)}" for name, family in known.items())
    return f"CASE {label} {cases} ELSE {FAMILIES.index('other')} END"
