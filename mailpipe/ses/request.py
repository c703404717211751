"""The SendBulkEmail request, and everything that SES refuses although botocore lets it pass.

Patterns and lengths are those of the SES v2 service model (botocore, `sesv2/2019-09-27`) and of the quota
pages of the SES developer guide. botocore checks none of them. The send client does not ask it to check types
either, because `check_bulk` accepts one exact shape: all rules here take 8 µs a recipient, botocore's check
of types alone takes 30.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from mailpipe.address import AddressError, mailbox, send_form
from mailpipe.errors import MailpipeError
from mailpipe.header import MAX_HEADER, MAX_HEADERS, name_fits, value_fits

MAX_ENTRIES = 50
"""Recipients of one request that SES takes; an account whose rate is lower takes no more than its rate."""
MAX_TEMPLATE_DATA = 262_144

_tag = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch
_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch

_REQUEST_KEYS = {"FromEmailAddress", "DefaultContent", "BulkEmailEntries", "ConfigurationSetName"}
_ENTRY_KEYS = {"Destination", "ReplacementTags", "ReplacementEmailContent", "ReplacementHeaders"}


class RequestError(MailpipeError):
    """A request that SES would refuse. `index` is the entry at fault, or None: the whole request is.

    The text names the field and the rule, and holds no value.
    """

    def __init__(self, text: str, index: int | None = None) -> None:
        super().__init__(text if index is None else f"BulkEmailEntries[{index}]: {text}")
        self.index = index


def bulk_request(
    *,
    sender: str,
    template_name: str,
    configuration_set: str,
    entries: Sequence[dict[str, Any]],
    reply_to: str | None = None,
) -> dict[str, Any]:
    """The arguments of SendBulkEmail. `sender` and `reply_to` are `address` or `Name <address>`, the name in
    any language.

    Every entry carries all of its values: whether SES merges them with defaults by key is not documented.
    Raises RequestError when sender or reply_to is unusable.
    """
    request: dict[str, Any] = {
        "FromEmailAddress": _mailbox("FromEmailAddress", sender),
        "DefaultContent": {"Template": {"TemplateName": template_name, "TemplateData": "{}"}},
        "BulkEmailEntries": list(entries),
        "ConfigurationSetName": configuration_set,
    }
    if reply_to is not None:
        request["ReplyToAddresses"] = [_mailbox("ReplyToAddresses", reply_to)]
    return request


def check_bulk(request: dict[str, Any], *, max_entries: int = MAX_ENTRIES) -> None:
    """Refuse what SES would refuse, and any shape but that of `bulk_request` and `message.Letter`.

    `max_entries` is the smaller of 50 and the recipients per second that the account may send. Raises
    RequestError.
    """
    check_frame(request, max_entries=max_entries)
    for index, entry in enumerate(request["BulkEmailEntries"]):
        try:
            _check_entry(entry)
        except _Refused as refused:
            raise RequestError(str(refused), index) from None


def check_frame(request: dict[str, Any], *, max_entries: int = MAX_ENTRIES) -> None:
    """The same for all but the entries. Enough for those that `message.Letter` has made: they keep the rules by the way they are
    made (a property test holds it to them), and to check them again took 7.6 µs each, a quarter of the sender's own time.
    """
    keys = request.keys() - {"ReplyToAddresses"}
    if keys != _REQUEST_KEYS:
        raise RequestError(f"fields missing or not known: {_difference(keys, _REQUEST_KEYS)}")
    _check_mailbox("FromEmailAddress", request["FromEmailAddress"])
    answers = request.get("ReplyToAddresses", [])
    if not isinstance(answers, list):
        raise RequestError("ReplyToAddresses: expected a list")
    for address in answers:
        _check_mailbox("ReplyToAddresses", address)
    if not _matches(_name, request["ConfigurationSetName"]):
        raise RequestError("ConfigurationSetName: expected 1 to 64 of A-Z a-z 0-9 _ -")
    match request["DefaultContent"]:
        case {"Template": {"TemplateName": name, "TemplateData": "{}", **more}, **other} if not more and not other:
            if not _matches(_name, name):
                raise RequestError("TemplateName: expected 1 to 64 of A-Z a-z 0-9 _ -")
        case _:
            raise RequestError("DefaultContent: expected a template's name and empty TemplateData")
    entries = request["BulkEmailEntries"]
    limit = min(max_entries, MAX_ENTRIES)
    if not isinstance(entries, list) or not 1 <= len(entries) <= limit:
        raise RequestError(f"BulkEmailEntries: expected a list of 1 to {limit} entries")


class _Refused(Exception):
    """Field and rule, for the caller to add the index."""


def _check_entry(entry: Any) -> None:
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise _Refused(f"expected exactly the fields {', '.join(sorted(_ENTRY_KEYS))}")
    destination = entry["Destination"]
    addresses = destination["ToAddresses"] if _has_only(destination, "ToAddresses") else None
    if not isinstance(addresses, list) or len(addresses) != 1 or not isinstance(addresses[0], str):
        raise _Refused("Destination: expected exactly one To address")
    try:
        usable = send_form(addresses[0]) == addresses[0]
    except AddressError:
        usable = False
    if not usable:
        raise _Refused("ToAddresses: not an address in the form that SES takes")
    for tag in _pairs("ReplacementTags", entry["ReplacementTags"]):
        if not _matches(_tag, tag["Name"]) or not _matches(_tag, tag["Value"]):
            raise _Refused("ReplacementTags: expected names and values of 1 to 256 of A-Z a-z 0-9 _ -")
    headers = _pairs("ReplacementHeaders", entry["ReplacementHeaders"])
    if len(headers) > MAX_HEADERS:
        raise _Refused(f"ReplacementHeaders: more than {MAX_HEADERS}")
    for header in headers:
        name, value = header["Name"], header["Value"]
        if not _matches(name_fits, name):
            raise _Refused("ReplacementHeaders: a name has 1 to 126 printable ASCII characters without `:`")
        if not _matches(value_fits, value) or len(name) + len(value) > MAX_HEADER:
            raise _Refused("ReplacementHeaders: a value has 1 to 995 printable ASCII characters, with its name 996")
    content = entry["ReplacementEmailContent"]
    template: Any = content["ReplacementTemplate"] if _has_only(content, "ReplacementTemplate") else None
    data = template["ReplacementTemplateData"] if _has_only(template, "ReplacementTemplateData") else None
    if not isinstance(data, str):
        raise _Refused("ReplacementEmailContent: expected ReplacementTemplateData")
    _check_data(data)


def _check_data(data: str) -> None:
    if len(data) * 4 > MAX_TEMPLATE_DATA and len(data.encode()) > MAX_TEMPLATE_DATA:
        raise _Refused(f"ReplacementTemplateData: longer than {MAX_TEMPLATE_DATA} bytes")
    try:
        values = json.loads(data)
    except ValueError:
        raise _Refused("ReplacementTemplateData: not JSON") from None
    if not isinstance(values, dict):
        raise _Refused("ReplacementTemplateData: not a JSON object")


def _pairs(field: str, pairs: Any) -> list[dict[str, Any]]:
    if not isinstance(pairs, list):
        raise _Refused(f"{field}: expected a list")
    for pair in pairs:
        if not isinstance(pair, dict) or len(pair) != 2 or "Name" not in pair or "Value" not in pair:
            raise _Refused(f"{field}: expected Name and Value")
    return pairs


def _has_only(value: Any, key: str) -> bool:
    return isinstance(value, dict) and len(value) == 1 and key in value


def _matches(pattern: Any, value: object) -> bool:
    return isinstance(value, str) and pattern(value) is not None


def _mailbox(field: str, text: str) -> str:
    try:
        return mailbox(text)
    except AddressError as error:
        raise RequestError(f"{field}: {error}") from None


def _check_mailbox(field: str, text: object) -> None:
    if not isinstance(text, str) or not text.isascii() or _mailbox(field, text) != text:
        raise RequestError(f"{field}: not a mailbox in the form that SES takes")


def _difference(given: Collection[str], expected: Collection[str]) -> str:
    return ", ".join(sorted(set(given) ^ set(expected)))
