"""The page of schedules, over HTTP and in a real browser at the width of a phone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mailpipe import campaign
from mailpipe.schedule import overview, recurring
from mailpipe.schedule.spec import parse
from tests.support import World
from tests.web.conftest import TOKEN, Web, serving

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
CAMPAIGN = {"segment": "everybody", "template": "hello", "sender": "Shop <news@mail.example.com>"}


@pytest.fixture(scope="module")
def _pages(_scene: World) -> Iterator[Web]:
    config = replace(
        _scene.settings, api_tokens=f"ana:{TOKEN}", unsubscribe_keys="k1:a-secret-of-some-thirty-two-chars"
    )
    with serving(config, _scene.database) as running:
        yield running


@pytest.fixture
def pages(_pages: Web, scene: World) -> Web:
    scene.execute("UPDATE mailpipe.campaign SET state = 'cancelled' WHERE state <> 'cancelled'")
    scene.execute("UPDATE mailpipe.schedule SET is_active = false, deleted_at = now()")
    scene.execute("DELETE FROM mailpipe.occurrence")
    return _pages


def read(pages: Web, *, user: str = "anybody", password: str = TOKEN) -> tuple[int, str]:
    packed = base64.b64encode(f"{user}:{password}".encode()).decode()
    answer = pages.ask("GET", "/schedules", headers={"Authorization": f"Basic {packed}"})
    return answer.status, answer.data.decode()


def plan(scene: World) -> tuple[str, str, str]:
    """A schedule, a campaign to come, and one that is late because it is paused."""
    scene.people(75)
    with scene.database.connection() as connection:
        key = f"news-{next(scene.numbers)}"
        spec = parse({"key": key, "cron": "0 9 * * *", "timezone": "Europe/Berlin", "campaign": CAMPAIGN}, where="test")
        recurring.create(connection, scene.settings, spec, author="ana")
    coming = scene.ready(due_at=(datetime.now(UTC) + timedelta(days=2)).isoformat())
    late = scene.ready(due_at=(datetime.now(UTC) - timedelta(minutes=20)).isoformat())
    with scene.database.connection() as connection:
        campaign.start(connection, late, actor="ana")
        campaign.pause(connection, late, actor="ana", reason="a <wrong> price")
    return key, coming, late


def test_the_page_shows_what_comes_what_waits_and_what_is_late(pages: Web, scene: World) -> None:
    status, empty = read(pages)
    assert status == 200
    assert "Nothing is late." in empty
    assert "There are no schedules." in empty
    key, coming, late = plan(scene)
    status, text = read(pages)
    assert status == 200
    assert text.count(f"<b>{key}</b>") >= 14, "each of the fourteen days, and the list"
    assert "at 09:00, every day" in text
    assert "09:00 Europe/Berlin, not approved" in text
    assert f"<b>{coming}</b>" in text
    assert f"campaign {late}: 75 people" in text
    assert "paused: a &lt;wrong&gt; price" in text
    assert '<th scope="row">normal</th><td class="number">150</td>' in text


def test_only_who_has_a_token_sees_it(pages: Web) -> None:
    answer = pages.ask("GET", "/schedules")
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert read(pages, password="wrong")[0] == 401
    assert pages.ask("GET", "/schedules", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert pages.ask("GET", "/schedules", headers={"Authorization": "Basic !!"}).status == 401
    assert pages.ask("POST", "/schedules", headers={"Authorization": f"Bearer {TOKEN}"}).status == 405


def test_the_reasons_why_something_is_late(pages: Web, scene: World) -> None:
    def why(key: str) -> str:
        with scene.database.connection() as connection:
            return next(one.why for one in overview.late(connection, grace=6 * 3600) if key in one.what)

    scene.people(75)
    ago = datetime.now(UTC) - timedelta(minutes=10)
    waiting = scene.ready(due_at=ago.isoformat())
    assert "sensor `due`" in why(waiting)
    with scene.database.connection() as connection:
        campaign.start(connection, waiting, actor="ana")
    assert "nobody works on it" in why(waiting)
    draft = scene.create(due_at=(datetime.now(UTC) + timedelta(minutes=5)).isoformat())
    assert "nobody has approved it" in why(draft)
    unfrozen = scene.create(due_at=ago.isoformat())
    scene.approve(unfrozen)
    assert "sensor `due`" in why(unfrozen)
    missed = scene.create(due_at=(ago - timedelta(hours=8)).isoformat())
    scene.approve(missed)
    assert "--late" in why(missed)


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing; apt-get install chromium")
def test_it_can_be_read_on_a_phone_and_on_a_desk(pages: Web, scene: World, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    key, coming, late = plan(scene)
    complaints: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        for width, columns in ((320, 1), (1280, 7)):
            context = browser.new_context(
                viewport={"width": width, "height": 800}, http_credentials={"username": "ana", "password": TOKEN}
            )
            page: Any = context.new_page()
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.goto(f"{pages.url}/schedules")
            assert page.title() == "Schedules"
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} pixels at a width of {width}"
            assert page.locator(".days > li").count() == 14
            lefts = page.evaluate("new Set([...document.querySelectorAll('.days > li')].map(e => e.offsetLeft)).size")
            assert lefts == columns
            for text in (key, coming, f"campaign {late}: 75 people"):
                assert page.get_by_text(text, exact=True).first.is_visible()
            assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
            page.screenshot(path=str(tmp_path / f"schedules-{width}.png"), full_page=True)
            context.close()
        browser.close()
    assert complaints == []
