"""A campaign's mail for an adapter other than SES's, made of the entry that its SES request would have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mailpipe.adapters.protocol import Mail, Templated
from mailpipe.campaign_file import Spec
from mailpipe.template import Template


def mail(entry: Mapping[str, Any], template: Template, spec: Spec) -> Mail:
    """The mail that an entry of `message.Letter` is about. `template` is the published one that its data belong to."""
    [to] = entry["Destination"]["ToAddresses"]
    data = json.loads(entry["ReplacementEmailContent"]["ReplacementTemplate"]["ReplacementTemplateData"])
    return Mail(
        sender=spec.sender,
        to=to,
        content=Templated(template, data),
        configuration_set="",
        headers=[(header["Name"], header["Value"]) for header in entry["ReplacementHeaders"]],
        tags={tag["Name"]: tag["Value"] for tag in entry["ReplacementTags"]},
        reply_to=spec.reply_to,
    )
