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


class Filled(NamedTuple):
    """What SES is told of one person. `to` is the address, `data` the template's, `header` the value of List-Unsubscribe."""

    seq: int
    attempt: int
    to: str
    data: str
    header: str


class Form:
    """A `BulkEmailEntry` that is written for one person after the other: to make and to free its dicts and lists for each of them
    took a twentieth of the sender's time."""

    def __init__(self, campaign: str) -> None:
        self._to = [""]
        self._seq = {"Name": "seq", "Value": ""}
        self._tags = [{"Name": "campaign", "Value": campaign}, self._seq, _FIRST_ATTEMPT]
        self._data = {"ReplacementTemplateData": ""}
        self._header = {"Name": "List-Unsubscribe", "Value": ""}
        self._entry: dict[str, Any] = {
            "Destination": {"ToAddresses": self._to},
            "ReplacementTags": self._tags,
            "ReplacementEmailContent": {"ReplacementTemplate": self._data},
            "ReplacementHeaders": [self._header, _ONE_CLICK],
        }

    def write(self, filled: Filled) -> dict[str, Any]:
        """The entry of one person, until the next one is written: one To address, and the tags `campaign`, `seq` and `attempt`."""
        self._to[0] = filled.to
        self._seq["Value"] = str(filled.seq)
        self._tags[2] = _FIRST_ATTEMPT if filled.attempt == 1 else {"Name": "attempt", "Value": str(filled.attempt)}
        self._data["ReplacementTemplateData"] = filled.data
        self._header["Value"] = filled.header
        return self._entry


class Forms:
    """The forms of a run, for as many requests as are being built at once. Safe to share between threads.

    Those that were used last are taken first, because a processor's cache still knows them: with forms for each call under way it
    did not, and building took a twentieth longer.
    """

    def __init__(self, campaign: str) -> None:
        self._campaign = campaign
        self._free: list[list[Form]] = []

    def take(self, people: int) -> list[Form]:
        """Forms for so many people, and perhaps more, that nobody else has."""
        try:
            forms = self._free.pop()
        except IndexError:
            forms = []
        while len(forms) < people:
            forms.append(Form(self._campaign))
        return forms

    def give_back(self, forms: list[Form]) -> None:
        """Leave them to others, once: what was written is in a request that is built."""
        self._free.append(forms)


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
        self._url, self._header = signer.urls(topic), signer.header
        self._campaign = campaign

    def entry(self, recipient: Recipient) -> dict[str, Any]:
        """The `BulkEmailEntry` of one person, in a form of its own. Raises Unfit."""
        return Form(self._campaign).write(self.fill(recipient))

    def fill(self, recipient: Recipient) -> Filled:
        """What a form takes for one person.

        The template sees the segment's variables, and `user_id`, `email`, `timezone` and `locale` where it
        declares them. Raises Unfit.
        """
        try:
            to = send_form(recipient.email)
        except AddressError as error:
            raise Unfit(error.reason, "email") from None
        try:
            url = self._url(recipient.user_id)
            header = self._header(url)
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
        return Filled(recipient.seq, recipient.attempt, to, data, header)
