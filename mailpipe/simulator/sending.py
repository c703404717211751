"""SendBulkEmail and SendEmail: from a request's members to accepted messages and the answer.

Checks run in this order: switches, shape of the call, each entry's fields, quotas. What is accepted is in the
journal and its events are written before the answer exists.
"""

import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message as MimeHeaders
from email.parser import BytesHeaderParser
from email.utils import getaddresses

from mailpipe.simulator.account import DAILY_QUOTA_EXCEEDED, THROTTLED, Account, ConfigurationSets
from mailpipe.simulator.events import Events
from mailpipe.simulator.fates import MAILBOX_SIMULATOR, Fates
from mailpipe.simulator.faults import Plan
from mailpipe.simulator.journal import Journal
from mailpipe.simulator.message import Envelope, Message, new_message_ids
from mailpipe.simulator.rules import (
    InvalidFieldError,
    bare_address,
    configuration_set_name,
    header_list,
    tag_list,
    template_data,
)
from mailpipe.simulator.templates import Rendered, Template, Templates
from mailpipe.simulator.wire import Answer, ApiError, JsonObject, bad_request, json_answer, not_found, quote

MAX_RECIPIENTS = 50

# The whole-call error that says what a per-entry status says, and the text of both. Two public code bases see
# the daily quota as LimitExceededException on v2.
_STATUSES: dict[str, tuple[str, int, str]] = {
    "MESSAGE_REJECTED": ("MessageRejected", 400, "Email address is not verified."),
    "MAIL_FROM_DOMAIN_NOT_VERIFIED": (
        "MailFromDomainNotVerifiedException",
        400,
        "The MAIL FROM domain is not verified.",
    ),
    "CONFIGURATION_SET_NOT_FOUND": ("NotFoundException", 404, "The configuration set does not exist."),
    "TEMPLATE_NOT_FOUND": ("NotFoundException", 404, "The template does not exist."),
    "ACCOUNT_SUSPENDED": ("AccountSuspendedException", 400, "Your account is suspended from sending email."),
    THROTTLED: ("TooManyRequestsException", 429, "Maximum sending rate exceeded."),
    DAILY_QUOTA_EXCEEDED: ("LimitExceededException", 400, "Daily message quota exceeded."),
    "INVALID_SENDING_POOL_NAME": ("BadRequestException", 400, "The sending pool does not exist."),
    "ACCOUNT_SENDING_PAUSED": ("SendingPausedException", 400, "Email sending is disabled for your account."),
    "CONFIGURATION_SET_SENDING_PAUSED": (
        "SendingPausedException",
        400,
        "Email sending is disabled for the configuration set.",
    ),
    "INVALID_PARAMETER": ("BadRequestException", 400, "A parameter is invalid."),
    "TRANSIENT_FAILURE": ("InternalServiceErrorException", 500, "A temporary failure occurred. Try again."),
    "FAILED": ("BadRequestException", 400, "The message was not sent."),
}


def _status_text(status: str) -> str:
    return _STATUSES[status][2] if status in _STATUSES else "The message was not sent."


def whole_call_error(status: str, text: str = "") -> ApiError:
    kind, http_status, default_text = _STATUSES.get(status, _STATUSES["FAILED"])
    return ApiError(kind, text or default_text, http_status)


@dataclass(slots=True)
class _Entry:
    """One well-formed recipient of a call. `of_day` counts the recipients that the daily quota counts."""

    recipients: list[str]
    of_day: int
    tags: dict[str, str]
    headers: list[tuple[str, str]]
    data: JsonObject


