"""The pace: in no sliding second do all processes together hand SES more recipients than the limit.

`rule` is the arithmetic, `limits` what is known at a moment, `slots` gives the right to make a call. docs/pace.md tells people.
"""

from mailpipe.pace.limits import (
    QUERIES,
    QUOTA_WAIT,
    THROTTLE_WAIT,
    Day,
    Limits,
    State,
    configure,
    keep_account,
    order_rate,
    quota_frees,
    read,
    refusals,
    state,
)
from mailpipe.pace.rule import LATENESS, TRANSIT, WINDOW, call_size
from mailpipe.pace.slots import Clock, Pace, Refusal, Slot

__all__ = [
    "LATENESS",
    "QUERIES",
    "QUOTA_WAIT",
    "THROTTLE_WAIT",
    "TRANSIT",
    "WINDOW",
    "Clock",
    "Day",
    "Limits",
    "Pace",
    "Refusal",
    "Slot",
    "State",
    "call_size",
    "configure",
    "keep_account",
    "order_rate",
    "quota_frees",
    "read",
    "refusals",
    "state",
]
