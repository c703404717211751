"""Loads named queries: SQL in files, called by name. Nothing here knows what a query means."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_HEAD = re.compile(r"^-- (name|part): (\w+)\s*$", re.MULTILINE)
_MARGIN = re.compile(r"^\s*--.*\n|^[ ]+|[ ]+--[ ].*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Queries:
    """The named queries of one `.sql` file, as psycopg takes them. Parameters are written `:name`. What several queries of a file
    share is a `-- part:`, and stands in them as `{{its name}}`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        pieces = _HEAD.split(path.read_text(encoding="utf-8"))
        # Without comments and indentation: psycopg remembers how it read a statement only if that is shorter than 4,096 bytes.
        texts = (_MARGIN.sub("", text).strip() for text in pieces[3::3])
        found = list(zip(pieces[1::3], pieces[2::3], texts, strict=True))
        parts = {name: text for kind, name, text in found if kind == "part"}
        self.texts: dict[str, str] = {name: _fill(text, parts) for kind, name, text in found if kind == "name"}

    def __getitem__(self, name: str) -> bytes:
        return to_psycopg(self.texts[name])

    def filled(self, name: str, **fragments: str) -> bytes:
        """The query with `{{fragment}}` replaced by SQL of our own settings (never by data)."""
        return to_psycopg(_fill(self.texts[name], fragments))


def beside(module_file: str) -> Queries:
    """The queries of the module's own file: `event.py` owns `event.sql`."""
    return Queries(Path(module_file).with_suffix(".sql"))


def _fill(text: str, fragments: dict[str, str]) -> str:
    for key, fragment in fragments.items():
        text = text.replace("{{" + key + "}}", fragment)
    return text


@lru_cache(maxsize=256)
def to_psycopg(text: str) -> bytes:
    """`:name` becomes `%(name)s`; casts (`::text`) and percent signs stay what they are.

    Remembered: the pattern takes 0.1 ms a statement, a tenth of what recording and opening a call costs the sender.
    """
    return _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")).encode()
