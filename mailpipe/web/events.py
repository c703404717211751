"""`POST /ses/events`: what SNS posts. Proved, then committed, then answered: 2xx means that it is on disk.

SNS takes 4xx as the end of a message and tries again after anything else, so what cannot be proved is refused for good (403), and a
database that is away is 503. Messages that arrive together share a transaction.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mailpipe.aws import Clients
from mailpipe.db import Database
from mailpipe.errors import ServiceError
from mailpipe.feedback import sns
from mailpipe.feedback.ingest import Received, take
from mailpipe.settings import Settings
from mailpipe.web import guard
from mailpipe.web.problem import Problem

PATH = "/ses/events"
MOST = 500
"""Events of one transaction; the others wait for the next."""
LOG = logging.getLogger("mailpipe.feedback")


def routes(config: Settings, database: Database) -> list[Route]:
    """The one route.

    Raises:
        SettingsError: MAILPIPE_SNS_TOPICS or MAILPIPE_SNS_SIGNATURES cannot be used.
    """
    verifier = _verifier(config)
    taker = Taker(config, database)

    async def events(request: Request) -> PlainTextResponse:
        if verifier is None:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "MAILPIPE_SNS_TOPICS is not set, so no topic is believed here"
            )
        body = await guard.body(request, most=sns.MOST_BYTES)
        raw = request.headers.get("x-amz-sns-rawdelivery") == "true"
        try:
            envelope = await run_in_threadpool(verifier.verify, body, raw=raw)
        except sns.Refused as refused:
            LOG.warning("a message to %s was refused: %s", PATH, refused)
            status = HTTPStatus.SERVICE_UNAVAILABLE if refused.again else HTTPStatus.FORBIDDEN
            raise Problem(status, str(refused)) from refused
        if envelope.type == "SubscriptionConfirmation":
            await run_in_threadpool(_confirm, config, envelope)
        elif envelope.type == "UnsubscribeConfirmation":
            LOG.warning("a subscription of %s was ended; events of it come no more", envelope.topic)
        else:
            await taker.take(Received(envelope.message, envelope.message_id))
        return PlainTextResponse("ok\n")

    return [Route(PATH, events, methods=["POST"])]


class Taker:
    """Takes in events in the order of their arrival, all that wait in one transaction."""

    def __init__(self, config: Settings, database: Database) -> None:
        self._keep_days = config.event_days
        self._database = database
        self._waiting: list[tuple[Received, asyncio.Future[None]]] = []
        self._work: asyncio.Task[None] | None = None

    async def take(self, received: Received) -> None:
        """Returns once the event is on disk. Raises what the database raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((received, done))
        if self._work is None:
            self._work = asyncio.create_task(self._take_all())
        await done

    async def _take_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            error: Exception | None = None
            try:
                events = [received for received, _ in batch]
                await run_in_threadpool(take, self._database, events, keep_days=self._keep_days)
            except Exception as raised:
                error = raised
            for _, done in batch:
                # Cancelled: whoever sent it did not wait for the answer.
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self._work = None


def _verifier(config: Settings) -> sns.Verifier | None:
    if config.sns_topics is None:
        return None
    path = config.sns_test_certificate
    return sns.Verifier(
        sns.topics(config.sns_topics),
        versions=sns.versions(config.sns_signatures),
        fetch=None if path is None else lambda _: path.read_bytes(),
    )


def _confirm(config: Settings, envelope: sns.Envelope) -> None:
    """By the API and for a topic of ours alone; the URL in the message is never opened."""
    client = Clients(config, config.ses_endpoint, region=envelope.region).make("sns")
    try:
        client.confirm_subscription(TopicArn=envelope.topic, Token=envelope.token, AuthenticateOnUnsubscribe="true")
    except Exception as error:
        raise ServiceError(f"SNS ConfirmSubscription: {type(error).__name__}") from None
    finally:
        client.close()
    LOG.info("subscribed to %s", envelope.topic)
