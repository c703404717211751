"""Faults on request, as boto3 tells of them; the tripwire for retries; and the life of the process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from mailpipe.simulator.child import StandIn, StandInFailedError
from tests.web.test_simulator import (
    ALL_STATUSES,
    GREETING,
    people,
    send,
    ses_client,
    statuses,
    wait_for,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("stand-in"), seed=3) as stand_in:
        with closing(ses_client(stand_in.url)) as client:
            client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        yield stand_in


@pytest.fixture
def stand_in(running: StandIn) -> Iterator[StandIn]:
    """The module's stand-in, without faults before and after."""
    running.clear_faults()
    yield running
    running.clear_faults()


@pytest.fixture
def client(stand_in: StandIn) -> Iterator[Any]:
    """A client that waits 0.4 s for an answer."""
    with closing(ses_client(stand_in.url, read_timeout=0.4)) as client:
        yield client


def accepted(stand_in: StandIn) -> int:
    return len(stand_in.journal())


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        ("throttle_call", "TooManyRequestsException"),
        ("sending_paused", "SendingPausedException"),
        ("account_suspended", "AccountSuspendedException"),
    ],
)
def test_typed_refusals_accept_nothing(stand_in: StandIn, client: Any, kind: str, exception: str) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": kind, "count": 1})
    with pytest.raises(getattr(client.exceptions, exception)):
        send(client, people(2))
    assert accepted(stand_in) == before
    assert statuses(send(client, people(1))) == ["SUCCESS"]


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (500, "InternalFailure", "InternalFailure"),
        (503, "", "503"),
        (408, "", "408"),
        (400, "MessageRejected", "MessageRejected"),
    ],
)
def test_any_http_status_can_be_given_before_or_after_accepting(
    stand_in: StandIn, client: Any, *, status: int, kind: str, code: str, accept: bool
) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": "http_status", "status": status, "type": kind, "accept": accept})
    with pytest.raises(ClientError) as caught:
        send(client, people(2))
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert caught.value.response["Error"]["Code"] == code
    assert accepted(stand_in) - before == (2 if accept else 0)


@pytest.mark.parametrize(
    ("kind", "exception", "taken"),
    [
        ("silence_before_accept", ReadTimeoutError, 0),
        ("silence_after_accept", ReadTimeoutError, 2),
        ("reset_before_accept", ConnectionClosedError, 0),
        ("reset_after_accept", ConnectionClosedError, 2),
        ("close_after_accept", ConnectionClosedError, 2),
    ],
)
def test_a_lost_answer_raises_what_a_sender_must_call_unknown(
    stand_in: StandIn, client: Any, kind: str, exception: type[Exception], taken: int
) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": kind, "count": 1})
    with pytest.raises(exception):
        send(client, people(2))
    assert accepted(stand_in) - before == taken
    assert statuses(send(client, people(1))) == ["SUCCESS"]
    wait_for(lambda: stand_in.state()["in_flight"] == 0, "the silent request to be forgotten")


@pytest.mark.parametrize("kind", ["truncated_200", "empty_200", "html_200"])
def test_a_spoilt_200_raises_nothing_and_lacks_the_results(stand_in: StandIn, client: Any, kind: str) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": kind})
    with pytest.raises(KeyError, match="BulkEmailEntryResults"):
        send(client, people(2))
    assert accepted(stand_in) - before == 2


def test_results_can_be_too_few_or_in_another_order(stand_in: StandIn, client: Any) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": "short_results", "drop": 2})
    assert len(send(client, people(5))) == 3
    stand_in.clear_faults()
    stand_in.add_faults({"kind": "shuffled_results"})
    results = send(client, people(3))
    ids = [line["message_id"] for line in stand_in.journal()[-3:]]
    assert [result["MessageId"] for result in results] == [ids[1], ids[2], ids[0]]
    assert accepted(stand_in) - before == 8


@pytest.mark.parametrize("status", ALL_STATUSES)
def test_every_status_can_be_given_to_chosen_entries(stand_in: StandIn, client: Any, status: str) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": "entry_status", "status": status, "positions": [1]})
    results = send(client, people(3))
    assert statuses(results) == ["SUCCESS", status, "SUCCESS"]
    assert results[1]["Error"]
    assert accepted(stand_in) - before == 2


