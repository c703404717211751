"""The web application on a real socket and a real database, and a client that follows nothing and remembers nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import urllib3
import uvicorn
from sqlalchemy.engine import URL

from mailpipe import settings
from mailpipe.db import Database
from mailpipe.settings import Settings
from mailpipe.web import app, serve
from tests.conftest import clone
from tests.support import wait_for

TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass
class Web:
    """A running application."""

    url: str
    settings: Settings
    database: Database
    pool: urllib3.PoolManager

    def ask(
        self, method: str, path: str, *, body: Any = None, headers: dict[str, str] | None = None, **fields: Any
    ) -> urllib3.BaseHTTPResponse:
        """One request. A `body` that is no text is sent as JSON."""
        if body is not None and not isinstance(body, bytes | str):
            body = json.dumps(body)
        return self.pool.request(
            method, self.url + path, body=body, headers=headers or {}, redirect=False, retries=False, **fields
        )

    def api(self, method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        """One request to the API, with a token."""
        return self.ask(method, f"/api/v1{path}", body=body, headers={"Authorization": f"Bearer {TOKEN}", **headers})


@contextmanager
def serving(config: Settings, database: Database, *, port: int = 0) -> Iterator[Web]:
    """Serve the application from a thread."""
    server = uvicorn.Server(serve.configuration(app.build(config, database)))
    listener = serve.listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started, "the web application to start")
        port = listener.getsockname()[1]
        with urllib3.PoolManager() as pool:
            yield Web(f"http://127.0.0.1:{port}", config, database, pool)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def made_settings(home: Path) -> Settings:
    config = settings.load({"MAILPIPE_HOME": str(home)})
    return replace(config, api_tokens=f"tests:{TOKEN}", unsubscribe_keys="k1:a-secret-of-some-thirty-two-chars")


@pytest.fixture
def web_settings(tmp_path: Path) -> Settings:
    return made_settings(tmp_path)


@pytest.fixture
def own_web(database: Database, web_settings: Settings) -> Iterator[Web]:
    """An application that nobody else has asked before, on a database that nobody else needs."""
    with serving(web_settings, database) as running:
        yield running


@pytest.fixture(scope="module")
def _web(server_url: URL, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with clone(server_url, template_database) as url:
        database = Database(url, pool_size=10, allow_unsafe_durability=True)
        with serving(made_settings(tmp_path_factory.mktemp("web")), database) as running:
            yield running
        database.close()


@pytest.fixture
def web(_web: Web) -> Web:
    """An application that the tests of one module share; at the start of each nobody has opted out and there are no messages."""
    with _web.database.connection() as connection:
        connection.execute("TRUNCATE mailpipe.opt_out, mailpipe.message, mailpipe.outbox, mailpipe.message_call")
    return _web
