"""The API of messages over real HTTP: what is accepted, what is refused and how, and that the same key is one mail."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mailpipe import outbox
from mailpipe.settings import Settings
from tests import messages
from tests.support import World, wait_for
from tests.web.conftest import TOKEN, Web, serving

JSON = {"Content-Type": "application/json"}
CODE = {"to": "Ana@Mail.Example.com", "subject": "Your code", "text": "123456", "lane": "critical"}


def send(web: Web, body: Any, **headers: str) -> Any:
    return web.api("POST", "/messages", body, **JSON, **headers)


def stored(web: Web) -> list[tuple[Any, ...]]:
    with web.database.connection() as connection:
        return connection.execute("SELECT email, lane, state, idempotency_key FROM mailpipe.message").fetchall()


def test_a_message_is_accepted_and_can_be_looked_at(web: Web) -> None:
    answer = send(web, CODE)
    assert answer.status == 202
    told = answer.json()
    assert answer.headers["Location"] == told["href"] == f"/api/v1/messages/{told['message_id']}"
    assert stored(web) == [("Ana@mail.example.com", "critical", "pending", None)]
    shown = web.ask("GET", told["href"], headers={"Authorization": f"Bearer {TOKEN}"})
    assert shown.status == 200
    assert (shown.json()["state"], shown.json()["lane"]) == ("pending", "critical")
    assert "mail.example.com" not in shown.data.decode().lower() and "123456" not in shown.data.decode()


@pytest.mark.parametrize("quoted", [False, True])
def test_the_same_key_is_the_same_answer_and_one_mail(web: Web, quoted: bool) -> None:
    first = send(web, {**CODE, "idempotency_key": "order-1"})
    again = send(web, CODE, **{"Idempotency-Key": '"order-1"' if quoted else "order-1"})
    assert (first.status, again.status) == (202, 202)
    assert first.json() == again.json()
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(stored(web)) == 1


def test_the_same_key_from_many_at_once_is_one_mail(web: Web) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: send(web, {**CODE, "idempotency_key": "order-2"}), range(24)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json()["message_id"] for answer in answers}) == 1
    assert len(stored(web)) == 1


def test_another_body_under_the_same_key_is_a_conflict(web: Web) -> None:
    send(web, {**CODE, "idempotency_key": "order-3"})
    answer = send(web, {**CODE, "text": "654321", "idempotency_key": "order-3"})
    assert (answer.status, answer.headers["Content-Type"]) == (409, "application/problem+json")
    assert answer.json()["field"] == "idempotency_key"
    assert len(stored(web)) == 1


def test_two_different_keys_in_header_and_body_are_refused(web: Web) -> None:
    answer = send(web, {**CODE, "idempotency_key": "a"}, **{"Idempotency-Key": "b"})
    assert (answer.status, answer.json()["field"]) == (422, "idempotency_key")
    for key in ("", '""', "x" * 256):
        assert send(web, CODE, **{"Idempotency-Key": key}).status == 422, key
    assert stored(web) == []


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"to": "nobody"}, "to", "not an address"),
        ({"to": 5}, "to", "valid string"),
        ({"to": "a@example.com, b@example.com"}, "to", "not an address"),
        ({"to": None}, "to", "valid string"),
        ({"lane": "urgent"}, "lane", "'critical', 'high', 'normal' or 'low'"),
        ({"subjekt": "x"}, "subjekt", "there is no such field"),
        ({"subject": "two\nlines"}, "subject", "one line"),
        ({"send_at": "2030-01-01T09:00:00"}, "send_at", "needs an offset"),
        ({"send_at": "tomorrow"}, "send_at", "valid datetime"),
        ({"send_at": 1_900_000_000}, "send_at", "valid datetime"),
        ({"send_at": "0001-01-01T00:00:00+14:00"}, "send_at", "outside of the years"),
        ({"delay": -1}, "delay", "greater than or equal to 0"),
        ({"delay": "soon"}, "delay", "expected a duration"),
        ({"delay": True}, "delay", "valid number"),
        ({"expires_in": "x"}, "expires_in", "expected a duration"),
        ({"idempotency_key": ""}, "idempotency_key", "at least 1 character"),
        ({"cancel_key": "x" * 256}, "cancel_key", "at most 255 characters"),
        ({"sender": "nobody"}, "sender", "expected an address such as"),
        ({"variables": []}, "variables", "should be an object"),
        ({"template": "no-such", "subject": None, "text": None}, "template", "never published"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(web: Web, change: dict[str, Any], field: str, said: str) -> None:
    answer = send(web, {name: value for name, value in {**CODE, **change}.items() if value is not None or name == "to"})
    assert (answer.status, answer.headers["Content-Type"]) == (422, "application/problem+json"), answer.data
    problem = answer.json()
    assert problem["field"] == field, problem
    assert said in problem["detail"]
    assert "example.com, b" not in problem["detail"] and "nobody" not in problem["detail"], "no value is repeated"
    assert stored(web) == []


def test_all_wrong_fields_are_told_at_once(web: Web) -> None:
    problem = send(web, {"to": "x", "lane": "y", "z": 1}).json()
    assert {error["field"] for error in problem["errors"]} == {"to", "lane", "z"}
    assert "(and 2 more)" in problem["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"to": "a@example.com"},
        {"to": "a@example.com", "subject": "s"},
        {**CODE, "template": "t"},
        {**CODE, "send_at": "2030-01-01T00:00:00Z", "delay": 5},
        {**CODE, "text": "a\0b"},
        {"to": "a@example.com", "template": "t", "variables": {"a": {"b": "\0"}}},
        [],
        "text",
        None,
        5,
    ],
)
def test_what_makes_no_message_is_refused_in_words(web: Web, body: Any) -> None:
    answer = send(web, json.dumps(body))
    assert answer.status == 422, answer.data
    assert answer.json()["detail"]
    assert stored(web) == []


@pytest.mark.parametrize("body", ["", "{", '{"to": }', "\x00", b"\xff\xfe", '{"to": "\\ud800"}', "[" * 5000])
def test_what_is_no_json_is_a_bad_request(web: Web, body: str | bytes) -> None:
    answer = send(web, body)
    assert answer.status == 400
    assert answer.json()["detail"].startswith("the body is not JSON: ")


def test_numbers_that_json_does_not_have_are_refused(web: Web) -> None:
    for number in ("NaN", "1e999"):
        answer = send(web, f'{{"to": "a@example.com", "template": "t", "variables": {{"a": {number}}}}}')
        assert (answer.status, answer.json()["field"]) == (422, "variables")


def test_the_body_says_that_it_is_json_and_is_not_too_large(web: Web) -> None:
    assert web.api("POST", "/messages", json.dumps(CODE)).status == 415
    assert web.api("POST", "/messages", json.dumps(CODE), **{"Content-Type": "text/plain"}).status == 415
    large = send(web, {**CODE, "html": "x" * 1_100_000})
    assert (large.status, large.headers["Content-Type"]) == (413, "application/problem+json")
    chunked = web.pool.request(
        "POST",
        f"{web.url}/api/v1/messages",
        body=(b"x" * 100_000 for _ in range(11)),
        headers={"Authorization": f"Bearer {TOKEN}", **JSON},
        retries=False,
    )
    assert chunked.status == 413, "also when its size is not told"
    assert stored(web) == []


def test_a_delayed_message_is_called_off_once_and_for_all(web: Web) -> None:
    href = send(web, {**CODE, "delay": "24h"}).json()["href"].removeprefix("/api/v1")
    for _ in range(2):
        answer = web.api("DELETE", href)
        assert (answer.status, answer.json()["state"]) == (200, "cancelled")


def test_what_is_sent_already_cannot_be_called_off(web: Web) -> None:
    told = send(web, CODE).json()
    with web.database.connection() as connection:
        outbox.settle(connection, [])
        connection.execute(
            "UPDATE mailpipe.message SET state = 'sent', finished_at = now() WHERE message_id = %s",
            (told["message_id"],),
        )
    answer = web.api("DELETE", f"/messages/{told['message_id']}")
    assert answer.status == 409
    assert "too late: the message is sent" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["0192f0c0-0000-7000-8000-000000000000", "nonsense", "%00", "ana@mail.example.com"])
def test_a_message_that_is_not_there_is_not_found(web: Web, method: str, name: str) -> None:
    answer = web.api(method, f"/messages/{name}")
    assert (answer.status, answer.json()["detail"]) == (404, "there is no such message")


def test_a_reminder_is_called_off_by_its_key(web: Web) -> None:
    for number in range(3):
        key = "cart-7" if number < 2 else "cart-8"
        send(web, {**CODE, "send_at": "2030-01-01T09:00:00+07:00", "cancel_key": key})
    answer = web.api("POST", "/messages:cancel", {"cancel_key": "cart-7"}, **JSON)
    assert (answer.status, answer.json()) == (200, {"cancelled": 2})
    again = web.api("POST", "/messages:cancel", {"cancel_key": "cart-7"}, **JSON)
    assert again.json() == {"cancelled": 0}
    assert sorted(state for _, _, state, _ in stored(web)) == ["cancelled", "cancelled", "pending"]
    wrong = web.api("POST", "/messages:cancel", {"key": "cart-7"}, **JSON)
    assert (wrong.status, wrong.json()["field"]) == (422, "cancel_key")


def test_without_a_token_nothing_is_taken(web: Web) -> None:
    assert web.ask("POST", "/api/v1/messages", body=CODE, headers=JSON).status == 401
    assert stored(web) == []


def test_a_fault_of_ours_is_called_one_and_nothing_of_the_message_gets_out(
    own_web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    web = own_web
    with web.database.connection() as connection:
        connection.execute("ALTER TABLE mailpipe.message ADD CHECK (email = 'nobody')")
    answer = send(web, CODE)
    assert (answer.status, answer.json()["detail"]) == (500, "a fault of ours; it has been logged")
    assert "CheckViolation" in caplog.text and "outbox.py" in caplog.text
    assert "mail.example.com" not in caplog.text.lower() and "123456" not in caplog.text


def test_what_is_accepted_is_sent(scene: World, web_settings: Settings) -> None:
    messages.clean(scene)
    messages.publish(scene)
    with serving(web_settings, scene.database) as web, messages.working(scene, names=["critical"]):
        code = {"to": "ana@mail.example.com", "template": "code", "variables": {"code": "482913"}, "lane": "critical"}
        href = send(web, code).json()["href"].removeprefix("/api/v1")
        wait_for(lambda: web.api("GET", href).json()["state"] == "sent", "the mail")
    [line] = [line for line in scene.stand_in.journal() if line["tags"].get("message") == href.rsplit("/", 1)[1]]
    assert line["attempt"] == 1
