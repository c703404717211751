"""Templates: what is refused, what travels, and that no value becomes markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.errors import TemplateError
from mailpipe.template import Content, MissingVariable, Template, Variable, list_templates, load

SHIPPED = Path(__file__).parents[2] / "assets" / "templates"
LINK = "https://mail.example.com/u/1.k1.abc.def"
YAML = """\
description: For tests.
variables:
  first_name: {sample: Amélie, default: friend}
  city: {sample: Lyon}
"""
GOOD = {
    "template.yaml": YAML,
    "subject.txt": "News for {{first_name}}\n",
    "body.html": '<p title="{{city}}">{{ first_name }}, {{city}}</p>\n<a ses:no-track href="{{unsubscribe_url}}">x</a>',
    "body.txt": "{{first_name}}, {{city}}\n{{unsubscribe_url}}\n",
}


def write(folder: Path, name: str = "news", /, **changed: str | None) -> Path:
    """A templates folder with one template; `body_html=` and the like replace its files, None leaves one out."""
    home = folder / name
    home.mkdir(parents=True)
    files = {**GOOD, **{re.sub("_(?=[a-z]+$)", ".", key): text for key, text in changed.items()}}
    for file, text in files.items():
        if text is not None:
            (home / file).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return load(write(tmp_path), "news")


def test_a_template_says_what_it_renders_for_its_samples(template: Template) -> None:
    sample = template.sample()
    assert sample.subject == "News for Amélie"
    assert sample.text.startswith("Amélie, Lyon\nhttps://")
    assert '<p title="Lyon">Amélie, Lyon</p>' in sample.html


def test_html_refers_to_the_escaped_value_and_text_and_subject_to_the_plain_one(template: Template) -> None:
    content = template.published()
    assert content == Content(
        subject="News for {{first_name}}",
        html='<p title="{{city_html}}">{{first_name_html}}, {{city_html}}</p>\n'
        '<a ses:no-track href="{{unsubscribe_url}}">x</a>',
        text="{{first_name}}, {{city}}\n{{unsubscribe_url}}\n",
    )
    assert template.data({"first_name": "A & B", "city": "<Lyon>"}, unsubscribe_url=LINK) == {
        "unsubscribe_url": LINK,
        "first_name": "A & B",
        "first_name_html": "A &amp; B",
        "city": "<Lyon>",
        "city_html": "&lt;Lyon&gt;",
    }


class Structure(HTMLParser):
    """Everything that a reader of HTML sees, in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[object] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.seen.append(tag)

    def handle_data(self, data: str) -> None:
        self.seen.append(data)

    def handle_comment(self, data: str) -> None:
        self.seen.append(("comment", data))


MARKUP = st.text(st.sampled_from("<>&\"'=/! -ab;{}#\n\\") | st.characters(codec="utf-8"), min_size=1, max_size=30)
PAGE = Template(
    name="page",
    subject="{{x}}",
    html="<p title=\"{{x}}\" id='{{x}}'>{{x}}</p>{{unsubscribe_url}}",
    text="{{x}} {{unsubscribe_url}}",
    variables={"x": Variable("x", sample="x", default="-")},
)


@given(MARKUP)
def test_no_value_becomes_markup(value: str) -> None:
    rendered = PAGE.render({"x": value}, unsubscribe_url=LINK)
    shown = PAGE.data({"x": value}, unsubscribe_url=LINK)["x"]
    assert Structure(rendered.html).seen == [("p", [("title", shown), ("id", shown)]), shown, "p", LINK]
    assert rendered.text == f"{shown} {LINK}"


@given(MARKUP)
def test_a_subject_stays_one_line_whatever_the_value_is(value: str) -> None:
    subject = PAGE.render({"x": value}, unsubscribe_url=LINK).subject
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", subject)
    assert subject


def test_a_value_in_no_subject_keeps_its_lines(template: Template) -> None:
    data = template.data({"first_name": "A\r\nB\u202e", "city": "two\nlines"}, unsubscribe_url=LINK)
    assert data["first_name"] == "A B "
    assert data["city"] == data["city_html"] == "two\nlines"


@given(st.dictionaries(st.sampled_from(["first_name", "city", "other"]), MARKUP | st.integers() | st.none()))
def test_the_data_hold_exactly_the_keys_that_the_published_parts_use(values: dict[str, object]) -> None:
    template = Template(
        "t",
        "s {{first_name}}",
        "{{city}} {{unsubscribe_url}}",
        "{{unsubscribe_url}} {{city}}",
        {"first_name": Variable("first_name", "x", "a"), "city": Variable("city", "x", "b")},
    )
    content = template.published()
    used = set(re.findall(r"\{\{(\w+)\}\}", content.subject + content.html + content.text))
    data = template.data(values, unsubscribe_url=LINK)
    assert data.keys() == used == {"first_name", "city", "city_html", "unsubscribe_url"}
    assert all(type(value) is str and value for value in data.values())


