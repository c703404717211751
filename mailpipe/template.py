"""Mail templates: the folder `assets/templates/NAME/`, what is published to SES, and the values that travel
per person.

A template folder holds `template.yaml` (a description and the variables), `subject.txt`, `body.html` and
`body.txt`. A tag is `{{name}}`; `{{{name}}}` inserts HTML as it is, for variables declared `html: true`, in
`body.html` only. There are no blocks, partials or comments: what differs between people is decided in the
segment's SQL.

SES does not escape values, so the published HTML refers to a second key of each variable, `NAME_html`, that
carries the escaped value. Which people get which mail belongs elsewhere, and so does talking to SES.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from json.encoder import encode_basestring as _quote
from pathlib import Path
from typing import Any, Self

import yaml
from pystache import Renderer

from mailpipe.errors import TemplateError
from mailpipe.template_check import NAME, TAG, UNSUBSCRIBE, check_html, check_tags

MAX_BYTES = 500 * 1024
"""Size of all parts together that SES stores."""
PARTS = ("subject.txt", "body.html", "body.txt")

_variable_name = re.compile(NAME).fullmatch
# A published name is this, a hyphen and 12 characters, and fits [A-Za-z0-9_-]{1,64}.
_template_name = re.compile(r"[A-Za-z0-9_-]{1,51}").fullmatch
# Line ends and controls, line and paragraph separators, bidirectional overrides: in a subject they forge or
# garble.
_unfit_for_subject = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_needs_escape = re.compile("[&<>\"']").search
_SHORT, _MOST = 64, 4096
"""Characters of a value that is worth remembering, and how many of them are, for each variable."""


class MissingVariable(Exception):
    """A person has no value for a variable that has no default. `name` is the variable's."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no value for the variable {name}, which has no default")
        self.name = name


@dataclass(frozen=True)
class Variable:
    """One declared variable. `html` says that its values are HTML already and may be inserted by
    `{{{name}}}`.
    """

    name: str
    sample: str
    default: str | None = None
    description: str = ""
    html: bool = False


@dataclass(frozen=True)
class Content:
    """The three parts as SES stores them."""

    subject: str
    html: str
    text: str


@dataclass(frozen=True)
class Rendered:
    """What one person reads."""

    subject: str
    html: str
    text: str


@dataclass(frozen=True)
class _Field:
    """What `data` does for one variable, worked out once per template."""

    name: str
    default: str | None
    plain: str | None  # the key of the value as it is, or None: no part uses it
    escaped: str | None  # the key of the escaped value
    in_subject: bool

    def data(self, value: object) -> dict[str, str]:
        """One person's value under the keys that the published parts use. Raises MissingVariable."""
        text = value if type(value) is str else _as_text(value)
        if not text or text.isspace():
            if self.default is None:
                raise MissingVariable(self.name)
            text = self.default
        if self.in_subject:
            text = _unfit_for_subject.sub(" ", text)
        data = {} if self.plain is None else {self.plain: text}
        if self.escaped is not None:
            data[self.escaped] = escape(text) if _needs_escape(text) else text
        return data

    def json(self, value: object) -> str:
        """The same as members of a JSON object, each behind a comma."""
        return "".join([f',"{key}":{_quote(text)}' for key, text in self.data(value).items()])


