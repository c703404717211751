"""Everything on one machine for one person: the Dagster UI, the web application and the lanes over the embedded database, with
a stand-in to send to.

Holds the processes and ends them together. Production runs the same programs under its own supervisor.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from mailpipe import children, db, embedded_postgres, stand_in
from mailpipe.demo import audience
from mailpipe.errors import ServiceError, SettingsError
from mailpipe.settings import Settings

PEOPLE = 2_000
"""Size of the audience that is made when there is none."""
_START_SECONDS = 120.0
_POLL = 0.2


@dataclass(frozen=True)
class Addresses:
    """Where things answer. `stand_in` is None when mail goes elsewhere."""

    ui: str
    web: str
    stand_in: str | None


def require(settings: Settings, *ports: int) -> None:
    """Raises SettingsError where Dagster cannot be started: not installed, no checkout around, or one of the ports is taken."""
    if find_spec("dagster") is None or find_spec("dagster_webserver") is None:
        raise SettingsError("Dagster is not installed here; install mailpipe with its extra: mailpipe[dagster]")
    if not (settings.home / "workspace.yaml").is_file():
        raise SettingsError(
            f"{settings.home}: no workspace.yaml. Run this inside a checkout of mailpipe, or set MAILPIPE_HOME to one"
        )
    for port in ports:
        _require_free(port)


def run(
    settings: Settings,
    *,
    port: int,
    web_port: int,
    stop: threading.Event,
    say: Callable[[str], None],
    ready: Callable[[Addresses], None],
) -> None:
    """Start everything, tell that it is `ready`, and end everything once `stop` is set. The database has its schema already.

    Raises:
        SettingsError: a port is taken, or Dagster is not there.
        ServiceError: a program does not start, or ends by itself; the text ends with its last lines.
    """
    require(settings, port, web_port)
    logs = settings.var / "dagster" / "logs"
    try:
        _people(settings)
        local = settings.ses_endpoint
        if stand_in.is_wanted(settings):
            # With a queue, so that what becomes of mails is known here too.
            local = stand_in.ensure_running(settings, sqs=True).url
        web = f"http://127.0.0.1:{web_port}"
        env = children.dagster_environment(settings)
        if settings.public_url == Settings.public_url:
            # Links in mails of this machine lead to its own web application, wherever it listens.
            env["MAILPIPE_PUBLIC_URL"] = web
        with children.Group() as group, children.Group() as lanes:

            def start(name: str, *command: str, among: children.Group = group) -> None:
                among.start(
                    name, [sys.executable, "-m", *command], log=logs / f"{name}.log", cwd=settings.home, env=env
                )

            say(f"starting Dagster, the web application and the lanes; their output goes to {logs}")
            start("web", "mailpipe", "web", "--port", str(web_port))
            start("lanes", "mailpipe", "lanes", among=lanes)
            if stand_in.is_wanted(settings):
                queue = f"{local}/111122223333/ses-events"
                start("events", "mailpipe", "events", "poll", "--queue-url", queue, among=lanes)
            workspace, code_server = _one_code_server(settings)
            start("code-server", *code_server)
            if _wait(group, stop, lambda: _listens(int(code_server[-1]))):
                start("daemon", "dagster._daemon", "run", "-w", str(workspace))
                start("webserver", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(workspace))
            url = f"http://127.0.0.1:{port}"
            if _wait(group, stop, lambda: _answers(f"{url}/server_info") and _answers(f"{web}/readyz")):
                ready(Addresses(url, web, local))
            while not stop.wait(_POLL):
                _check(group)
                _tell(lanes, say)
            say("stopping")
    finally:
        _end(settings, say)


def _people(settings: Settings) -> None:
    """Make an audience where there are no people at all; a database of one's own is left alone."""
    if settings.database_url is not None:
        return
    database = db.connect(settings, pool_size=1)
    try:
        with database.connection() as connection:
            row = connection.execute("SELECT to_regclass('public.users') IS NULL").fetchone()
            if row is not None and row[0]:
                audience.build(connection, PEOPLE)
    finally:
        database.close()


def _one_code_server(settings: Settings) -> tuple[Path, tuple[str, ...]]:
    """A workspace for the webserver and the daemon, and the command of the code server that it names.

    Without it each of them imports the definitions in a process of its own, and the daemon again every minute.
    """
    given = yaml.safe_load((settings.home / "workspace.yaml").read_text())
    source: dict[str, Any] = given["load_from"][0]["python_file"]
    file = (settings.home / source["relative_path"]).resolve()
    # The same name as without this server: Dagster keeps the state of sensors and schedules by it.
    name = source.get("location_name") or file.name
    port = _any_port()
    workspace = settings.var / "dagster" / "workspace.yaml"
    workspace.parent.mkdir(parents=True, exist_ok=True)
    server = {"host": "localhost", "port": port, "location_name": name}
    workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
    command = ("dagster", "code-server", "start", "--python-file", str(file), "--working-directory", str(settings.home))
    options = ("--location-name", name, "--use-python-environment-entry-point", "--inject-env-vars-from-instance")
    return workspace, (*command, *options, "--host", "localhost", "--port", str(port))


def _wait(group: children.Group, stop: threading.Event, ready: Callable[[], bool]) -> bool:
    """Wait until something is there; False when told to stop first. Raises ServiceError when a child has ended."""
    deadline = time.monotonic() + _START_SECONDS
    while not stop.is_set():
        _check(group)
        if ready():
            return True
        if time.monotonic() > deadline:
            raise ServiceError(f"not everything has started within {_START_SECONDS:g} s; see its output")
        stop.wait(_POLL)
    return False


def _check(group: children.Group) -> None:
    if child := group.ended():
        raise ServiceError(_last_words(child))


def _tell(lanes: children.Group, say: Callable[[str], None]) -> None:
    """The lanes and the reader of events. Lanes may refuse to send while there is still something to look at, for example in a
    restored database."""
    if child := lanes.ended():
        say(_last_words(child))
        lanes.children.remove(child)


def _last_words(child: children.Child) -> str:
    lines = "\n".join(children.last_lines(child.log))
    return f"the {child.name} has ended (exit code {child.process.returncode}); the end of {child.log}:\n{lines}"


def _end(settings: Settings, say: Callable[[str], None]) -> None:
    stand_in.stop(settings)
    if settings.database_url is not None:
        return
    if _others(settings):
        say("the database stays, other programs are using it; `mailpipe db stop` ends it")
    else:
        embedded_postgres.stop(settings.var)


def _others(settings: Settings, seconds: float = 3.0) -> bool:
    """Whether somebody else still works with the embedded database; who is just leaving is waited for."""
    if embedded_postgres.status(settings.var) is None:
        return False
    deadline = time.monotonic() + seconds
    database = db.connect(settings, pool_size=1)
    try:
        while True:
            with database.connection() as connection:
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                ).fetchone()
            if row is not None and row[0] == 0:
                return False
            if time.monotonic() > deadline:
                return True
            time.sleep(_POLL)
    finally:
        database.close()


def _require_free(port: int) -> None:
    try:
        with socket.create_server(("127.0.0.1", port)):
            pass
    except OSError as error:
        raise SettingsError(
            f"port {port} cannot be used ({error.strerror}); choose another one with --port or --web-port"
        ) from error


def _any_port() -> int:
    with socket.create_server(("localhost", 0)) as listener:
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), timeout=1):
            return True
    except OSError:
        return False


def _answers(url: str) -> bool:
    try:
        # Never through a proxy of the environment: this is our own machine.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError:
        return False
