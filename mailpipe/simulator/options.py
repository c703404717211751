"""The stand-in's settings: one frozen object, made by the command line or by a test. Reading the command line
is in `__main__`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TOPIC = "arn:aws:sns:eu-west-1:111122223333:ses-events"
ThrottleStyle = Literal["entries", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the stand-in behaves. Rates are recipients per second, quotas recipients per window."""

    journal: Path
    """JSON lines, one per accepted message. Appended to, written before the answer leaves."""
    events: Path
    """JSON lines, one SES event each. Appended to."""
    state: Path | None = None
    """Where templates, configuration sets and the suppression list outlive a restart; without it they do
    not."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port; the chosen one is printed and written to `ready_file`."""
    ready_file: Path | None = None
    region: str = "eu-west-1"

    rate: float = 100_000.0
    """MaxSendRate: recipients in any sliding second. SES also caps the entries of a bulk call at it."""
    rate_tolerance: int = 0
    """Recipients that a sliding second may exceed the rate by, for burst behaviour."""
    throttle_style: ThrottleStyle = "entries"
    """Over the rate: `entries` answers ACCOUNT_THROTTLED for those that do not fit, `call` refuses the whole
    call (429)."""
    call_rate: float = 100_000.0
    """Bulk calls in any sliding second. AWS does not say whether there is such a limit; more are refused as SES refuses too
    many calls of the actions that have one."""
    daily_quota: int = -1
    """Max24HourSend; -1 is SES's way to say unlimited."""
    daily_window_s: float = 86_400.0
    """Length of the rolling day, shorter in tests."""
    strict_configuration_sets: bool = False
    """Refuse configuration sets that nobody created; otherwise a set is created when first named."""

    latency_ms: float = 0.0
    """How long the answer to a send waits after the messages were accepted."""
    jitter_ms: float = 0.0
    """Random extra of 0 to this many milliseconds."""
    delivery_ms: float = 0.0
    """How long after Send the later events are written; 0 writes them at once."""

    bounce_rate: float = 0.0
    complaint_rate: float = 0.0
    delay_rate: float = 0.0
    """Shares of all addresses, chosen by a hash of address and seed: the same address always meets the same
    fate."""

    open_rate: float = 0.0
    """Share of addresses whose people open what they get."""
    click_rate: float = 0.0
    """Share that clicks too; at most open_rate counts."""

    sns_url: str | None = None
    """Where events are posted as signed SNS notifications; None: nowhere."""
    sns_topic: str = TOPIC
    sns_certificate: Path | None = None
    """Where the certificate of its signatures is written; by default beside the events."""
    sns_duplicates: float = 0.0
    """Share of notifications that come twice."""
    sns_disorder_ms: float = 0.0
    """Two notifications that are this close may change places."""
    sqs: bool = False
    """Put events into an SQS queue too, which this process serves at `/`."""
    sqs_raw: bool = False
    """The queue gets them by raw message delivery: without an SNS envelope."""

    render: bool = False
    """Render every message and journal the SHA-256 of its parts."""
    keep_messages: int = 10_000
    """How many of the newest messages can be read back, rendered, through the control endpoint."""
    faults: Path | None = None
    """A JSON list of fault rules in force from the start."""
    seed: int = 0
    """Decides jitter, fault probabilities and fates. Message ids are always fresh."""
