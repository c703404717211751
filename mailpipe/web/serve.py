"""The process: a listening socket, uvicorn around the application, and an end on SIGTERM and SIGINT that loses no request."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from mailpipe.errors import SettingsError

GRACE = 10
"""Seconds that requests on their way may still take after the process was told to stop."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than load balancers keep theirs (60), so that they never use a closed one."""
MOST_REQUESTS = 500
"""Requests at once; the next one is answered with 503 rather than waiting without end for a connection to the database."""


def serve(app: Starlette, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address. For the main thread.

    Raises:
        SettingsError: the port cannot be used.
    """
    listener = listen(host, port)
    config = configuration(app)
    shown = f"[{host}]" if ":" in host else host
    server = _Server(config, lambda: ready(f"http://{shown}:{listener.getsockname()[1]}"))
    # uvicorn raises the signal that stopped it once more when it is done; a stop that was asked for is no failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError when the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(f"{host} port {port} cannot be used ({error.strerror}); choose others") from error
    # asyncio does it only for sockets that name their protocol. Without it the second packet of an answer waits 40 ms for the
    # client's acknowledgement of the first one.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def configuration(app: Starlette) -> uvicorn.Config:
    """How uvicorn is to serve it."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        # Ours names routes, uvicorn's would write tokens.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=MOST_REQUESTS,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
