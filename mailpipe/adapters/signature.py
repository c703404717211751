"""The signature of a webhook's posts, for both sides: HMAC-SHA256 over the time and the body as it travels. Pure.

    Mailpipe-Timestamp: 1764412800                       seconds since 1970
    Mailpipe-Signature: v1=HEX                           of  timestamp "." body

The body is signed after compression, so a receiver checks it before anything is unpacked.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

TIMESTAMP = "Mailpipe-Timestamp"
SIGNATURE = "Mailpipe-Signature"
TOLERANCE = 300.0
"""Seconds that clocks may differ and a post may travel; an older one is somebody's recording."""


def headers(secret: str, body: bytes, *, at: float) -> dict[str, str]:
    """The two headers of a post that leaves at `at` (seconds since 1970)."""
    timestamp = str(int(at))
    return {TIMESTAMP: timestamp, SIGNATURE: f"v1={_code(secret, timestamp, body)}"}


def verify(secret: str, given: Mapping[str, str], body: bytes, *, now: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a post was made with the secret, and lately. `given` are its headers, in any case; `body` as it arrived."""
    fields = {name.lower(): value for name, value in given.items()}
    timestamp = fields.get(TIMESTAMP.lower(), "")
    version, _, code = fields.get(SIGNATURE.lower(), "").partition("=")
    if version != "v1" or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        return False
    fits = hmac.compare_digest(_code(secret, timestamp, body).encode(), code.encode())
    return fits and abs(now - int(timestamp)) <= tolerance


def _code(secret: str, timestamp: str, body: bytes) -> str:
    code = hmac.new(secret.encode(), timestamp.encode() + b".", "sha256")
    code.update(body)
    return code.hexdigest()
