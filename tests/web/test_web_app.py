"""What holds for every route: who is let in, how errors look, how much is read, what the log says, and how the process ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mailpipe.db import Database
from mailpipe.settings import Settings
from tests.support import wait_for
from tests.web.conftest import TOKEN, Web, serving


def test_the_process_is_alive_and_ready(web: Web) -> None:
    alive, ready = web.ask("GET", "/healthz"), web.ask("GET", "/readyz")
    assert (alive.status, alive.data) == (200, b"ok\n")
    assert (ready.status, ready.data) == (200, b"ready\n")


def test_a_database_with_another_schema_is_not_ready_although_the_process_is_alive(own_web: Web) -> None:
    web = own_web
    with web.database.connection() as connection:
        connection.execute("UPDATE mailpipe_version SET version_num = 'older'")
    answer = web.ask("GET", "/readyz")
    assert answer.status == 503
    assert "mailpipe db upgrade" in answer.json()["detail"]
    assert web.ask("GET", "/healthz").status == 200


def test_a_database_that_is_away_is_not_ready(database: Database, web_settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    away = Database(database.url.set(query={}, host="127.0.0.1", port=port))
    with serving(web_settings, away) as web:
        answer = web.ask("GET", "/readyz")
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert answer.json()["detail"] == "the database does not answer"


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}0", TOKEN, "Bearer ä"],
)
def test_nobody_gets_into_the_api_without_a_known_token(web: Web, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = web.ask("GET", "/api/v1/anything", headers=headers)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="mailpipe"')
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "MAILPIPE_API_TOKENS" in answer.json()["detail"]


def test_with_a_token_what_is_not_there_is_a_problem_of_its_own(web: Web) -> None:
    answer = web.api("GET", "/anything")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")
    assert answer.json() == {"title": "Not Found", "status": 404, "detail": "Not Found"}


def test_the_scheme_of_a_token_is_written_in_any_case(web: Web) -> None:
    assert web.ask("GET", "/api/v1/anything", headers={"Authorization": f"bearer  {TOKEN}"}).status == 404


def test_where_mail_leaves_for_real_the_api_is_closed_without_tokens(
    database: Database, web_settings: Settings
) -> None:
    real = replace(web_settings, database_url="postgresql://mail@db.example.com/mail", api_tokens=None)
    with serving(real, database) as web:
        answer = web.api("GET", "/anything")
        assert (answer.status, answer.json()["status"]) == (503, 503)
        assert "MAILPIPE_API_TOKENS" in answer.json()["detail"]
        assert web.ask("GET", "/healthz").status == 200


def test_locally_a_token_is_made_and_kept(database: Database, web_settings: Settings) -> None:
    for _ in range(2):
        with serving(replace(web_settings, api_tokens=None), database) as web:
            kept = web_settings.var / "api.token"
            assert kept.stat().st_mode & 0o777 == 0o600
            answer = web.ask("GET", "/api/v1/x", headers={"Authorization": f"Bearer {kept.read_text()}"})
            assert answer.status == 404


def test_every_answer_has_the_headers_that_keep_browsers_careful(web: Web) -> None:
    for path in ("/healthz", "/nowhere", "/api/v1/x"):
        headers = web.ask("GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Strict-Transport-Security" not in headers, "over plain http it would be ignored"
        assert "server" not in headers or "uvicorn" not in headers["server"]


def test_no_address_redirects_to_another(web: Web) -> None:
    for path in ("/healthz/", "/readyz//", "/api/v1/", "/api/v1", "/u/"):
        assert web.ask("GET", path).status in (401, 404), path


def test_the_access_log_names_routes_and_clients_but_no_path(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailpipe.web.access")
    web.ask("GET", "/healthz?email=ana@mail.example.com")
    web.api("GET", "/ana@mail.example.com")
    wait_for(lambda: len(caplog.messages) >= 2, "the access log")
    assert caplog.messages[0].startswith("GET /healthz 200 ")
    assert caplog.messages[1].startswith("GET /api/v1/* 404 ")
    assert caplog.messages[1].endswith(" tests")
    assert "ana" not in caplog.text and TOKEN not in caplog.text and "127.0.0.1" not in caplog.text


def test_the_program_says_where_its_token_is_and_ends_on_sigterm(database: Database, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "MAILPIPE_HOME": str(tmp_path),
        "MAILPIPE_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1",
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
    }
    output = tmp_path / "out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mailpipe", "web", "--port", "0"],
            cwd=Path(__file__).parents[2],
            env=environ,
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(
            lambda: b"listening on http://127.0.0.1:" in output.read_bytes() or process.poll() is not None, "the start"
        )
        assert f"API token: in {tmp_path / 'var' / 'api.token'}" in output.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
