"""What holds for every route: who is let in, how errors look, how much is read, what the log says, and how the process ends."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import urllib3

from mailpipe.db import Database
from mailpipe.settings import Settings
from mailpipe.web import guard
from tests.support import wait_for
from tests.web.conftest import TOKEN, Web, serving

JSON = {"Content-Type": "application/json"}
MAIL = {"to": "ana@mail.example.com", "subject": "Hello", "text": "Hello"}


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


def test_who_waits_too_long_for_the_database_is_told_to_come_back(database: Database, web_settings: Settings) -> None:
    hasty = Database(database.url, pool_size=1, allow_unsafe_durability=True, patience=0.3)
    with (
        serving(web_settings, hasty) as web,
        database.transaction() as connection,
        ThreadPoolExecutor(2) as threads,
    ):
        connection.execute("LOCK TABLE mailpipe.message")
        asked = [threads.submit(web.api, "POST", "/messages", MAIL, **JSON) for _ in range(2)]
        answers = [one.result(20) for one in asked]
    assert {answer.status for answer in answers} == {503}, "one waits for the lock, the other for the connection"
    assert {answer.headers["Retry-After"] for answer in answers} == {"5"}
    hasty.close()


def test_a_body_that_drips_is_given_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    port = int(web.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        head = f"POST /api/v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


@dataclass
class Program:
    """`mailpipe web` as a process."""

    process: subprocess.Popen[bytes]
    url: str
    var: Path
    output: Path


@pytest.fixture
def program(database: Database, tmp_path: Path) -> Iterator[Program]:
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
        wait_for(lambda: b"listening on " in output.read_bytes() or process.poll() is not None, "the start")
        found = re.search(r"listening on (http://\S+)", output.read_text())
        assert found, output.read_text()
        yield Program(process, found[1], tmp_path / "var", output)
    finally:
        process.kill()
        process.wait()


def test_the_program_says_where_its_token_is_and_on_sigterm_answers_what_is_on_its_way(
    program: Program, database: Database
) -> None:
    token = program.var / "api.token"
    assert f"API token: in {token}" in program.output.read_text()
    headers = {"Authorization": f"Bearer {token.read_text()}", **JSON}
    with ThreadPoolExecutor(1) as threads:
        with database.transaction() as connection:
            connection.execute("LOCK TABLE mailpipe.message")
            asked = threads.submit(
                urllib3.request, "POST", f"{program.url}/api/v1/messages", json=MAIL, headers=headers, retries=False
            )
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'mailpipe.message'::regclass"
            wait_for(lambda: connection.execute(waiting).fetchone() == (1,), "the request to reach the database")
            program.process.send_signal(signal.SIGTERM)
            wait_for(lambda: refuses(program.url), "the door to close")
        assert asked.result(20).status == 202
    assert program.process.wait(20) == 0, program.output.read_text()


def test_an_answer_does_not_wait_for_acknowledgements(web: Web) -> None:
    """The quickest of many counts: the machine may be busy. The first ones of a connection are acknowledged at once."""
    with urllib3.HTTPConnectionPool("127.0.0.1", int(web.url.rsplit(":", 1)[1]), maxsize=1) as pool:
        times = []
        for _ in range(60):
            started = time.monotonic()
            assert pool.request("GET", "/healthz").data == b"ok\n"
            times.append(time.monotonic() - started)
    assert min(times[40:]) < 0.030


def refuses(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False