@pytest.mark.parametrize("values", [{}, {"city": None}, {"city": ""}, {"city": " \t\n"}])
def test_a_person_without_a_value_that_has_no_default_is_named_by_the_variable(
    template: Template, values: dict[str, object]
) -> None:
    with pytest.raises(MissingVariable) as raised:
        template.data(values, unsubscribe_url=LINK)
    assert raised.value.name == "city"


def test_a_person_without_a_value_gets_the_default(template: Template) -> None:
    assert template.render({"city": "Lyon", "first_name": "  "}, unsubscribe_url=LINK).subject == "News for friend"


def test_an_empty_default_is_a_default(tmp_path: Path) -> None:
    folder = write(tmp_path, template_yaml=YAML.replace("{sample: Lyon}", '{sample: Lyon, default: ""}'))
    assert load(folder, "news").data({}, unsubscribe_url=LINK)["city"] == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (40, "40"),
        (40.0, "40"),
        (0, "0"),
        (12.5, "12.5"),
        (1e300, "1e+300"),
        (True, "true"),
        (False, "false"),
        (["é", 1], '["é", 1]'),
        ({"a": None}, '{"a": null}'),
    ],
)
def test_every_value_that_a_segment_can_return_has_a_text(template: Template, value: object, text: str) -> None:
    assert template.data({"city": value}, unsubscribe_url=LINK)["city"] == text


def test_html_made_by_the_author_is_inserted_only_where_it_is_declared(tmp_path: Path) -> None:
    yaml = YAML.replace("{sample: Lyon}", "{sample: <b>Lyon</b>, html: true}")
    folder = write(tmp_path, template_yaml=yaml, body_html="{{{ city }}} {{city}} {{first_name}} {{unsubscribe_url}}")
    html = load(folder, "news").sample().html
    assert html.startswith("<b>Lyon</b> &lt;b&gt;Lyon&lt;/b&gt; Amélie https://")


def test_a_link_that_html_would_have_to_escape_is_refused(template: Template) -> None:
    with pytest.raises(ValueError, match="unsubscribe link"):
        template.data({"city": "Lyon"}, unsubscribe_url='https://mail.example.com/"><script>')


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"body_html": None}, r"body\.html: this part is missing"),
        (
            {"body_html": "<p>\n{{#if city}}x{{/if}}"},
            r"body\.html:2: '\{\{#if city\}\}x\{\{/if\}\}' is not underst",
        ),
        ({"body_html": "{{> footer}}"}, r"body\.html:1: .*not understood"),
        ({"body_html": "{{! note }}"}, r"body\.html:1: .*not understood"),
        ({"body_html": "{{&city}}"}, r"body\.html:1: .*not understood"),
        ({"body_html": "{{city.name}}"}, r"body\.html:1: .*not understood"),
        ({"body_html": "{{}}"}, r"body\.html:1: .*not understood"),
        ({"body_html": "x\n\n{{=<% %>=}}"}, r"body\.html:3: .*not understood"),
        ({"body_html": "{{{{city}}}}"}, r"body\.html:1: .*(not understood|touches)"),
        ({"body_html": "{{{city}}"}, r"body\.html:1: .*touches"),
        ({"body_html": "{{city}}}"}, r"body\.html:1: .*touches"),
        ({"body_html": "\\{{city}}"}, r"body\.html:1: .*touches"),
        ({"body_html": "\n{{town}}"}, r"body\.html:2: the variable town is not declared"),
        ({"body_html": "\n{{{city}}}"}, r"body\.html:2: .*html: true"),
        ({"body_html": "{{{unsubscribe_url}}}"}, r"body\.html:1: .*html: true"),
        ({"body_html": "<p>\n<a\nhref={{city}}> {{unsubscribe_url}}"}, r"body\.html:3: .*between quotes"),
        ({"body_html": "<a {{city}}> {{unsubscribe_url}}"}, r"body\.html:1: .*between quotes"),
        ({"body_html": "\n<{{city}}> {{unsubscribe_url}}"}, r"body\.html:2: .*text between"),
        (
            {"body_html": "<style>\na { b: {{city}} }</style> {{unsubscribe_url}}"},
            r"body\.html:2: .*out of <style>",
        ),
        ({"body_html": "{{city}} {{first_name}}"}, r"body\.html: every mail needs the unsubscribe link"),
        ({"body_txt": "{{city}}"}, r"body\.txt: every mail needs the unsubscribe link"),
        ({"body_txt": "{{{city}}} {{unsubscribe_url}}"}, r"body\.txt:1: nothing is escaped in this part"),
        ({"subject_txt": " \n"}, r"subject\.txt: the subject is empty"),
        ({"subject_txt": "one\ntwo"}, r"subject\.txt:2: the subject is one line"),
        ({"subject_txt": "one\rBcc: x"}, r"subject\.txt.*: the subject is one line"),
        ({"subject_txt": "{{town}}"}, r"subject\.txt:1: the variable town is not declared"),
        ({"template_yaml": "variables: [a"}, r"template\.yaml:1: not YAML"),
        ({"template_yaml": "- a"}, r"template\.yaml: template\.yaml: expected the fields"),
        ({"template_yaml": YAML + "author: me"}, r"template\.yaml: .*unknown field author"),
        ({"template_yaml": YAML + "  note: {sample: x}"}, r"template\.yaml: no part uses the variable note"),
        ({"template_yaml": YAML + "  note: x"}, r"variables: note: expected the fields"),
        ({"template_yaml": YAML + "  note: {defualt: x}"}, r"variables: note: unknown field defualt"),
        ({"template_yaml": YAML + "  note: {default: x}"}, r"variables: note: needs a sample"),
        ({"template_yaml": YAML + "  note: {sample: [x]}"}, r"variables: note: sample: expected a text"),
        ({"template_yaml": YAML + "  note: {sample: x, html: 1}"}, r"variables: note: .*true or false"),
        ({"template_yaml": YAML + "  a-b: {sample: x}"}, r"variables: a-b: a variable has letters"),
        (
            {"template_yaml": YAML + "  city_html: {sample: x}"},
            r"city_html is the name of city's escaped value",
        ),
        ({"template_yaml": YAML + "  unsubscribe_url: {sample: x}"}, r"unsubscribe_url: is built in"),
        ({"template_yaml": "variables: [a]"}, r"variables: expected"),
        ({"template_yaml": "description: [a]"}, r"description: expected a text"),
        ({"body_txt": "{{unsubscribe_url}}" + "x" * 512_000}, r"larger than 500 KB"),
    ],
)
def test_a_broken_template_is_refused_with_file_and_line(
    tmp_path: Path, changed: dict[str, str | None], text: str
) -> None:
    with pytest.raises(TemplateError, match=text):
        load(write(tmp_path, **changed), "news")


