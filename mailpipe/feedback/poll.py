"""Reads events from an SQS queue, with or without raw message delivery. A message is deleted once its event is on disk, not before.

Who may write into the queue is said by the queue's own policy: there is no signature to check here. What is no event of SES
is counted and deleted, or it would come back for ever.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from botocore.exceptions import BotoCoreError, ClientError

from mailpipe.aws import Clients
from mailpipe.db import Database
from mailpipe.errors import DatabaseUnavailable, SettingsError
from mailpipe.feedback.ingest import Ingested, Received, take
from mailpipe.settings import Settings

LOG = logging.getLogger("mailpipe.feedback")

READERS = 4
"""Threads, each with a batch of its own: while one waits for the database, the others read."""
BATCH = 500
GATHER = 0.5
"""Seconds for which a batch is gathered at most: what is known of a campaign is never older than that and a transaction."""
WAIT = 10
"""Seconds that SQS waits for a message (long polling)."""
_IDLE = 0.5
_NICE = 5
_REST = 1.0
_LONGEST_REST = 30.0
_PAGE = 10
_queue = re.compile(r"https?://[^/\s]+/.+").fullmatch

Report = Callable[[Ingested], None]


def step_back() -> None:
    """Let senders on this machine go first, for the whole process: their slots are moments, events can wait."""
    if hasattr(os, "nice"):
        os.nice(_NICE)


def told(error: Exception) -> str:
    """An error in a word that can be looked up: the code of AWS (`AccessDenied`, `QueueDoesNotExist`), else the error's class."""
    code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else None
    return str(code)[:80] if code else type(error).__name__


def poll(
    database: Database,
    settings: Settings,
    queue_url: str,
    *,
    endpoint: str | None,
    stop: threading.Event,
    once: bool = False,
    report: Report = lambda _: None,
    readers: int = READERS,
) -> Ingested:
    """Take in what the queue holds until `stop` is set, or (`once`) until it is empty. Answers the counts of all.

    A database or a queue that is away is waited for; messages stay in the queue meanwhile.

    Raises:
        SettingsError: this is no queue.
    """
    if not _queue(queue_url):
        raise SettingsError("--queue-url: expected https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
    region = re.match(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com", queue_url)
    clients = Clients(settings, endpoint, region=region[1] if region else None)
    client = clients.make("sqs", checked=False, connections=readers, read_timeout=WAIT + 10.0)
    total, lock = Ingested(), threading.Lock()

    def add(done: Ingested) -> None:
        with lock:
            total.add(done)
        report(done)

    reader = _Reader(database, client, queue_url, settings.event_days, stop, once, add)
    with ThreadPoolExecutor(readers) as pool:
        for future in [pool.submit(reader.run) for _ in range(readers)]:
            future.result()
    return total


class _Reader:
    """What the threads share; each has its own batch."""

    def __init__(
        self, database: Database, client: Any, url: str, keep_days: int, stop: threading.Event, once: bool, add: Report
    ) -> None:
        self._database = database
        self._client = client
        self._url = url
        self._keep_days = keep_days
        self._stop = stop
        self._once = once
        self._add = add

    def run(self) -> None:
        rest = _REST
        while not self._stop.is_set():
            try:
                messages = self._gather()
                if messages:
                    self._take(messages)
                elif self._once:
                    return
                else:
                    # A queue without long polling answers at once.
                    self._stop.wait(_IDLE)
                rest = _REST
            except (BotoCoreError, ClientError, psycopg.OperationalError, DatabaseUnavailable) as error:
                LOG.warning("events stay in the queue for the moment: %s", told(error))
                self._stop.wait(rest)
                rest = min(rest * 2, _LONGEST_REST)

    def _gather(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        until = time.monotonic() + GATHER
        while len(messages) < BATCH and not self._stop.is_set():
            wait = 0 if messages or self._once else WAIT
            page = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=_PAGE, WaitTimeSeconds=wait, VisibilityTimeout=120
            ).get("Messages", [])
            messages += page
            if not page or time.monotonic() > until:
                break
        return messages

    def _take(self, messages: Sequence[dict[str, Any]]) -> None:
        done = take(
            self._database, [Received(one["Body"], one["MessageId"]) for one in messages], keep_days=self._keep_days
        )
        if done.malformed:
            LOG.warning("%d messages of the queue are no events of SES", len(done.malformed))
        for start in range(0, len(messages), _PAGE):
            page = messages[start : start + _PAGE]
            # What cannot be deleted comes again, and changes nothing then.
            self._client.delete_message_batch(
                QueueUrl=self._url,
                Entries=[{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(page)],
            )
        self._add(done)
