"""What every answer of SES, and every way of getting none, means for a person and for the campaign."""

import ssl
from typing import Any

import botocore.session
import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.ses.answer import Answer, Kind, of_exception, of_response, without_addresses

MODEL = botocore.session.Session().get_service_model("sesv2")
STATUSES = MODEL.shape_for("BulkEmailStatus").enum
ID = "010201234567abcd-00000000-1111-2222-3333-444444444444-000000"

EXPECTED = {
    "SUCCESS": (Kind.UNKNOWN, "no_message_id", False, None),  # without a message id, as every other here
    "MESSAGE_REJECTED": (Kind.FAILED, "message_rejected", False, None),
    "MAIL_FROM_DOMAIN_NOT_VERIFIED": (Kind.AGAIN, "mail_from_domain_not_verified", True, None),
    "CONFIGURATION_SET_NOT_FOUND": (Kind.AGAIN, "configuration_set_not_found", True, None),
    "TEMPLATE_NOT_FOUND": (Kind.AGAIN, "template_not_found", True, None),
    "ACCOUNT_SUSPENDED": (Kind.AGAIN, "account_suspended", True, None),
    "ACCOUNT_THROTTLED": (Kind.AGAIN, "account_throttled", False, "rate"),
    "ACCOUNT_DAILY_QUOTA_EXCEEDED": (Kind.AGAIN, "account_daily_quota_exceeded", False, "quota"),
    "INVALID_SENDING_POOL_NAME": (Kind.AGAIN, "invalid_sending_pool_name", True, None),
    "ACCOUNT_SENDING_PAUSED": (Kind.AGAIN, "account_sending_paused", True, None),
    "CONFIGURATION_SET_SENDING_PAUSED": (Kind.AGAIN, "configuration_set_sending_paused", True, None),
    "INVALID_PARAMETER": (Kind.FAILED, "invalid_parameter", False, None),
    "TRANSIENT_FAILURE": (Kind.RETRY, "transient_failure", False, None),
    "FAILED": (Kind.RETRY, "failed", False, None),
}
SPELLINGS = {
    "CONFIGURATION_SET_DOES_NOT_EXIST": "CONFIGURATION_SET_NOT_FOUND",
    "TEMPLATE_DOES_NOT_EXIST": "TEMPLATE_NOT_FOUND",
    "INVALID_PARAMETER_VALUE": "INVALID_PARAMETER",
}


def response(*entries: Any) -> dict[str, Any]:
    return {"BulkEmailEntryResults": list(entries), "ResponseMetadata": {"HTTPStatusCode": 200}}


def kinds(answer: Answer) -> set[Kind]:
    return {result.kind for result in answer.results}


def test_every_status_of_the_service_model_is_expected_here() -> None:
    assert set(STATUSES) == EXPECTED.keys()


@pytest.mark.parametrize("status", [*EXPECTED, *SPELLINGS])
def test_each_entry_status_has_its_meaning(status: str) -> None:
    kind, reason, halts, blocked = EXPECTED[SPELLINGS.get(status, status)]
    answer = of_response(response({"Status": status, "Error": "why"}, {"Status": "SUCCESS", "MessageId": ID}), 2)
    assert (answer.results[0].kind, answer.results[0].reason) == (kind, reason)
    assert answer.results[0].detail == "why"
    assert answer.results[0].message_id is None
    assert (answer.results[1].kind, answer.results[1].message_id) == (Kind.SENT, ID)
    assert (answer.halt is not None, answer.blocked, answer.split) == (halts, blocked, False)


def test_a_success_with_a_message_id_is_sent() -> None:
    answer = of_response(response({"Status": "SUCCESS", "MessageId": ID}), 1)
    assert (answer.results[0].kind, answer.results[0].message_id) == (Kind.SENT, ID)
    assert answer.results[0].reason == ""


