"""The account: its quotas, counted per recipient in sliding windows, and its sending switches.

The second is strict: at no instant do the recipients accepted in the second before it exceed the rate plus
the tolerance. SES itself lets short bursts pass; a stand-in that does not is the sharper witness.
"""

import math
from collections import deque
from collections.abc import Callable

from mailpipe.simulator.options import Options, ThrottleStyle
from mailpipe.simulator.wire import ApiError, JsonObject, not_found

THROTTLED = "ACCOUNT_THROTTLED"
DAILY_QUOTA_EXCEEDED = "ACCOUNT_DAILY_QUOTA_EXCEEDED"


class SlidingWindow:
    """Recipients in the last `seconds` (an arrival exactly that old no longer counts), and the largest count
    ever seen."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.total = 0
        self.peak = 0
        self._arrivals: deque[tuple[float, int]] = deque()

    def count(self, now: float) -> int:
        arrivals = self._arrivals
        horizon = now - self.seconds
        while arrivals and arrivals[0][0] <= horizon:
            self.total -= arrivals.popleft()[1]
        return self.total

    def add(self, now: float, recipients: int) -> None:
        self.total = self.count(now) + recipients
        self._arrivals.append((now, recipients))
        self.peak = max(self.peak, self.total)


class Budget:
    """What one call may still spend at its instant of acceptance. `Account.spend` books what it took."""

    def __init__(self, second: float, day: float) -> None:
        self._second = second
        self._day = day
        self.taken = 0
        self.taken_of_day = 0

    def take(self, recipients: int, of_day: int) -> str:
        """Takes room for one message: '' or the status that refuses it. `of_day` leaves out the mailbox
        simulator's addresses, which count against the rate but not against the daily quota."""
        if recipients > self._second:
            return THROTTLED
        if of_day > self._day:
            return DAILY_QUOTA_EXCEEDED
        self._second -= recipients
        self._day -= of_day
        self.taken += recipients
        self.taken_of_day += of_day
        return ""


class Account:
    """Quotas and switches of the one account that the stand-in has. Clock values are monotonic seconds."""

    def __init__(self, options: Options) -> None:
        self.rate = options.rate
        self.rate_tolerance = options.rate_tolerance
        self.throttle_style: ThrottleStyle = options.throttle_style
        self.daily_quota = options.daily_quota
        self.sending_enabled = True
        self.suspended = False
        self.accepted_messages = 0
        self.accepted_recipients = 0
        self.throttled_recipients = 0
        self.second = SlidingWindow(1.0)
        self.day = SlidingWindow(options.daily_window_s)
        self.calls = SlidingWindow(1.0)
        self.call_rate = options.call_rate
        self._bulk_calls = SlidingWindow(1.0)
        self._latest_arrival = 0.0

    def arrival(self, at: float) -> float:
        """When a request that came at `at` counts: in the order in which requests are handled."""
        self._latest_arrival = max(self._latest_arrival, at)
        return self._latest_arrival

    @property
    def entries_per_call(self) -> int:
        """SES allows 50 destinations in a bulk call, and no more than the account may send in a second."""
        return min(50, max(1, math.floor(self.rate)))

    def check_switches(self) -> None:
        """Raises ApiError when nothing may be sent at all."""
        if self.suspended:
            raise ApiError("AccountSuspendedException", "Your account is suspended from sending email.")
        if not self.sending_enabled:
            raise ApiError("SendingPausedException", "Email sending is disabled for your account.")

    def count_bulk_call(self, now: float) -> None:
        """Raises ApiError when a bulk call at `now` is one too many for its second; what is refused does not count."""
        if self._bulk_calls.count(now) + 1 > self.call_rate:
            raise ApiError("ThrottlingException", "Rate exceeded", 400)
        self._bulk_calls.add(now, 1)

    def budget(self, now: float, daily_quota: int | None = None) -> Budget:
        """What may still be accepted at `now`; `daily_quota` replaces the account's own."""
        quota = self.daily_quota if daily_quota is None else daily_quota
        day = math.inf if quota < 0 else quota - self.day.count(now)
        return Budget(self.rate + self.rate_tolerance - self.second.count(now), day)

    def spend(self, now: float, budget: Budget, messages: int) -> None:
        self.accepted_messages += messages
        self.accepted_recipients += budget.taken
        if budget.taken:
            self.second.add(now, budget.taken)
            self.calls.add(now, 1)
        if budget.taken_of_day:
            self.day.add(now, budget.taken_of_day)

    def describe(self, now: float) -> JsonObject:
        """The answer to GetAccount."""
        return {
            "DedicatedIpAutoWarmupEnabled": False,
            "EnforcementStatus": "SHUTDOWN" if self.suspended else "HEALTHY",
            "ProductionAccessEnabled": True,
            "SendQuota": {
                "Max24HourSend": float(self.daily_quota),
                "MaxSendRate": float(self.rate),
                "SentLast24Hours": float(self.day.count(now)),
            },
            "SendingEnabled": self.sending_enabled,
            "SuppressionAttributes": {"SuppressedReasons": ["BOUNCE", "COMPLAINT"]},
        }


class ConfigurationSets:
    """Configuration sets and their sending switch, by name. `remember` is told of every change.

    Unless `strict`, a set exists from the moment that anybody names it."""

    def __init__(self, strict: bool, remember: Callable[[JsonObject], None]) -> None:
        self._strict = strict
        self._remember = remember
        self._enabled: dict[str, bool] = {}

    def create(self, name: str, enabled: bool) -> None:
        if name in self._enabled:
            raise ApiError("AlreadyExistsException", f"Configuration set {name} already exists.")
        self._set(name, enabled)

    def known(self, name: str) -> bool:
        """Whether mail may name this set; creates it if the stand-in is lenient."""
        if name not in self._enabled and not self._strict:
            self._set(name, True)
        return name in self._enabled

    def enabled(self, name: str) -> bool:
        """Raises ApiError for a set that does not exist."""
        if name not in self._enabled:
            raise not_found(f"Configuration set {name} does not exist.")
        return self._enabled[name]

    def switch(self, name: str, enabled: bool) -> None:
        if not self.known(name):
            raise not_found(f"Configuration set {name} does not exist.")
        self._set(name, enabled)

    def delete(self, name: str) -> None:
        self.enabled(name)
        del self._enabled[name]
        self._remember({"configuration_set": name, "enabled": None})

    def listed(self) -> list[str]:
        return sorted(self._enabled)

    def _set(self, name: str, enabled: bool) -> None:
        self._enabled[name] = enabled
        self._remember({"configuration_set": name, "enabled": enabled})

    def restore(self, change: JsonObject) -> None:
        """Replays one remembered change."""
        if change["enabled"] is None:
            self._enabled.pop(change["configuration_set"], None)
        else:
            self._enabled[change["configuration_set"]] = change["enabled"]
