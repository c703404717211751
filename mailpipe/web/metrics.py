"""`GET /metrics`: the load as Prometheus reads it. What is measured, and where it comes from, is `signals`' duty.

Labels are lanes, campaigns that are under way, and states; never a person, an address or a domain.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mailpipe.db import Database
from mailpipe.signals import BOUNDS, Calls, Load, Watch


def routes(database: Database) -> list[Route]:
    watch = Watch()

    def load() -> Load:
        with database.connection() as connection:
            return watch.load(connection)

    async def metrics(request: Request) -> Response:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Metrics(await run_in_threadpool(load)))
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    return [Route("/metrics", metrics)]


class Metrics(Collector):
    """One load in Prometheus' terms."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def describe(self) -> list[Metric]:
        """Nothing in advance: what there is, is known when it is read."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._lanes()
        yield from self._campaigns()
        yield from self._pace()
        alarms = CounterMetricFamily(
            "mailpipe_unsubscribe_alarms", "Times that many people of one domain unsubscribed within minutes."
        )
        alarms.add_metric([], self._load.unsubscribe_alarms)
        yield alarms

    def _lanes(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("mailpipe_queue_depth", "Messages that are due and wait.", labels=["lane"])
        age = GaugeMetricFamily(
            "mailpipe_queue_oldest_age_seconds", "For how long the oldest unsent message has been due.", labels=["lane"]
        )
        flight = GaugeMetricFamily("mailpipe_in_flight", "Messages in the hands of a worker.", labels=["lane"])
        threads = GaugeMetricFamily(
            "mailpipe_lane_threads", "Threads that work a lane, in all processes.", labels=["lane"]
        )
        for lane, one in self._load.lanes.items():
            depth.add_metric([lane], one.pending)
            age.add_metric([lane], one.oldest_age_seconds)
            flight.add_metric([lane], one.processing)
            threads.add_metric([lane], self._load.threads.get(lane, 0))
        yield from (depth, age, flight, threads)
        answers = CounterMetricFamily(
            "mailpipe_message_answers", "What calls of messages came to since midnight UTC.", labels=["lane", "result"]
        )
        latency = HistogramMetricFamily(
            "mailpipe_message_call_seconds",
            "From request to answer, for messages, since midnight UTC.",
            labels=["lane"],
        )
        for lane, calls in self._load.lane_calls.items():
            _add(answers, latency, [lane], calls)
        yield from (answers, latency)

    def _campaigns(self) -> Iterator[Metric]:
        people = GaugeMetricFamily(
            "mailpipe_campaign_recipients",
            "People of a campaign under way, by state; they add up to all.",
            labels=["campaign", "lane", "state"],
        )
        chunks = GaugeMetricFamily(
            "mailpipe_campaign_chunks",
            "Chunks that are free (pending) or in work (leased).",
            labels=["campaign", "lane", "state"],
        )
        age = GaugeMetricFamily(
            "mailpipe_campaign_oldest_age_seconds",
            "For how long the oldest free chunk has been due.",
            labels=["campaign", "lane"],
        )
        paused = GaugeMetricFamily(
            "mailpipe_campaign_paused", "1: the campaign is paused.", labels=["campaign", "lane"]
        )
        answers = CounterMetricFamily(
            "mailpipe_campaign_answers", "What was answered, by recipient.", labels=["campaign", "lane", "result"]
        )
        latency = HistogramMetricFamily(
            "mailpipe_campaign_call_seconds", "From request to answer, by call.", labels=["campaign", "lane"]
        )
        for one in self._load.campaigns:
            names = [one.campaign, one.lane]
            for state in ("pending", "sending", "sent", "failed", "skipped", "unknown"):
                people.add_metric([*names, state], getattr(one, state))
            chunks.add_metric([*names, "pending"], one.pending_chunks)
            chunks.add_metric([*names, "leased"], one.leased_chunks)
            age.add_metric(names, one.oldest_age)
            paused.add_metric(names, one.state == "paused")
            _add(answers, latency, names, self._load.campaign_calls[one.campaign_id])
        yield from (people, chunks, age, paused, answers, latency)

    def _pace(self) -> Iterator[Metric]:
        pace = self._load.pace
        used = GaugeMetricFamily(
            "mailpipe_pace_recipients_per_second", "Recipients accepted, over the last 10 seconds."
        )
        used.add_metric([], pace.used)
        yield used
        if pace.limit is not None and pace.utilisation is not None:
            limit = GaugeMetricFamily("mailpipe_pace_limit_recipients_per_second", "The limit for everything together.")
            limit.add_metric([], pace.limit)
            utilisation = GaugeMetricFamily("mailpipe_pace_utilisation_ratio", "The part of the limit that is used.")
            utilisation.add_metric([], pace.utilisation)
            yield from (limit, utilisation)
        blocked = GaugeMetricFamily(
            "mailpipe_pace_blocked_seconds",
            "For how long everybody still waits because the provider said so.",
            labels=["reason"],
        )
        for reason in ("rate", "quota"):
            blocked.add_metric([reason], pace.blocked_for.get(reason, 0.0))
        ease = GaugeMetricFamily(
            "mailpipe_pace_ease_ratio", "The part of the limit that the provider lets through; below 1: it throttled."
        )
        ease.add_metric([], pace.ease)
        handed = CounterMetricFamily(
            "mailpipe_pace_handed_over_recipients", "Recipients handed over since the beginning.", labels=["kind"]
        )
        handed.add_metric(["marketing"], pace.marketing)
        handed.add_metric(["transactional"], pace.handed - pace.marketing)
        refusals = CounterMetricFamily(
            "mailpipe_pace_refusals", "Calls that the provider refused since the beginning.", labels=["reason"]
        )
        for reason, number in pace.refusals.items():
            refusals.add_metric([reason], number)
        yield from (blocked, ease, handed, refusals)
        if pace.quota_left is not None:
            left = GaugeMetricFamily("mailpipe_pace_quota_left_recipients", "What the quota of 24 hours still allows.")
            left.add_metric([], pace.quota_left)
            yield left


def _add(answers: CounterMetricFamily, latency: HistogramMetricFamily, labels: list[str], calls: Calls) -> None:
    for result, number in calls.results.items():
        answers.add_metric([*labels, result], number)
    total, buckets = 0, []
    for bound, number in zip([*map(str, BOUNDS), "+Inf"], calls.classes, strict=True):
        total += number
        buckets.append((bound, total))
    latency.add_metric(labels, buckets=buckets, sum_value=calls.seconds)