@pytest.mark.parametrize("status", ["", None, "QUEUED", "success ", 7])
def test_an_unknown_status_is_sent_with_a_message_id_and_unknown_without(status: object) -> None:
    with_id, without = of_response(response({"Status": status, "MessageId": ID}, {"Status": status}), 2).results
    assert (with_id.kind, with_id.message_id) == (Kind.SENT, ID)
    assert (without.kind, without.reason) == (Kind.UNKNOWN, "unrecognised_status")


@pytest.mark.parametrize("entry", [None, "SUCCESS", [], 7, {}, {"MessageId": ""}, {"MessageId": 7}])
def test_an_entry_that_cannot_be_read_is_unknown_alone(entry: object) -> None:
    answer = of_response(response(entry, {"Status": "SUCCESS", "MessageId": ID}), 2)
    assert [result.kind for result in answer.results] == [Kind.UNKNOWN, Kind.SENT]


@pytest.mark.parametrize("status", [status for status in EXPECTED if status != "SUCCESS"])
def test_a_refusal_that_brings_a_message_id_is_unknown(status: str) -> None:
    """It contradicts itself, and a person who may have got the mail is not sent another."""
    assert kinds(of_response(response({"Status": status, "MessageId": ID}), 1)) == {Kind.UNKNOWN}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"ResponseMetadata": {"HTTPStatusCode": 200}},
        {"BulkEmailEntryResults": None},
        {"BulkEmailEntryResults": {}},
        response(),
        response({"Status": "SUCCESS", "MessageId": ID}),
        response(*[{"Status": "SUCCESS", "MessageId": ID}] * 4),
    ],
)
def test_a_list_that_is_absent_or_of_the_wrong_length_leaves_everybody_unknown(
    answer: dict[str, Any],
) -> None:
    read = of_response(answer, 3)
    assert [(result.kind, result.reason) for result in read.results] == [(Kind.UNKNOWN, "unreadable_answer")] * 3
    assert (read.halt, read.blocked, read.split) == (None, None, False)


def test_the_daily_quota_weighs_more_than_the_rate() -> None:
    answer = of_response(response({"Status": "ACCOUNT_THROTTLED"}, {"Status": "ACCOUNT_DAILY_QUOTA_EXCEEDED"}), 2)
    assert answer.blocked == "quota"


@pytest.mark.parametrize("status", ["INVALID_PARAMETER", "MESSAGE_REJECTED"])
def test_a_call_whose_every_entry_is_refused_for_good_stops_the_campaign(status: str) -> None:
    whole = of_response(response(*[{"Status": status}] * 50), 50)
    assert kinds(whole) == {Kind.FAILED}
    assert whole.halt == f"SES refused every one of 50 recipients of a call: {status.lower()}"
    some = of_response(response({"Status": "SUCCESS", "MessageId": ID}, *[{"Status": status}] * 49), 50)
    few = of_response(response(*[{"Status": status}] * 2), 2)
    assert (some.halt, few.halt) == (None, None)


def test_a_sender_that_is_not_verified_is_not_the_fault_of_fifty_people() -> None:
    error = "Email address is not verified. The following identities failed the check: news@example.com"
    answer = of_response(response(*[{"Status": "MESSAGE_REJECTED", "Error": error}] * 50), 50)
    assert kinds(answer) == {Kind.AGAIN}
    assert answer.halt is not None
    assert "@" not in answer.halt
    assert answer.results[0].detail is not None
    assert answer.results[0].detail.endswith("check: <address>")


ENTRIES = st.fixed_dictionaries(
    {}, optional={"Status": st.sampled_from([*EXPECTED, "X"]), "MessageId": st.just(ID), "Error": st.text()}
)


@given(st.lists(ENTRIES, max_size=60))
def test_every_entry_gets_exactly_one_result_in_its_place(entries: list[dict[str, str]]) -> None:
    answer = of_response(response(*entries), len(entries))
    assert len(answer.results) == len(entries)
    for entry, result in zip(entries, answer.results, strict=True):
        assert (result.kind is Kind.SENT) == (result.message_id is not None) == (result.reason == "")
        if "MessageId" in entry:
            assert result.kind in (Kind.SENT, Kind.UNKNOWN)
        else:
            assert result.kind is not Kind.SENT


