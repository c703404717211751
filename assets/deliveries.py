"""The send: a campaign's slices, each green once nobody of it is waiting any more.

A run sends a range of slices of one campaign in this process. The ledger decides who is mailed, so launching a slice again,
or twice at once, is harmless: launching what is failed or missing is how a campaign is resumed.
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import dagster as dg
from pydantic import Field

from assets.failure import explained
from assets.partitions import CAMPAIGN_SLICES, OWNERS
from assets.resources import DatabaseResource, SesResource
from assets.snapshot import GROUP
from mailpipe import report
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.ledger import SliceCounts
from mailpipe.send import HORIZON, End, Outcome

KEY = "deliveries"


class SendConfig(dg.Config):
    """What may be set for one run. Rate and template belong to the campaign: `mailpipe campaign set`."""

    actor: str = Field(
        default="mailpipe",
        description="Your name. It is kept beside the campaign when this run is the one that starts it.",
    )
    wait_seconds: float = Field(
        default=HORIZON,
        description="How long the run waits for people who are not due yet; those who are due later stay missing.",
    )
    accept_plan: bool = Field(
        default=False,
        description="Start the campaign although its plan cannot be met; what cannot be met is told when it is refused.",
    )
    late: bool = Field(
        default=False,
        description="Start the campaign although it was due long ago, and so is missed: its mails still make sense.",
    )


@dg.asset(
    name=KEY,
    group_name=GROUP,
    kinds={"postgres", "ses"},
    owners=OWNERS,
    description="**The mails of a campaign, in a hundred slices**\n\nA slice is green when nobody of it is waiting or in a"
    " call. To resume a campaign, materialize what is failed and missing: nobody is mailed twice. A campaign that is"
    " paused, cancelled or not approved sends nothing, and the run says so.",
    partitions_def=CAMPAIGN_SLICES,
    deps=["snapshot"],
    # One run for a range: a process pays for its imports once.
    backfill_policy=dg.BackfillPolicy.single_run(),
    # Each slice has its own materialization, written when it is complete; an output would be one more for all of them.
    output_required=False,
)
def deliveries(
    context: dg.AssetExecutionContext, config: SendConfig, database: DatabaseResource, ses: SesResource
) -> Iterator[dg.Output[None]]:
    with explained():
        key, slices = selected(context.partition_keys)
        context.instance.add_run_tags(context.run.run_id, {"mailpipe/campaign": key})
        slate = _Slate(context, key)
        with _interrupts_as_event() as stop:
            try:
                outcome = ses.send(
                    database,
                    key,
                    slices,
                    actor=config.actor,
                    horizon=config.wait_seconds,
                    accept_plan=config.accept_plan,
                    late=config.late,
                    stop=stop,
                    on_slice=slate.note,
                    on_tick=slate.write,
                )
            finally:
                if slate.noted:
                    with database.connection() as connection:
                        slate.write(connection)
    _tell(context, outcome)
    if outcome.end is End.STOPPED:
        raise dg.DagsterExecutionInterruptedError
    yield from ()


def selected(keys: Sequence[str]) -> tuple[str, tuple[int, int]]:
    """The campaign and the first and last slice that a run's partition keys (`campaign|slice`) name.

    Raises:
        CampaignError: they name no slice, several campaigns, or a range with holes. Dagster reads a range from
            `a|90` to `b|05` as no slice at all, and one from `a|00` to `c|99` as everything of `a`, `b` and `c`.
    """
    pairs = [key.rsplit("|", 1) for key in keys]
    if not pairs:
        raise CampaignError("the range holds no slice. Choose slices of one campaign, the first before the last")
    campaigns = sorted({campaign for campaign, _ in pairs})
    if len(campaigns) > 1:
        raise CampaignError(f"the range holds slices of {len(campaigns)} campaigns: {', '.join(campaigns)}. Choose one")
    numbers = sorted(int(number) for _, number in pairs)
    if numbers[-1] - numbers[0] + 1 != len(numbers):
        raise CampaignError("the slices of a run must follow each other. Launch each range for itself")
    return campaigns[0], (numbers[0], numbers[-1])


class _Slate:
    """Slices that are complete: noted by the send, written down with the pace of that moment."""

    def __init__(self, context: dg.AssetExecutionContext, key: str) -> None:
        self._context = context
        self._key = key
        self.noted: list[SliceCounts] = []

    def note(self, counts: SliceCounts) -> None:
        self.noted.append(counts)

    def write(self, connection: Connection) -> None:
        if not self.noted:
            return
        now = report.progress(connection, self._key)
        while self.noted:
            counts = self.noted[0]
            self._context.log_event(
                dg.AssetMaterialization(
                    asset_key=KEY,
                    partition=dg.MultiPartitionKey({"campaign": self._key, "slice": f"{counts.slice:02d}"}),
                    metadata={
                        "people": counts.total,
                        "sent": counts.sent,
                        "failed": counts.failed,
                        "skipped": counts.skipped,
                        "unknown": counts.unknown,
                        "rate_per_second": now.rate_per_second,
                        "campaign_pending": now.pending + now.sending,
                        **({} if now.eta_minutes is None else {"eta_minutes": now.eta_minutes}),
                    },
                )
            )
            self.noted.pop(0)


def _tell(context: dg.AssetExecutionContext, outcome: Outcome) -> None:
    say = context.log.info if outcome.end is End.COMPLETE else context.log.warning
    say(f"{outcome.text} ({outcome.accepted} accepted in {outcome.calls} calls, {outcome.seconds:.1f} s)")
    context.instance.add_run_tags(
        context.run.run_id, {"mailpipe/end": outcome.end.value, "mailpipe/accepted": str(outcome.accepted)}
    )


@contextmanager
def _interrupts_as_event() -> Iterator[threading.Event]:
    """Let an interrupt set an event, instead of raising in the middle of any statement of this thread.

    Dagster stops a run by SIGINT, and SIGTERM is the same to it. The send then ends by itself: answers are recorded, chunks
    given back.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
