"""E-mail templates: stored content, the variables that it needs, and rendering.

Only `{{name}}` and `{{{name}}}` are understood; both insert the value as it is, because SES does not escape
for HTML. A template that uses any other Handlebars construct is refused when it is created, never misrendered
later.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import EmailMessage

from mailpipe.simulator.wire import ApiError, JsonObject, bad_request, not_found

MAX_TEMPLATES = 20_000
MAX_TEMPLATE_BYTES = 500 * 1024

_variable = re.compile(r"\{\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}\}|\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")


class Part:
    """One compiled part (subject, text or HTML): literals and variable names in turn."""

    def __init__(self, source: str) -> None:
        self.pieces: list[tuple[bool, str]] = []
        end = 0
        for match in _variable.finditer(source):
            self.pieces.append((False, source[end : match.start()]))
            self.pieces.append((True, match[1] or match[2]))
            end = match.end()
        self.pieces.append((False, source[end:]))
        if any("{{" in text for is_variable, text in self.pieces if not is_variable):
            raise bad_request(
                "The stand-in understands {{name}} and {{{name}}} only; the template uses something else."
            )

    def variables(self) -> set[str]:
        return {text for is_variable, text in self.pieces if is_variable}

    def render(self, data: JsonObject) -> str:
        return "".join(_as_text(data[text]) if is_variable else text for is_variable, text in self.pieces)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the person would read. A part that the template lacks is None."""

    subject: str
    text: str | None
    html: str | None


class Template:
    """One template, compiled once. `name` is empty for an inline template."""

    def __init__(self, name: str, content: object, created: float) -> None:
        self.name = name
        self.created = created
        self.content = _checked_content(content)
        self._parts = {part: Part(source) for part, source in self.content.items()}
        self.variables = frozenset[str]().union(*(part.variables() for part in self._parts.values()))

    def render(self, data: JsonObject) -> Rendered:
        """Raises KeyError when `data` lacks a variable; ask `variables` first."""
        text, html = self._parts.get("Text"), self._parts.get("Html")
        return Rendered(
            subject=self._parts["Subject"].render(data),
            text=text.render(data) if text else None,
            html=html.render(data) if html else None,
        )


def missing_variable_text(name: str) -> str:
    return f"Attribute '{name}' is not present in the rendering data."


def _checked_content(content: object) -> dict[str, str]:
    if not isinstance(content, dict):
        raise bad_request("TemplateContent is required.")
    parts = {name: content[name] for name in ("Subject", "Text", "Html") if content.get(name) is not None}
    if not all(isinstance(source, str) for source in parts.values()):
        raise bad_request("The parts of TemplateContent must be strings.")
    if not parts.get("Subject"):
        raise bad_request("The template has no subject.")
    if len(parts) == 1:
        raise bad_request("The template has neither a text nor an HTML part.")
    if sum(len(source.encode()) for source in parts.values()) > MAX_TEMPLATE_BYTES:
        raise bad_request("The template is larger than 500 KB.")
    return parts


class Templates:
    """The stored templates. `remember` is told of every change, so that a restart can replay it."""

    def __init__(self, remember: Callable[[JsonObject], None]) -> None:
        self._remember = remember
        self._stored: dict[str, Template] = {}

    def find(self, name: str) -> Template | None:
        return self._stored.get(name)

    def get(self, name: str) -> Template:
        template = self._stored.get(name)
        if template is None:
            raise not_found(f"Template {name} does not exist.")
        return template

    def create(self, name: str, content: object) -> None:
        if name in self._stored:
            raise ApiError("AlreadyExistsException", f"Template {name} already exists.")
        if len(self._stored) >= MAX_TEMPLATES:
            raise ApiError("LimitExceededException", f"You have {MAX_TEMPLATES} templates already.")
        self._put(Template(name, content, time.time()))

    def update(self, name: str, content: object) -> None:
        self._put(Template(name, content, self.get(name).created))

    def _put(self, template: Template) -> None:
        self._stored[template.name] = template
        self._remember({"template": template.name, "content": template.content, "created": template.created})

    def delete(self, name: str) -> None:
        self.get(name)
        del self._stored[name]
        self._remember({"template": name, "content": None})

    def restore(self, change: JsonObject) -> None:
        """Replays one remembered change."""
        if change["content"] is None:
            self._stored.pop(change["template"], None)
        else:
            self._stored[change["template"]] = Template(change["template"], change["content"], change["created"])

    def listed(self) -> list[Template]:
        return sorted(self._stored.values(), key=lambda template: template.name)


def mime_text(rendered: Rendered) -> str:
    """The MIME text that TestRenderEmailTemplate answers with."""
    message = EmailMessage()
    message["Subject"] = re.sub(r"[\r\n]+", " ", rendered.subject)
    if rendered.text is not None:
        message.set_content(rendered.text)
        if rendered.html is not None:
            message.add_alternative(rendered.html, subtype="html")
    else:
        message.set_content(rendered.html or "", subtype="html")
    return message.as_string()
