"""Faults on request: rules that say which requests go wrong, and how.

A rule is a JSON object. `kind` is required; `operation` (default SendBulkEmail, "*" for all) says which
requests it looks at; these members say which of them it strikes, all that are given must agree:

    after N         not the first N
    every K         each K-th of the rest
    probability P   with this chance (from the seed)
    count C         at most C times

Kinds that act before anything is accepted:

    throttle_call, sending_paused, account_suspended    SES's typed refusals
    http_status {status, type, message}                 any other answer
    silence_before_accept, reset_before_accept
    pause                                               waits until the rules are cleared

Kinds that act on entries (`positions` is a list, absent means all):

    throttle_entries, transient_entries {positions}
    entry_status {status, positions}
    daily_quota_at {n}                                  the rolling day is full at n recipients
    short_results {drop}, shuffled_results              all are accepted, the answer's list is wrong

Kinds that act on the answer, when the journal holds the messages already:

    http_status {status, type, message, accept: true}, pause {accept: true}
    silence_after_accept, reset_after_accept, close_after_accept
    truncated_200, empty_200, html_200
    latency {ms}, drip {ms, bytes}

One request meets at most one rule before acceptance and one on its answer, the first that strikes; latencies
add up.
"""

import asyncio
import random
from collections import Counter
from http import HTTPStatus
from typing import Any, NamedTuple

from mailpipe.simulator.wire import JsonObject, bad_request

BEFORE = {
    "throttle_call",
    "sending_paused",
    "account_suspended",
    "silence_before_accept",
    "reset_before_accept",
}
ENTRIES = {
    "throttle_entries",
    "transient_entries",
    "entry_status",
    "short_results",
    "shuffled_results",
    "daily_quota_at",
}
ANSWER = {
    "silence_after_accept",
    "reset_after_accept",
    "close_after_accept",
    "truncated_200",
    "empty_200",
    "html_200",
    "drip",
}
EITHER_SIDE = {"http_status", "pause"}
KINDS = BEFORE | ENTRIES | ANSWER | EITHER_SIDE | {"latency"}

_MEMBERS: dict[str, type | tuple[type, ...]] = {
    "kind": str,
    "operation": str,
    "probability": (int, float),
    "every": int,
    "after": int,
    "count": int,
    "accept": bool,
    "status": (int, str),
    "type": str,
    "message": str,
    "positions": list,
    "ms": (int, float),
    "bytes": int,
    "n": int,
    "drop": int,
}
_NEEDED = {"entry_status": "status", "latency": "ms", "daily_quota_at": "n"}


class Rule:
    """One fault rule and what it has seen so far. Raises ApiError if the object is not a rule."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, dict) or given.get("kind") not in KINDS:
            raise bad_request(f"A fault rule is an object whose kind is one of {', '.join(sorted(KINDS))}.")
        for name, value in given.items():
            expected = _MEMBERS.get(name)
            if expected is None or not isinstance(value, expected):
                raise bad_request(f"Fault rule {given['kind']}: {name} is unknown or has the wrong type.")
        if given["kind"] == "http_status" and given.get("status") not in list(HTTPStatus):
            raise bad_request("Fault rule http_status needs status, an HTTP status code.")
        needed = _NEEDED.get(given["kind"])
        if needed and needed not in given:
            raise bad_request(f"Fault rule {given['kind']} needs {needed}.")
        if given.get("every", 1) < 1:
            raise bad_request("Fault rule: every must be at least 1.")
        self.given: JsonObject = given
        self.kind: str = given["kind"]
        self.operation: str = given.get("operation", "SendBulkEmail")
        self.seen = 0
        self.fired = 0

    @property
    def before_accept(self) -> bool:
        return self.kind in BEFORE or (self.kind in EITHER_SIDE and not self.given.get("accept", False))

    def get(self, name: str, default: Any) -> Any:
        return self.given.get(name, default)

    def strikes(self, operation: str, chance: random.Random) -> bool:
        """Whether this request is struck. Counts it either way."""
        if self.operation not in ("*", operation):
            return False
        self.seen += 1
        rest = self.seen - int(self.get("after", 0))
        if rest <= 0 or rest % int(self.get("every", 1)) or self.fired >= self.get("count", float("inf")):
            return False
        probability = self.get("probability", None)
        return probability is None or chance.random() < probability


class Plan(NamedTuple):
    """What goes wrong with one request."""

    before: Rule | None = None
    entries: tuple[Rule, ...] = ()
    answer: Rule | None = None
    delay_s: float = 0.0

    @property
    def daily_quota_at(self) -> int | None:
        """The daily quota that this request meets instead of the account's."""
        limits = [int(rule.given["n"]) for rule in self.entries if rule.kind == "daily_quota_at"]
        return min(limits) if limits else None

    def entry_statuses(self, entries: int) -> dict[int, str]:
        """Positions that are not accepted, and the status that they answer with. A rule without positions
        means all."""
        statuses: dict[int, str] = {}
        for rule in self.entries:
            status = {"throttle_entries": "ACCOUNT_THROTTLED", "transient_entries": "TRANSIENT_FAILURE"}.get(rule.kind)
            if rule.kind == "entry_status":
                status = str(rule.given["status"])
            if status:
                for position in rule.get("positions", range(entries)):
                    statuses.setdefault(position, status)
        return statuses

    def arrange(self, results: list[str]) -> list[str]:
        """The results as they are answered: all and in order unless a rule says otherwise."""
        for rule in self.entries:
            if rule.kind == "short_results":
                results = results[: max(0, len(results) - int(rule.get("drop", 1)))]
            elif rule.kind == "shuffled_results":
                results = results[1:] + results[:1]
        return results


NO_FAULTS = Plan()


class Faults:
    """The rules in force."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._rules: list[Rule] = []
        self.fired: Counter[str] = Counter()
        self.cleared = asyncio.Event()

    def add(self, rules: object) -> None:
        """Puts a list of rules in force, after those that are. Raises ApiError and adds none if one of them
        is wrong."""
        if not isinstance(rules, list):
            raise bad_request("Fault rules are a JSON list.")
        self._rules += [Rule(rule) for rule in rules]

    def clear(self) -> None:
        """Takes all rules back and lets paused requests go on."""
        self._rules.clear()
        self.release()

    def release(self) -> None:
        """Lets every request go on that a `pause` rule holds now."""
        self.cleared.set()
        self.cleared = asyncio.Event()

    def describe(self) -> list[JsonObject]:
        return [{**rule.given, "seen": rule.seen, "fired": rule.fired} for rule in self._rules]

    def plan(self, operation: str) -> Plan:
        if not self._rules:
            return NO_FAULTS
        before: Rule | None = None
        answer: Rule | None = None
        entries: list[Rule] = []
        delay_s = 0.0
        for rule in self._rules:
            if not rule.strikes(operation, self._chance):
                continue
            if rule.kind == "latency":
                delay_s += float(rule.given["ms"]) / 1000
            elif rule.kind in ENTRIES:
                entries.append(rule)
            elif rule.before_accept:
                if before is not None:
                    continue
                before = rule
            else:
                if answer is not None:
                    continue
                answer = rule
            rule.fired += 1
            self.fired[rule.kind] += 1
        return Plan(before, tuple(entries), answer, delay_s)
