"""The ASGI application: from a request to an operation, and from what it returns to an answer or a fault.

What an operation means is decided elsewhere. Everything the stand-in consists of is put together here.
"""

import asyncio
import json
import random
import re
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote

from starlette.types import Receive, Scope, Send

from mailpipe.simulator.account import Account, ConfigurationSets
from mailpipe.simulator.administration import Administration, Call, route
from mailpipe.simulator.connection import Exchange, GoneError
from mailpipe.simulator.control import Control, Traffic
from mailpipe.simulator.events import Events
from mailpipe.simulator.fates import Fates
from mailpipe.simulator.faults import Faults, Plan, Rule
from mailpipe.simulator.habits import Habits
from mailpipe.simulator.journal import ChangeLog, Journal
from mailpipe.simulator.options import Options
from mailpipe.simulator.outlets import Outlets
from mailpipe.simulator.sending import Sender, whole_call_error
from mailpipe.simulator.suppression import SuppressionList
from mailpipe.simulator.templates import Templates
from mailpipe.simulator.wire import Answer, ApiError, JsonObject, bad_request, error_answer, members

_attempts = re.compile(rb"(attempt|max)=(\d+)").findall
_refusals = {
    "throttle_call": "ACCOUNT_THROTTLED",
    "sending_paused": "ACCOUNT_SENDING_PAUSED",
    "account_suspended": "ACCOUNT_SUSPENDED",
}


