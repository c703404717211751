"""The SendEmail request: one mail, of a published template or with content of its own.

The rules of its fields are those of `request`, those of a subject `header`'s; what else SES refuses here is that content is empty
or larger than it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mailpipe.ses.request import RequestError, bulk_request, check_bulk

MAX_MESSAGE = 9 * 1024 * 1024
"""Bytes of subject, HTML and text together. SES takes 10 MB after encoding (service quotas, `Message size`), 40 MB on request."""


def single_request(bulk: dict[str, Any]) -> dict[str, Any]:
    """The arguments of SendEmail that say the same as a SendBulkEmail request with one entry.

    Raises:
        RequestError: it has another number of entries.
    """
    if len(bulk["BulkEmailEntries"]) != 1:
        raise RequestError("BulkEmailEntries: expected one, because SendEmail sends one mail")
    [entry] = bulk["BulkEmailEntries"]
    template = {
        "TemplateName": bulk["DefaultContent"]["Template"]["TemplateName"],
        "TemplateData": entry["ReplacementEmailContent"]["ReplacementTemplate"]["ReplacementTemplateData"],
        "Headers": entry["ReplacementHeaders"],
    }
    return _request(bulk, entry, {"Template": template})


def inline_request(
    *,
    sender: str,
    configuration_set: str,
    to: str,
    subject: str,
    html: str | None,
    text: str | None,
    headers: Sequence[dict[str, str]] = (),
    tags: Sequence[dict[str, str]] = (),
    reply_to: str | None = None,
) -> dict[str, Any]:
    """The arguments of SendEmail for a mail that brings its content along.

    Raises:
        RequestError: a field is one that SES would refuse.
    """
    # Checked as the bulk request that has the same fields.
    entry = {
        "Destination": {"ToAddresses": [to]},
        "ReplacementTags": list(tags),
        "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": "{}"}},
        "ReplacementHeaders": list(headers),
    }
    bulk = bulk_request(
        sender=sender, template_name="inline", configuration_set=configuration_set, entries=[entry], reply_to=reply_to
    )
    check_bulk(bulk)
    if not (html or text):
        raise RequestError("Content: expected html or text")
    if sum(len(part.encode(errors="replace")) for part in (subject, html or "", text or "")) > MAX_MESSAGE:
        raise RequestError(f"Content: larger than {MAX_MESSAGE} bytes")
    body = {name: _part(part) for name, part in (("Html", html), ("Text", text)) if part}
    return _request(bulk, entry, {"Simple": {"Subject": _part(subject), "Body": body, "Headers": list(headers)}})


def _request(bulk: dict[str, Any], entry: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    request = {
        "FromEmailAddress": bulk["FromEmailAddress"],
        "Destination": entry["Destination"],
        "Content": content,
        "EmailTags": entry["ReplacementTags"],
        "ConfigurationSetName": bulk["ConfigurationSetName"],
    }
    if "ReplyToAddresses" in bulk:
        request["ReplyToAddresses"] = bulk["ReplyToAddresses"]
    return request


def _part(text: str) -> dict[str, str]:
    return {"Data": text, "Charset": "UTF-8"}
