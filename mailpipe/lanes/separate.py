"""What messages never share with campaigns: the configuration set, whose switch would stop both, and the From domain.

The settings refuse a shared configuration set by themselves. Domains are compared here, with all campaigns that may still send.
"""

from __future__ import annotations

from mailpipe import address, campaign, campaign_file
from mailpipe.db import Connection
from mailpipe.errors import CampaignError, SettingsError
from mailpipe.settings import Settings, transactional_sender


def check(connection: Connection, config: Settings) -> tuple[str, frozenset[str]]:
    """The sender of messages, once it is known to be no campaign's; and the domains of campaigns, which no message may use.

    Raises:
        SettingsError: a campaign in the database, or a campaign file, sends from the same domain; the text names it.
    """
    sender = transactional_sender(config)
    try:
        own = address.domain(sender)
    except address.AddressError:
        raise SettingsError(
            "MAILPIPE_TRANSACTIONAL_SENDER: expected an address such as `Shop <login@notify.example.com>`"
        ) from None
    taken = {address.domain(other): where for where, other in _marketing(connection, config)}
    if own in taken:
        raise SettingsError(
            f"MAILPIPE_TRANSACTIONAL_SENDER: {taken[own]} sends from the domain {own} too. Give messages a domain of their own:"
            " what people think of a campaign must not decide whether a login code arrives"
        )
    return sender, frozenset(taken)


def _marketing(connection: Connection, config: Settings) -> list[tuple[str, str]]:
    live = [one for one in campaign.get_all(connection) if one.state not in ("done", "cancelled")]
    found = [(f"campaign {one.key}", one.spec.sender) for one in live]
    for path in sorted((config.home / "assets" / "campaigns").glob("*.yaml")):
        try:
            found.append((str(path), campaign_file.read_file(path).sender))
        except CampaignError:
            # It cannot be used as it is; whoever makes it a campaign meets the same rule.
            continue
    return found
