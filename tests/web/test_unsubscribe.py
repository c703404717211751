"""Unsubscribe links over real HTTP: who only looks changes nothing, a POST acts at once, and nothing else works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlencode, urlsplit

import pytest
import urllib3

from mailpipe import scanner_guard
from mailpipe.db import Database
from mailpipe.links import Signer
from mailpipe.settings import Settings
from mailpipe.web import unsubscribe
from mailpipe.web.page import TEXTS
from tests.support import World, wait_for
from tests.web.conftest import Web, serving

ONE_CLICK = "List-Unsubscribe=One-Click"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def link(web: Web, person: str = "42", topic: str = "sale", *, keys: str | None = None) -> str:
    """The path of a person's link."""
    signer = Signer(keys or web.settings.unsubscribe_keys or "", web.settings.public_url)
    return f"/u/{signer.token(person, topic)}"


def opted_out(database: Database) -> set[tuple[str, str]]:
    with database.connection() as connection:
        return set(connection.execute("SELECT person_id, topic FROM mailpipe.opt_out").fetchall())


def post(web: Web, path: str, **fields: str) -> urllib3.BaseHTTPResponse:
    return web.ask("POST", path, body=urlencode(fields), headers=FORM)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_looking_changes_nothing_and_shows_a_page_with_a_button(web: Web, method: str) -> None:
    answer = web.ask(method, link(web))
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Set-Cookie" not in answer.headers
    assert opted_out(web.database) == set()
    if method == "GET":
        text = answer.data.decode()
        assert "Do you want to stop getting our mails about “sale”?" in text
        assert '<input type="hidden" name="List-Unsubscribe" value="One-Click">' in text
        assert "<script" not in text and "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_other_method_does_anything(web: Web, method: str) -> None:
    assert web.ask(method, link(web), body=ONE_CLICK, headers=FORM).status == 405
    assert opted_out(web.database) == set()


def multipart() -> tuple[bytes, str]:
    body = b'--b0\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b0--\r\n'
    return body, "multipart/form-data; boundary=b0"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ONE_CLICK.encode(), "application/x-www-form-urlencoded"),
        (ONE_CLICK.encode(), "application/x-www-form-urlencoded; charset=UTF-8"),
        (ONE_CLICK.encode(), ""),
        (b"list=x&List-Unsubscribe=one-click\r\n", "application/x-www-form-urlencoded"),
        multipart(),
    ],
)
def test_one_click_acts_at_once_without_redirect_cookie_or_token(web: Web, body: bytes, kind: str) -> None:
    for _ in range(2):
        answer = web.ask("POST", link(web), body=body, headers={"Content-Type": kind} if kind else {})
        assert (answer.status, answer.data) == (200, b"")
        assert "Location" not in answer.headers and "Set-Cookie" not in answer.headers
        assert opted_out(web.database) == {("42", "sale")}


def test_what_headers_and_cookies_a_client_adds_makes_no_difference(web: Web) -> None:
    headers = {**FORM, "Cookie": "session=1", "Origin": "https://elsewhere.example.com", "Authorization": "Basic eDp5"}
    assert web.ask("POST", link(web), body=ONE_CLICK, headers=headers).status == 200
    assert opted_out(web.database) == {("42", "sale")}


@pytest.mark.parametrize("body", ["", "x=y", "List-Unsubscribe=Two-Click", "list-unsubscribe", "a=b&" * 500, "page=1"])
def test_a_post_that_asks_for_nothing_known_changes_nothing(web: Web, body: str) -> None:
    for headers in (FORM, {}):
        answer = web.ask("POST", link(web), body=body, headers=headers)
        assert answer.status == 400, headers
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert opted_out(web.database) == set()


def test_a_body_that_is_no_form_or_too_large_is_refused(web: Web) -> None:
    assert web.ask("POST", link(web), body=b"x", headers={"Content-Type": "multipart/form-data"}).status == 400
    large = ONE_CLICK + "&x=" + "y" * unsubscribe.MAX_BODY
    assert web.ask("POST", link(web), body=large, headers=FORM).status == 413
    assert opted_out(web.database) == set()