class Simulator:
    """The application. One per process, since its events need a running loop."""

    def __init__(self, options: Options) -> None:
        self._faults = Faults(options.seed)
        if options.faults is not None:
            self._faults.add(_json_file(options.faults))
        self._changes = ChangeLog(options.state)
        self._account = Account(options)
        templates = Templates(self._changes.remember)
        sets = ConfigurationSets(options.strict_configuration_sets, self._changes.remember)
        suppression = SuppressionList(self._changes.remember)
        for change in self._changes.changes():
            if "template" in change:
                templates.restore(change)
            elif "configuration_set" in change:
                sets.restore(change)
            else:
                suppression.restore(change)
        self._changes.start()
        self._journal = Journal(options.journal, options.render)
        self._outlets = Outlets(options)
        self._events = Events(options.events, options.region, options.delivery_ms, Habits(options), self._outlets.all)
        self._sender = Sender(
            account=self._account,
            templates=templates,
            sets=sets,
            fates=Fates(options, suppression),
            journal=self._journal,
            events=self._events,
            keep_messages=options.keep_messages,
        )
        self._administration = Administration(self._account, templates, sets, suppression)
        self._traffic = Traffic(options.latency_ms, options.jitter_ms)
        self._control = Control(self._account, self._faults, self._sender, self._traffic, self._outlets)
        self._chance = random.Random(options.seed)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Lets go of every request that is held in silence or by a pause."""
        self._stopped.set()
        self._faults.release()

    def close(self) -> None:
        """Writes what is still due and closes the files. No request may be under way."""
        self._events.close()
        self._outlets.close()
        self._journal.close()
        self._changes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            body = await exchange.body()
            segments = [unquote(segment) for segment in scope["raw_path"].decode("ascii").split("/")[1:]]
            if segments[0] == "_control":
                await exchange.answer(self._control_answer(scope["method"], segments[1:], body))
            elif scope["method"] == "POST" and segments == [""]:
                await exchange.answer(self._outlets.answer(scope["headers"], body))
            else:
                await self._serve(scope, segments, body, exchange)
        except GoneError:
            pass

    def _control_answer(self, method: str, segments: list[str], body: bytes) -> Answer:
        try:
            return self._control.handle(method, segments, _json(body, "The body"))
        except ApiError as error:
            return error_answer(error)

    async def _serve(self, scope: Scope, segments: list[str], body: bytes, exchange: Exchange) -> None:
        """One API request, counted. Raises GoneError."""
        self._traffic.requests += 1
        self._traffic.in_flight += 1
        self._traffic.max_in_flight = max(self._traffic.max_in_flight, self._traffic.in_flight)
        try:
            await self._process(scope, segments, body, exchange)
        except ApiError as error:
            await exchange.answer(error_answer(error))
        finally:
            self._traffic.in_flight -= 1

    async def _process(self, scope: Scope, segments: list[str], body: bytes, exchange: Exchange) -> None:
        """One API request, from the tripwire for retries to the last byte of its answer.

        Raises ApiError for a refusal and GoneError.
        """
        self._refuse_retry(scope)
        operation, name = route(scope["method"], segments)
        plan = self._faults.plan(operation)
        arrived_at = exchange.arrived_at
        if plan.before is not None:
            await self._fail_before(plan.before, exchange)
            arrived_at = time.monotonic()
        refused = False
        try:
            answer = self._perform(operation, name, scope, members(body), plan, arrived_at)
        except ApiError as error:
            refused = True
            answer = error_answer(error)
        delay = plan.delay_s
        if operation in ("SendBulkEmail", "SendEmail") and not refused:
            delay += (self._traffic.latency_ms + self._chance.random() * self._traffic.jitter_ms) / 1000
        if delay:
            await asyncio.sleep(delay)
        if plan.answer is None or refused:
            await exchange.answer(answer)
        else:
            await self._fail_answer(plan.answer, answer, exchange)

    def _refuse_retry(self, scope: Scope) -> None:
        """SES has no idempotency token: a retry on the wire is a second mail, so such a client is refused."""
        for header, value in scope["headers"]:
            if header == b"amz-sdk-request" and any(int(number) > 1 for _, number in _attempts(value)):
                self._traffic.retries_refused += 1
                raise bad_request("The stand-in refuses clients that retry: set total_max_attempts to 1.")

    def _perform(
        self, operation: str, name: str, scope: Scope, request: JsonObject, plan: Plan, arrived_at: float
    ) -> Answer:
        if operation == "SendBulkEmail":
            return self._sender.send_bulk_email(request, plan, arrived_at)
        if operation == "SendEmail":
            return self._sender.send_email(request, plan, arrived_at)
        call = Call(name, parse_qs(scope["query_string"].decode("ascii")), request)
        return Answer(200, json.dumps(self._administration.operations[operation](call)).encode())

    async def _fail_before(self, rule: Rule, exchange: Exchange) -> None:
        """A fault that strikes before anything is accepted. Returns only when the request may go on."""
        match rule.kind:
            case "silence_before_accept":
                await self._stay_silent(exchange)
            case "reset_before_accept":
                await exchange.reset()
            case "pause":
                await self._hold(exchange)
            case "http_status":
                raise _given_error(rule)
            case refusal:
                raise whole_call_error(_refusals[refusal])

    async def _fail_answer(self, rule: Rule, answer: Answer, exchange: Exchange) -> None:
        """A fault on the answer to a request whose messages are in the journal."""
        match rule.kind:
            case "silence_after_accept":
                await self._stay_silent(exchange)
            case "reset_after_accept":
                await exchange.reset()
            case "close_after_accept":
                await exchange.close()
            case "truncated_200":
                await exchange.truncate(answer)
            case "empty_200":
                await exchange.answer(Answer(200, b""))
            case "html_200":
                await exchange.answer(Answer(200, b"<html><body>It works!</body></html>", "", b"text/html"))
            case "drip":
                await exchange.drip(answer, float(rule.get("ms", 50)) / 1000, int(rule.get("bytes", 1)))
            case "pause":
                await self._hold(exchange)
                await exchange.answer(answer)
            case "http_status":
                raise _given_error(rule)

    async def _stay_silent(self, exchange: Exchange) -> None:
        """Says nothing until the client gives up or the process stops."""
        await exchange.wait(self._stopped)
        await exchange.reset()

    async def _hold(self, exchange: Exchange) -> None:
        """Waits until the fault rules are cleared. A client that is gone by then is forgotten."""
        await exchange.wait(self._faults.cleared)
        if self._stopped.is_set():
            await exchange.reset()


def _given_error(rule: Rule) -> ApiError:
    return ApiError(rule.get("type", ""), rule.get("message", "An injected fault."), int(rule.given["status"]))


def _json(text: bytes, what: str) -> object:
    try:
        return json.loads(text) if text else None
    except ValueError:
        raise bad_request(f"{what} is not JSON.") from None


def _json_file(path: Path) -> object:
    return _json(path.read_bytes(), str(path))
