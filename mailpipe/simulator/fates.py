"""What becomes of a mail after it was accepted, decided by its address alone, so that a run can be repeated.

In this order:

1. on the account's suppression list: bounced as OnAccountSuppressionList;
2. the mailbox simulator, with or without a label (`bounce+anything@simulator.amazonses.com`): `success` and
   `ooto` are delivered, `bounce` bounces, `complaint` is delivered and complained about, `suppressionlist`
   bounces as Suppressed; any other name there bounces;
3. domains that say it: `bounce.example.com`, `softbounce.example.com`, `complaint.example.com`,
   `delay.example.com`;
4. the shares `bounce_rate`, `complaint_rate`, `delay_rate`, by a hash of the address and the seed;
5. everybody else gets the mail.

A hard bounce or a complaint (not the mailbox simulator's) puts the address on the suppression list, as SES
does by default.
"""

import hashlib
from typing import Literal

from mailpipe.simulator.options import Options
from mailpipe.simulator.suppression import SuppressionList

Fate = Literal["delivery", "bounce", "soft_bounce", "complaint", "delay", "suppressed", "account_suppressed"]

MAILBOX_SIMULATOR = "simulator.amazonses.com"

_simulated: dict[str, Fate] = {
    "success": "delivery",
    "ooto": "delivery",
    "bounce": "bounce",
    "complaint": "complaint",
    "suppressionlist": "suppressed",
}
_by_domain: dict[str, Fate] = {
    "bounce.example.com": "bounce",
    "softbounce.example.com": "soft_bounce",
    "complaint.example.com": "complaint",
    "delay.example.com": "delay",
}
_reason_for_suppression: dict[Fate, str] = {"bounce": "BOUNCE", "complaint": "COMPLAINT"}


class Fates:
    """Decides, and keeps the suppression list up with what it decided."""

    def __init__(self, options: Options, suppression: SuppressionList) -> None:
        self._suppression = suppression
        self._seed = options.seed.to_bytes(8, "big", signed=True)
        shares: tuple[tuple[Fate, float], ...] = (
            ("bounce", options.bounce_rate),
            ("complaint", options.complaint_rate),
            ("delay", options.delay_rate),
        )
        self._shares = [(fate, share) for fate, share in shares if share > 0]

    def of(self, address: str) -> Fate:
        """The fate of a bare address (domain in lower case)."""
        if address in self._suppression:
            return "account_suppressed"
        local, _, domain = address.rpartition("@")
        if domain == MAILBOX_SIMULATOR:
            return _simulated.get(local.partition("+")[0].lower(), "bounce")
        fate = _by_domain.get(domain) or self._by_hash(address)
        reason = _reason_for_suppression.get(fate)
        if reason:
            self._suppression.put(address, reason)
        return fate

    def _by_hash(self, address: str) -> Fate:
        if not self._shares:
            return "delivery"
        digest = hashlib.blake2b(address.encode(), digest_size=8, key=self._seed).digest()
        position = int.from_bytes(digest, "big") / 2**64
        for fate, share in self._shares:
            if position < share:
                return fate
            position -= share
        return "delivery"
