"""The API tells of campaigns what the command line tells, and is described by one document that is made from its models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from mailpipe.report import Progress
from mailpipe.settings import Settings
from mailpipe.web import app, campaigns, messages, schedules
from tests.support import World
from tests.web.conftest import Web, serving


@pytest.fixture
def web(scene: World, web_settings: Settings) -> Iterator[Web]:
    with serving(replace(web_settings, ses_endpoint=scene.stand_in.url), scene.database) as running:
        yield running


def test_a_campaign_is_told_as_its_progress(scene: World, web: Web) -> None:
    scene.people(300)
    key = scene.ready(chunk_size=100)
    scene.send(key, (0, 49))
    answer = web.api("GET", f"/campaigns/{key}")
    assert answer.status == 200
    told = answer.json()
    assert told.keys() == scene.progress(key).to_json().keys()
    assert (told["campaign"], told["state"], told["total"]) == (key, "sending", 300)
    assert told["pending"] + told["sending"] + told["sent"] + told["failed"] + told["skipped"] + told["unknown"] == 300
    TypeAdapter(Progress).validate_python(told)


def test_campaigns_are_listed_the_newest_first_and_by_state(scene: World, web: Web) -> None:
    scene.people(3)
    older, newer = scene.create(topic="weekly"), scene.ready()
    lines = web.api("GET", "/campaigns").json()["campaigns"]
    assert [line["campaign"] for line in lines][:2] == [newer, older]
    assert lines[1]["topic"] == "weekly" and lines[1]["href"] == f"/api/v1/campaigns/{older}"
    drafts = web.api("GET", "/campaigns?state=draft").json()["campaigns"]
    assert {line["state"] for line in drafts} == {"draft"} and older in [line["campaign"] for line in drafts]
    wrong = web.api("GET", "/campaigns?state=sleeping")
    assert (wrong.status, wrong.json()["field"]) == (422, "state")
    misspelt = web.api("GET", "/campaigns?stat=draft")
    assert (misspelt.status, misspelt.json()["field"]) == (422, "stat"), "it would list everything"


def test_a_campaign_that_is_not_there_is_not_found(web: Web) -> None:
    answer = web.api("GET", "/campaigns/nobody")
    assert (answer.status, answer.json()["field"]) == (404, "key")


def test_the_document_describes_every_route_of_the_api_and_no_other(web: Web) -> None:
    told = web.api("GET", "/openapi.json").json()
    routes = [
        *messages.routes(web.database, prefix=app.API),
        *campaigns.routes(web.database, prefix=app.API),
        *schedules.routes(web.settings, web.database, prefix=app.API),
    ]
    served = {
        (f"{app.API}{route.path}", method) for route in routes for method in (route.methods or ()) if method != "HEAD"
    }
    assert {(path, method.upper()) for path, methods in told["paths"].items() for method in methods} == served


def test_the_document_refers_only_to_what_it_has(web: Web) -> None:
    answer = web.api("GET", "/openapi.json")
    told = answer.json()
    assert told["openapi"].startswith("3.1")
    names = re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', answer.data.decode())
    assert names and set(names) <= told["components"]["schemas"].keys()
    post = told["paths"]["/api/v1/messages"]["post"]
    reference: dict[str, Any] = post["requestBody"]["content"]["application/json"]["schema"]
    spec = told["components"]["schemas"][reference["$ref"].rsplit("/", 1)[1]]
    assert spec["additionalProperties"] is False and "to" in spec["required"]
    assert {"type": "string"} in spec["properties"]["delay"]["anyOf"], "24h may be written too"
    assert post["responses"]["409"]["content"].keys() == {"application/problem+json"}
