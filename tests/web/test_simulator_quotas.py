"""The stand-in's quotas, switches and lists: what SES would refuse, it refuses, counted per recipient."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from mailpipe.simulator.child import StandIn
from tests.web.test_simulator import GREETING, entry, people, send, ses_client, statuses, wait_for

Start = Callable[..., tuple[StandIn, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a stand-in of its own options, with the template `greeting` and a client."""
    with ExitStack() as stack:

        def start(**options: object) -> tuple[StandIn, Any]:
            stand_in = StandIn(tmp_path, **options)
            stack.callback(stand_in.kill)
            client = stack.enter_context(closing(ses_client(stand_in.url)))
            client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
            return stand_in, client

        yield start


def test_recipients_beyond_the_rate_are_throttled_one_by_one_and_accepted_a_second_later(start: Start) -> None:
    stand_in, client = start(rate=20)
    begin = time.monotonic()
    results = send(client, people(12)) + send(client, people(12, start=13))
    assert statuses(results) == ["SUCCESS"] * 20 + ["ACCOUNT_THROTTLED"] * 4
    assert results[-1]["Error"] == "Maximum sending rate exceeded."
    wait_for(lambda: statuses(send(client, people(1, start=21))) == ["SUCCESS"], "a fresh second")
    assert time.monotonic() - begin >= 1
    state = stand_in.state()
    assert (state["max_in_any_second"], state["accepted"], len(stand_in.journal())) == (20, 21, 21)
    assert state["throttled"] >= 4


def test_the_whole_call_is_refused_when_it_does_not_fit_if_that_style_is_chosen(start: Start) -> None:
    stand_in, client = start(rate=20, throttle_style="call", daily_quota=25)
    assert statuses(send(client, people(12))) == ["SUCCESS"] * 12
    with pytest.raises(client.exceptions.TooManyRequestsException, match="Maximum sending rate exceeded"):
        send(client, people(12, start=13))
    stand_in.change(rate=1000)
    with pytest.raises(client.exceptions.LimitExceededException, match="Daily message quota exceeded"):
        send(client, people(14, start=13))
    assert len(stand_in.journal()) == 12


def test_bulk_calls_beyond_the_calls_per_second_are_refused_and_single_mails_are_not(start: Start) -> None:
    stand_in, client = start(call_rate=2)
    for _ in range(2):
        assert statuses(send(client, people(3))) == ["SUCCESS"] * 3
    with pytest.raises(client.exceptions.ClientError, match="Rate exceeded"):
        send(client, people(3))
    client.send_email(
        FromEmailAddress="news@example.com",
        Destination={"ToAddresses": ["anna@example.com"]},
        Content={"Template": {"TemplateName": "greeting", "TemplateData": '{"name": "Anna"}'}},
    )
    assert len(stand_in.journal()) == 7
    stand_in.change(call_rate=10)
    assert statuses(send(client, people(3))) == ["SUCCESS"] * 3


def test_one_mail_over_the_rate_is_too_many_requests(start: Start) -> None:
    _, client = start(rate=1)
    mail = {
        "FromEmailAddress": "news@mail.example.com",
        "Destination": {"ToAddresses": ["ana@example.net"]},
        "Content": {"Simple": {"Subject": {"Data": "S"}, "Body": {"Text": {"Data": "T"}}}},
    }
    client.send_email(**mail)
    with pytest.raises(client.exceptions.TooManyRequestsException, match="Maximum sending rate exceeded"):
        client.send_email(**mail)


def test_a_bulk_call_may_not_have_more_entries_than_the_account_may_send_in_a_second(start: Start) -> None:
    _, client = start(rate=14)
    with pytest.raises(client.exceptions.BadRequestException, match="less than or equal to 14"):
        send(client, people(15))
    assert statuses(send(client, people(14))) == ["SUCCESS"] * 14


def test_a_tolerance_lets_a_burst_of_that_size_pass(start: Start) -> None:
    stand_in, client = start(rate=10, rate_tolerance=3)
    results = send(client, people(10)) + send(client, people(10, start=11))
    assert statuses(results).count("SUCCESS") == 13
    assert stand_in.state()["max_in_any_second"] == 13


