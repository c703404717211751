"""Mail through Amazon SES: SendBulkEmail for what shares a template, SendEmail for a mail that brings its content along.

Requests and answers are `mailpipe.ses`'s; here a mail becomes an entry. Campaigns make their entries themselves (`message`),
because that way is measured.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from mailpipe import header
from mailpipe.adapters.protocol import Inline, Mail, Templated
from mailpipe.address import AddressError, parts
from mailpipe.ses import request, single
from mailpipe.ses.answer import Answer, Kind, Result
from mailpipe.ses.client import Ses
from mailpipe.ses.request import RequestError

Operation = Literal["bulk", "single"]

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class SesAdapter:
    """One SES account. `operation` says how templated mails leave: many in a SendBulkEmail, or each in a SendEmail of its own."""

    name = "ses"

    def __init__(self, ses: Ses, *, operation: Operation = "bulk") -> None:
        self._ses = ses
        self._single = operation == "single"
        self.most = 1 if self._single else request.MAX_ENTRIES

    def shares(self, mail: Mail) -> Hashable | None:
        """What SendBulkEmail has only once: the template, From, Reply-To and the configuration set."""
        if self._single or isinstance(mail.content, Inline):
            return None
        return (mail.content.template.version, mail.sender, mail.reply_to, mail.configuration_set)

    def send(self, mails: Sequence[Mail], *, slot_at: float | None = None, lateness: float = 0.0) -> Answer:
        """One call for mails that `shares` puts together. See `Adapter.send`."""
        results: list[Result | None] = [None] * len(mails)
        made: dict[str, Any] | None = None
        while made is None:
            fit = [position for position, result in enumerate(results) if result is None]
            if not fit:
                return Answer(tuple(result for result in results if result is not None))
            try:
                made = self._request([mails[position] for position in fit])
            except RequestError as error:
                # What is wrong with the call as a whole is wrong with each mail of it: their senders and sets are the same.
                at_fault = fit if error.index is None else [fit[error.index]]
                for position in at_fault:
                    results[position] = Result(Kind.FAILED, "invalid_mail", str(error))
        if "BulkEmailEntries" in made:
            answer = self._ses.send(made, at=slot_at, lateness=lateness)
        else:
            answer = self._ses.send_single(made, at=slot_at, lateness=lateness)
        answered = iter(answer.results)
        return replace(answer, results=tuple(next(answered) if result is None else result for result in results))

    def close(self) -> None:
        self._ses.close()

    def _request(self, mails: Sequence[Mail]) -> dict[str, Any]:
        first = mails[0]
        if isinstance(first.content, Inline):
            if len(mails) > 1:
                raise RequestError("mails with content of their own do not share a call")
            try:
                header.check(first.headers)
                header.check_subject(first.content.subject)
            except header.HeaderError as error:
                raise RequestError(str(error)) from None
            return single.inline_request(
                sender=first.sender,
                configuration_set=first.configuration_set,
                to=_to(first, 0),
                subject=first.content.subject,
                html=first.content.html,
                text=first.content.text,
                headers=_pairs(first.headers),
                tags=_pairs(first.tags.items()),
                reply_to=first.reply_to,
            )
        if len({self.shares(mail) for mail in mails}) > 1:
            raise RequestError("mails of different templates, senders or configuration sets do not share a call")
        made = request.bulk_request(
            sender=first.sender,
            template_name=first.content.template.version,
            configuration_set=first.configuration_set,
            entries=[_entry(mail, position) for position, mail in enumerate(mails)],
            reply_to=first.reply_to,
        )
        request.check_bulk(made)
        return single.single_request(made) if self._single else made


def _entry(mail: Mail, position: int) -> dict[str, Any]:
    try:
        header.check(mail.headers)
    except header.HeaderError as error:
        raise RequestError(str(error), position) from None
    data = mail.content.data if isinstance(mail.content, Templated) else {}
    return {
        "Destination": {"ToAddresses": [_to(mail, position)]},
        "ReplacementTags": _pairs(mail.tags.items()),
        "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": _encode(dict(data))}},
        "ReplacementHeaders": _pairs(mail.headers),
    }


def _to(mail: Mail, position: int) -> str:
    """The bare address: a name of the recipient does not travel to SES, where an unusual one fails the whole call."""
    try:
        return parts(mail.to)[1]
    except AddressError as error:
        raise RequestError(f"to: {error}", position) from None


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"Name": name, "Value": value} for name, value in pairs]
