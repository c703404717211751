"""What stands behind the question mark of an address: checked here, and told by its name when it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from mailpipe.web.problem import Problem


def only(query: Mapping[str, str], *known: str) -> None:
    """Refuse what nobody asks for: a filter whose name is misspelt would answer everything.

    Raises:
        Problem: there is no such parameter.
    """
    for name in sorted(query.keys() - set(known)):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: there is no such parameter", field=name)


def choice(query: Mapping[str, str], name: str, known: tuple[Any, ...]) -> Any:
    """One of the known words; None: it was not given.

    Raises:
        Problem: it is another one.
    """
    value = query.get(name)
    if value is not None and value not in known:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: expected one of {', '.join(known)}", field=name)
    return value


def number(query: Mapping[str, str], name: str, *, default: int, most: int) -> int:
    """A number from 1 to `most`.

    Raises:
        Problem: it is something else.
    """
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: expected a number from 1 to {most}", field=name)
    return int(text)
