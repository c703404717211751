"""The stand-in against code and data that we did not write: botocore's service model of SES v2.

Requests are checked and serialised by botocore; answers are read raw and compared with the output shapes strictly
(required members there, unknown members absent, types and enumerations met), because botocore's own parser forgives
all of that; then botocore parses them too.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator

from mailpipe.simulator import rules
from mailpipe.simulator.administration import route
from mailpipe.simulator.child import StandIn
from tests.web.test_simulator import ALL_STATUSES, GREETING, entry, people

Call = Callable[..., Any]

OPERATIONS = (
    "SendBulkEmail",
    "SendEmail",
    "GetAccount",
    "PutAccountSendingAttributes",
    "CreateEmailTemplate",
    "UpdateEmailTemplate",
    "GetEmailTemplate",
    "DeleteEmailTemplate",
    "ListEmailTemplates",
    "TestRenderEmailTemplate",
    "CreateConfigurationSet",
    "GetConfigurationSet",
    "DeleteConfigurationSet",
    "ListConfigurationSets",
    "PutConfigurationSetSendingOptions",
    "PutSuppressedDestination",
    "GetSuppressedDestination",
    "DeleteSuppressedDestination",
    "ListSuppressedDestinations",
)

SIMPLE = {"Simple": {"Subject": {"Data": "S"}, "Body": {"Html": {"Data": "<p>H</p>"}}}}
BULK: dict[str, object] = {
    "FromEmailAddress": "news@mail.example.com",
    "ConfigurationSetName": "marketing",
    "DefaultContent": {"Template": {"TemplateName": "greeting", "TemplateData": '{"city": "Bonn"}'}},
}


@pytest.fixture(scope="module")
def model() -> ServiceModel:
    return botocore.session.get_session().get_service_model("sesv2")


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("stand-in"), rate=100) as stand_in:
        yield stand_in


@pytest.fixture
def call(stand_in: StandIn, model: ServiceModel) -> Iterator[Call]:
    """Makes a request of the given operation and parameters and returns the checked, parsed answer.

    Of a refusal it returns the error's code, and checks that the operation's model has such an error.
    """

    def call(name: str, **parameters: object) -> Any:
        operation = model.operation_model(name)
        problems = ParamValidator().validate(parameters, operation.input_shape)
        assert not problems.has_errors(), problems.generate_report()
        status, headers, body = request(stand_in.url, operation, parameters)
        parsed = create_parser("rest-json").parse(
            {"status_code": status, "headers": headers, "body": body}, operation.output_shape
        )
        if status >= 300:
            error = {shape.error_code or shape.name: shape for shape in operation.error_shapes}
            code = parsed["Error"]["Code"]
            assert code in error, f"{name} has no error {code}"
            assert error[code].metadata["error"]["httpStatusCode"] == status
            assert parsed["Error"]["Message"]
            return code
        assert headers["x-amzn-requestid"]
        check(json.loads(body), operation.output_shape, name)
        return parsed

    stand_in.clear_faults()
    yield call
    stand_in.clear_faults()


def request(url: str, operation: OperationModel, parameters: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """One request as botocore serialises it: status, headers with names in lower case, body."""
    wire = create_serializer("rest-json").serialize_to_request(parameters, operation)
    query = urllib.parse.urlencode(wire["query_string"], doseq=True)
    prepared = urllib.request.Request(
        url + wire["url_path"] + ("?" + query if query else ""),
        wire["body"] or None,
        dict(wire["headers"]),
        method=wire["method"],
    )
    try:
        with urllib.request.urlopen(prepared, timeout=5) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "double": (int, float),
    "integer": int,
    "timestamp": (int, float),
}


def check(value: Any, shape: Shape, where: str) -> None:
    """Asserts that a JSON value is of a shape, in every member."""
    if shape.type_name == "structure":
        assert isinstance(value, dict), where
        assert set(value) <= set(shape.members), f"{where} has unknown members {set(value) - set(shape.members)}"
        assert set(shape.required_members) <= set(value), f"{where} lacks required members"
        for name, member in value.items():
            check(member, shape.members[name], f"{where}.{name}")
    elif shape.type_name == "list":
        assert isinstance(value, list), where
        for number, member in enumerate(value):
            check(member, shape.member, f"{where}[{number}]")
    else:
        assert isinstance(value, _TYPES[shape.type_name]), f"{where} is {value!r}, not {shape.type_name}"
        if shape.type_name != "boolean":
            assert not isinstance(value, bool), where
        enumeration = getattr(shape, "enum", None)
        assert not enumeration or value in enumeration, f"{where} is {value!r}, none of {enumeration}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_found_where_the_model_puts_it(model: ServiceModel, name: str) -> None:
    http = model.operation_model(name).http
    segments = ["a+b@c" if part.startswith("{") else part for part in http["requestUri"].split("/")[1:]]
    variable = "a+b@c" if "{" in http["requestUri"] else ""
    assert route(http["method"], segments) == (name, variable)


def test_limits_and_statuses_are_those_of_the_model(model: ServiceModel) -> None:
    assert model.shape_for("MessageHeaderList").metadata["max"] == rules.MAX_HEADERS
    assert model.shape_for("EmailTemplateData").metadata["max"] == rules.MAX_TEMPLATE_DATA
    assert model.shape_for("MessageHeaderName").metadata["max"] == 126
    assert model.shape_for("MessageHeaderValue").metadata["max"] == 995
    statuses = model.shape_for("BulkEmailEntryResult").members["Status"].enum
    assert set(statuses) == {"SUCCESS", *ALL_STATUSES}


def test_account_and_switches(call: Call) -> None:
    account = call("GetAccount")
    assert account["SendQuota"] == {"Max24HourSend": -1, "MaxSendRate": 100, "SentLast24Hours": 0}
    call("PutAccountSendingAttributes", SendingEnabled=False)
    assert call("GetAccount")["SendingEnabled"] is False
    assert call("SendBulkEmail", **BULK, BulkEmailEntries=people(1)) == "SendingPausedException"
    call("PutAccountSendingAttributes", SendingEnabled=True)


def test_templates(call: Call) -> None:
    assert call("GetEmailTemplate", TemplateName="greeting") == "NotFoundException"
    call("CreateEmailTemplate", TemplateName="greeting", TemplateContent=GREETING)
    assert call("CreateEmailTemplate", TemplateName="greeting", TemplateContent=GREETING) == ("AlreadyExistsException")
    assert call("CreateEmailTemplate", TemplateName="empty", TemplateContent={}) == "BadRequestException"
    call("UpdateEmailTemplate", TemplateName="greeting", TemplateContent=GREETING)
    assert call("GetEmailTemplate", TemplateName="greeting")["TemplateContent"] == GREETING
    data = '{"name": "Ana", "city": "Bonn"}'
    assert call("TestRenderEmailTemplate", TemplateName="greeting", TemplateData=data)["RenderedTemplate"]
    assert call("TestRenderEmailTemplate", TemplateName="greeting", TemplateData="{}") == "BadRequestException"
    for number in range(3):
        call("CreateEmailTemplate", TemplateName=f"t {number}", TemplateContent=GREETING)
    page = call("ListEmailTemplates", PageSize=2)
    rest = call("ListEmailTemplates", PageSize=2, NextToken=page["NextToken"])
    names = [t["TemplateName"] for t in page["TemplatesMetadata"] + rest["TemplatesMetadata"]]
    assert names == ["greeting", "t 0", "t 1", "t 2"]
    for number in range(3):
        call("DeleteEmailTemplate", TemplateName=f"t {number}")
    assert call("DeleteEmailTemplate", TemplateName="t 0") == "NotFoundException"


def test_configuration_sets(call: Call) -> None:
    call("CreateConfigurationSet", ConfigurationSetName="newsletter")
    assert call("CreateConfigurationSet", ConfigurationSetName="newsletter") == "AlreadyExistsException"
    call("PutConfigurationSetSendingOptions", ConfigurationSetName="newsletter", SendingEnabled=False)
    described = call("GetConfigurationSet", ConfigurationSetName="newsletter")
    assert described["SendingOptions"] == {"SendingEnabled": False}
    assert "newsletter" in call("ListConfigurationSets", PageSize=10)["ConfigurationSets"]
    call("DeleteConfigurationSet", ConfigurationSetName="newsletter")
    assert call("GetConfigurationSet", ConfigurationSetName="newsletter") == "NotFoundException"


def test_suppression_list(call: Call) -> None:
    address = "ana+news/x@example.net"
    assert call("GetSuppressedDestination", EmailAddress=address) == "NotFoundException"
    call("PutSuppressedDestination", EmailAddress=address, Reason="BOUNCE")
    described = call("GetSuppressedDestination", EmailAddress=address)["SuppressedDestination"]
    assert (described["EmailAddress"], described["Reason"]) == (address, "BOUNCE")
    call("PutSuppressedDestination", EmailAddress="bo@example.net", Reason="COMPLAINT")
    page = call("ListSuppressedDestinations", Reasons=["BOUNCE", "COMPLAINT"], PageSize=1, StartDate=0)
    rest = call("ListSuppressedDestinations", NextToken=page["NextToken"])
    assert len(page["SuppressedDestinationSummaries"] + rest["SuppressedDestinationSummaries"]) == 2
    assert call("ListSuppressedDestinations", NextToken="?") == "InvalidNextTokenException"
    call("DeleteSuppressedDestination", EmailAddress=address)
    assert call("DeleteSuppressedDestination", EmailAddress=address) == "NotFoundException"


def test_bulk_results_of_every_status(call: Call, stand_in: StandIn) -> None:
    entries = [
        entry("ana@example.net", 1),
        entry("bad@", 2),
        entry("bo@example.net", 3, ReplacementHeaders=[{"Name": "X-A", "Value": "1"}]),
    ]
    results = call("SendBulkEmail", **BULK, BulkEmailEntries=entries)["BulkEmailEntryResults"]
    assert [result["Status"] for result in results] == ["SUCCESS", "INVALID_PARAMETER", "SUCCESS"]
    for status in ALL_STATUSES:
        stand_in.add_faults({"kind": "entry_status", "status": status, "positions": [0], "count": 1})
        results = call("SendBulkEmail", **BULK, BulkEmailEntries=people(2))["BulkEmailEntryResults"]
        assert [result["Status"] for result in results] == [status, "SUCCESS"]


def test_refusals_of_both_sending_operations_are_modelled(call: Call, stand_in: StandIn) -> None:
    mail: dict[str, object] = {
        "FromEmailAddress": "news@mail.example.com",
        "Destination": {"ToAddresses": ["ana@example.net"]},
        "Content": SIMPLE,
    }
    assert call("SendEmail", **mail)["MessageId"]
    assert call("SendEmail", **mail | {"Destination": {}}) == "BadRequestException"
    assert call("SendEmail", **mail | {"Content": {"Template": {"TemplateName": "none"}}}) == "NotFoundException"
    assert call("SendBulkEmail", **BULK, BulkEmailEntries=people(51)) == "BadRequestException"
    refusals = {
        "throttle_call": "TooManyRequestsException",
        "sending_paused": "SendingPausedException",
        "account_suspended": "AccountSuspendedException",
    }
    for kind, code in refusals.items():
        stand_in.add_faults({"kind": kind, "operation": "*"})
        assert call("SendEmail", **mail) == code
        assert call("SendBulkEmail", **BULK, BulkEmailEntries=people(1)) == code
        stand_in.clear_faults()
    modelled = {
        "ACCOUNT_DAILY_QUOTA_EXCEEDED": "LimitExceededException",
        "MAIL_FROM_DOMAIN_NOT_VERIFIED": "MailFromDomainNotVerifiedException",
        "MESSAGE_REJECTED": "MessageRejected",
    }
    for status, code in modelled.items():
        stand_in.add_faults({"kind": "entry_status", "status": status, "operation": "SendEmail"})
        assert call("SendEmail", **mail) == code
        stand_in.clear_faults()
