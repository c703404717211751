"""What the author of a template may write: which tags there are, and where in HTML one may stand.

A text that passes means the same to every Mustache or Handlebars engine, so what SES makes of it is what a
preview shows. Reading the folder, values and publishing belong to `template`.
"""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

from mailpipe.errors import TemplateError

UNSUBSCRIBE = "unsubscribe_url"
"""The built-in variable: the person's own link, without a character that HTML would have to escape."""
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
TAG = re.compile(rf"\{{\{{\{{\s*({NAME})\s*\}}\}}\}}|\{{\{{\s*({NAME})\s*\}}\}}")
"""A tag; group 1 is the name of a raw one, `{{{name}}}`, group 2 that of a plain one, `{{name}}`."""

_element = re.compile(rf"</?(?:{TAG.pattern})")
_quoted = re.compile(r"""=\s*(?:"[^"]*"|'[^']*')""")


def check_tags(path: Path, part: str, declared: Mapping[str, bool], *, transactional: bool = False) -> set[str]:
    """The variables that a part uses; `declared` says of each one whether its values are HTML.

    Raises TemplateError with file and line for a tag that is not declared, that would insert a value raw
    where that is not safe, or that an engine might read as something else; where mail needs the unsubscribe
    link, for its absence, and in a `transactional` template for its presence.
    """
    end = 0
    used = set()
    for match in TAG.finditer(part):
        _check_between(path, part, end, match.start())
        where = f"{path}:{_line(part, match.start())}"
        before, after = part[: match.start()][-1:], part[match.end() :][:1]
        if before in ("{", "\\") or after == "}":
            raise TemplateError(f"{where}: {match[0]} touches another brace or a backslash; put a space between")
        name = match[1] or match[2]
        if name not in declared and name != UNSUBSCRIBE:
            raise TemplateError(f"{where}: the variable {name} is not declared in template.yaml")
        if match[1] and path.suffix != ".html":
            raise TemplateError(f"{where}: nothing is escaped in this part; write {{{{{name}}}}}")
        if match[1] and not declared.get(name):
            raise TemplateError(
                f"{where}: {match[0]} inserts HTML as it is; write {{{{{name}}}}}, or declare the variable"
                " `html: true` if its values are HTML made by you"
            )
        used.add(name)
        end = match.end()
    _check_between(path, part, end, len(part))
    if transactional and UNSUBSCRIBE in used:
        raise TemplateError(f"{path}: a transactional mail has no unsubscribe link; remove {{{{{UNSUBSCRIBE}}}}}")
    if path.stem == "body" and not transactional and UNSUBSCRIBE not in used:
        raise TemplateError(f"{path}: every mail needs the unsubscribe link; add {{{{{UNSUBSCRIBE}}}}}")
    return used


def check_html(path: Path, html: str) -> None:
    """Refuse a tag where escaping its value would not keep it from becoming markup.

    That is anywhere but in text and between the quotes of an attribute: as the name of an element, within an
    element but outside quotes (`<a href={{url}}>`), in `<style>` and in `<script>`. Raises TemplateError.
    """
    element = _element.search(html)
    if element is not None:
        raise _unsafe(path, _line(html, element.start()), element[0], "put text between the two")
    parser = _Parser(path)
    parser.feed(html)
    parser.close()


class _Parser(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=False)
        self._path = path

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        markup = self.get_starttag_text() or ""
        outside = _quoted.sub(lambda match: "=" + "\n" * match[0].count("\n"), markup)
        self._check(outside, "put it between quotes")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:
            self._check(data, f"move it out of <{self.cdata_elem}>")

    def _check(self, markup: str, remedy: str) -> None:
        match = TAG.search(markup)
        if match is not None:
            line = self.getpos()[0] + markup.count("\n", 0, match.start())
            raise _unsafe(self._path, line, match[0], remedy)


def _check_between(path: Path, part: str, start: int, end: int) -> None:
    at = part.find("{{", start, end)
    if at >= 0:
        excerpt = part[at:end].split("\n", 1)[0][:40]
        raise TemplateError(
            f"{path}:{_line(part, at)}: {excerpt!r} is not understood; only {{{{name}}}} is, with a declared"
            " name of letters, digits and `_` (blocks, partials and comments are not)"
        )


def _unsafe(path: Path, line: int, excerpt: str, remedy: str) -> TemplateError:
    return TemplateError(f"{path}:{line}: a value could become markup where {excerpt} stands; {remedy}")


def _line(part: str, position: int) -> int:
    return part.count("\n", 0, position) + 1
