"""The API is what its OpenAPI document says: schemathesis makes requests from it, good ones and bad ones, always the same."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig

from mailpipe.web import app, openapi
from tests.support import World
from tests.web.conftest import TOKEN, Web, serving

DOCUMENT = openapi.document(app.OPERATIONS, prefix=app.API)
MESSAGE = "018f0000-0000-7000-8000-000000000001"
THERE = {"path.id": ["s1", "c1", "c2"], "path.key": ["known"], "path.message_id": [MESSAGE]}
"""Half of the places in paths lead to something that is there."""
CONFIG = {
    # An extra parameter may be an empty list, which no address can hold: such a request is a right one.
    "generation": {"mode": "all", "allow-extra-parameters": False},
    # Whether a request of the right form can be granted is not for a document to say: zones, segments and templates have to exist.
    "checks": {
        "positive_data_acceptance": {"enabled": False},
        "negative_data_rejection": {"expected-statuses": ["400", "401", "404", "409", "413", "415", "422"]},
    },
    "dictionaries": {name: {"values": values} for name, values in THERE.items()},
    "parameters": {name: {"dictionary": name, "probability": 0.5} for name in THERE},
}
schema = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))
answered: defaultdict[str, Counter[int]] = defaultdict(Counter)


@pytest.fixture(scope="module")
def _running(_scene: World) -> Iterator[Web]:
    scene = _scene
    # What the examples of the document name.
    assets = scene.settings.home / "assets"
    shutil.copy(assets / "segments" / "everybody.sql", assets / "segments" / "engaged_30d.sql")
    shutil.copytree(assets / "templates" / "hello", assets / "templates" / "flash_sale")
    scene.people(10)
    scene.ready(key="known", due_at="2030-01-01T09:00:00Z")
    scene.create(send_at="2030-01-01T09:00")
    scene.execute(
        "INSERT INTO mailpipe.message (message_id, email, subject, body_text, body_sha256, send_at, due_at)"
        " VALUES (%(id)s, 'ana@example.com', 's', 't', '', now(), now())",
        {"id": MESSAGE},
    )
    config = replace(scene.settings, api_tokens=f"ana:{TOKEN}", unsubscribe_keys="k1:a-secret-of-some-thirty-two-chars")
    with serving(config, scene.database) as web:
        sender = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}
        series = {"cron": "0 9 * * 1", "timezone": "UTC", "data": {"key": "s", "approval": "each", "campaign": sender}}
        made = web.api("POST", "/schedules", series, **{"Content-Type": "application/json"})
        assert made.json()["id"] == "s1", made.data
        yield web


@pytest.fixture
def running(_running: Web, _scene: World) -> Web:
    """The application, and one thing of every kind in it whatever was done to them before."""
    _scene.execute("UPDATE mailpipe.schedule SET is_active = true, deleted_at = NULL WHERE schedule_id = 1")
    _scene.execute("UPDATE mailpipe.campaign SET state = 'approved' WHERE key = 'known'")
    return _running


def test_the_document_is_served(running: Web) -> None:
    assert running.api("GET", "/openapi.json").json() == DOCUMENT


@schema.parametrize()
@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_every_operation_does_what_the_document_says(case: Case[Any], running: Web) -> None:
    """Statuses, content types and bodies are those of the document, nothing gets in without a token, a wrong request is refused,
    and nothing is ever a fault of ours."""
    answer = case.call_and_validate(base_url=running.url, headers={"Authorization": f"Bearer {TOKEN}"})
    answered[case.operation.label][answer.status_code] += 1


def test_the_requests_reached_every_operation() -> None:
    """Of those that were tested just now."""
    for operation, statuses in answered.items():
        assert any(200 <= status < 300 for status in statuses), (operation, statuses)
        assert any(400 <= status < 500 for status in statuses), (operation, statuses)
