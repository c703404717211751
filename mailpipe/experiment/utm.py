"""Links that say where a visitor comes from: utm_source, utm_medium, utm_campaign and utm_content. Pure.

Links of people are left alone: the unsubscribe link, and any link that begins with a tag, because only the value would say
whether it has parameters already. A parameter that the author has written stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape, unescape
from urllib.parse import quote, unquote

from mailpipe.template_check import TAG, UNSUBSCRIBE

_anchor = re.compile(r"<(?:a|area)\b(?:[^>\"']|\"[^\"]*\"|'[^']*')*>", re.IGNORECASE)
_href = re.compile(r"""(\shref\s*=\s*)(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_url = re.compile(r"https?://(?:\{\{[^{}]*\}\}|[^\s<>\"'])+", re.IGNORECASE)
_web = re.compile(r"https?://[^/?#\s]", re.IGNORECASE).match
_trailing = ".,;:!?)]"
"""In plain text a sentence may end behind a link."""


def marks(source: str, medium: str, campaign: str, variant: str) -> dict[str, str]:
    """The parameters of a variant's links."""
    return {"utm_source": source, "utm_medium": medium, "utm_campaign": campaign, "utm_content": variant}


def mark(url: str, parameters: Mapping[str, str]) -> str:
    """A link with these parameters, before its fragment. Those that it has already stay; a link that is not ours to change stays
    as a whole."""
    if not _web(url) or _is_unsubscribe(url):
        return url
    start, hash_, fragment = url.partition("#")
    base, question, query = start.partition("?")
    known = {unquote(part.partition("=")[0]).casefold() for part in query.split("&")}
    new = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items() if name not in known)
    if not new:
        return url
    joint = "" if not query or query.endswith("&") else "&"
    return f"{base}?{query}{joint}{new}{hash_}{fragment}" if question else f"{base}?{new}{hash_}{fragment}"


def mark_html(html: str, parameters: Mapping[str, str]) -> str:
    """The links of an HTML part. Pictures, styles and forms stay as they are."""

    def attribute(match: re.Match[str]) -> str:
        quoted = match[2] if match[2] is not None else match[3]
        url = unescape(quoted)
        marked = mark(url.strip(), parameters)
        if marked == url.strip():
            return match[0]
        mark_ = '"' if match[2] is not None else "'"
        return f"{match[1]}{mark_}{escape(marked)}{mark_}"

    return _anchor.sub(lambda anchor: _href.sub(attribute, anchor[0]), html)


def mark_text(text: str, parameters: Mapping[str, str]) -> str:
    """The links of a plain text."""

    def link(match: re.Match[str]) -> str:
        url = match[0].rstrip(_trailing)
        return mark(url, parameters) + match[0][len(url) :]

    return _url.sub(link, text)


def unmarked(html: str) -> list[str]:
    """The links of an HTML part that cannot be marked, as they begin with a tag: their variables."""
    hrefs = [match[2] or match[3] or "" for anchor in _anchor.finditer(html) for match in _href.finditer(anchor[0])]
    tags = [TAG.match(href.strip()) for href in hrefs]
    names = [tag[1] or tag[2] for tag in tags if tag]
    return sorted({name for name in names if name != UNSUBSCRIBE})


def _is_unsubscribe(url: str) -> bool:
    return any((match[1] or match[2]) == UNSUBSCRIBE for match in TAG.finditer(url))