def client_error(http: int | None, code: str, message: str = "") -> boto.ClientError:
    metadata = {} if http is None else {"HTTPStatusCode": http}
    return boto.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "SendBulkEmail"
    )


def test_every_modelled_exception_is_a_certain_no() -> None:
    """4xx is answered before anything is accepted, so nobody is unknown and nobody is lost."""
    shapes = MODEL.operation_model("SendBulkEmail").error_shapes
    assert len(shapes) == 8
    for shape in shapes:
        answer = of_exception(client_error(shape.metadata["error"]["httpStatusCode"], shape.name), 2, left=True)
        assert kinds(answer) == {Kind.AGAIN}, shape.name
        assert sum([answer.halt is not None, answer.blocked is not None, answer.split]) == 1, shape.name


@pytest.mark.parametrize(
    ("http", "code", "message", "expected"),
    [
        (429, "TooManyRequestsException", "Maximum sending rate exceeded.", (False, "rate", False)),
        (429, "429", "", (False, "rate", False)),
        (400, "ThrottlingException", "Rate exceeded", (False, "calls", False)),
        (400, "Throttling", "Daily message quota exceeded.", (False, "quota", False)),
        (400, "LimitExceededException", "Daily message quota exceeded.", (False, "quota", False)),
        (400, "LimitExceededException", "Maximum sending rate exceeded.", (False, "rate", False)),
        (400, "LimitExceededException", "Too many configuration sets.", (True, None, False)),
        (400, "AccountSuspendedException", "", (True, None, False)),
        (400, "SendingPausedException", "", (True, None, False)),
        (400, "MailFromDomainNotVerifiedException", "", (True, None, False)),
        (404, "NotFoundException", "Template x does not exist", (True, None, False)),
        (400, "MessageRejected", "Email address is not verified.", (True, None, False)),
        (400, "MessageRejected", "Illegal content", (False, None, True)),
        (400, "BadRequestException", "Bad", (False, None, True)),
        (403, "AccessDeniedException", "no", (True, None, False)),
        (403, "ExpiredTokenException", "no", (True, None, False)),
        (403, "InvalidSignatureException", "no", (True, None, False)),
        (403, "RequestExpired", "no", (True, None, False)),
        (404, "404", "", (True, None, False)),
        (413, "413", "", (True, None, False)),
    ],
)
def test_a_typed_refusal_says_what_has_to_happen(
    http: int, code: str, message: str, expected: tuple[bool, str | None, bool]
) -> None:
    answer = of_exception(client_error(http, code, message), 3, left=True)
    assert kinds(answer) == {Kind.AGAIN}
    assert len(answer.results) == 3
    assert (answer.halt is not None, answer.blocked, answer.split) == expected


@pytest.mark.parametrize(
    ("code", "reason"), [("BadRequestException", "bad_request"), ("MessageRejected", "message_rejected")]
)
def test_a_refusal_of_a_call_for_one_person_is_that_persons(code: str, reason: str) -> None:
    answer = of_exception(client_error(400, code, "Illegal address anna@example.com"), 1, left=True)
    assert (answer.results[0].kind, answer.results[0].reason) == (Kind.FAILED, reason)
    assert answer.results[0].detail == f"{code}: Illegal address <address>"
    assert (answer.halt, answer.split) == (None, False)


@pytest.mark.parametrize("http", [408, 500, 502, 503, 504, 509, 302, 100, None])
def test_an_answer_that_proves_nothing_leaves_everybody_unknown(http: int | None) -> None:
    answer = of_exception(client_error(http, str(http)), 3, left=True)
    assert kinds(answer) == {Kind.UNKNOWN}
    assert (answer.halt is not None) == (http == 302)


def caused(error: Exception, cause: Exception) -> Exception:
    """`error` as if it had been raised while `cause` was handled."""
    try:
        try:
            raise cause
        except Exception:
            raise error  # noqa: B904 - the context alone is what botocore leaves
    except Exception as raised:
        return raised


