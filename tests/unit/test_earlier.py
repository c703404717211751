"""The audience of a campaign: a segment, or people of an earlier campaign, and never both."""

from __future__ import annotations

from typing import Any

import pytest

from mailpipe.campaign_file import Spec, parse
from mailpipe.errors import CampaignError

LEAST: dict[str, Any] = {"key": "sorry", "template": "sorry", "sender": "Shop <news@mail.example.com>"}


def spec(**fields: Any) -> Spec:
    return parse({**LEAST, **fields}, where="sorry.yaml")


def test_one_state_or_several_can_be_named() -> None:
    one = spec(audience={"campaign": "sale", "delivery": "sent"})
    assert one.audience is not None and one.audience.delivery == ("sent",)
    assert one.people == "campaign sale: sent"
    many = spec(audience={"campaign": "sale", "delivery": ["sent", "unknown"]})
    assert many.people == "campaign sale: sent, unknown"
    assert spec(segment="active").people == "active"


def test_it_is_kept_and_read_again() -> None:
    one = spec(audience={"campaign": "sale", "delivery": ["rest"]})
    assert Spec.model_validate(one.model_dump(mode="json")) == one


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "give either segment, or audience"),
        (
            {"segment": "active", "audience": {"campaign": "sale", "delivery": "sent"}},
            "give either segment, or audience",
        ),
        ({"audience": {"campaign": "sorry", "delivery": "sent"}}, "names the campaign itself"),
        (
            {"audience": {"campaign": "sale", "delivery": "sent"}, "parameters": {"days": 3}},
            "parameters belong to a segment",
        ),
        ({"audience": {"campaign": "sale", "delivery": "opened"}}, "audience.delivery"),
        ({"audience": {"campaign": "sale", "delivery": []}}, "audience.delivery"),
        ({"audience": {"campaign": "sale\n; DROP", "delivery": "sent"}}, "audience.campaign"),
        ({"audience": {"campaign": "sale"}}, "audience.delivery: is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(CampaignError) as caught:
        spec(**fields)
    assert told in str(caught.value)


def test_unknown_people_are_meant_only_when_they_are_named() -> None:
    for states in (["sent"], ["rest"], ["failed", "skipped", "pending"]):
        chosen = spec(audience={"campaign": "sale", "delivery": states}).audience
        assert chosen is not None and "unknown" not in chosen.condition