def test_the_button_does_the_same_and_shows_that_it_is_done_with_an_undo(web: Web) -> None:
    done = post(web, link(web), page="1", **{"List-Unsubscribe": "One-Click"})
    assert (done.status, "You are unsubscribed" in done.data.decode()) == (200, True)
    assert opted_out(web.database) == {("42", "sale")}
    assert "You are unsubscribed" in web.ask("GET", link(web)).data.decode(), "the page remembers"
    back = post(web, link(web), page="1", action="undo")
    assert (back.status, "You are subscribed again" in back.data.decode()) == (200, True)
    assert opted_out(web.database) == set()


def test_all_marketing_can_be_stopped_from_the_link_of_a_topic_and_be_undone(web: Web) -> None:
    done = post(web, link(web), page="1", action="all")
    assert "You will get no more marketing mail" in done.data.decode()
    assert opted_out(web.database) == {("42", "marketing")}
    assert "no more marketing mail" in web.ask("GET", link(web, topic="news")).data.decode()
    assert "You are subscribed again" in post(web, link(web, topic="news"), page="1", action="undo").data.decode()
    assert opted_out(web.database) == set()


def test_a_link_of_all_marketing_offers_no_second_button(web: Web) -> None:
    text = web.ask("GET", link(web, topic="marketing")).data.decode()
    assert "stop getting our marketing mail?" in text
    assert text.count("<form") == 1


def test_topics_are_chosen_one_by_one_and_only_those_that_were_offered(web: Web) -> None:
    path = link(web, topic="sale_news")
    post(web, link(web, topic="tips"), **{"List-Unsubscribe": "One-Click"})
    text = web.ask("GET", path).data.decode()
    assert 'value="sale_news" checked> sale news</label>' in text
    assert 'value="tips"> tips</label>' in text
    chosen = web.ask("POST", path, body="page=1&action=topics&want=tips&want=made-up", headers=FORM)
    assert "Your choice is saved" in chosen.data.decode()
    assert opted_out(web.database) == {("42", "sale_news")}


def test_who_has_stopped_all_marketing_and_chooses_a_topic_gets_that_topic_alone(web: Web) -> None:
    path = link(web, topic="sale_news")
    post(web, link(web, topic="tips"), **{"List-Unsubscribe": "One-Click"})
    post(web, path, page="1", action="all")
    assert "checked" not in web.ask("GET", path).data.decode()
    post(web, path, page="1", action="topics", want="tips")
    assert opted_out(web.database) == {("42", "sale_news")}


def test_only_topics_of_campaigns_that_were_sent_are_offered(web: Web, scene: World) -> None:
    scene.people(1)
    scene.create(topic="secret-launch")
    sent = scene.ready(topic="weekly")
    scene.send(sent)
    with serving(web.settings, scene.database) as here:
        text = here.ask("GET", link(here)).data.decode()
    assert "weekly" in text and "secret" not in text


BAD_TOKENS: list[Callable[[str], str]] = [
    lambda token: token[:-1],
    lambda token: token + "A",
    lambda token: token[:10] + ("A" if token[10] != "A" else "B") + token[11:],
    lambda token: token.replace("k1", "k2"),
    lambda token: token.rsplit(".", 1)[0],
    lambda _: "x" * 2000,
    lambda _: "%00",
    lambda _: "1.k1.NDI.AAAAAAAAAAAAAAAAAAAAAA",
]


def test_a_token_that_we_did_not_make_is_a_page_with_help_and_changes_nothing(own_web: Web) -> None:
    pages = set()
    for change in BAD_TOKENS:
        path = "/u/" + change(link(own_web).removeprefix("/u/"))
        for answer in (
            own_web.ask("GET", path),
            own_web.ask("POST", path, body=ONE_CLICK, headers=FORM),
        ):
            assert answer.status == 404, path
            pages.add(answer.data.decode())
    assert opted_out(own_web.database) == set()
    [page] = pages
    assert "This link does not work" in page, "the answer is the same whatever is wrong with it"