def test_the_daily_quota_rolls_and_leaves_out_the_mailbox_simulator(start: Start) -> None:
    stand_in, client = start(daily_quota=5, daily_window_s=1)
    begin = time.monotonic()
    simulator = [entry("success@simulator.amazonses.com", seq) for seq in range(10)]
    assert statuses(send(client, simulator)) == ["SUCCESS"] * 10
    assert client.get_account()["SendQuota"]["SentLast24Hours"] == 0
    results = send(client, people(7))
    assert statuses(results) == ["SUCCESS"] * 5 + ["ACCOUNT_DAILY_QUOTA_EXCEEDED"] * 2
    assert results[-1]["Error"] == "Daily message quota exceeded."
    assert client.get_account()["SendQuota"]["SentLast24Hours"] == 5
    wait_for(lambda: statuses(send(client, people(1, start=8))) == ["SUCCESS"], "the window to roll on")
    assert time.monotonic() - begin >= 1
    assert stand_in.state()["accepted"] == 16


def test_quotas_change_while_it_runs_and_get_account_tells(start: Start) -> None:
    stand_in, client = start()
    assert client.get_account()["SendQuota"] == {
        "Max24HourSend": -1,
        "MaxSendRate": 100_000,
        "SentLast24Hours": 0,
    }
    stand_in.change(rate=12.5, daily_quota=3)
    quota = client.get_account()["SendQuota"]
    assert (quota["MaxSendRate"], quota["Max24HourSend"]) == (12.5, 3)
    assert statuses(send(client, people(4))) == ["SUCCESS"] * 3 + ["ACCOUNT_DAILY_QUOTA_EXCEEDED"]


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 0},
        {"rates": 5},
        {"throttle_style": "both"},
        {"sending_enabled": "yes"},
        {"rate": None},
        {"latency_ms": -1},
    ],
)
def test_a_wrong_setting_is_refused_and_changes_nothing(start: Start, settings: dict[str, object]) -> None:
    stand_in, client = start(rate=7)
    with pytest.raises(ValueError, match=r"[sS]etting"):
        stand_in.change(daily_quota=1, **settings)
    assert client.get_account()["SendQuota"]["Max24HourSend"] == -1


def test_a_paused_account_refuses_until_it_is_resumed(start: Start) -> None:
    stand_in, client = start()
    client.put_account_sending_attributes(SendingEnabled=False)
    assert client.get_account()["SendingEnabled"] is False
    with pytest.raises(client.exceptions.SendingPausedException):
        send(client, people(1))
    client.put_account_sending_attributes()
    assert client.get_account()["SendingEnabled"] is False, "absent means false"
    client.put_account_sending_attributes(SendingEnabled=True)
    assert statuses(send(client, people(1))) == ["SUCCESS"]
    stand_in.change(suspended=True)
    assert client.get_account()["EnforcementStatus"] == "SHUTDOWN"
    with pytest.raises(client.exceptions.AccountSuspendedException):
        send(client, people(1))


def test_a_paused_configuration_set_stops_its_stream_alone(start: Start) -> None:
    _, client = start()
    send(client, people(1))
    client.put_configuration_set_sending_options(ConfigurationSetName="marketing", SendingEnabled=False)
    options = client.get_configuration_set(ConfigurationSetName="marketing")["SendingOptions"]
    assert options == {"SendingEnabled": False}
    with pytest.raises(client.exceptions.SendingPausedException, match="configuration set marketing"):
        send(client, people(1))
    assert statuses(send(client, people(1), ConfigurationSetName="transactional")) == ["SUCCESS"]


def test_strict_configuration_sets_must_have_been_created(start: Start) -> None:
    _, client = start(strict_configuration_sets=True)
    assert statuses(send(client, people(2))) == ["CONFIGURATION_SET_NOT_FOUND"] * 2
    with pytest.raises(client.exceptions.NotFoundException):
        client.put_configuration_set_sending_options(ConfigurationSetName="marketing", SendingEnabled=True)
    client.create_configuration_set(ConfigurationSetName="marketing")
    with pytest.raises(client.exceptions.AlreadyExistsException):
        client.create_configuration_set(ConfigurationSetName="marketing")
    assert statuses(send(client, people(2))) == ["SUCCESS"] * 2
    assert client.list_configuration_sets()["ConfigurationSets"] == ["marketing"]
    client.delete_configuration_set(ConfigurationSetName="marketing")
    with pytest.raises(client.exceptions.NotFoundException):
        client.get_configuration_set(ConfigurationSetName="marketing")