def test_entry_faults_have_their_short_names_and_strike_all_by_default(stand_in: StandIn, client: Any) -> None:
    stand_in.add_faults(
        {"kind": "throttle_entries", "positions": [0]}, {"kind": "transient_entries", "positions": [0, 2]}
    )
    assert statuses(send(client, people(3))) == ["ACCOUNT_THROTTLED", "SUCCESS", "TRANSIENT_FAILURE"]
    stand_in.clear_faults()
    stand_in.add_faults({"kind": "transient_entries"})
    assert statuses(send(client, people(3))) == ["TRANSIENT_FAILURE"] * 3


def test_a_rolling_day_can_be_made_full(stand_in: StandIn, client: Any) -> None:
    sent = stand_in.state()["sent_last_24_hours"]
    stand_in.add_faults({"kind": "daily_quota_at", "n": sent + 2})
    assert statuses(send(client, people(3))) == ["SUCCESS"] * 2 + ["ACCOUNT_DAILY_QUOTA_EXCEEDED"]


def test_an_entry_fault_on_a_single_mail_is_the_typed_error(stand_in: StandIn, client: Any) -> None:
    stand_in.add_faults({"kind": "throttle_entries", "operation": "SendEmail"})
    with pytest.raises(client.exceptions.TooManyRequestsException):
        client.send_email(
            FromEmailAddress="news@mail.example.com",
            Destination={"ToAddresses": ["ana@example.net"]},
            Content={"Simple": {"Subject": {"Data": "S"}, "Body": {"Text": {"Data": "T"}}}},
        )


def test_latency_delays_the_answer_after_accepting(stand_in: StandIn, client: Any) -> None:
    stand_in.add_faults({"kind": "latency", "ms": 80}, {"kind": "latency", "ms": 40})
    stand_in.change(latency_ms=60)
    begin = time.time()
    send(client, people(1))
    assert time.time() - begin >= 0.18
    assert stand_in.journal()[-1]["at"] - begin < 0.1
    stand_in.change(latency_ms=0)


def test_a_dripping_answer_outlasts_the_read_timeout_without_an_error(stand_in: StandIn, client: Any) -> None:
    stand_in.add_faults({"kind": "drip", "ms": 100, "bytes": 20})
    begin = time.monotonic()
    assert statuses(send(client, people(1))) == ["SUCCESS"]
    assert time.monotonic() - begin > 0.4


@pytest.mark.parametrize("accept", [False, True])
def test_a_pause_holds_requests_until_the_faults_are_cleared(stand_in: StandIn, *, accept: bool) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": "pause", "accept": accept})
    results: list[str] = []
    with closing(ses_client(stand_in.url)) as patient:
        sender = threading.Thread(target=lambda: results.extend(statuses(send(patient, people(2)))))
        sender.start()
        wait_for(lambda: stand_in.state()["in_flight"] == 1, "the request to be held")
        wait_for(lambda: accepted(stand_in) - before == (2 if accept else 0), "the journal")
        stand_in.clear_faults()
        sender.join(5)
    assert results == ["SUCCESS"] * 2
    assert accepted(stand_in) - before == 2


def test_a_paused_request_whose_client_left_is_not_accepted_later(stand_in: StandIn, client: Any) -> None:
    before = accepted(stand_in)
    stand_in.add_faults({"kind": "pause"})
    with pytest.raises(ReadTimeoutError):
        send(client, people(1))
    wait_for(lambda: stand_in.state()["in_flight"] == 0, "the request to be forgotten")
    stand_in.clear_faults()
    assert accepted(stand_in) == before


def throttled_calls(client: Any, calls: int) -> list[int]:
    """Numbers of the calls, from 1, that were refused."""
    refused = []
    for number in range(1, calls + 1):
        try:
            send(client, people(1))
        except client.exceptions.TooManyRequestsException:
            refused.append(number)
    return refused


def test_a_rule_says_after_how_many_how_often_and_how_many_times(stand_in: StandIn, client: Any) -> None:
    stand_in.add_faults({"kind": "throttle_call", "after": 2, "every": 3, "count": 2})
    assert throttled_calls(client, 12) == [5, 8]
    assert stand_in.state()["faults"]["throttle_call"] >= 2


