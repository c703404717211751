"""Transport: the ASGI application, the faults that need the bare connection (silence, reset, truncation), and
the server.

What an operation means is decided elsewhere; here a request becomes a call, and an `Answer` becomes bytes, or
does not.
"""

import asyncio
import json
import os
import random
import re
import signal
import socket
import struct
import uuid
from pathlib import Path
from urllib.parse import parse_qs, unquote

import click
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mailpipe.simulator.account import Account, ConfigurationSets
from mailpipe.simulator.administration import Administration, Call, route
from mailpipe.simulator.control import Control, Traffic
from mailpipe.simulator.events import Events
from mailpipe.simulator.fates import Fates
from mailpipe.simulator.faults import Faults, Plan, Rule
from mailpipe.simulator.journal import ChangeLog, Journal
from mailpipe.simulator.options import Options
from mailpipe.simulator.sending import Sender, whole_call_error
from mailpipe.simulator.suppression import SuppressionList
from mailpipe.simulator.templates import Templates
from mailpipe.simulator.wire import Answer, ApiError, JsonObject, bad_request, error_answer, members

_EXTENSION = "mailpipe.connection"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# A server that drops idle connections after seconds would feed its client stale ones, a fault that nobody
# asked for.
_KEEP_ALIVE_S = 300
# Answers on their way when the process is told to stop may still leave, if they are quick.
_GRACE_S = 2

_attempts = re.compile(rb"(attempt|max)=(\d+)").findall
_refusals = {
    "throttle_call": "ACCOUNT_THROTTLED",
    "sending_paused": "ACCOUNT_SENDING_PAUSED",
    "account_suspended": "ACCOUNT_SUSPENDED",
}


class _GoneError(Exception):
    """The connection is closed or is to be left without an answer; there is nothing more to do for this
    request."""