def test_a_suppressed_address_is_accepted_and_bounced(start: Start) -> None:
    stand_in, client = start()
    client.put_suppressed_destination(EmailAddress=" ana@EXAMPLE.net ", Reason="COMPLAINT")
    [result] = send(client, [entry("ana@example.net")])
    sent, bounce = stand_in.events()
    assert (result["Status"], sent["eventType"]) == ("SUCCESS", "Send")
    assert bounce["bounce"]["bounceSubType"] == "OnAccountSuppressionList"
    assert stand_in.journal()[0]["outcome"] == "account_suppressed"
    assert client.get_account()["SendQuota"]["SentLast24Hours"] == 1
    client.delete_suppressed_destination(EmailAddress="ana@example.net")
    with pytest.raises(client.exceptions.NotFoundException):
        client.get_suppressed_destination(EmailAddress="ana@example.net")


def test_the_suppression_list_is_read_in_pages_and_by_reason(start: Start) -> None:
    _, client = start()
    for number in range(5):
        reason = "COMPLAINT" if number == 3 else "BOUNCE"
        client.put_suppressed_destination(EmailAddress=f"p{number}@example.net", Reason=reason)
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = client.list_suppressed_destinations(PageSize=2, **token)
        found += [summary["EmailAddress"] for summary in page["SuppressedDestinationSummaries"]]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert found == [f"p{number}@example.net" for number in range(5)]
    [complaint] = client.list_suppressed_destinations(Reasons=["COMPLAINT"])["SuppressedDestinationSummaries"]
    assert complaint["EmailAddress"] == "p3@example.net"
    assert client.list_suppressed_destinations(EndDate="2020-01-01")["SuppressedDestinationSummaries"] == []
    with pytest.raises(client.exceptions.InvalidNextTokenException):
        client.list_suppressed_destinations(NextToken="!")


def test_templates_are_created_read_updated_listed_rendered_and_deleted(start: Start) -> None:
    _, client = start()
    with pytest.raises(client.exceptions.AlreadyExistsException):
        client.create_email_template(TemplateName="greeting", TemplateContent=GREETING)
    assert client.get_email_template(TemplateName="greeting")["TemplateContent"] == GREETING
    rendered = client.test_render_email_template(
        TemplateName="greeting", TemplateData='{"name": "Zoë", "city": "Bonn"}'
    )["RenderedTemplate"]
    assert "Subject: Hello" in rendered
    assert "multipart/alternative" in rendered
    with pytest.raises(client.exceptions.BadRequestException, match="'city' is not present"):
        client.test_render_email_template(TemplateName="greeting", TemplateData='{"name": "Ana"}')
    client.update_email_template(TemplateName="greeting", TemplateContent={"Subject": "S", "Html": "<p>H"})
    assert "Text" not in client.get_email_template(TemplateName="greeting")["TemplateContent"]
    assert [t["TemplateName"] for t in client.list_email_templates()["TemplatesMetadata"]] == ["greeting"]
    client.delete_email_template(TemplateName="greeting")
    for call in (client.get_email_template, client.delete_email_template):
        with pytest.raises(client.exceptions.NotFoundException):
            call(TemplateName="greeting")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"Subject": "S"},
        {"Html": "H"},
        {"Subject": "S", "Html": "{{#if a}}x{{/if}}"},
        {"Subject": "S", "Html": "{{ a"},
        {"Subject": "S", "Html": "x" * (500 * 1024 + 1)},
    ],
)
def test_a_template_that_could_not_be_rendered_is_refused(start: Start, content: dict[str, str]) -> None:
    _, client = start()
    with pytest.raises(client.exceptions.BadRequestException):
        client.create_email_template(TemplateName="bad", TemplateContent=content)


def test_with_a_state_file_a_restart_forgets_nothing_that_ses_would_keep(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    first, client = start(state=state)
    client.create_email_template(TemplateName="other", TemplateContent=GREETING)
    client.delete_email_template(TemplateName="other")
    client.put_configuration_set_sending_options(ConfigurationSetName="marketing", SendingEnabled=False)
    client.put_suppressed_destination(EmailAddress="ana@example.net", Reason="BOUNCE")
    send(client, people(2), ConfigurationSetName="transactional")
    first.kill()
    with state.open("ab") as torn:
        torn.write(b'{"template": "torn')
    with StandIn(tmp_path, state=state) as second, closing(ses_client(second.url)) as again:
        assert [t["TemplateName"] for t in again.list_email_templates()["TemplatesMetadata"]] == ["greeting"]
        with pytest.raises(again.exceptions.SendingPausedException):
            send(again, people(1))
        assert again.get_suppressed_destination(EmailAddress="ana@example.net")["SuppressedDestination"]
        send(again, people(1, start=3), ConfigurationSetName="transactional")
        assert [line["seq"] for line in second.journal()] == [1, 2, 3]