def test_a_part_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "news" / "body.txt").write_bytes(b"caf\xe9 {{unsubscribe_url}}")
    with pytest.raises(TemplateError, match=r"body\.txt: cannot be read: not UTF-8 at byte 3"):
        load(tmp_path, "news")


def test_css_braces_are_no_tags(tmp_path: Path) -> None:
    css = "<style>@media (max-width: 9px){.a{color:red}}</style>"
    folder = write(tmp_path, body_html=css + "{{city}} {{unsubscribe_url}}")
    assert css in load(folder, "news").sample().html


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "sale")
    assert list_templates(tmp_path) == ["news", "sale"]
    with pytest.raises(TemplateError, match="known templates: news, sale"):
        load(tmp_path, "newz")
    for name in ("../news", "", "a" * 52, "a b"):
        with pytest.raises(TemplateError, match="a name has at most 51"):
            load(tmp_path, name)


def test_there_are_no_templates_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert list_templates(tmp_path / "none") == []


def test_the_version_changes_with_any_part_and_with_nothing_else(tmp_path: Path) -> None:
    version = load(write(tmp_path / "1"), "news").version
    assert re.fullmatch(r"news-[0-9a-f]{12}", version)
    assert load(write(tmp_path / "2"), "news").version == version
    changes: list[dict[str, str | None]] = [
        {"subject_txt": "Other {{first_name}}"},
        {"body_txt": GOOD["body.txt"] + "."},
        {"body_html": GOOD["body.html"] + "."},
        {"template_yaml": YAML.replace("friend", "you")},
    ]
    others = [load(write(tmp_path / f"c{n}", **change), "news").version for n, change in enumerate(changes)]
    assert len({version, *others}) == 5
    longest = load(write(tmp_path / "l", "n" * 51), "n" * 51).version
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", longest)


def test_a_template_survives_being_stored(template: Template) -> None:
    stored = json.loads(json.dumps(template.to_json(), sort_keys=True))
    again = Template.from_json(stored)
    assert again == template
    assert again.version == template.version
    assert again.published() == template.published()


@pytest.mark.parametrize("name", list_templates(SHIPPED))
def test_a_shipped_template_renders_and_lets_people_leave(name: str) -> None:
    template = load(SHIPPED, name)
    sample = template.sample()
    assert "{{" not in sample.html + sample.text + sample.subject
    links = re.findall(r"<a [^>]*unsubscribe[^>]*>", sample.html)
    assert len(links) == (0 if template.transactional else 1)
    assert all("ses:no-track" in link for link in links)
    assert len(sample.html.encode()) < 100_000
    assert "<script" not in sample.html
    assert "http-equiv" not in sample.html


def test_shipped_templates_need_no_more_than_the_shipped_segments_return() -> None:
    returned = {"first_name": "Anna", "city": "Köln", "country": "DE", "tier": "gold"}
    assert {"flash_sale", "win_back"} <= set(list_templates(SHIPPED))
    for name in ("flash_sale", "win_back"):
        load(SHIPPED, name).data(returned, unsubscribe_url=LINK)