def test_a_token_of_a_foreign_key_is_refused_and_one_of_an_old_key_is_not(
    database: Database, web_settings: Settings
) -> None:
    old, foreign = "old:an-older-secret-of-thirty-two-characters", "k1:a-secret-of-somebody-else-altogether"
    config = replace(web_settings, unsubscribe_keys=f"{web_settings.unsubscribe_keys},{old}")
    with serving(config, database) as web:
        assert post(web, link(web, keys=foreign), **{"List-Unsubscribe": "One-Click"}).status == 404
        assert opted_out(database) == set()
        assert post(web, link(web, keys=old), **{"List-Unsubscribe": "One-Click"}).status == 200
        assert opted_out(database) == {("42", "sale")}


def test_the_help_page_names_the_address_that_takes_unsubscribes(database: Database, web_settings: Settings) -> None:
    config = replace(web_settings, unsubscribe_mailto="leave@mail.example.com")
    with serving(config, database) as web:
        assert "leave@mail.example.com" in web.ask("GET", "/u/nonsense").data.decode()


def test_guessing_is_slowed_down_while_valid_links_of_the_same_client_work(own_web: Web) -> None:
    web = own_web
    statuses = [web.ask("GET", "/u/nonsense").status for _ in range(int(unsubscribe.INVALID["burst"]) + 1)]
    assert statuses == [404] * (len(statuses) - 1) + [429]
    limited = web.ask("GET", "/u/nonsense", headers={"X-Forwarded-For": "203.0.113.7"})
    assert limited.status == 429, "an invented client is the same client"
    assert int(limited.headers["Retry-After"]) > 0
    assert post(web, link(web), **{"List-Unsubscribe": "One-Click"}).status == 200


def test_a_client_with_a_valid_link_cannot_ask_without_end(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unsubscribe.VALID, "burst", 3)
    monkeypatch.setitem(unsubscribe.VALID, "rate", 0.01)
    with serving(web.settings, web.database) as other:
        assert [other.ask("GET", link(other)).status for _ in range(4)] == [200, 200, 200, 429]


def test_while_the_database_is_away_the_client_is_told_to_come_back(web: Web, database: Database) -> None:
    away = Database(database.url.set(query={}, host="127.0.0.1", port=1))
    with serving(web.settings, away) as other:
        answer = post(other, link(other), **{"List-Unsubscribe": "One-Click"})
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert "Please try again" in answer.data.decode()


@pytest.mark.parametrize(
    ("accept", "lang"),
    [
        (None, "en"),
        ("vi", "vi"),
        ("vi-VN,vi;q=0.9,en;q=0.8", "vi"),
        ("en;q=0.5, de-AT;q=0.8, *;q=0.1", "de"),
        ("tlh, xx;q=0.9", "en"),
        ("AR-EG", "ar"),
        ("fr;q=0", "en"),
        ("nonsense;;;q=7", "en"),
    ],
)
def test_the_page_speaks_the_language_of_the_browser(web: Web, accept: str | None, lang: str) -> None:
    answer = web.ask("GET", link(web), headers={"Accept-Language": accept} if accept else {})
    assert answer.headers["Content-Language"] == lang
    assert answer.headers["Vary"] == "Accept-Language"
    text = answer.data.decode()
    assert f'<html lang="{lang}" dir="{TEXTS[lang]["dir"]}">' in text
    assert TEXTS[lang]["ask"].replace("{topic}", "sale") in text.replace("\u2068", "").replace("\u2069", "")


def test_every_language_says_everything() -> None:
    assert {"en", "vi"} <= TEXTS.keys()
    for lang, texts in TEXTS.items():
        assert list(texts) == list(TEXTS["en"]), lang
        for key, text in texts.items():
            assert text.count("{topic}") == TEXTS["en"][key].count("{topic}"), (lang, key)
            assert text.count("{address}") == TEXTS["en"][key].count("{address}"), (lang, key)


