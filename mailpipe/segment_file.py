"""What a segment file looks like: its header, its parameters, the one SELECT below. Decided without a server.

```
-- title: People who opened the app lately
-- owner: team:growth
-- description: One or more lines; the next ones are indented.
-- param days int = 30: how far back a login counts

SELECT ... WHERE last_login_at >= :as_of - make_interval(days => :days)
```

What PostgreSQL thinks of the SELECT belongs to `segment.py`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Literal, NoReturn, cast

from mailpipe.errors import SegmentError

ParameterType = Literal["int", "float", "text", "date", "bool"]

EXPECTED: Mapping[ParameterType, str] = {
    "int": "a whole number of at most 32 bits",
    "float": "a finite number",
    "text": "a text",
    "date": "a date like 2026-03-29",
    "bool": "true or false",
}
AS_OF = "as_of"
KEYS = ("title", "owner", "description")

_KEY = re.compile(r"--\s?([a-z_]+):\s*(.*)")
_PARAM = re.compile(r"--\s?param\b\s*(.*)")
_PARAM_RULE = re.compile(r"([a-z]\w*)\s+(\w+)\s*=\s*('(?:[^']|'')*'|[^:']+?)\s*(?::\s*(.*))?")
_CONTINUED = re.compile(r"--\s{2,}(\S.*)")
_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*)
    |(?P<string>[eE]'(?:[^'\\]|''|\\.)*'(?:\s*\n\s*'(?:[^'\\]|''|\\.)*')*
        |'[^']*'|"[^"]*"|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<position>\$\d+)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<cast>::)
    |(?P<bind>(?<![\w)\]]):[^\W\d]\w*)
    |(?P<space>\s+)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Parameter:
    """One `-- param` line. `default` has the Python type of `type`; None stands for SQL's NULL."""

    name: str
    type: ParameterType
    default: object
    description: str


@dataclass(frozen=True)
class Segment:
    """One segment file, checked as far as that goes without a server."""

    name: str
    path: Path
    title: str
    owner: str
    description: str
    parameters: tuple[Parameter, ...]
    sql: str
    """The SELECT as written, without header and final semicolon."""
    body_line: int
    """The line of the file, counted from 1, where `sql` starts."""
    sha256: str
    """Of the file's bytes."""


