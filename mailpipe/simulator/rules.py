"""What a field of a send request may hold. Patterns and lengths are those of the SES v2 service model
(MessageHeaderName, MessageHeaderValue, MessageHeaderList, MessageTag, EmailTemplateData, Destination);
address errors use SES's wording.

Two kinds of error, because SES answers them differently: `ApiError` for what its model constrains (the whole
call is refused) and `InvalidFieldError` for what only the recipient's entry answers for (INVALID_PARAMETER).
No text holds an address.
"""

import json
import re

from mailpipe.simulator.wire import JsonObject, bad_request

MAX_HEADERS = 15
MAX_TEMPLATE_DATA = 262_144

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_plain_address = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*").fullmatch
_quoted_local = re.compile(r'"(?:[ !#-\[\]-~]|\\[ -~])*"').fullmatch
_named_address = re.compile(r"[^<>]*<([^<>]*)>\s*").fullmatch
_header_name = re.compile(r"[!-9;-@A-~]{1,126}").fullmatch
_header_value = re.compile(r"[ -~]{1,995}").fullmatch
_tag_text = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch
_configuration_set = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_control_or_space = re.compile(r"[\x00-\x20\x7f]").search


class InvalidFieldError(Exception):
    """One entry cannot be accepted as it is; the text says why and holds no address."""


def bare_address(text: object) -> str:
    """The address of `text`, which may carry a display name, with its domain in lower case.

    The local part must be 7-bit ASCII and the domain ASCII (Punycode): SES has no SMTPUTF8. Raises
    InvalidFieldError.
    """
    if not isinstance(text, str):
        raise InvalidFieldError("An address is not a string")
    address = text
    if "<" in text:
        named = _named_address(text)
        if named is None:
            raise InvalidFieldError("Illegal address")
        if not text.isascii():
            raise InvalidFieldError("Address contains a display name that is not 7-bit ASCII")
        address = named[1]
    if not _plain_address(address):
        _explain(address)
    local, _, domain = address.rpartition("@")
    if len(local) > 64:
        raise InvalidFieldError("Local address is longer than 64 characters")
    if len(domain) > 255:
        raise InvalidFieldError("Domain is longer than 255 characters")
    return f"{local}@{domain.lower()}"


def _explain(address: str) -> None:
    """Raises InvalidFieldError with SES's reason, or returns if the local part is a quoted string."""
    local, at, domain = address.rpartition("@")
    if not at:
        raise InvalidFieldError("Missing final '@domain'")
    if not local:
        raise InvalidFieldError("Missing local name")
    if not domain:
        raise InvalidFieldError("Missing domain")
    for part, name in ((local, "Local address"), (domain, "Domain")):
        if not part.isascii():
            raise InvalidFieldError(f"{name} contains non-ASCII characters")
        if name == "Local address" and _quoted_local(part):
            continue
        if _control_or_space(part):
            raise InvalidFieldError(f"{name} contains control or whitespace")
        if part.startswith("."):
            raise InvalidFieldError(f"{name} starts with dot")
        if part.endswith("."):
            raise InvalidFieldError(f"{name} ends with dot")
        if ".." in part:
            raise InvalidFieldError(f"{name} contains dot-dot")
    if not _quoted_local(local) and not re.fullmatch(rf"{_ATOM}(?:\.{_ATOM})*", local):
        raise InvalidFieldError("Local address contains illegal character")
    if not re.fullmatch(rf"{_LABEL}(?:\.{_LABEL})*", domain):
        raise InvalidFieldError("Domain contains illegal character")


def header_list(value: object, where: str) -> list[tuple[str, str]]:
    """(name, value) pairs of a MessageHeaderList. Raises ApiError: SES refuses the whole call."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request(f"{where} must be a list.")
    if len(value) > MAX_HEADERS:
        raise bad_request(f"{where} must have length less than or equal to {MAX_HEADERS}.")
    pairs = []
    for header in value:
        name, text = _name_and_value(header, where)
        if not _header_name(name):
            raise bad_request(f"A header name in {where} must be 1 to 126 printable ASCII characters without a colon.")
        if not _header_value(text):
            raise bad_request(f"A header value in {where} must be 1 to 995 printable ASCII characters.")
        if len(name) + len(text) > 996:
            raise bad_request(f"A header in {where} is longer than 996 characters, name and value together.")
        pairs.append((name, text))
    return pairs


def tag_list(value: object, where: str) -> dict[str, str]:
    """The tags of a MessageTagList. Raises InvalidFieldError for a forbidden character, ApiError for a wrong
    shape."""
    if value is None:
        return {}
    if not isinstance(value, list):
        raise bad_request(f"{where} must be a list.")
    tags = {}
    for tag in value:
        name, text = _name_and_value(tag, where)
        if not _tag_text(name) or not _tag_text(text):
            raise InvalidFieldError(f"A tag in {where} must be 1 to 256 ASCII letters, digits, '_' or '-'")
        tags[name] = text
    return tags


def _name_and_value(pair: object, where: str) -> tuple[str, str]:
    if isinstance(pair, dict):
        name, value = pair.get("Name"), pair.get("Value")
        if isinstance(name, str) and isinstance(value, str):
            return name, value
    raise bad_request(f"Every member of {where} must have a Name and a Value, both strings.")


def template_data(value: object, where: str) -> JsonObject:
    """The variables of a TemplateData string.

    Raises InvalidFieldError if it is no JSON object, ApiError if it is too long.
    """
    if value is None:
        return {}
    if not isinstance(value, str):
        raise bad_request(f"{where} must be a string.")
    if len(value) * 4 > MAX_TEMPLATE_DATA and len(value.encode()) > MAX_TEMPLATE_DATA:
        raise bad_request(f"{where} must have length less than or equal to {MAX_TEMPLATE_DATA}.")
    try:
        data = json.loads(value)
    except ValueError:
        raise InvalidFieldError(f"{where} is not JSON") from None
    if not isinstance(data, dict):
        raise InvalidFieldError(f"{where} is not a JSON object")
    return data


def configuration_set_name(value: object) -> str:
    """The name of a configuration set, or '' when the member is absent. Raises ApiError."""
    if value is None:
        return ""
    if not isinstance(value, str) or not _configuration_set(value):
        raise bad_request("A configuration set name must be 1 to 64 ASCII letters, digits, '_' or '-'.")
    return value