@dataclass(frozen=True)
class Template:
    """A checked template; the parts are as their author wrote them. Build it with `load` or `from_json`."""

    name: str
    subject: str
    html: str
    text: str
    variables: Mapping[str, Variable]
    transactional: bool = False
    """For messages: it has no unsubscribe link, and no campaign may use it."""

    def published(self) -> Content:
        """The parts as they are stored at SES: every tag `{{key}}`, the keys being those of `data`."""
        return self._published

    @cached_property
    def version(self) -> str:
        """The immutable name under which this very content is published: `NAME-` and 12 hex digits."""
        content = self._published
        published = [content.subject, content.html, content.text]
        text = json.dumps([self.to_json(), published], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def data(self, values: Mapping[str, object], *, unsubscribe_url: str | None) -> dict[str, str]:
        """The flat replacement data of one person: every key that the published parts use, all of them
        strings. `unsubscribe_url` is None for a transactional template, which has no such link.

        A declared variable that is absent, None or blank takes its default; without one, MissingVariable is
        raised. Raises ValueError when `unsubscribe_url` is not fit to stand in HTML as it is.
        """
        if unsubscribe_url is not None and _needs_escape(unsubscribe_url):
            raise ValueError("the unsubscribe link holds characters that HTML would have to escape")
        data = {} if unsubscribe_url is None else {UNSUBSCRIBE: unsubscribe_url}
        for field in self._fields:
            data.update(field.data(values.get(field.name)))
        return data

    def render(self, values: Mapping[str, object], *, unsubscribe_url: str | None) -> Rendered:
        """What the provider will make of it for one person, for previews and tests. Raises as `data` does."""
        data = self.data(values, unsubscribe_url=unsubscribe_url)
        render: Callable[[str, dict[str, str]], str] = Renderer(escape=_identity, missing_tags="strict").render
        content = self._published
        return Rendered(render(content.subject, data), render(content.html, data), render(content.text, data))

    def sample(self) -> Rendered:
        """The mail with the sample value of every variable."""
        samples = {variable.name: variable.sample for variable in self.variables.values()}
        url = None if self.transactional else "https://unsubscribe.example.com/u/sample"
        return self.render(samples, unsubscribe_url=url)

    def to_json(self) -> dict[str, Any]:
        """All of the template, so that a sending campaign never reads the folder again."""
        return {
            "name": self.name,
            "subject": self.subject,
            "html": self.html,
            "text": self.text,
            "variables": {
                name: {
                    "sample": variable.sample,
                    "default": variable.default,
                    "description": variable.description,
                    "html": variable.html,
                }
                for name, variable in self.variables.items()
            },
            **({"transactional": True} if self.transactional else {}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The template that `to_json` wrote."""
        return cls(
            name=stored["name"],
            subject=stored["subject"],
            html=stored["html"],
            text=stored["text"],
            variables={name: Variable(name=name, **fields) for name, fields in stored["variables"].items()},
            transactional=stored.get("transactional", False),
        )

    @cached_property
    def _published(self) -> Content:
        def key(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            escaped = match[2] is not None and name != UNSUBSCRIBE
            return f"{{{{{_escaped_key(name) if escaped else name}}}}}"

        return Content(
            subject=TAG.sub(r"{{\2}}", self.subject),
            html=TAG.sub(key, self.html),
            text=TAG.sub(r"{{\2}}", self.text),
        )

    @cached_property
    def _fields(self) -> tuple[_Field, ...]:
        content = self._published
        keys = {match[2] for part in (content.subject, content.html, content.text) for match in TAG.finditer(part)}
        subject = {match[2] for match in TAG.finditer(content.subject)}
        return tuple(
            _Field(
                name=name,
                default=variable.default,
                plain=name if name in keys else None,
                escaped=_escaped_key(name) if _escaped_key(name) in keys else None,
                in_subject=name in subject,
            )
            for name, variable in self.variables.items()
        )


class _Remembered(dict[object, str]):
    """What becomes of a variable's values, for those that are worth remembering. Looked up without a call."""

    def __init__(self, field: _Field) -> None:
        self.field = field

    def __missing__(self, value: object) -> str:
        part = self.field.json(value)
        # Nothing that is equal to another value and reads differently, as 1 and True are.
        if value is None or (type(value) is str and len(value) <= _SHORT):
            if len(self) >= _MOST:
                self.clear()
            self[value] = part
        return part


class Filler:
    """Makes the replacement data of people who bring the same variables, as the JSON that travels.

    Short values are remembered with what becomes of them, as first names and cities repeat: 1 µs a person instead of 6.
    """

    def __init__(self, template: Template, names: Sequence[str]) -> None:
        places = {name: place for place, name in enumerate(names)}
        fields = template._fields
        self._known = [(places[field.name], _Remembered(field)) for field in fields if field.name in places]
        absent = [field for field in fields if field.name not in places]
        self._missing = [field.name for field in absent if field.default is None]
        self._end = "".join(field.json(None) for field in absent if field.default is not None) + "}"

    def json(self, values: Sequence[object], *, unsubscribe_url: str) -> str:
        """The same as `Template.data`; `values` stand in the order of the names, of which a later one wins over an earlier one
        that is the same. `unsubscribe_url` is one that `links.Signer` made, which nothing escapes. Raises MissingVariable: of
        several that are missing, first one that nobody brings."""
        if self._missing:
            raise MissingVariable(self._missing[0])
        try:
            parts = [known[values[place]] for place, known in self._known]
        except TypeError:  # a list, or an object
            parts = [known.field.json(values[place]) for place, known in self._known]
        return f'{{"{UNSUBSCRIBE}":"{unsubscribe_url}"{"".join(parts)}{self._end}'


def list_templates(folder: Path) -> list[str]:
    """The names of the templates in the templates folder, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/template.yaml"))


def load(folder: Path, name: str) -> Template:
    """Read and check one template of the templates folder.

    Raises:
        TemplateError: the template does not exist or cannot be used; the text names the file and line.
    """
    if not _template_name(name):
        raise TemplateError(f"template {name!r}: a name has at most 51 letters, digits, `-` and `_`")
    home = folder / name
    if not (home / "template.yaml").is_file():
        known = ", ".join(list_templates(folder)) or "none"
        raise TemplateError(f"template {name}: there is no {home / 'template.yaml'}; known templates: {known}")
    variables, transactional = _read_declaration(home / "template.yaml")
    subject_path, html_path, text_path = (home / part for part in PARTS)
    subject, html, text = _read(subject_path).strip(), _read(html_path), _read(text_path)
    check_subject(subject_path, subject)
    declared = {variable.name: variable.html for variable in variables.values()}
    used = set[str]()
    for path, part in ((subject_path, subject), (html_path, html), (text_path, text)):
        used |= check_tags(path, part, declared, transactional=transactional)
    check_html(html_path, html)
    if unused := [variable for variable in variables if variable not in used]:
        raise TemplateError(
            f"{home / 'template.yaml'}: no part uses the variable {unused[0]}; use it or remove it, because"
            " a person without a value for it would get no mail"
        )
    template = Template(name, subject, html, text, variables, transactional)
    content = template.published()
    if sum(len(part.encode()) for part in (content.subject, content.html, content.text)) > MAX_BYTES:
        raise TemplateError(f"template {name}: its parts are larger than {MAX_BYTES // 1024} KB together")
    return template


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TemplateError(f"{path}: this part is missing; a template has {', '.join(PARTS)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 at byte {error.start}"
        raise TemplateError(f"{path}: cannot be read: {reason}") from error


def _read_declaration(path: Path) -> tuple[dict[str, Variable], bool]:
    """The declared variables, and whether the template is transactional."""
    try:
        document = yaml.safe_load(_read(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TemplateError(f"{path}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise TemplateError(f"{path}: not YAML: {error}") from error
    declared = _fields_of(path, "template.yaml", document, {"description", "transactional", "variables"})
    if not isinstance(declared.get("description", ""), str):
        raise TemplateError(f"{path}: description: expected a text")
    transactional = declared.get("transactional", False)
    if not isinstance(transactional, bool):
        raise TemplateError(f"{path}: transactional: expected true or false")
    variables = declared.get("variables") or {}
    if not isinstance(variables, dict):
        raise TemplateError(f"{path}: variables: expected `name: {{sample: ...}}` for each variable")
    parsed = {str(name): _variable(path, str(name), given) for name, given in variables.items()}
    for name in parsed:
        if _escaped_key(name) in parsed:
            raise TemplateError(
                f"{path}: variables: {_escaped_key(name)} is the name of {name}'s escaped value; rename one"
            )
    return parsed, transactional


def _variable(path: Path, name: str, given: object) -> Variable:
    where = f"variables: {name}"
    if not _variable_name(name):
        raise TemplateError(f"{path}: {where}: a variable has letters, digits and `_`, and starts with no digit")
    if name in (UNSUBSCRIBE, _escaped_key(UNSUBSCRIBE)):
        raise TemplateError(f"{path}: {where}: is built in; remove it from the declared variables")
    fields = _fields_of(path, where, given, {"sample", "default", "description", "html"})
    texts = {field: _scalar(path, f"{where}: {field}", fields.get(field)) for field in ("sample", "default")}
    if not texts["sample"]:
        raise TemplateError(f"{path}: {where}: needs a sample, which previews and checks use")
    description, html = fields.get("description", ""), fields.get("html", False)
    if not isinstance(description, str) or not isinstance(html, bool):
        raise TemplateError(f"{path}: {where}: description is a text, and html is true or false")
    return Variable(name, texts["sample"], texts["default"], description, html)


def _fields_of(path: Path, where: str, given: object, known: set[str]) -> dict[str, object]:
    if not isinstance(given, dict):
        raise TemplateError(f"{path}: {where}: expected the fields {', '.join(sorted(known))}")
    if unknown := [str(field) for field in given if field not in known]:
        raise TemplateError(f"{path}: {where}: unknown field {unknown[0]}; known are {', '.join(sorted(known))}")
    return given


def _scalar(path: Path, where: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str | int | float):
        raise TemplateError(f"{path}: {where}: expected a text; put it in quotes")
    return None if value is None else _as_text(value)


def check_subject(path: Path, subject: str) -> None:
    if not subject:
        raise TemplateError(f"{path}: the subject is empty")
    if control := _unfit_for_subject.search(subject):
        line = subject.count("\n", 0, control.end()) + 1
        raise TemplateError(f"{path}:{line}: the subject is one line without control characters")


def _escaped_key(name: str) -> str:
    return f"{name}_html"


def _as_text(value: object) -> str:
    """A value from the segment as text. Whoever wants 1,234.50 formats it in the segment's SQL."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _identity(text: str) -> str:
    return text