class Simulator:
    """The ASGI application, with everything that it consists of."""

    def __init__(self, options: Options) -> None:
        self.faults = Faults(options.seed)
        if options.faults is not None:
            self.faults.add(_json_file(options.faults))
        self._changes = ChangeLog(options.state)
        self._account = Account(options)
        templates = Templates(self._changes.remember)
        sets = ConfigurationSets(options.strict_configuration_sets, self._changes.remember)
        suppression = SuppressionList(self._changes.remember)
        for change in self._changes.changes():
            keeper = (
                templates if "template" in change else sets if "configuration_set" in change else suppression
            )
            keeper.restore(change)
        self._changes.start()
        self._journal = Journal(options.journal, options.render)
        self._events = Events(options.events, options.region, options.delivery_ms)
        fates = Fates(options, suppression)
        self._sender = Sender(
            account=self._account,
            templates=templates,
            sets=sets,
            fates=fates,
            journal=self._journal,
            events=self._events,
            keep_messages=options.keep_messages,
        )
        self._administration = Administration(self._account, templates, sets, suppression)
        self._traffic = Traffic(options.latency_ms, options.jitter_ms)
        self._control = Control(self._account, self.faults, self._sender, self._traffic)
        self._chance = random.Random(options.seed)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Lets go of every request that is held in silence or by a pause."""
        self._stopped.set()
        self.faults.release()

    def close(self) -> None:
        """Writes what is still due and closes the files. No request may be under way."""
        self._events.close()
        self._journal.close()
        self._changes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        segments = [unquote(segment) for segment in scope["raw_path"].decode("ascii").split("/")[1:]]
        if segments[0] == "_control":
            await _send(send, self._control_answer(scope["method"], segments[1:], body))
            return
        self._traffic.requests += 1
        self._traffic.in_flight += 1
        self._traffic.max_in_flight = max(self._traffic.max_in_flight, self._traffic.in_flight)
        try:
            await self._serve(scope, segments, body, receive, send)
        except ApiError as error:
            await _send(send, error_answer(error))
        except _GoneError:
            pass
        finally:
            self._traffic.in_flight -= 1

    def _control_answer(self, method: str, segments: list[str], body: bytes) -> Answer:
        try:
            try:
                value = json.loads(body) if body else None
            except ValueError:
                raise bad_request("The body is not JSON.") from None
            return self._control.handle(method, segments, value)
        except ApiError as error:
            return error_answer(error)

    async def _serve(
        self, scope: Scope, segments: list[str], body: bytes, receive: Receive, send: Send
    ) -> None:
        """One API request, from the tripwire for retries to the last byte of its answer. Raises ApiError and
        _GoneError."""
        self._refuse_retry(scope)
        operation, name = route(scope["method"], segments)
        plan = self.faults.plan(operation)
        if plan.before is not None:
            await self._fail_before(plan.before, scope, receive)
        sends = operation in ("SendBulkEmail", "SendEmail")
        refused: ApiError | None = None
        try:
            answer = self._perform(operation, name, scope, members(body), plan)
        except ApiError as error:
            refused = error
            answer = error_answer(error)
        delay = plan.delay_s
        if sends and refused is None:
            delay += (self._traffic.latency_ms + self._chance.random() * self._traffic.jitter_ms) / 1000
        if delay:
            await asyncio.sleep(delay)
        if plan.answer is not None and refused is None:
            await self._fail_answer(plan.answer, answer, scope, receive, send)
        else:
            await _send(send, answer)

    def _refuse_retry(self, scope: Scope) -> None:
        """SES has no idempotency token, so a retry on the wire is a second mail: this client is configured
        wrongly."""
        for header, value in scope["headers"]:
            if header == b"amz-sdk-request" and any(int(number) > 1 for _, number in _attempts(value)):
                self._traffic.retries_refused += 1
                raise bad_request("The stand-in refuses clients that retry: set total_max_attempts to 1.")

    def _perform(self, operation: str, name: str, scope: Scope, request: JsonObject, plan: Plan) -> Answer:
        if operation == "SendBulkEmail":
            return self._sender.send_bulk_email(request, plan)
        if operation == "SendEmail":
            return self._sender.send_email(request, plan)
        query = parse_qs(scope["query_string"].decode("ascii"))
        call = Call(name, query, request)
        return Answer(200, json.dumps(self._administration.operations[operation](call)).encode())

    async def _fail_before(self, rule: Rule, scope: Scope, receive: Receive) -> None:
        """A fault that strikes before anything is accepted. Returns only when the request may go on."""
        match rule.kind:
            case "silence_before_accept":
                await self._stay_silent(scope, receive)
            case "reset_before_accept":
                await _reset(scope, receive)
            case "pause":
                await self._hold(scope, receive)
            case "http_status":
                raise _given_error(rule)
            case refusal:
                raise whole_call_error(_refusals[refusal])

    async def _fail_answer(
        self, rule: Rule, answer: Answer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A fault on the answer to a request whose messages are in the journal."""
        match rule.kind:
            case "silence_after_accept":
                await self._stay_silent(scope, receive)
            case "reset_after_accept":
                await _reset(scope, receive)
            case "close_after_accept":
                await _close(scope, receive)
            case "truncated_200":
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                _transport(scope).write(head % len(answer.body) + answer.body[: len(answer.body) // 2])
                await _close(scope, receive)
            case "empty_200":
                await _send(send, Answer(200, b""))
            case "html_200":
                await _send(send, Answer(200, b"<html><body>It works!</body></html>", "", b"text/html"))
            case "drip":
                await _drip(send, answer, float(rule.get("ms", 50)) / 1000, int(rule.get("bytes", 1)))
            case "pause":
                await self._hold(scope, receive)
                await _send(send, answer)
            case "http_status":
                raise _given_error(rule)

    async def _stay_silent(self, scope: Scope, receive: Receive) -> None:
        """Says nothing until the client gives up or the process stops."""
        await _disconnected_or(receive, self._stopped)
        await _reset(scope, receive)

    async def _hold(self, scope: Scope, receive: Receive) -> None:
        """Waits until the fault rules are cleared. A client that is gone by then is forgotten."""
        gone = await _disconnected_or(receive, self.faults.cleared)
        if gone or self._stopped.is_set():
            await _reset(scope, receive)


def _json_file(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise bad_request(f"{path} is not JSON.") from None


def _given_error(rule: Rule) -> ApiError:
    status = int(rule.given["status"])
    return ApiError(rule.get("type", ""), rule.get("message", "An injected fault."), status)


async def _body(receive: Receive) -> bytes | None:
    """The whole request body, or None if the client left before its end."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message["body"])
        if not message["more_body"]:
            return b"".join(chunks)


async def _send(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": _headers(answer)})
    await send({"type": "http.response.body", "body": answer.body})


async def _drip(send: Send, answer: Answer, pause_s: float, size: int) -> None:
    """Sends the body in pieces of `size` bytes, `pause_s` apart: every single read is in time, the whole is
    late."""
    await send({"type": "http.response.start", "status": answer.status, "headers": _headers(answer)})
    for start in range(0, len(answer.body), size):
        await asyncio.sleep(pause_s)
        await send(
            {"type": "http.response.body", "body": answer.body[start : start + size], "more_body": True}
        )
    await send({"type": "http.response.body", "body": b""})


def _headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-amzn-requestid", str(uuid.uuid4()).encode()),
    ]
    if answer.error_type:
        headers.append((b"x-amzn-errortype", answer.error_type.encode()))
    return headers


async def _disconnected_or(receive: Receive, event: asyncio.Event) -> bool:
    """Waits for the client to leave or for the event; whether the client left."""
    leaving = asyncio.ensure_future(receive())
    happening = asyncio.ensure_future(event.wait())
    done, pending = await asyncio.wait([leaving, happening], return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return leaving in done


def _transport(scope: Scope) -> asyncio.Transport:
    transport: asyncio.Transport = scope["extensions"][_EXTENSION]["transport"]
    return transport


async def _reset(scope: Scope, receive: Receive) -> None:
    """Ends the connection with RST: what was not read yet is lost, and the client sees a reset."""
    transport = _transport(scope)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    await receive()
    raise _GoneError


async def _close(scope: Scope, receive: Receive) -> None:
    """Ends the connection with FIN, after whatever was written."""
    _transport(scope).close()
    await receive()
    raise _GoneError


class _Protocol(HttpToolsProtocol):
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


class _Server(uvicorn.Server):
    """uvicorn's server, which says where it listens once it does, and lets go of held requests when it
    stops."""

    def __init__(
        self, config: uvicorn.Config, simulator: Simulator, url: str, ready_file: Path | None
    ) -> None:
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


def serve(options: Options) -> None:
    """Runs the stand-in in this process until SIGTERM or SIGINT. Must be called in the main thread.

    Raises OSError if the port is taken or a file cannot be opened, ApiError if the faults file is not a list
    of rules.
    """
    simulator = Simulator(options)
    listener = socket.create_server((options.host, options.port), backlog=2048)
    host = f"[{options.host}]" if ":" in options.host else options.host
    config = uvicorn.Config(
        simulator,
        http=_Protocol,
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
    # uvicorn raises the signal that stopped it once more when it is done; a stop that was asked for is no
    # failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        simulator.close()
