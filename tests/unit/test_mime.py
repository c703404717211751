"""Messages as bytes: what the standard parser reads is what the template says, and nothing else is in there."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.adapters.mime import Renderer, Unfit, build, message_id
from mailpipe.adapters.protocol import Inline, Mail, Templated
from mailpipe.ledger import pack_message_ids
from mailpipe.template import Rendered, Template, Variable

URL = "https://unsubscribe.example.com/u/1.k1.abc"
TEMPLATE = Template(
    "hello",
    "Hello {{name}}",
    '<p title="{{name}}">{{name}}</p>{{{extra}}}<a href="{{unsubscribe_url}}">x</a>',
    "{{name}} {{unsubscribe_url}}",
    {"name": Variable("name", "Ana", default="there"), "extra": Variable("extra", "<b>x</b>", default="-", html=True)},
)
VALUES = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["{{name}}", "<script>", "a&b", "x\r\nBcc: evil@mail.example.com", ".", "\r\n.\r\n", "From me", "=20"]
)


def mail(content: Inline | Templated, **changes: Any) -> Mail:
    made = Mail(
        sender="Shop <news@mail.example.com>",
        to="Anna <anna@mail.example.net>",
        content=content,
        configuration_set="",
        headers=(
            ("List-Unsubscribe", f"<{URL}>, <mailto:unsubscribe@mail.example.com?subject=unsubscribe%20x>"),
            ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ),
        tags={"campaign": "spring", "seq": "1"},
        reply_to="help@mail.example.com",
    )
    return replace(made, **changes)


def made(one: Mail) -> tuple[EmailMessage, bytes]:
    raw = build(one, Renderer().render(one), message_id())
    assert raw.isascii()
    assert raw.endswith(b"\r\n")
    assert not re.search(rb"[^\r]\n|\r[^\n]", raw)
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    return BytesParser(policy=policy.SMTP).parsebytes(raw), raw


def text_of(message: EmailMessage, kind: str) -> str:
    part = message.get_body(preferencelist=(kind,))
    assert part is not None
    return lines_of(str(part.get_content()))


def lines_of(text: str) -> str:
    """A text with one kind of line ends, and without that of its last line, which belongs to the boundary in a multipart."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def test_a_message_has_each_header_once_and_both_parts_in_order() -> None:
    message, raw = made(mail(Inline("Hello", "<p>Hi</p>", "Hi")))
    assert [name for name, _ in message.items()] == [
        "From",
        "To",
        "Reply-To",
        "Subject",
        "Date",
        "Message-ID",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "X-Mailpipe-Tags",
        "MIME-Version",
        "Content-Type",
    ]
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert (text_of(message, "plain"), text_of(message, "html")) == ("Hi", "<p>Hi</p>")
    assert f"\r\nList-Unsubscribe: <{URL}>, <mailto:".encode() in raw
    assert not message.defects


def test_one_part_needs_no_multipart() -> None:
    message, _ = made(mail(Inline("Hello", text="Hi")))
    assert message.get_content_type() == "text/plain"
    message, _ = made(mail(Inline("Hello", html="<p>Hi</p>")))
    assert message.get_content_type() == "text/html"


@given(VALUES, VALUES)
def test_a_template_reads_as_its_preview_whatever_the_values(name: str, extra: str) -> None:
    values = {"name": name, "extra": extra}
    content = Templated(TEMPLATE, TEMPLATE.data(values, unsubscribe_url=URL))
    message, _ = made(mail(content))
    expected = TEMPLATE.render(values, unsubscribe_url=URL)
    assert Renderer().render(mail(content)) == expected
    for kind, part in (("plain", expected.text), ("html", expected.html)):
        assert text_of(message, kind) == lines_of(part)
    assert " ".join(str(message["Subject"]).split()) == " ".join(expected.subject.split())
    assert "Bcc" not in message


@given(st.text(st.characters(codec="utf-8"), max_size=3000))
def test_any_body_comes_back(text: str) -> None:
    message, raw = made(mail(Inline("Hello", text=text or "x")))
    assert text_of(message, "plain") == lines_of(text or "x")
    body = raw.partition(b"\r\n\r\n")[2]
    assert all(len(line) <= 76 for line in body.split(b"\r\n"))


def test_html_is_escaped_once_and_text_and_subject_are_not() -> None:
    content = Templated(TEMPLATE, TEMPLATE.data({"name": "A & <B>", "extra": "<i>&amp;</i>"}, unsubscribe_url=URL))
    assert Renderer().render(mail(content)) == Rendered(
        "Hello A & <B>",
        f'<p title="A &amp; &lt;B&gt;">A &amp; &lt;B&gt;</p><i>&amp;</i><a href="{URL}">x</a>',
        f"A & <B> {URL}",
    )


def test_data_without_a_key_of_the_template_are_refused() -> None:
    with pytest.raises(Unfit) as refused:
        Renderer().render(mail(Templated(TEMPLATE, {"name": "Ana"})))
    assert refused.value.reason == "missing_variable"


@pytest.mark.parametrize(
    "one",
    [
        mail(Inline("", "x")),
        mail(Inline("Hello\r\nBcc: x@mail.example.com", "x")),
        mail(Inline("Hello", "x"), sender="nobody"),
        mail(Inline("Hello", "x"), to="nobody"),
        mail(Inline("Hello", "x"), sender="A\nB <a@mail.example.com>"),
        mail(Inline("Hello", "x"), reply_to="a@mail.example.com, b@mail.example.com"),
        mail(Inline("Hello", "x"), headers=(("Bcc", "x@mail.example.com"),)),
        mail(Inline("Hello", "x"), headers=(("X-A", "1\r\nBcc: x@mail.example.com"),)),
        mail(Inline("Hello", "x"), tags={"campaign": "a\r\nb"}),
        mail(Inline("Hello")),
    ],
)
def test_what_cannot_be_a_mail_is_refused(one: Mail) -> None:
    with pytest.raises(Unfit) as refused:
        made(one)
    assert refused.value.reason == "invalid_mail"


def test_date_and_message_id_are_the_senders() -> None:
    at = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
    one = mail(Inline("Hello", "x"))
    identity = message_id()
    message = BytesParser(policy=policy.SMTP).parsebytes(build(one, Renderer().render(one), identity, at=at))
    assert message["Date"].datetime == at
    assert message["Message-ID"] == f"<{identity}@mail.example.com>"
    packed, text = pack_message_ids([identity])
    assert (len(packed or b""), text) == (24, None)
