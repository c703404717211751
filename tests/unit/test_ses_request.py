"""The request: what botocore passes and SES refuses is refused here, and nothing that botocore would refuse
is passed.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.ses.request import RequestError, bulk_request, check_bulk

SHAPE = botocore.session.Session().get_service_model("sesv2").operation_model("SendBulkEmail").input_shape


def entry(number: int = 0) -> dict[str, Any]:
    return {
        "Destination": {"ToAddresses": [f"anna{number}@example.com"]},
        "ReplacementTags": [{"Name": "campaign", "Value": "sale"}, {"Name": "seq", "Value": str(number)}],
        "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": '{"city":"Köln"}'}},
        "ReplacementHeaders": [{"Name": "List-Unsubscribe", "Value": "<https://mail.example.com/u/x>"}],
    }


def request(entries: int = 2, **changed: Any) -> dict[str, Any]:
    made = bulk_request(
        sender="Büro <news@example.com>",
        template_name="sale-0123456789ab",
        configuration_set="marketing",
        entries=[entry(number) for number in range(entries)],
        reply_to="help@example.com",
    )
    return {**made, **changed}


def test_the_request_is_whole_and_passes_botocore() -> None:
    made = request()
    check_bulk(made, max_entries=50)
    assert not ParamValidator().validate(made, SHAPE).has_errors()
    assert made["FromEmailAddress"] == "=?utf-8?b?QsO8cm8=?= <news@example.com>"
    assert made["ReplyToAddresses"] == ["help@example.com"]
    assert made["DefaultContent"] == {"Template": {"TemplateName": "sale-0123456789ab", "TemplateData": "{}"}}


def test_without_a_reply_to_there_is_no_such_field() -> None:
    made = bulk_request(sender="a@example.com", template_name="t", configuration_set="c", entries=[entry()])
    assert "ReplyToAddresses" not in made
    check_bulk(made, max_entries=1)


@pytest.mark.parametrize("sender", ["", "news", "Shop <news@example>", "Shop\r\nBcc: x <news@example.com>"])
def test_a_sender_that_cannot_send_is_refused(sender: str) -> None:
    with pytest.raises(RequestError, match="FromEmailAddress"):
        bulk_request(sender=sender, template_name="t", configuration_set="c", entries=[entry()])


@pytest.mark.parametrize(("entries", "limit"), [(0, 50), (51, 50), (51, 100), (15, 14)])
def test_a_call_holds_no_more_than_50_and_no_more_than_a_second_allows(entries: int, limit: int) -> None:
    with pytest.raises(RequestError, match="BulkEmailEntries: expected a list of 1 to"):
        check_bulk(request(entries), max_entries=limit)
    check_bulk(request(min(limit, 50)), max_entries=limit)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"ConfigurationSetName": "a b"}, "ConfigurationSetName"),
        ({"ConfigurationSetName": "a" * 65}, "ConfigurationSetName"),
        ({"ConfigurationSetName": None}, "ConfigurationSetName"),
        ({"DefaultContent": {"Template": {"TemplateName": "a/b", "TemplateData": "{}"}}}, "TemplateName"),
        ({"DefaultContent": {"Template": {"TemplateName": "t"}}}, "DefaultContent"),
        (
            {"DefaultContent": {"Template": {"TemplateName": "t", "TemplateData": "{}", "Headers": []}}},
            "DefaultC",
        ),
        ({"FromEmailAddress": "Büro <news@example.com>"}, "FromEmailAddress"),
        ({"FromEmailAddress": "News@EXAMPLE.com"}, "FromEmailAddress"),
        ({"FromEmailAddress": 7}, "FromEmailAddress"),
        ({"ReplyToAddresses": ["help"]}, "ReplyToAddresses"),
        ({"ReplyToAddresses": "help@example.com"}, "ReplyToAddresses"),
        ({"EndpointId": "x"}, "EndpointId"),
    ],
)
def test_a_whole_request_is_refused_for_a_field_of_its_own(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text) as raised:
        check_bulk(request(**changed), max_entries=50)
    assert raised.value.index is None


def test_a_missing_field_is_named() -> None:
    made = request()
    del made["ConfigurationSetName"]
    with pytest.raises(RequestError, match="ConfigurationSetName"):
        check_bulk(made, max_entries=50)


def header(name: str = "X-A", value: str = "b") -> dict[str, Any]:
    return {"ReplacementHeaders": [{"Name": name, "Value": value}]}


def tag(name: str = "a", value: str = "b") -> dict[str, Any]:
    return {"ReplacementTags": [{"Name": name, "Value": value}]}


def data(text: Any) -> dict[str, Any]:
    return {"ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": text}}}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (header(value="a\r\nBcc: x"), "a value has 1 to 995"),
        (header(value="é"), "a value has 1 to 995"),
        (header(value=""), "a value has 1 to 995"),
        (header(value="x" * 996), "a value has 1 to 995"),
        (header(value="x" * 995, name="XX"), "with its name 996"),
        (header(name="a:b"), "a name has 1 to 126"),
        (header(name="a b"), "a name has 1 to 126"),
        (header(name="x" * 127), "a name has 1 to 126"),
        (header(name=""), "a name has 1 to 126"),
        ({"ReplacementHeaders": header()["ReplacementHeaders"] * 16}, "more than 15"),
        ({"ReplacementHeaders": [{"Name": "a"}]}, "expected Name and Value"),
        ({"ReplacementHeaders": {}}, "expected a list"),
        (tag(value="a b"), "ReplacementTags"),
        (tag(value="a@example.com"), "ReplacementTags"),
        (tag(name="x" * 257), "ReplacementTags"),
        (tag(value=""), "ReplacementTags"),
        ({"ReplacementTags": [{"Name": "seq", "Value": 7}]}, "ReplacementTags"),
        (data("{"), "not JSON"),
        (data("[1]"), "not a JSON object"),
        (data(json.dumps({"a": "x" * 262_144})), "longer than 262144"),
        (data(json.dumps({"a": "ä" * 131_072}, ensure_ascii=False)), "longer than 262144"),
        (data({"a": 1}), "ReplacementTemplateData"),
        ({"Destination": {"ToAddresses": []}}, "exactly one To address"),
        ({"Destination": {"ToAddresses": ["a@example.com", "b@example.com"]}}, "exactly one To address"),
        (
            {"Destination": {"ToAddresses": ["a@example.com"], "BccAddresses": ["b@example.com"]}},
            "exactly one To",
        ),
        ({"Destination": {"ToAddresses": ["andrée@example.com"]}}, "not an address"),
        ({"Destination": {"ToAddresses": ["Anna <anna@example.com>"]}}, "not an address"),
        ({"Destination": {"ToAddresses": ["anna@EXAMPLE.com"]}}, "not an address"),
        ({"Cc": 1}, "exactly the fields"),
    ],
)
def test_an_entry_that_ses_would_refuse_is_refused_by_its_index(changed: dict[str, Any], text: str) -> None:
    made = request(3)
    made["BulkEmailEntries"][1] |= changed
    with pytest.raises(RequestError, match=text) as raised:
        check_bulk(made, max_entries=50)
    assert raised.value.index == 1
    assert str(raised.value).startswith("BulkEmailEntries[1]: ")
    assert "@" not in str(raised.value)


def test_the_largest_of_everything_passes() -> None:
    made = request(1)
    made["BulkEmailEntries"][0] |= {
        "ReplacementTags": [{"Name": "x" * 256, "Value": "y" * 256}],
        "ReplacementHeaders": [{"Name": "x", "Value": "~" * 995}, {"Name": "y" * 126, "Value": " "}] * 7,
    }
    made["BulkEmailEntries"][0] |= data(json.dumps({"a": "x" * (262_144 - 9)}))
    assert (
        len(made["BulkEmailEntries"][0]["ReplacementEmailContent"]["ReplacementTemplate"]["ReplacementTemplateData"])
        == 262_144
    )
    check_bulk(made, max_entries=50)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a request."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


JUNK = st.sampled_from([None, "", "x", "x" * 300, 0, 1.5, True, [], ["x"], {}, {"Name": "x"}, b"x", ("x",), [None]])


@given(st.data())
def test_whatever_is_passed_here_would_pass_botocore_too(draw: st.DataObject) -> None:
    """The send client does not ask botocore to check types: this is why it need not."""
    made = copy.deepcopy(request(2))
    for _ in range(draw.draw(st.integers(1, 3))):
        container, key = draw.draw(st.sampled_from(list(places(made))))
        match draw.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                container[key] = copy.deepcopy(draw.draw(JUNK))
            case "remove":
                del container[key]
            case _ if isinstance(container, dict):
                container[draw.draw(st.sampled_from(["Extra", "Name", "CcAddresses", "TemplateArn"]))] = "x"
            case _:
                container.append(copy.deepcopy(draw.draw(JUNK)))
    try:
        check_bulk(made, max_entries=50)
    except RequestError:
        return
    assert not ParamValidator().validate(made, SHAPE).has_errors()
