"""The unsubscribe page in a real browser: with the keyboard alone, at the width of a phone, in the language of the reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import Web
from tests.web.test_unsubscribe import link, opted_out

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PHONE = {"width": 320, "height": 640}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing; apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


OTHER = {("42", "tips")}


def offer(web: Web, topic: str) -> None:
    """Let the person have heard of another topic, so that there is something to choose."""
    web.ask("POST", link(web, topic=topic), body="List-Unsubscribe=One-Click")


def focused(page: Any) -> str:
    """The text of what has the focus, and whether that can be seen."""
    return str(
        page.evaluate(
            """() => {
                const one = document.activeElement, style = getComputedStyle(one)
                const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
                return (one.innerText || one.value) + (seen ? '' : ' (not to be seen)')
            }"""
        )
    )


def test_with_the_keyboard_alone_somebody_leaves_comes_back_and_chooses(web: Web, browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(viewport=PHONE, locale="en-GB")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    offer(web, "tips")
    page.goto(web.url + link(web, topic="sale_news"))
    assert opted_out(web.database) == OTHER
    page.screenshot(path=tmp_path / "ask.png", full_page=True)

    page.keyboard.press("Tab")
    assert focused(page) == "Unsubscribe"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="You are unsubscribed").wait_for()
    assert opted_out(web.database) == OTHER | {("42", "sale_news")}
    page.screenshot(path=tmp_path / "done.png", full_page=True)

    page.keyboard.press("Tab")
    assert focused(page) == "Undo"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="You are subscribed again").wait_for()
    assert opted_out(web.database) == OTHER

    for _ in range(2):
        page.keyboard.press("Tab")
    assert focused(page) == "sale_news"
    page.keyboard.press("Space")
    for _ in range(2):
        page.keyboard.press("Tab")
    assert focused(page) == "Save"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Your choice is saved").wait_for()
    assert opted_out(web.database) == OTHER | {("42", "sale_news")}
    assert not page.get_by_role("checkbox", name="sale news").is_checked()
    page.screenshot(path=tmp_path / "saved.png", full_page=True)
    assert complaints == [], "the browser refused something of the page"
    context.close()


@pytest.mark.parametrize(
    ("locale", "scheme"), [("vi-VN", "light"), ("de-DE", "dark"), ("ja-JP", "light"), ("ar-EG", "dark")]
)
def test_on_a_phone_nothing_is_cut_off_and_fingers_can_hit_it(
    web: Web, browser: Any, tmp_path: Path, locale: str, scheme: str
) -> None:
    context = browser.new_context(viewport=PHONE, locale=locale, color_scheme=scheme)
    page = context.new_page()
    offer(web, "tips")
    page.goto(web.url + link(web, topic="a-very-long-name-of-some-topic-x"))
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("document.documentElement.lang") == locale[:2]
    targets = page.locator("button, label")
    assert targets.count() == 5
    for number in range(targets.count()):
        box = targets.nth(number).bounding_box()
        assert box["height"] >= 44 and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    context.close()


def test_without_scripts_it_works_all_the_same(web: Web, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.goto(web.url + link(web, topic="marketing"))
    page.get_by_role("button", name="Unsubscribe").click()
    page.get_by_role("heading", name="You are unsubscribed").wait_for()
    assert opted_out(web.database) == {("42", "marketing")}
    context.close()