class Sender:
    """Accepts messages for one account."""

    def __init__(
        self,
        *,
        account: Account,
        templates: Templates,
        sets: ConfigurationSets,
        fates: Fates,
        journal: Journal,
        events: Events,
        keep_messages: int,
    ) -> None:
        self._account = account
        self._templates = templates
        self._sets = sets
        self._fates = fates
        self._journal = journal
        self._events = events
        self._keep = keep_messages
        self._kept: OrderedDict[str, Message] = OrderedDict()

    def message(self, message_id: str) -> Message | None:
        """One of the newest messages, or None."""
        return self._kept.get(message_id)

    def send_bulk_email(self, request: JsonObject, plan: Plan, arrived_at: float) -> Answer:
        self._account.check_switches()
        raw_entries = request.get("BulkEmailEntries")
        if not isinstance(raw_entries, list) or not raw_entries:
            raise bad_request("BulkEmailEntries is required and must have at least one member.")
        limit = self._account.entries_per_call
        if len(raw_entries) > limit:
            raise bad_request(f"BulkEmailEntries must have length less than or equal to {limit}.")
        sender = _sender(request)
        set_name, set_found = self._configuration_set(request)
        default_content = request.get("DefaultContent")
        content = default_content.get("Template") if isinstance(default_content, dict) else None
        if not isinstance(content, dict):
            raise bad_request("DefaultContent.Template is required.")
        template = self._template(content)
        default_headers = header_list(content.get("Headers"), "Headers")
        default_tags, default_data = _call_defaults(
            request.get("DefaultEmailTags"), "DefaultEmailTags", content.get("TemplateData")
        )
        entries = [_bulk_entry(raw, default_tags, default_headers) for raw in raw_entries]
        refusals = plan.entry_statuses(len(entries))
        if not set_found:
            refusals = dict.fromkeys(range(len(entries)), "CONFIGURATION_SET_NOT_FOUND")
        elif template is None:
            refusals = dict.fromkeys(range(len(entries)), "TEMPLATE_NOT_FOUND")
        now = self._account.arrival(arrived_at)
        self._account.count_bulk_call(now)
        envelope = Envelope("SendBulkEmail", sender, set_name, _wall_clock(now), template, default_data)
        results = plan.arrange(self._accept(envelope, entries, refusals, plan, now))
        return Answer(200, f'{{"BulkEmailEntryResults":[{",".join(results)}]}}'.encode())

    def _accept(
        self, envelope: Envelope, entries: list[_Entry | str], refusals: dict[int, str], plan: Plan, now: float
    ) -> list[str]:
        """Accepts what can be accepted and returns one JSON result per entry, in their order."""
        account = self._account
        budget = account.budget(now, plan.daily_quota_at)
        if account.throttle_style == "call":
            wanted = [entry for n, entry in enumerate(entries) if isinstance(entry, _Entry) and n not in refusals]
            recipients = sum(len(entry.recipients) for entry in wanted)
            status = account.budget(now, plan.daily_quota_at).take(recipients, sum(entry.of_day for entry in wanted))
            if status:
                account.throttled_recipients += recipients
                raise whole_call_error(status)
        ids = iter(new_message_ids(len(entries)))
        template = envelope.template
        needed = template.variables - envelope.default_data.keys() if template else frozenset[str]()
        accepted: list[Message] = []
        results: list[str] = []
        for number, entry in enumerate(entries):
            if number in refusals:
                results.append(_refused(refusals[number], _status_text(refusals[number])))
                continue
            if not isinstance(entry, _Entry):
                results.append(_refused("INVALID_PARAMETER", entry))
                continue
            status = budget.take(len(entry.recipients), entry.of_day)
            if status:
                account.throttled_recipients += len(entry.recipients)
                results.append(_refused(status, _status_text(status)))
                continue
            message_id = next(ids)
            missing = "" if needed <= entry.data.keys() else min(needed - entry.data.keys())
            fates = [] if missing else [self._fates.of(recipient) for recipient in entry.recipients]
            accepted.append(
                Message(
                    envelope,
                    message_id,
                    entry.recipients,
                    fates,
                    entry.tags,
                    entry.headers,
                    entry.data,
                    missing,
                )
            )
            results.append(f'{{"Status":"SUCCESS","MessageId":"{message_id}"}}')
        account.spend(now, budget, len(accepted))
        self._record(envelope, accepted)
        return results

    def send_email(self, request: JsonObject, plan: Plan, arrived_at: float) -> Answer:
        self._account.check_switches()
        content = request.get("Content")
        given = [name for name in ("Simple", "Raw", "Template") if isinstance(content, dict) and content.get(name)]
        if not isinstance(content, dict) or len(given) != 1 or not isinstance(content[given[0]], dict):
            raise bad_request("Content must have exactly one of Simple, Raw and Template.")
        set_name, set_found = self._configuration_set(request)
        if not set_found:
            raise not_found(f"Configuration set {set_name} does not exist.")
        kind, part = given[0], content[given[0]]
        template: Template | None = None
        own_content: Rendered | None = None
        raw_headers: MimeHeaders | None = None
        if kind == "Template":
            template = self._template(part)
            if template is None:
                raise not_found("The template does not exist.")
        elif kind == "Simple":
            own_content = _simple_content(part)
        else:
            raw_headers = _raw_headers(part)
        try:
            sender = _sender(request, raw_headers)
            recipients = _recipients(_raw_destination(raw_headers, request.get("Destination")))
            tags = tag_list(request.get("EmailTags"), "EmailTags")
            data = template_data(part.get("TemplateData"), "TemplateData") if template else {}
        except InvalidFieldError as error:
            raise bad_request(f"{error}.") from None
        headers = header_list(part.get("Headers"), "Headers")
        for status in plan.entry_statuses(1).values():
            raise whole_call_error(status)
        now = self._account.arrival(arrived_at)
        budget = self._account.budget(now, plan.daily_quota_at)
        status = budget.take(len(recipients), _of_day(recipients))
        if status:
            self._account.throttled_recipients += len(recipients)
            raise whole_call_error(status)
        [message_id] = new_message_ids(1)
        missing = min(template.variables - data.keys(), default="") if template else ""
        fates = [] if missing else [self._fates.of(recipient) for recipient in recipients]
        envelope = Envelope("SendEmail", sender, set_name, _wall_clock(now), template)
        message = Message(envelope, message_id, recipients, fates, tags, headers, data, missing, own_content)
        self._account.spend(now, budget, 1)
        self._record(envelope, [message])
        return json_answer({"MessageId": message_id})

    def _record(self, envelope: Envelope, messages: list[Message]) -> None:
        if not messages:
            return
        self._journal.write(envelope, messages)
        self._events.write(envelope, messages)
        for message in messages:
            self._kept[message.message_id] = message
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)

    def _configuration_set(self, request: JsonObject) -> tuple[str, bool]:
        """The set's name and whether it exists. Raises ApiError when it is paused: SES then refuses the whole
        call."""
        name = configuration_set_name(request.get("ConfigurationSetName"))
        if not name:
            return "", True
        if not self._sets.known(name):
            return name, False
        if not self._sets.enabled(name):
            raise ApiError("SendingPausedException", f"Email sending is disabled for the configuration set {name}.")
        return name, True

    def _template(self, content: JsonObject) -> Template | None:
        """The template that a call names or brings along; None if there is no template of that name."""
        if content.get("TemplateContent") is not None:
            return Template("", content["TemplateContent"], time.time())
        name = content.get("TemplateName") or str(content.get("TemplateArn") or "").rpartition("/")[2]
        if not isinstance(name, str) or not name:
            raise bad_request("The template is named neither by TemplateName nor by TemplateArn, and is not inline.")
        return self._templates.find(name)