def test_the_page_lets_nothing_run_and_lends_its_address_to_nobody(web: Web) -> None:
    headers = web.ask("GET", link(web)).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "form-action 'self'" in policy and "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


@pytest.fixture
def scene_web(scene: World, web_settings: Settings) -> Iterator[Web]:
    with serving(replace(web_settings, unsubscribe_keys="k1:a-secret-of-some-thirty-two-chars"), scene.database) as web:
        yield web


def test_the_next_call_of_a_running_campaign_honours_it(scene: World, scene_web: Web) -> None:
    scene.people(600)
    key = scene.ready(topic="sale", rate=200.0, chunk_size=100)
    sender = threading.Thread(target=scene.with_threads(1).send, args=(key,))
    sender.start()
    wait_for(lambda: len(scene.journal(key)) > 0, "the first mail")
    assert post(scene_web, link(scene_web, "600"), **{"List-Unsubscribe": "One-Click"}).status == 200
    assert len(scene.journal(key)) < 500
    sender.join(30)
    assert scene.keep_promises(key) == {"sent": 599, "skipped": 1}
    assert [reason for state, reason in scene.states(key).values() if state == "skipped"] == ["opted_out"]


def test_the_link_in_the_header_of_a_mail_that_was_sent_works(scene: World) -> None:
    scene.people(3)
    key = scene.ready(topic="sale")
    scene.send(key)
    line = next(line for line in scene.journal(key) if line["seq"] == 2)
    headers = {one["name"]: one["value"] for one in scene.stand_in.message(line["message_id"])["headers"]}
    field, _, value = headers["List-Unsubscribe-Post"].partition("=")
    path = urlsplit(headers["List-Unsubscribe"].strip("<>")).path
    with serving(scene.settings, scene.database) as web:
        assert post(web, path, **{field: value}).status == 200
    assert ("2", "sale") in opted_out(scene.database)
    assert scene.stand_in.message(line["message_id"])["to"] == ["person2@mail.example.com"]


def test_a_link_works_when_the_campaign_is_long_gone(web: Web) -> None:
    """Nothing of a campaign is in this database at all."""
    assert post(web, link(web, "who-was-dropped", "x" * 32), **{"List-Unsubscribe": "One-Click"}).status == 200
    assert opted_out(web.database) == {("who-was-dropped", "x" * 32)}


def alarms(world: World) -> list[dict[str, object]]:
    rows = world.execute(
        "SELECT detail FROM mailpipe.audit WHERE action = %(action)s", {"action": scanner_guard.ACTION}
    )
    return [detail for (detail,) in rows]


def test_many_unsubscribes_of_one_company_within_minutes_raise_one_alarm(
    scene: World, scene_web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    scene.people(20)
    scene.execute("UPDATE users SET email = 'p' || user_id || '@corp.example.com' WHERE user_id <= 8")
    scene.execute("UPDATE users SET email = 'p' || user_id || '@gmail.example.com' WHERE user_id > 8")
    scene.ready()
    before = len(alarms(scene))
    for person in range(9, 20):
        post(scene_web, link(scene_web, str(person)), **{"List-Unsubscribe": "One-Click"})
    for person in (1, 2, 3, 4, 4, 4):
        post(scene_web, link(scene_web, str(person)), **{"List-Unsubscribe": "One-Click"})
    assert len(alarms(scene)) == before, "few people, or one who clicks again, or a provider that many share"
    for person in (5, 6, 7, 8):
        assert post(scene_web, link(scene_web, str(person)), **{"List-Unsubscribe": "One-Click"}).status == 200
    assert alarms(scene)[before:] == [{"domain": "corp.example.com", "people": 5, "minutes": 10}]
    assert scanner_guard.ACTION in caplog.text and "@" not in caplog.text
