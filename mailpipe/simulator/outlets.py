"""Where events go besides the file, and the two services of AWS that are asked about it: SQS (its JSON protocol) and SNS (query).

Both answer at `/`, where SES answers nothing.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qs

from mailpipe.simulator.events import Outlet
from mailpipe.simulator.options import Options
from mailpipe.simulator.queue import CONTENT_TYPE, Queue
from mailpipe.simulator.wire import Answer, ApiError, error_answer, members

_TARGET = "AmazonSQS."
_CONFIRMED = """<ConfirmSubscriptionResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><ConfirmSubscriptionResult>\
<SubscriptionArn>{arn}:1</SubscriptionArn></ConfirmSubscriptionResult></ConfirmSubscriptionResponse>"""
_REFUSED = """<ErrorResponse><Error><Type>Sender</Type><Code>InvalidParameter</Code><Message>Invalid token</Message></Error>\
</ErrorResponse>"""


class Outlets:
    """The topic and the queue, where the options want them."""

    def __init__(self, options: Options) -> None:
        self._arn = options.sns_topic
        self._raw = options.sqs_raw
        self._numbers = itertools.count(1)
        self.queue = Queue() if options.sqs else None
        self.topic = None
        if options.sns_url is not None:
            # Only here: what it signs with takes long to import.
            from mailpipe.simulator.topic import Topic  # noqa: PLC0415

            self.topic = Topic(
                options.sns_topic,
                options.sns_url,
                certificate=options.sns_certificate or options.events.with_name("sns.pem"),
                duplicates=options.sns_duplicates,
                disorder_ms=options.sns_disorder_ms,
                seed=options.seed,
            )

    @property
    def all(self) -> tuple[Outlet, ...]:
        outlets: list[Outlet] = []
        if self.queue is not None:
            outlets.append(self.enqueue)
        if self.topic is not None:
            outlets.append(self.topic.publish)
        return tuple(outlets)

    def enqueue(self, lines: Iterable[str]) -> None:
        """Into the queue, as the topic would deliver it there."""
        if self.queue is not None:
            self.queue.put(line.rstrip("\n") if self._raw else self._wrapped(line) for line in lines)

    def answer(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Answer:
        """A request to SQS or SNS."""
        target = next((value.decode() for name, value in headers if name == b"x-amz-target"), "")
        if target.startswith(_TARGET) and self.queue is not None:
            try:
                return self.queue.handle(target.removeprefix(_TARGET), members(body))
            except ApiError as error:
                return Answer(
                    error.status,
                    json.dumps({"__type": error.kind, "message": error.message}).encode(),
                    "",
                    CONTENT_TYPE,
                )
        form = parse_qs(body.decode(errors="replace"))
        if form.get("Action") == ["ConfirmSubscription"] and self.topic is not None:
            confirmed = form.get("TopicArn") == [self._arn] and self.topic.confirm(form.get("Token", [""])[0])
            text = _CONFIRMED.format(arn=self._arn) if confirmed else _REFUSED
            return Answer(200 if confirmed else 400, text.encode(), content_type=b"text/xml")
        return error_answer(ApiError("UnknownOperationException", "The stand-in has no such service.", 404))

    def close(self) -> None:
        if self.topic is not None:
            self.topic.close()

    def _wrapped(self, line: str) -> str:
        """As SNS puts it into a queue without raw delivery; a reader of the queue does not look at the signature."""
        return json.dumps(
            {"Type": "Notification", "MessageId": f"sns-{next(self._numbers)}", "TopicArn": self._arn,
             "Subject": "Amazon SES Email Event Notification", "Message": line, "Timestamp": "2026-03-02T09:00:03.000Z",
             "SignatureVersion": "1", "Signature": "of-the-stand-in", "SigningCertURL": "https://sns.example.com/",
             "UnsubscribeURL": "https://sns.example.com/"}
        )  # fmt: skip
