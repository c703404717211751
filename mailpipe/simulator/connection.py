"""One request's connection: reading the body, writing an answer, and the ways to withhold or spoil one.

What an answer says, and whether it is withheld, is decided in `http`.
"""

import asyncio
import socket
import struct
import time
import uuid

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mailpipe.simulator.wire import Answer

_EXTENSION = "mailpipe.connection"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# Where Linux's `struct tcp_info` has tcpi_last_data_recv, milliseconds since data came last.
_LAST_DATA_RECEIVED = 52


class GoneError(Exception):
    """The client left, or the connection was ended without an answer: the request is over."""


class Exchange:
    """One request and its answer on the wire. The methods that end the connection raise GoneError."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._transport: asyncio.Transport = scope["extensions"][_EXTENSION]["transport"]
        self.arrived_at = 0.0

    async def body(self) -> bytes:
        """The whole request body; notes in `arrived_at` when it came (monotonic seconds). Raises GoneError if the client leaves
        before its end.
        """
        chunks = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            chunks.append(message["body"])
            if not message["more_body"]:
                self.arrived_at = time.monotonic() - self._waited_s()
                return b"".join(chunks)

    def _waited_s(self) -> float:
        """How long the last bytes have been in the kernel: on a busy machine this process reads them tens of milliseconds later,
        and several requests at once. Where the kernel does not tell, nothing.
        """
        connection = self._transport.get_extra_info("socket")
        if not hasattr(socket, "TCP_INFO") or self._transport.is_closing():
            return 0.0
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + 4)
        if len(told) < _LAST_DATA_RECEIVED + 4:
            return 0.0
        milliseconds: int = struct.unpack_from("I", told, _LAST_DATA_RECEIVED)[0]
        return milliseconds / 1000

    async def answer(self, answer: Answer) -> None:
        await self._start(answer)
        await self._send({"type": "http.response.body", "body": answer.body})

    async def drip(self, answer: Answer, pause_s: float, size: int) -> None:
        """Sends the body in pieces of `size` bytes, `pause_s` apart: each read is in time, the whole late."""
        await self._start(answer)
        for start in range(0, len(answer.body), size):
            await asyncio.sleep(pause_s)
            piece = answer.body[start : start + size]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, answer: Answer) -> None:
        headers = [
            (b"content-type", answer.content_type),
            (b"content-length", str(len(answer.body)).encode()),
            (b"x-amzn-requestid", str(uuid.uuid4()).encode()),
        ]
        if answer.error_type:
            headers.append((b"x-amzn-errortype", answer.error_type.encode()))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def truncate(self, answer: Answer) -> None:
        """Promises the whole body, sends half of it, and closes."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(answer.body) + answer.body[: len(answer.body) // 2])
        await self.close()

    async def close(self) -> None:
        """Ends the connection with FIN, after whatever was written."""
        self._transport.close()
        await self._receive()
        raise GoneError

    async def reset(self) -> None:
        """Ends the connection with RST: the client sees a reset."""
        if not self._transport.is_closing():
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        await self._receive()
        raise GoneError

    async def wait(self, event: asyncio.Event) -> None:
        """Waits for the event. Raises GoneError if the client leaves first."""
        leaving = asyncio.ensure_future(self._receive())
        happening = asyncio.ensure_future(event.wait())
        done, pending = await asyncio.wait([leaving, happening], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if leaving in done:
            raise GoneError


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also hands the connection itself to the application."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio does this only for sockets made with an explicit protocol number, which a listener handed to
        # uvicorn is not; without it, head and body in two writes meet the client's delayed ACK: 44 ms a call
        # instead of 3.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"transport": self.transport}}
