"""The account-level suppression list. SES trims an address and lower-cases only its domain, so the list does
the same."""

import time
from collections.abc import Callable
from typing import NamedTuple

from mailpipe.simulator.rules import InvalidFieldError, bare_address
from mailpipe.simulator.wire import JsonObject, bad_request, not_found

REASONS = ("BOUNCE", "COMPLAINT")


class Suppressed(NamedTuple):
    """One address on the list; `updated` is in epoch seconds."""

    address: str
    reason: str
    updated: float


class SuppressionList:
    """Addresses that SES accepts and does not deliver to. `remember` is told of every change."""

    def __init__(self, remember: Callable[[JsonObject], None]) -> None:
        self._remember = remember
        self._listed: dict[str, Suppressed] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._listed

    def put(self, address: str, reason: object) -> None:
        if reason not in REASONS:
            raise bad_request("Reason must be BOUNCE or COMPLAINT.")
        key = _key(address)
        self._listed[key] = Suppressed(key, str(reason), time.time())
        self._remember({"suppressed": key, "reason": reason, "updated": self._listed[key].updated})

    def get(self, address: str) -> Suppressed:
        listed = self._listed.get(_key(address))
        if listed is None:
            raise not_found("Email address does not exist on your suppression list.")
        return listed

    def delete(self, address: str) -> None:
        del self._listed[self.get(address).address]
        self._remember({"suppressed": _key(address), "reason": None})

    def restore(self, change: JsonObject) -> None:
        """Replays one remembered change."""
        if change["reason"] is None:
            self._listed.pop(change["suppressed"], None)
        else:
            self._listed[change["suppressed"]] = Suppressed(change["suppressed"], change["reason"], change["updated"])

    def listed(self, reasons: list[str], start: float, end: float) -> list[Suppressed]:
        """Entries with one of `reasons` (all if empty), changed within [start, end] epoch seconds, oldest
        first."""
        return [
            entry
            for entry in self._listed.values()
            if (not reasons or entry.reason in reasons) and start <= entry.updated <= end
        ]


def _key(address: str) -> str:
    try:
        return bare_address(address.strip())
    except InvalidFieldError as error:
        raise bad_request(f"{error}.") from None
