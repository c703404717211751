"""The page that people see: one plain document in their language, without scripts, pictures or anything from elsewhere.

Words are in `pages/texts.yaml`, the form in `pages/page.mustache`. What a click does is `unsubscribe`'s duty.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pystache
import yaml
from starlette.responses import HTMLResponse

_FOLDER = Path(__file__).with_name("pages")
_STYLE = (_FOLDER / "page.css").read_text(encoding="utf-8")
_TEMPLATE = pystache.parse((_FOLDER / "page.mustache").read_text(encoding="utf-8"))
_RENDERER = pystache.Renderer(missing_tags="strict")
TEXTS: Mapping[str, Mapping[str, str]] = yaml.safe_load((_FOLDER / "texts.yaml").read_text(encoding="utf-8"))
"""Language -> key -> text."""
DEFAULT = next(iter(TEXTS))
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none';"
    f" style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "Vary": "Accept-Language",
}
"""Nothing runs and nothing is loaded, whatever somebody might get into the page."""

_range = re.compile(r"\s*([A-Za-z]{1,8})(?:-[A-Za-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?").fullmatch


@dataclass(frozen=True)
class Button:
    """A form of one button, which sends one field. A `quiet` one is the lesser choice."""

    label: str
    name: str
    value: str
    quiet: bool = False


@dataclass(frozen=True)
class Box:
    """A topic to choose."""

    value: str
    label: str
    checked: bool


def language(accept: str) -> str:
    """The best language that we have for an Accept-Language header (RFC 9110, section 12.5.4)."""
    best, quality = DEFAULT, 0.0
    for part in accept[:1000].split(","):
        match = _range(part)
        if match is not None and match[1].lower() in TEXTS and (q := float(match[2] or 1)) > quality:
            best, quality = match[1].lower(), q
    return best


def page(
    lang: str,
    title: str,
    paragraphs: Sequence[str],
    *,
    buttons: Sequence[Button] = (),
    boxes: Sequence[Box] = (),
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """The document; every text is escaped here. `boxes` are the topics to choose from; none: no choice is offered."""
    texts = TEXTS[lang]
    content = {
        "lang": lang,
        "dir": texts["dir"],
        "style": _STYLE,
        "title": title,
        "paragraphs": list(paragraphs),
        "buttons": [vars(button) for button in buttons],
        "topics": [{"legend": texts["topics"], "save": texts["save"], "boxes": [vars(box) for box in boxes]}]
        if boxes
        else [],
    }
    return HTMLResponse(
        _RENDERER.render(_TEMPLATE, content), status, headers={**HEADERS, "Content-Language": lang, **(headers or {})}
    )
