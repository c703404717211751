"""The mails of variants: links that say the variant, other subjects, and what a file may say about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.errors import CampaignError, ScheduleError
from mailpipe.experiment import letters, utm
from mailpipe.experiment.spec import Experiment
from mailpipe.schedule import spec as schedules
from mailpipe.template import Template
from tests.unit.test_campaign_spec import LEAST, refusal, spec

MARKS = utm.marks("newsletter", "email", "sale", "b")
ALL = "utm_source=newsletter&utm_medium=email&utm_campaign=sale&utm_content=b"
TWO = [{"name": "a"}, {"name": "b", "subject": "Another one"}]


@pytest.mark.parametrize(
    ("url", "marked"),
    [
        ("https://shop.example.com", f"https://shop.example.com?{ALL}"),
        ("https://shop.example.com/sale?x=1", f"https://shop.example.com/sale?x=1&{ALL}"),
        ("https://shop.example.com/sale?", f"https://shop.example.com/sale?{ALL}"),
        ("https://shop.example.com/sale#top", f"https://shop.example.com/sale?{ALL}#top"),
        ("https://shop.example.com/?a=1#top?b", f"https://shop.example.com/?a=1&{ALL}#top?b"),
        ("https://shop.example.com/{{slug}}", f"https://shop.example.com/{{{{slug}}}}?{ALL}"),
        (
            "https://shop.example.com/?utm_source=mine&UTM_content=c",
            "https://shop.example.com/?utm_source=mine&UTM_content=c&utm_medium=email&utm_campaign=sale",
        ),
        ("{{shop_url}}", "{{shop_url}}"),
        ("{{unsubscribe_url}}", "{{unsubscribe_url}}"),
        ("https://u.example.com/?to={{unsubscribe_url}}", "https://u.example.com/?to={{unsubscribe_url}}"),
        ("mailto:shop@example.com", "mailto:shop@example.com"),
        ("#top", "#top"),
        ("tel:+4930123", "tel:+4930123"),
    ],
)
def test_a_link_says_where_a_visitor_comes_from(url: str, marked: str) -> None:
    assert utm.mark(url, MARKS) == marked
    assert utm.mark(marked, MARKS) == marked


def test_in_html_only_links_are_marked_and_stay_html() -> None:
    html = (
        '<link href="https://cdn.example.com/s.css"><img src="https://cdn.example.com/i.png">'
        "<a class='x' href='https://shop.example.com/?a=1&amp;b=2'>Shop</a>"
        '<A HREF="https://shop.example.com/{{slug}}" data-x="a>b">More</A>'
        '<a ses:no-track href="{{unsubscribe_url}}">Unsubscribe</a> https://plain.example.com'
    )
    made = utm.mark_html(html, MARKS)
    escaped = ALL.replace("&", "&amp;")
    assert f"href='https://shop.example.com/?a=1&amp;b=2&amp;{escaped}'" in made
    assert f'HREF="https://shop.example.com/{{{{slug}}}}?{escaped}" data-x="a>b"' in made
    assert made.count("utm_source") == 2
    assert utm.mark_html(made, MARKS) == made


def test_in_text_the_end_of_a_sentence_is_no_part_of_a_link() -> None:
    text = "See https://shop.example.com/sale. Or (https://shop.example.com/{{slug}})!\nOut: {{unsubscribe_url}}"
    assert utm.mark_text(text, MARKS) == (
        f"See https://shop.example.com/sale?{ALL}. Or (https://shop.example.com/{{{{slug}}}}?{ALL})!\nOut: {{{{unsubscribe_url}}}}"
    )


@given(st.text(max_size=60))
def test_whatever_an_author_writes_marking_twice_changes_nothing_more(text: str) -> None:
    for mark in (utm.mark_html, utm.mark_text):
        once = mark(text, MARKS)
        assert mark(once, MARKS) == once


def folder(home: Path, html: str = '<a href="https://shop.example.com">Shop</a><a href="{{url}}">x</a>') -> Path:
    for name in ("sale", "other"):
        (home / name).mkdir()
        (home / name / "template.yaml").write_text(
            "variables:\n  first_name: {sample: Ana}\n  url: {sample: https://a.example.com}\n"
        )
        (home / name / "subject.txt").write_text("Hello {{first_name}}\n")
        (home / name / "body.html").write_text(html + '<a href="{{unsubscribe_url}}">Unsubscribe</a>')
        (home / name / "body.txt").write_text(f"{name} {{{{unsubscribe_url}}}}")
    return home


def made(home: Path, variants: list[dict[str, Any]], **fields: Any) -> dict[str, Template]:
    wanted = Experiment.model_validate({"variants": variants, **fields})
    return letters.of(folder(home), wanted, campaign="sale-1", base="sale")


def test_each_variant_is_a_mail_of_its_own(tmp_path: Path) -> None:
    found = made(tmp_path, [*TWO, {"name": "c", "template": "other"}])
    assert [one.subject for one in found.values()] == ["Hello {{first_name}}", "Another one", "Hello {{first_name}}"]
    assert [one.text[:5] for one in found.values()] == ["sale ", "sale ", "other"]
    assert len({one.version for one in found.values()}) == 3
    assert "utm_campaign=sale-1&amp;utm_content=b" in found["b"].html
    assert letters.unmarked(found) == ["url"]


def test_a_variable_that_only_the_other_subject_had_is_asked_of_nobody(tmp_path: Path) -> None:
    found = made(tmp_path, TWO)
    assert list(found["a"].variables) == ["first_name", "url"]
    assert list(found["b"].variables) == ["url"]


def test_without_utm_links_stay_as_they_are_and_equal_mails_are_one(tmp_path: Path) -> None:
    found = made(tmp_path, [{"name": "a"}, {"name": "b"}], utm=False)
    assert found["a"] == found["b"] and "utm" not in found["a"].html


def test_what_a_file_need_not_say_about_an_experiment() -> None:
    found = spec(experiment={"variants": TWO}).experiment
    assert found is not None
    assert (found.shares, found.decide_after, found.metric, found.series, found.control.name) == (
        (0.1, 0.1),
        7200,
        "clicks",
        None,
        "a",
    )
    assert found.links is not None and found.links.source == "newsletter"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"experiment": {"variants": [{"name": "a"}]}}, "variants"),
        ({"experiment": {"variants": [{"name": "a"}, {"name": "a"}]}}, "the same name"),
        (
            {"experiment": {"variants": [{"name": "a", "share": 0.6}, {"name": "b", "share": 0.6}]}},
            "more than the whole",
        ),
        ({"experiment": {"variants": [{"name": "a"}, {"name": "b", "subjet": "x"}]}}, "no such field"),
        ({"experiment": {"variants": [{"name": "a"}, {"name": "b", "hour": 9}]}}, "needs send_at"),
        (
            {
                "experiment": {"variants": [{"name": "a"}, {"name": "b", "hour": 9}]},
                "send_at": "2027-01-01T10:00",
                "quiet_hours": "22:00-08:00",
            },
            "exclude each other",
        ),
        ({"experiment": {"variants": TWO, "decide_after": "soon"}}, "duration"),
        ({"experiment": {"variants": TWO, "utm": {"source": "a b"}}}, "utm"),
        ({"holdout": 0.9}, "holdout"),
    ],
)
def test_an_experiment_that_cannot_be_is_told(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(**fields)


def test_a_schedule_has_no_experiment() -> None:
    fields = {key: value for key, value in LEAST.items() if key != "key"}
    with pytest.raises(ScheduleError, match="experiment: a schedule has none"):
        schedules.parse(
            {
                "key": "weekly",
                "cron": "0 9 * * 1",
                "timezone": "Europe/Berlin",
                "campaign": {**fields, "experiment": {"variants": TWO}},
            },
            where="weekly.yaml",
        )


def test_what_is_wrong_with_an_experiment_names_its_field() -> None:
    with pytest.raises(CampaignError, match=r"sale\.yaml: experiment\.variants\.1\.share"):
        spec(experiment={"variants": [{"name": "a"}, {"name": "b", "share": 0}]})
