"""The door for tests, benchmarks and the demo: `/_control/...`. Nothing here exists in SES.

GET    /_control/state           counters (see `Control.state`)
GET    /_control/faults          the fault rules in force, what each has seen and how often it fired
POST   /_control/faults          adds a JSON list of rules
DELETE /_control/faults          clears them and lets paused requests go on
GET    /_control/settings        what PATCH can change
PATCH  /_control/settings        any of rate, rate_tolerance, throttle_style, daily_quota, sending_enabled,
                                 suspended, latency_ms, jitter_ms
GET    /_control/messages/{id}   one of the newest accepted messages, rendered
POST   /_control/queue           puts a JSON list of events into the SQS queue
"""

import time
from dataclasses import asdict

from mailpipe.simulator.account import Account
from mailpipe.simulator.faults import Faults
from mailpipe.simulator.message import Message
from mailpipe.simulator.outlets import Outlets
from mailpipe.simulator.sending import Sender
from mailpipe.simulator.wire import Answer, JsonObject, bad_request, json_answer, not_found


class Traffic:
    """What passes through the transport, and how slowly it answers."""

    def __init__(self, latency_ms: float, jitter_ms: float) -> None:
        self.latency_ms = latency_ms
        self.jitter_ms = jitter_ms
        self.requests = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.retries_refused = 0


class Control:
    """Reads and changes the stand-in while it runs."""

    def __init__(self, account: Account, faults: Faults, sender: Sender, traffic: Traffic, outlets: Outlets) -> None:
        self._account = account
        self._faults = faults
        self._sender = sender
        self._traffic = traffic
        self._outlets = outlets

    def handle(self, method: str, segments: list[str], body: object) -> Answer:
        """Answers a request whose path is `/_control/` and then `segments`. Raises ApiError."""
        match method, segments:
            case "GET", ["state"]:
                return json_answer(self.state())
            case "GET", ["faults"]:
                return json_answer(self._faults.describe())
            case "POST", ["faults"]:
                self._faults.add(body)
                return json_answer(self._faults.describe())
            case "DELETE", ["faults"]:
                self._faults.clear()
                return json_answer([])
            case "GET", ["settings"]:
                return json_answer(self.settings())
            case "PATCH", ["settings"]:
                self.change(body)
                return json_answer(self.settings())
            case "GET", ["messages", message_id]:
                message = self._sender.message(message_id)
                if message is None:
                    raise not_found("No such message among the newest ones.")
                return json_answer(_described(message))
            case "POST", ["queue"] if self._outlets.queue is not None and isinstance(body, list):
                self._outlets.enqueue(map(str, body))
                return json_answer({"queued": len(self._outlets.queue)})
        raise not_found("The stand-in has no such control.")

    def state(self) -> JsonObject:
        """Counters since the start: requests (API only), accepted (recipients), accepted_messages, throttled
        (recipients refused by a quota), max_in_any_second (recipients accepted within any sliding second),
        max_calls_in_any_second, sent_last_24_hours, retries_refused, in_flight, max_in_flight, faults (fired,
        by kind), queued (events that nobody has deleted from the queue), unposted (not delivered by SNS)."""
        account, traffic = self._account, self._traffic
        return {
            "requests": traffic.requests,
            "accepted": account.accepted_recipients,
            "accepted_messages": account.accepted_messages,
            "throttled": account.throttled_recipients,
            "max_in_any_second": account.second.peak,
            "max_calls_in_any_second": account.calls.peak,
            "sent_last_24_hours": account.day.count(time.monotonic()),
            "retries_refused": traffic.retries_refused,
            "in_flight": traffic.in_flight,
            "max_in_flight": traffic.max_in_flight,
            "faults": dict(self._faults.fired),
            "queued": 0 if self._outlets.queue is None else len(self._outlets.queue),
            "unposted": 0 if self._outlets.topic is None else len(self._outlets.topic),
        }

    def settings(self) -> JsonObject:
        account, traffic = self._account, self._traffic
        return {
            "rate": account.rate,
            "rate_tolerance": account.rate_tolerance,
            "throttle_style": account.throttle_style,
            "call_rate": account.call_rate,
            "daily_quota": account.daily_quota,
            "sending_enabled": account.sending_enabled,
            "suspended": account.suspended,
            "latency_ms": traffic.latency_ms,
            "jitter_ms": traffic.jitter_ms,
        }

    def change(self, body: object) -> None:
        """Changes settings. Raises ApiError, and changes none, if one of them is unknown or impossible."""
        if not isinstance(body, dict):
            raise bad_request("Settings are a JSON object.")
        known = self.settings()
        for name, value in body.items():
            if name not in known:
                raise bad_request(f"There is no setting {name}; there are {', '.join(known)}.")
            if _kind(value) != _kind(known[name]):
                raise bad_request(f"Setting {name} must be a {_kind(known[name])}.")
        if body.get("rate", 1) < 1:
            raise bad_request("Setting rate must be at least 1 recipient per second.")
        if body.get("call_rate", 1) < 1:
            raise bad_request("Setting call_rate must be at least 1 call per second.")
        if body.get("throttle_style", "call") not in ("call", "entries"):
            raise bad_request("Setting throttle_style must be call or entries.")
        if any(body.get(name, 0) < 0 for name in ("rate_tolerance", "latency_ms", "jitter_ms")):
            raise bad_request("Settings rate_tolerance, latency_ms and jitter_ms must not be negative.")
        for name, value in body.items():
            setattr(self._traffic if name in ("latency_ms", "jitter_ms") else self._account, name, value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "nothing known"


def _described(message: Message) -> JsonObject:
    rendered = message.rendered()
    envelope = message.envelope
    return {
        "message_id": message.message_id,
        "operation": envelope.operation,
        "from": envelope.sender,
        "to": message.recipients,
        "template": envelope.template.name if envelope.template else "",
        "configuration_set": envelope.configuration_set,
        "tags": message.tags,
        "headers": [{"name": name, "value": value} for name, value in message.headers],
        "fates": message.fates,
        "missing_variable": message.missing or None,
        "rendered": asdict(rendered) if rendered else None,
    }