def _wall_clock(at: float) -> float:
    """A monotonic time in seconds since 1970."""
    return time.time() - (time.monotonic() - at)


def _refused(status: str, text: str) -> str:
    return f'{{"Status":{quote(status)},"Error":{quote(text)}}}'


def _call_defaults(tags: object, where: str, data: object) -> tuple[dict[str, str], JsonObject]:
    """Tags and variables that all entries share. What is wrong with them is wrong with the whole call."""
    try:
        return tag_list(tags, where), template_data(data, "TemplateData")
    except InvalidFieldError as error:
        raise bad_request(f"{error}.") from None


def _bulk_entry(raw: object, default_tags: dict[str, str], default_headers: list[tuple[str, str]]) -> _Entry | str:
    """The entry, or the reason why it is invalid. Raises ApiError for what refuses the whole call."""
    if not isinstance(raw, dict) or not isinstance(raw.get("Destination"), dict):
        raise bad_request("Every member of BulkEmailEntries must have a Destination.")
    content = raw.get("ReplacementEmailContent") or {}
    replacement = content.get("ReplacementTemplate") or {} if isinstance(content, dict) else None
    if not isinstance(replacement, dict):
        raise bad_request("ReplacementEmailContent.ReplacementTemplate must be a structure.")
    headers = header_list(raw.get("ReplacementHeaders"), "ReplacementHeaders")
    if default_headers:
        replaced = {name.lower() for name, _ in headers}
        headers = [pair for pair in default_headers if pair[0].lower() not in replaced] + headers
    try:
        recipients = _recipients(raw["Destination"])
        tags = tag_list(raw.get("ReplacementTags"), "ReplacementTags")
        data = template_data(replacement.get("ReplacementTemplateData"), "ReplacementTemplateData")
    except InvalidFieldError as error:
        return f"{error}."
    return _Entry(recipients, _of_day(recipients), default_tags | tags if default_tags else tags, headers, data)