ENDPOINT: dict[str, Any] = {"endpoint_url": "https://email.example.com"}
CERTIFICATE = ssl.SSLCertVerificationError(1, "self-signed certificate")


@pytest.mark.parametrize(
    "error",
    [
        boto.EndpointConnectionError(error="refused", **ENDPOINT),
        boto.ConnectTimeoutError(error="timed out", **ENDPOINT),
        boto.ProxyConnectionError(proxy_url="http://proxy.example.com", error="refused"),
        caused(boto.SSLError(error="bad certificate", **ENDPOINT), CERTIFICATE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_connection_that_was_never_made_carried_nothing(error: Exception) -> None:
    answer = of_exception(error, 3, left=True)
    assert kinds(answer) == {Kind.AGAIN}
    assert (answer.halt is not None) == isinstance(error, boto.SSLError)
    assert (answer.blocked, answer.split) == (None, False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (boto.ReadTimeoutError(error="x", **ENDPOINT), "read_timeout"),
        (boto.ConnectionClosedError(error="x", **ENDPOINT), "connection_lost"),
        (boto.SSLError(error="garbage", **ENDPOINT), "connection_lost"),
        (caused(boto.SSLError(error="eof", **ENDPOINT), ssl.SSLEOFError(8, "EOF")), "connection_lost"),
        (boto.HTTPClientError(error="x"), "connection_lost"),
        (boto.ResponseStreamingError(error="x"), "connection_lost"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), "connection_lost"),
        (ConnectionResetError(), "connection_lost"),
        (ResponseParserError("x"), "unreadable_answer"),
        (KeyError("x"), "unreadable_answer"),
        (RuntimeError("x"), "unreadable_answer"),
        (MemoryError(), "unreadable_answer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_after_the_request_left_every_other_failure_is_unknown(error: Exception, reason: str) -> None:
    answer = of_exception(error, 3, left=True)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.UNKNOWN, reason)] * 3
    assert (answer.halt, answer.blocked, answer.split) == (None, None, False)


@pytest.mark.parametrize(
    ("error", "halts"),
    [
        (boto.ParamValidationError(report="anna@example.com"), True),
        (boto.NoCredentialsError(), True),
        (boto.PartialCredentialsError(provider="env", cred_var="x"), True),
        (boto.NoRegionError(), True),
        (boto.MissingDependencyException(msg="x"), True),
        (boto.TokenRetrievalError(provider="sso", error_msg="expired"), True),
        (RuntimeError("anna@example.com"), True),
        (boto.CredentialRetrievalError(provider="x", error_msg="x"), False),
        (boto.MetadataRetrievalError(error_msg="x"), False),
        (boto.ReadTimeoutError(error="x", **ENDPOINT), False),
        (boto.EndpointConnectionError(error="x", **ENDPOINT), False),
        (client_error(500, "InternalFailure"), False),
        (client_error(403, "AccessDenied"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_before_the_request_left_nobody_can_have_got_anything(error: Exception, halts: bool) -> None:
    """Even a read time-out or a 500: it was another service's, such as the one that gives credentials."""
    answer = of_exception(error, 3, left=False)
    assert [(result.kind, result.reason) for result in answer.results] == [(Kind.AGAIN, "not_sent")] * 3
    assert (answer.halt is not None) == halts
    assert "@" not in (answer.halt or "") + (answer.results[0].detail or "")


@given(st.text(max_size=30), st.from_regex(r"[a-z.+]{1,8}@[a-z]{1,8}\.example\.com", fullmatch=True), st.text())
def test_no_address_stays_in_a_text(before: str, address: str, after: str) -> None:
    text = without_addresses(f"{before} {address} {after}") or ""
    assert address not in text
    assert len(text) <= 300
    assert "\n" not in text


def test_texts_that_hold_nothing_are_none() -> None:
    assert [without_addresses(text) for text in (None, "", " \n")] == [None, None, None]
    assert without_addresses("identity/arn:news@example.com, 'a@b.example.com' rejected") == (
        "identity/arn:<address>, '<address>' rejected"
    )
