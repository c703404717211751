"""The API of schedules over HTTP: one list in exactly its form, every mistake by its field, and quick with millions waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mailpipe import campaign
from mailpipe.schedule import recurring, window
from tests.support import World, wait_for
from tests.web.conftest import TOKEN, Web, serving

CAMPAIGN = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}
LANES = {"critical", "high", "normal", "low"}


@pytest.fixture(scope="module")
def _api(_scene: World) -> Iterator[Web]:
    config = replace(
        _scene.settings, api_tokens=f"ana:{TOKEN}", unsubscribe_keys="k1:a-secret-of-some-thirty-two-chars"
    )
    with serving(config, _scene.database) as running:
        yield running


@pytest.fixture
def api(_api: Web, scene: World) -> Web:
    """The API on a scene in which nothing is planned."""
    scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE state <> 'cancelled'")
    scene.execute("UPDATE mailpipe.schedule SET is_active = false, deleted_at = now()")
    return _api


def ask(api: Web, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    answer = api.api(method, path, body, **headers)
    assert answer.status == status, answer.data
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
    return json.loads(answer.data) if answer.data else None


def recurring_one(key: str, **fields: Any) -> dict[str, Any]:
    return {"cron": "0 9 * * 1", "timezone": "Europe/Berlin", "data": {"key": key, "campaign": CAMPAIGN}, **fields}


def name(scene: World) -> str:
    return f"api-{next(scene.numbers)}"


def test_the_list_has_exactly_its_form(api: Web, scene: World) -> None:
    scene.people(150)
    key = name(scene)
    series = ask(api, "POST", "/schedules", recurring_one(key), status=201)
    ready = scene.ready(due_at="2027-01-01T09:00:00Z")
    local = scene.create(send_at="2027-01-01T10:00")
    listed = ask(api, "GET", "/schedules?limit=200")
    assert listed.keys() == {"schedules", "queue_snapshot"}
    assert listed["queue_snapshot"].keys() == LANES
    assert all(queue.keys() == {"pending", "processing"} for queue in listed["queue_snapshot"].values())
    assert listed["queue_snapshot"]["normal"] == {"pending": 150, "processing": 0}
    by_id = {one["id"]: one for one in listed["schedules"]}
    common = {"id", "campaign_id", "type", "next_run", "last_run", "status", "pending_count"}
    first = by_id[series["id"]]
    assert first.keys() == common | {"cron"}
    assert (first["type"], first["cron"], first["status"], first["campaign_id"]) == (
        "recurring",
        "0 9 * * 1",
        "pending",
        None,
    )
    assert datetime.fromisoformat(first["next_run"]) > datetime.now(UTC)
    (once,) = [one for one in listed["schedules"] if one["campaign_id"] == ready]
    assert once.keys() == common | {"scheduled_at"}
    assert once == {
        "id": f"c{scene.campaign(ready).campaign_id}",
        "campaign_id": ready,
        "type": "scheduled",
        "scheduled_at": "2027-01-01T09:00:00Z",
        "next_run": "2027-01-01T09:00:00Z",
        "last_run": None,
        "status": "pending",
        "pending_count": 150,
    }
    (around,) = [one for one in listed["schedules"] if one["campaign_id"] == local]
    assert (around["type"], around["scheduled_at"], around["next_run"]) == (
        "local",
        "2027-01-01T10:00",
        "2026-12-31T20:00:00Z",
    )


def test_a_cron_is_told_in_words_and_instants_before_it_is_recorded(api: Web) -> None:
    told = ask(api, "POST", "/schedules:preview", recurring_one("unheard-of"))
    assert (told["words"], told["timezone"], len(told["next"])) == ("at 09:00, every Monday", "Europe/Berlin", 5)
    for fire in told["next"]:
        assert fire["slot"].startswith("Mon ") and fire["slot"].endswith(" 09:00")
        assert datetime.fromisoformat(fire["local"]) == datetime.fromisoformat(fire["utc"])
    assert all(one["status"] == "failed" for one in ask(api, "GET", "/schedules?limit=200")["schedules"])
    for wrong, field in (
        ({"cron": "0 9 31 2 *"}, "cron"), ({"cron": "* * * * *"}, "cron"), ({"timezone": "Mars/Base"}, "timezone"),
        ({"cron": None, "time": "2030-01-01T09:00:00Z"}, "cron"), ({"data": {"key": "k"}}, "data.campaign"),
    ):  # fmt: skip
        assert ask(api, "POST", "/schedules:preview", {**recurring_one("k"), **wrong}, status=422)["field"] == field


def test_pages_hold_everything_once(api: Web, scene: World) -> None:
    made = [ask(api, "POST", "/schedules", recurring_one(name(scene)), status=201)["id"] for _ in range(3)]
    made += [f"c{scene.campaign(scene.create()).campaign_id}" for _ in range(4)]
    seen: list[str] = []
    path: str | None = "/schedules?limit=2&status=pending"
    while path:
        answer = api.api("GET", path)
        page = json.loads(answer.data)["schedules"]
        assert 1 <= len(page) <= 2
        seen += [one["id"] for one in page]
        link = answer.headers.get("link")
        path = None if link is None else link.split(">")[0].removeprefix("</api/v1")
    assert sorted(seen) == sorted(made)
    assert len(seen) == len(set(seen))
    only = ask(api, "GET", "/schedules?type=recurring")["schedules"]
    assert [one["id"] for one in only] == made[:3]
    assert ask(api, "GET", "/schedules?type=optimised")["schedules"] == []
    failed = ask(api, "GET", "/schedules?status=failed&type=local&limit=200")["schedules"]
    assert all((one["status"], one["type"]) == ("failed", "local") for one in failed)


@pytest.mark.parametrize(
    ("query", "field"),
    [("type=weekly", "type"), ("status=late", "status"), ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"),
     ("cursor=!!", "cursor"), ("cursor=AAAA", "cursor"), ("cursor=czA", "cursor"), ("page=2", "page")],
)  # fmt: skip
def test_a_wrong_question_is_told_by_its_field(api: Web, query: str, field: str) -> None:
    assert ask(api, "GET", f"/schedules?{query}", status=422)["field"] == field


def test_a_schedule_is_created_changed_paused_and_deleted(api: Web, scene: World) -> None:
    key = name(scene)
    made = ask(api, "POST", "/schedules", recurring_one(key), status=201)
    path = f"/schedules/{made['id']}"
    assert ask(api, "GET", path) == made
    changed = ask(api, "PATCH", path, {"cron": "0 10 * * 2", "data": {"missed": "skip"}})
    assert changed["cron"] == "0 10 * * 2"
    with scene.database.connection() as connection:
        assert recurring.get(connection, key).spec.missed == "skip"
        assert recurring.get(connection, key).author == "ana"
        recurring.approve(connection, scene.settings, scene.ses, key, approver="ben")
    assert ask(api, "GET", path)["status"] == "active"
    assert ask(api, "POST", f"{path}/pause")["status"] == "paused"
    assert ask(api, "POST", f"{path}/resume")["status"] == "active"
    for wrong, field in (
        ({"data": {"key": "other"}}, "data.key"),
        ({"cron": "* * * * *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"data": {"missed": "maybe"}}, "data.missed"),
        ({"time": "2027-01-01T09:00Z"}, "time"),
    ):
        assert ask(api, "PATCH", path, wrong, status=422)["field"] == field
    started = ask(api, "POST", f"{path}/run-now")
    assert started["campaign_id"].startswith(f"{key}-")
    assert ask(api, "DELETE", path, status=204) is None
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run-now")):
        assert ask(api, method, f"{path}{tail}", status=404)["field"] == "id"


def test_a_campaign_is_created_moved_and_called_off(api: Web, scene: World) -> None:
    scene.people(60)
    key = name(scene)
    made = ask(
        api, "POST", "/schedules", {"time": "2027-03-01T09:00+01:00", "data": {"key": key, **CAMPAIGN}}, status=201
    )
    assert (made["type"], made["scheduled_at"], made["status"]) == ("scheduled", "2027-03-01T08:00:00Z", "pending")
    path = f"/schedules/{made['id']}"
    moved = ask(api, "PATCH", path, {"time": "2027-03-02T09:00", "timezone": "recipient"})
    assert (moved["type"], moved["scheduled_at"]) == ("local", "2027-03-02T09:00")
    fixed = ask(api, "PATCH", path, {"time": "2027-03-02T09:00", "timezone": "europe/berlin"})
    assert (fixed["type"], fixed["next_run"]) == ("scheduled", "2027-03-02T08:00:00Z")
    assert "approve" in ask(api, "POST", f"{path}/run-now", status=409)["detail"]
    scene.approve(key)
    soon = ask(api, "POST", f"{path}/run-now")
    assert abs((datetime.fromisoformat(soon["next_run"]) - datetime.now(UTC)).total_seconds()) < 60
    scene.freeze(key)
    assert "frozen already" in ask(api, "PATCH", path, {"time": "2027-03-01T09:00Z"}, status=409)["detail"]
    assert ask(api, "POST", f"{path}/pause")["status"] == "paused"
    assert ask(api, "POST", f"{path}/resume")["status"] in ("pending", "sending")
    assert ask(api, "DELETE", path, status=204) is None
    assert scene.campaign(key).state == "cancelled"
    assert ask(api, "GET", path)["status"] == "failed"
    assert "already" in ask(api, "DELETE", path, status=409)["detail"]


def test_a_frozen_campaign_can_be_sent_at_once(api: Web, scene: World) -> None:
    scene.people(120)
    key = scene.ready(due_at="2027-03-01T09:00:00Z")
    found = scene.campaign(key)
    ask(api, "POST", f"/schedules/c{found.campaign_id}/run-now")
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 120}
    with scene.database.connection() as connection:
        assert window.open_now(connection, found.campaign_id) == 0
        assert campaign.history(connection, found.campaign_id)[0]["actor"] == "ana"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": {}}, None),
        ({"cron": "0 9 * * 1", "time": "2027-01-01T09:00Z", "data": {}}, None),
        ({"cron": "0 9 31 2 *"}, "cron"),
        ({"cron": "*/5 * * * *"}, "cron"),
        ({"cron": "0 9 * *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"data": {"key": "BAD", "campaign": CAMPAIGN}}, "data.key"),
        ({"data": {"key": "good", "campaign": {**CAMPAIGN, "segment": "nobody"}}}, "data.campaign.segment"),
        ({"data": {"key": "good", "campaign": {**CAMPAIGN, "template": "nothing"}}}, "data.campaign.template"),
        ({"data": {"key": "good", "campaign": {"segment": "everybody"}}}, "data.campaign"),
        ({"data": {"key": "good", "campaign": CAMPAIGN, "missed": "maybe"}}, "data.missed"),
        ({"data": {"key": "a\0b", "campaign": CAMPAIGN}}, "data"),
        ({"colour": "red"}, "colour"),
        ({"time": "2027-01-01T09:00", "cron": None, "data": {"key": "good", **CAMPAIGN}, "timezone": None}, "timezone"),
        ({"time": "2027-01-01T09:00Z", "cron": None, "data": {"key": "good", **CAMPAIGN}}, "timezone"),
        ({"time": "9999-12-31T23:59", "cron": None, "data": {"key": "good", **CAMPAIGN}}, "time"),
        ({"time": "soon", "cron": None}, "time"),
        ({"time": "2027-01-01T09:00", "cron": None, "data": {"key": "good", **CAMPAIGN, "sender": "nobody"}}, "data.sender"),
    ],
)  # fmt: skip
def test_a_wrong_schedule_is_refused_by_the_name_of_the_field(
    api: Web, body: dict[str, Any], field: str | None
) -> None:
    neither_or_both = body == {"data": {}} or (body.get("cron") and body.get("time"))
    base = {} if neither_or_both else recurring_one("good")
    told = ask(api, "POST", "/schedules", {**base, **body}, status=422)
    assert told.get("field") == field, told
    assert ask(api, "GET", "/schedules?type=recurring")["schedules"] == []


def test_what_is_no_json_or_unknown_is_refused(api: Web) -> None:
    assert ask(api, "POST", "/schedules", "{", status=400)["status"] == 400
    assert api.api("POST", "/schedules", "{}", **{"Content-Type": "text/plain"}).status == 415
    assert api.ask("GET", "/api/v1/schedules").status == 401
    for wrong in ("s0", "c0", "x1", "s1x", "c99999999999", "c999999999"):
        assert ask(api, "GET", f"/schedules/{wrong}", status=404)["field"] == "id"


WORDS = [
    "0 9 * * 1", "UTC", "2027-01-01T09:00Z", "everybody", "hello", "good", "recipient", "1h", "9" * 400, "x" * 5_000, "\ud800",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "../hello", "a\r\nBcc: b", "Shop <a@example.com>",
]  # fmt: skip
NAMES = ["key", "campaign", "segment", "template", "sender", "parameters", "as_of", "grace", "quiet_hours", "expires_after",
         "starts_at", "snapshot_lead", "default_timezone", "rate"]  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.text(max_size=12) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["time", "cron", "timezone", "data", "more"]), ANYTHING, max_size=5),
    st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4),
    st.sampled_from(["none", "once", "recurring"]),
)
def test_no_body_makes_a_fault(api: Web, body: dict[str, Any], fields: dict[str, Any], good: str) -> None:
    if good == "once":
        body = {"time": "2027-01-01T09:00Z", "data": {"key": "good", **CAMPAIGN, **fields}}
    if good == "recurring":
        body = recurring_one("good")
        body["data"]["campaign"] = {**CAMPAIGN, **fields}
    answer = api.api("POST", "/schedules", body, **{"Content-Type": "application/json"})
    assert answer.status in (201, 400, 422), answer.data


def test_it_answers_at_once_with_millions_waiting(api: Web, scene: World) -> None:
    scene.people(50)
    first = scene.ready(due_at=(datetime.now(UTC) + timedelta(days=30)).isoformat())
    scene.execute(
        "WITH made AS (INSERT INTO mailpipe.campaign (key, state, spec, template_version, due_at, author, approver, approved_at)"
        " SELECT g.key || '-' || i, 'approved', g.spec, g.template_version, g.due_at, g.author, g.approver, g.approved_at"
        " FROM mailpipe.campaign g, generate_series(1, 5) i WHERE g.key = %(key)s RETURNING campaign_id)"
        " INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
        " SELECT m.campaign_id, i, i / 20, 1 + i * 500, 500, now(), repeat('0', 500)::varbit, repeat('0', 500)::varbit"
        " FROM made m, generate_series(0, 1999) i",
        {"key": first},
    )
    scene.execute("ANALYZE mailpipe.chunk")

    def seconds() -> float:
        started = time.perf_counter()
        listed.update(ask(api, "GET", "/schedules"))
        return time.perf_counter() - started

    listed: dict[str, Any] = {}
    # Others may be busy on this machine; what it can do shows in its best moments.
    wait_for(lambda: seconds() < 0.05, "an answer within 50 ms")
    assert listed["queue_snapshot"]["normal"]["pending"] == 5_000_050