def _recipients(destination: JsonObject) -> list[str]:
    """To, Cc and Bcc as bare addresses. Raises InvalidFieldError."""
    recipients: list[str] = []
    for member in ("ToAddresses", "CcAddresses", "BccAddresses"):
        addresses = destination.get(member)
        if addresses:
            if not isinstance(addresses, list):
                raise bad_request(f"{member} must be a list.")
            recipients += [bare_address(address) for address in addresses]
    if not recipients:
        raise InvalidFieldError("At least one recipient is required")
    if len(recipients) > MAX_RECIPIENTS:
        raise InvalidFieldError(f"Recipient count exceeds {MAX_RECIPIENTS}")
    return recipients


def _of_day(recipients: list[str]) -> int:
    """How many recipients the daily quota counts: all but the mailbox simulator's."""
    return sum([not recipient.endswith("@" + MAILBOX_SIMULATOR) for recipient in recipients])


def _sender(request: JsonObject, raw_headers: MimeHeaders | None = None) -> str:
    """The bare From address. Raises ApiError."""
    given = request.get("FromEmailAddress") or (raw_headers["From"] if raw_headers else None)
    if not given:
        raise bad_request("FromEmailAddress is required.")
    replies = request.get("ReplyToAddresses") or []
    if not isinstance(replies, list):
        raise bad_request("ReplyToAddresses must be a list.")
    try:
        for reply in replies:
            bare_address(reply)
        return bare_address(str(given))
    except InvalidFieldError as error:
        raise bad_request(f"{error}.") from None


def _simple_content(part: JsonObject) -> Rendered:
    def data(content: object, where: str) -> str:
        if not isinstance(content, dict) or not isinstance(content.get("Data"), str):
            raise bad_request(f"{where}.Data is required.")
        return str(content["Data"])

    body = part.get("Body")
    if not isinstance(body, dict) or not (body.get("Text") or body.get("Html")):
        raise bad_request("Body must have Text or Html.")
    return Rendered(
        subject=data(part.get("Subject"), "Subject"),
        text=data(body["Text"], "Text") if body.get("Text") else None,
        html=data(body["Html"], "Html") if body.get("Html") else None,
    )


def _raw_headers(part: JsonObject) -> MimeHeaders:
    try:
        return BytesHeaderParser().parsebytes(base64.b64decode(part.get("Data") or "", validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise bad_request("Raw.Data is not base64.") from None


def _raw_destination(headers: MimeHeaders | None, destination: object) -> JsonObject:
    """The destination of the request, or of the MIME headers when a raw message comes without one."""
    if isinstance(destination, dict) and any(destination.values()):
        return destination
    if headers is None:
        return {}
    return {"ToAddresses": list(_header_addresses(headers))}


def _header_addresses(headers: MimeHeaders) -> Iterator[str]:
    for name in ("To", "Cc", "Bcc"):
        for _, address in getaddresses([str(value) for value in headers.get_all(name, [])]):
            yield address
