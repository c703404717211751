"""Connections that look at the clock once more, just before the first byte of a request is written.

Between botocore's `before-send` and that byte lie urllib3 and, on a busy machine, other threads: 0.4 ms, but 25 to 50 for one call
in a thousand, which SES would count as having come that much later than its slot.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from botocore import awsrequest


class SlotMissed(Exception):
    """The request was ready too late for its slot, and was not made."""


class _Latest(threading.local):
    at: float | None = None


_latest = _Latest()


def expect(latest: float | None) -> None:
    """The next request of this thread leaves at `latest` (monotonic clock, seconds) or not at all; None: whenever it is ready."""
    _latest.at = latest


class _Punctual:
    """Mixed into a connection of botocore. SlotMissed closes the connection, and a new one can take longer to set up than a call
    may be late: so it is raised only where a request has left before, and never twice in a row."""

    _used = False

    def _send_output(self, *given: Any, **named: Any) -> None:
        if self._used and _latest.at is not None and time.monotonic() > _latest.at:
            raise SlotMissed
        self._used = True
        super()._send_output(*given, **named)  # type: ignore[misc]

    def close(self) -> None:
        self._used = False
        super().close()  # type: ignore[misc]


class _Http(_Punctual, awsrequest.AWSHTTPConnection):  # type: ignore[misc]
    pass


class _Https(_Punctual, awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _HttpPool(awsrequest.AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Http


class _HttpsPool(awsrequest.AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Https


def attach(client: Any) -> bool:
    """Let a botocore client make such connections, before its first call. False: this botocore keeps them elsewhere, and a call is
    looked at in `before-send` alone."""
    pools = getattr(getattr(client, "_endpoint", None), "http_session", None)
    classes = getattr(pools, "_pool_classes_by_scheme", None)
    if not isinstance(classes, dict):
        return False
    classes.update(http=_HttpPool, https=_HttpsPool)
    return True