def test_chance_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    rules = tmp_path / "faults.json"
    rules.write_text(json.dumps([{"kind": "throttle_call", "probability": 0.3}]))
    runs = []
    for folder in ("one", "two"):
        with (
            StandIn(tmp_path / folder, faults=rules, seed=11) as stand_in,
            closing(ses_client(stand_in.url)) as client,
        ):
            client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
            runs.append(throttled_calls(client, 40))
    assert runs[0] == runs[1]
    assert 3 < len(runs[0]) < 25


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "earthquake"},
        {"kind": "latency"},
        {"kind": "http_status"},
        {"kind": "http_status", "status": 99},
        {"kind": "entry_status"},
        {"kind": "throttle_call", "every": 0},
        {"kind": "throttle_call", "positon": [1]},
        {"kind": "throttle_call", "count": "3"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(stand_in: StandIn, client: Any, rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"[Ff]ault rule"):
        stand_in.add_faults({"kind": "throttle_call"}, rule)
    assert statuses(send(client, people(1))) == ["SUCCESS"], "the good rule beside it is not in force either"


@pytest.mark.parametrize("retries", [{"mode": "standard"}, {"total_max_attempts": 2, "mode": "standard"}])
def test_a_client_that_would_retry_is_refused_at_its_first_attempt(
    stand_in: StandIn, retries: dict[str, object]
) -> None:
    before, refused = accepted(stand_in), stand_in.state()["retries_refused"]
    with (
        closing(ses_client(stand_in.url, retries)) as client,
        pytest.raises(client.exceptions.BadRequestException, match="total_max_attempts"),
    ):
        send(client, people(1))
    assert accepted(stand_in) == before
    assert stand_in.state()["retries_refused"] == refused + 1


def test_a_client_that_does_not_say_so_beforehand_is_refused_when_it_retries(stand_in: StandIn) -> None:
    """botocore's legacy mode leaves the maximum out of its header."""
    before, refused = accepted(stand_in), stand_in.state()["retries_refused"]
    stand_in.add_faults({"kind": "reset_after_accept"})
    with (
        closing(ses_client(stand_in.url, {"mode": "legacy"})) as client,
        pytest.raises(client.exceptions.BadRequestException, match="total_max_attempts"),
    ):
        send(client, people(1))
    assert accepted(stand_in) == before + 1
    assert stand_in.state()["retries_refused"] == refused + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_when_asked_even_with_requests_held(tmp_path: Path, number: signal.Signals) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.add_faults({"kind": "silence_after_accept", "operation": "*"})
    failed: list[Exception] = []

    def ask() -> None:
        with closing(ses_client(stand_in.url)) as client:
            try:
                client.get_account()
            except ConnectionClosedError as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: stand_in.state()["in_flight"] == 1, "the silent request")
    stand_in.process.send_signal(number)
    assert stand_in.process.wait(5) == 0
    asking.join(5)
    assert len(failed) == 1
    assert (tmp_path / "simulator.log").read_text() == f"listening on {stand_in.url}\n"


def test_what_was_accepted_is_in_the_journal_even_if_the_process_is_killed(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    with closing(ses_client(stand_in.url)) as client:
        client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
        send(client, people(50))
    stand_in.kill()
    assert [line["seq"] for line in stand_in.journal()] == list(range(1, 51))
    assert len(stand_in.events()) == 100


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate": 0}, "--rate"),
        ({"port": 70000}, "--port"),
        ({"faults": "nowhere.json"}, "nowhere.json"),
        ({"journal": "/proc/nowhere/journal"}, "/proc/nowhere"),
    ],
)
def test_a_wrong_option_is_explained(tmp_path: Path, options: dict[str, object], text: str) -> None:
    with pytest.raises(StandInFailedError, match="Error: ") as caught:
        StandIn(tmp_path, **options)
    assert text in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_faults_file_with_a_wrong_rule_and_a_taken_port_are_explained(tmp_path: Path, running: StandIn) -> None:
    rules = tmp_path / "faults.json"
    for content in ("{", "{}", '[{"kind": "earthquake"}]'):
        rules.write_text(content)
        with pytest.raises(StandInFailedError, match="--faults"):
            StandIn(tmp_path, faults=rules)
    with pytest.raises(StandInFailedError, match="Address already in use"):
        StandIn(tmp_path, port=running.url.rpartition(":")[2])


def test_the_package_needs_nothing_else_of_mailpipe() -> None:
    """The stand-in is a witness: it shares no code with the product."""
    program = (
        "import sys, mailpipe.simulator.__main__\n"
        "print([n for n in sys.modules if n.startswith('mailpipe.') and not n.startswith('mailpipe.simulator')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
