"""The process: a listening socket, uvicorn around the application, and a clean end on SIGTERM and SIGINT."""

import gc
import os
import signal
import socket
from pathlib import Path

import click
import uvicorn

from mailpipe.simulator.connection import Protocol
from mailpipe.simulator.http import Simulator
from mailpipe.simulator.options import Options

# A server that drops idle connections after seconds would feed its client stale ones, a fault that nobody
# asked for.
_KEEP_ALIVE_S = 300
# Answers on their way when the process is told to stop may still leave, if they are quick.
_GRACE_S = 2


def serve(options: Options) -> None:
    """Runs the stand-in in this process until SIGTERM or SIGINT. Must be called in the main thread.

    Raises OSError if the port is taken or a file cannot be opened, ApiError if the faults file is not a list
    of rules.
    """
    version_6 = ":" in options.host
    family = socket.AF_INET6 if version_6 else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
    simulator = Simulator(options)
    host = f"[{options.host}]" if version_6 else options.host
    config = uvicorn.Config(
        simulator,
        http=Protocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config, simulator, f"http://{host}:{listener.getsockname()[1]}", options.ready_file)
    _rest_the_collector()
    # uvicorn raises the signal that stopped it once more when it is done; a stop that was asked for is no
    # failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        simulator.close()


def _rest_the_collector() -> None:
    """A full collection walks through the messages that are kept to be read back: it held every request up for 100 to 170 ms, and
    what arrived meanwhile was counted as if it had come at once. The young generations are enough for what a request leaves behind.
    """
    gc.freeze()
    gc.set_threshold(700, 10, 1_000_000)


class _Server(uvicorn.Server):
    """uvicorn's server, which says where it listens, and lets go of held requests when it stops."""

    def __init__(self, config: uvicorn.Config, simulator: Simulator, url: str, ready_file: Path | None) -> None:
        super().__init__(config)
        self._simulator = simulator
        self._url = url
        self._ready_file = ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready_file is not None:
            temporary = self._ready_file.with_name(f"{self._ready_file.name}.{os.getpid()}")
            temporary.write_text(self._url + "\n")
            temporary.replace(self._ready_file)
        click.echo(f"listening on {self._url}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._simulator.stop()
        await super().shutdown(sockets)