def load(path: Path) -> Segment:
    """Read one segment file.

    Raises:
        SegmentError: `path:line: what is wrong` for its name, encoding, header, or SQL.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SegmentError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        _refuse(path, content[: error.start].count(b"\n") + 1, "not UTF-8. Save the file with that encoding")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", path.stem):
        _refuse(path, 1, "the file name becomes the segment's name. Use a-z, 0-9 and _ only, a letter first")
    if "\0" in text:
        _refuse(path, text[: text.index("\0")].count("\n") + 1, "contains a NUL character. Remove it")
    lines = text.split("\n")
    values, parameters, header_end = _header(path, lines)
    body_line = next((n for n, line in enumerate(lines[header_end:], header_end + 1) if line.strip()), len(lines))
    body = _checked_body(path, "\n".join(lines[body_line - 1 :]), body_line, parameters)
    return Segment(
        name=path.stem,
        path=path,
        title=values["title"],
        owner=values["owner"],
        description=values["description"],
        parameters=parameters,
        sql=body,
        body_line=body_line,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _header(path: Path, lines: list[str]) -> tuple[dict[str, str], tuple[Parameter, ...], int]:
    """The comment lines at the top, up to the first line that is none: keys, parameters, number of lines."""
    values: dict[str, str] = {}
    parameters: list[Parameter] = []
    last: str | None = None
    end = 0
    for number, line in enumerate(lines, 1):
        if not line.startswith("--"):
            break
        end = number
        if line.strip("- ") == "":
            last = None
        elif match := _PARAM.match(line):
            parameters.append(_parameter(path, number, match[1].strip(), parameters))
            last = "param"
        elif match := _KEY.match(line):
            last = match[1]
            if last not in KEYS:
                _refuse(path, number, f"unknown key {last!r}. The header knows {', '.join(KEYS)} and param")
            if last in values:
                _refuse(path, number, f"{last} is given twice. Keep one")
            values[last] = match[2].strip()
        elif last is not None and (match := _CONTINUED.match(line)):
            if last == "param":
                more = f"{parameters[-1].description} {match[1].strip()}".strip()
                parameters[-1] = replace(parameters[-1], description=more)
            else:
                values[last] = f"{values[last]} {match[1].strip()}".strip()
        else:
            _refuse(
                path,
                number,
                "not understood. The header has lines `-- key: value`; other comments go below a blank line",
            )
    for key in KEYS:
        if not values.get(key):
            _refuse(
                path,
                max(end, 1),
                f"the header has no {key}. Add a line `-- {key}: ...` at the top of the file",
            )
    if not re.fullmatch(r"team:[A-Za-z0-9_-]+", values["owner"]):
        number = next(n for n, line in enumerate(lines, 1) if re.match(r"--\s?owner:", line))
        _refuse(path, number, "owner is not a team. Write it like `team:growth`")
    return values, tuple(parameters), end


def _parameter(path: Path, line: int, text: str, before: list[Parameter]) -> Parameter:
    match = _PARAM_RULE.fullmatch(text)
    if match is None:
        _refuse(path, line, "not understood. Write a parameter like `-- param days int = 30: what it means`")
    name, type_name, default_text, description = match[1], match[2], match[3], match[4] or ""
    if name == AS_OF or name in [parameter.name for parameter in before]:
        _refuse(path, line, f"parameter {name} exists already. Choose another name")
    if type_name not in EXPECTED:
        _refuse(path, line, f"parameter {name}: unknown type {type_name!r}. Use one of {', '.join(EXPECTED)}")
    kind = cast(ParameterType, type_name)
    if default_text.lower() == "null":
        return Parameter(name, kind, None, description.strip())
    if default_text.startswith("'"):
        default_text = default_text[1:-1].replace("''", "'")
    try:
        return Parameter(name, kind, typed(default_text, kind), description.strip())
    except ValueError:
        _refuse(path, line, f"parameter {name}: the default is not {EXPECTED[kind]}. Write one after the `=`")


def typed(value: object, kind: ParameterType) -> object:
    """`value` as `kind`; ValueError if it is none."""
    if kind == "bool":
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
    elif kind == "text":
        if isinstance(value, str) and "\0" not in value:
            return value
    elif kind == "date":
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        if isinstance(value, str):
            return date.fromisoformat(value.strip())
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError from None
        if kind == "float" and math.isfinite(number):
            return number
        if kind == "int" and number.is_integer() and -(2**31) <= number < 2**31:
            return int(number)
    raise ValueError


def _checked_body(path: Path, text: str, first_line: int, parameters: tuple[Parameter, ...]) -> str:
    """The one SELECT of the file without its final semicolon; refuses everything that is not one."""
    declared = {AS_OF, *(parameter.name for parameter in parameters)}
    used: set[str] = set()
    open_at: list[int] = []
    started, end = False, None
    for kind, token, offset in tokens(text):
        line = first_line + text[:offset].count("\n")
        if kind in ("space", "comment"):
            if token == "/*":
                _refuse(path, line, "this comment does not end. Close it with `*/`")
            continue
        if end is not None:
            _refuse(path, line, "something follows the final semicolon. A segment is one SELECT")
        if token == ";":
            end = offset
            continue
        if not started and token != "(":
            if token.upper() not in ("SELECT", "WITH"):
                _refuse(path, line, "a segment is one SELECT (WITH may come before it). Nothing else can be run")
            started = True
        if token == "(":
            open_at.append(line)
        elif token == ")":
            if not open_at:
                _refuse(path, line, "this `)` closes nothing. Remove it")
            open_at.pop()
        elif kind == "bind":
            if token[1:] not in declared:
                _refuse(
                    path,
                    line,
                    f"{token} is not declared. Add `-- param {token[1:]} int = 1: ...` to the header",
                )
            used.add(token[1:])
        elif kind == "position":
            _refuse(path, line, f"{token} is no parameter here. Declare one in the header and write it `:name`")
        elif token in ("'", '"'):
            _refuse(path, line, f"the quotation that starts here does not end. Close it with {token}")
    if open_at:
        _refuse(path, open_at[-1], "this `(` is not closed. Add the `)`")
    if not started:
        _refuse(path, first_line, "there is no SELECT below the header")
    for parameter in parameters:
        if parameter.name not in used:
            _refuse(
                path,
                first_line,
                f"parameter {parameter.name} is declared and not used. Use it or remove its line",
            )
    return text[:end].rstrip()


def tokens(sql: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and offset of each token, by PostgreSQL's lexical rules (its manual, section 4.1).

    Only what decides where a quotation or a comment ends matters. A lone `/*` is a comment that never ends.
    """
    offset = 0
    while offset < len(sql):
        match = _TOKEN.match(sql, offset)
        assert match is not None
        assert match.lastgroup is not None
        kind, text = match.lastgroup, match[0]
        if kind == "tag":
            kind = "string"
        if text == "/*":
            text = sql[offset : _comment_end(sql, offset)] or text
        yield kind, text, offset
        offset += len(text)


def _comment_end(sql: str, start: int) -> int:
    """Where a block comment ends; they nest. `start` if it does not end."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(sql, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return start


def _refuse(path: Path, line: int, message: str) -> NoReturn:
    raise SegmentError(f"{path}:{line}: {message}")
