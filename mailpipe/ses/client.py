"""The SES client: the calls that mailpipe makes, one attempt each on the wire.

SES knows no idempotency token, so a request that is repeated is mail that is sent twice; botocore's default
would repeat one up to three times. What an answer means is decided in `answer`, how fast calls may be made in
`pace`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from mailpipe.aws import Clients
from mailpipe.errors import ServiceError, TemplateError
from mailpipe.ses import punctual
from mailpipe.ses.answer import Answer, of_exception, of_response, of_single_response, without_addresses
from mailpipe.ses.punctual import SlotMissed
from mailpipe.settings import Settings
from mailpipe.template import Content


@dataclass(frozen=True)
class Account:
    """What the account may do: `rate` in recipients per second, `daily_quota` and `sent_last_day` in
    recipients per rolling 24 hours (a quota of -1 is unlimited; other senders of the account count as well).
    `production` is false in the sandbox.
    """

    rate: float
    daily_quota: float
    sent_last_day: float
    sending_enabled: bool
    production: bool


@dataclass(frozen=True)
class Suppressed:
    """An address on the account's suppression list: `reason` is BOUNCE or COMPLAINT, `at` in UTC."""

    address: str
    reason: str
    at: datetime


class Ses:
    """One account in one region. Safe to share between threads; every call makes at most one request."""

    def __init__(self, sender: Any, admin: Any) -> None:
        self._sender = sender
        self._admin = admin
        self._thread = threading.local()
        punctual.attach(sender)
        for operation in ("SendBulkEmail", "SendEmail"):
            sender.meta.events.register(f"before-send.sesv2.{operation}", self._leaves)

    def send(
        self,
        request: dict[str, Any],
        *,
        at: float | None = None,
        lateness: float = 0.0,
        built: Callable[[], None] | None = None,
    ) -> Answer:
        """Make the call that `request.bulk_request` built and `request.check_bulk` (or `check_frame`) passed.

        `at` is when the request may leave (monotonic clock, seconds), at most `lateness` seconds later; None is
        at once. `built` is called when all of `request` is in the bytes that are sent, and may be written over: once,
        or not at all if it could not be built. Never raises for anything that SES or the network does; the answer says it.

        Raises:
            SlotMissed: the request was ready later than that, and certainly did not leave.
        """
        size = len(request["BulkEmailEntries"])
        return self._make(lambda: of_response(self._sender.send_bulk_email(**request), size), size, at, lateness, built)

    def send_single(
        self,
        request: dict[str, Any],
        *,
        at: float | None = None,
        lateness: float = 0.0,
        built: Callable[[], None] | None = None,
    ) -> Answer:
        """The same for the SendEmail request of one mail, as `single` builds it."""
        return self._make(lambda: of_single_response(self._sender.send_email(**request)), 1, at, lateness, built)

    def _make(
        self,
        call: Callable[[], Answer],
        size: int,
        at: float | None,
        lateness: float,
        built: Callable[[], None] | None,
    ) -> Answer:
        self._thread.built = built
        self._thread.left = False
        self._thread.slot = None if at is None else (at, at + lateness)
        self._thread.since = time.monotonic()
        punctual.expect(None if at is None else at + lateness)
        try:
            answer = call()
        except SlotMissed:
            raise
        except Exception as error:
            if isinstance(error, HTTPClientError) and isinstance(error.kwargs.get("error"), SlotMissed):
                raise SlotMissed from None
            answer = of_exception(error, size, left=self._thread.left)
        finally:
            self._thread.built = None
            punctual.expect(None)
        return replace(answer, seconds=time.monotonic() - self._thread.since)

    def account(self) -> Account:
        """Read the account's limits and switches (SES allows one such call a second). Raises ServiceError."""
        answer = _ask("GetAccount", self._admin.get_account)
        quota = answer.get("SendQuota") or {}
        try:
            return Account(
                rate=float(quota["MaxSendRate"]),
                daily_quota=float(quota["Max24HourSend"]),
                sent_last_day=float(quota["SentLast24Hours"]),
                # An absent switch means off.
                sending_enabled=bool(answer.get("SendingEnabled", False)),
                production=bool(answer.get("ProductionAccessEnabled", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ServiceError("SES GetAccount: the answer has no send quota") from error

    def publish(self, name: str, content: Content) -> None:
        """Store a template under its immutable name. One that is there already with the same content is fine.

        Raises TemplateError when another content has the name, ServiceError when SES refuses or cannot be
        reached.
        """
        parts = {"Subject": content.subject, "Html": content.html, "Text": content.text}
        try:
            _ask(
                "CreateEmailTemplate",
                self._admin.create_email_template,
                TemplateName=name,
                TemplateContent=parts,
            )
        except _Refused as refused:
            if refused.code != "AlreadyExistsException":
                raise
        else:
            return
        stored = _ask("GetEmailTemplate", self._admin.get_email_template, TemplateName=name).get("TemplateContent")
        if not isinstance(stored, dict) or any(_lines(stored.get(part)) != _lines(parts[part]) for part in parts):
            raise TemplateError(
                f"template {name}: SES holds another content under this name. A published template never"
                " changes: delete it there if no campaign uses it"
            )

    def set_sending(self, configuration_set: str, enabled: bool) -> None:
        """Turn the switch of one configuration set. Raises ServiceError."""
        _ask(
            "PutConfigurationSetSendingOptions",
            self._admin.put_configuration_set_sending_options,
            ConfigurationSetName=configuration_set,
            SendingEnabled=enabled,
        )

    def suppressed(self, address: str) -> str | None:
        """Why the account's suppression list holds an address (BOUNCE, COMPLAINT); None if it does not. Raises ServiceError."""
        try:
            answer = _ask("GetSuppressedDestination", self._admin.get_suppressed_destination, EmailAddress=address)
        except _Refused as refused:
            if refused.code == "NotFoundException":
                return None
            raise
        return str(answer.get("SuppressedDestination", {}).get("Reason"))

    def suppressed_since(self, since: datetime | None) -> Iterator[Suppressed]:
        """The account's suppression list, or what came onto it from an instant on. Raises ServiceError."""
        arguments: dict[str, Any] = {"PageSize": 1000} if since is None else {"PageSize": 1000, "StartDate": since}
        while True:
            page = _ask("ListSuppressedDestinations", self._admin.list_suppressed_destinations, **arguments)
            for one in page.get("SuppressedDestinationSummaries", []):
                yield Suppressed(one["EmailAddress"], one["Reason"], one["LastUpdateTime"])
            if not page.get("NextToken"):
                return
            arguments["NextToken"] = page["NextToken"]

    def suppress(self, address: str, reason: str) -> None:
        """Put an address onto the account's suppression list: BOUNCE or COMPLAINT. Raises ServiceError."""
        _ask("PutSuppressedDestination", self._admin.put_suppressed_destination, EmailAddress=address, Reason=reason)

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._sender.close()
        self._admin.close()

    def _leaves(self, **_: object) -> None:
        # Built and signed, so that neither can make a request late: what is left is the socket.
        built, self._thread.built = self._thread.built, None
        if built is not None:
            built()
        if self._thread.slot is not None:
            earliest, latest = self._thread.slot
            time.sleep(max(0.0, earliest - time.monotonic()))
            if time.monotonic() > latest:
                raise SlotMissed
        # The wait for the slot is ours, not a part of what SES takes to answer.
        self._thread.since = time.monotonic()
        self._thread.left = True


class _Refused(ServiceError):
    """SES answered with an error; `code` is its name."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


def connect(settings: Settings, *, endpoint: str | None, connections: int) -> Ses:
    """A client for so many calls at once. Nothing is sent yet.

    `endpoint` is where SES answers; None is AWS in the settings' region.
    """
    clients = Clients(settings, endpoint)
    # Sending skips botocore's check of types, a third of the time of a call: `check_bulk` has made it. The
    # other calls keep it, because SES reads any text as true where it expects a switch.
    return Ses(clients.make("sesv2", checked=False, connections=connections), clients.make("sesv2"))


def _ask(operation: str, call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    try:
        answer = call(**arguments)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        text = without_addresses(error.response.get("Error", {}).get("Message")) or "no reason given"
        raise _Refused(f"SES {operation}: {code}: {text}", code) from error
    except BotoCoreError as error:
        raise ServiceError(f"SES {operation}: {without_addresses(error)}") from error
    return answer if isinstance(answer, dict) else {}


def _lines(text: object) -> list[str] | None:
    """SES may store line ends in its own way; everything else has to be the same."""
    return text.strip().splitlines() if isinstance(text, str) else None
