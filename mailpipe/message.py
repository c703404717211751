"""One recipient's entry of a SES bulk request: the address, the values, the tags and the unsubscribe headers.

All that can be wrong with one person is found here, before a call is opened, and fails that person alone
(`Unfit`). What is wrong with a whole request is found by `ses.request`; whether a person may be mailed is
decided elsewhere.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mailpipe.address import AddressError, send_form
from mailpipe.links import ONE_CLICK, Signer
from mailpipe.ses.request import MAX_TEMPLATE_DATA
from mailpipe.template import Filler, MissingVariable, Template

PERSON = ("user_id", "email", "timezone", "locale")
"""Columns of a segment that a template may declare as variables beside those of its own."""

# Made once, not for each of a million people.
_FIRST_ATTEMPT = {"Name": "attempt", "Value": "1"}
_ONE_CLICK = {"Name": ONE_CLICK[0], "Value": ONE_CLICK[1]}


class Recipient(NamedTuple):
    """One row of a snapshot; `values` are those of its variables, in their order. `tries` counts certain refusals so far; `attempt`
    is 1 until somebody orders a re-send."""

    seq: int
    user_id: str
    email: str
    timezone: str | None
    locale: str | None
    values: Sequence[object]
    tries: int = 0
    attempt: int = 1


class Unfit(Exception):
    """This person cannot get this mail. `reason` is unusable_address, missing_variable or too_large; `detail`
    names what (a variable, a part), and never holds a value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Letter:
    """What a campaign's mail has in common for all its people: the template, the `names` of the variables that they bring, and what
    the unsubscribe link is about (`topic`).
    """

    def __init__(self, template: Template, names: Sequence[str], signer: Signer, *, campaign: str, topic: str) -> None:
        self.template = template
        self._asks_for_person = not template.variables.keys().isdisjoint(PERSON)
        self._filler = Filler(template, (*names, *PERSON) if self._asks_for_person else names)
        self._signer = signer
        self._topic = topic
        self._campaign = {"Name": "campaign", "Value": campaign}

    def entry(self, recipient: Recipient) -> dict[str, Any]:
        """The `BulkEmailEntry` of one person: one To address, and the tags `campaign`, `seq` and `attempt`.

        The template sees the segment's variables, and `user_id`, `email`, `timezone` and `locale` where it
        declares them. Raises Unfit.
        """
        try:
            to = send_form(recipient.email)
        except AddressError as error:
            raise Unfit(error.reason, "email") from None
        try:
            url = self._signer.url(recipient.user_id, self._topic)
            header = self._signer.header(url)
        except ValueError:
            raise Unfit("too_large", "unsubscribe link") from None
        values = recipient.values
        if self._asks_for_person:
            values = (*values, *[getattr(recipient, name) for name in PERSON])
        try:
            data = self._filler.json(values, unsubscribe_url=url)
        except MissingVariable as error:
            raise Unfit("missing_variable", error.name) from None
        # A character has at most four bytes: most data are proved small without being encoded.
        if len(data) * 4 > MAX_TEMPLATE_DATA and len(data.encode()) > MAX_TEMPLATE_DATA:
            raise Unfit("too_large", "template data")
        return {
            "Destination": {"ToAddresses": [to]},
            "ReplacementTags": [
                self._campaign,
                {"Name": "seq", "Value": str(recipient.seq)},
                _FIRST_ATTEMPT if recipient.attempt == 1 else {"Name": "attempt", "Value": str(recipient.attempt)},
            ],
            "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": data}},
            "ReplacementHeaders": [{"Name": "List-Unsubscribe", "Value": header}, _ONE_CLICK],
        }
