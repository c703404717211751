"""The switch at the provider: with its configuration set turned off, SES refuses every call, whoever makes it.

A pause in the ledger already lets no call be opened any more. This is for the moment when that is not enough: a sender that cannot
reach the database, a copy of it elsewhere, another program. The configuration set is shared: other campaigns that use it are
refused too, and pause with that cause; nobody is failed for it.
"""

from __future__ import annotations

from mailpipe import campaign
from mailpipe.campaign import Campaign
from mailpipe.db import Connection
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings


def pause(connection: Connection, settings: Settings, ses: Ses, key: str, *, actor: str, reason: str) -> Campaign:
    """Pause a campaign, and turn off its configuration set at SES. In this order: the ledger's own pause needs nobody's help.

    Raises:
        CampaignError: the campaign cannot be paused; the switch is not touched.
        ServiceError: SES could not be told; the campaign is paused.
    """
    paused = campaign.pause(connection, key, actor=actor, reason=reason)
    _turn(connection, settings, ses, paused, actor=actor, reason=reason, on=False)
    return paused


def resume(connection: Connection, settings: Settings, ses: Ses, key: str, *, actor: str) -> Campaign:
    """Turn on the configuration set again, and let the paused campaign go on.

    Raises:
        CampaignError: the campaign is not paused; the switch is not touched.
        ServiceError: SES could not be told; the campaign stays paused.
    """
    found = campaign.get(connection, key)
    if found.state == "paused":
        _turn(connection, settings, ses, found, actor=actor, reason="resumed", on=True)
    return campaign.resume(connection, key, actor=actor)


def _turn(
    connection: Connection, settings: Settings, ses: Ses, found: Campaign, *, actor: str, reason: str, on: bool
) -> None:
    ses.set_sending(settings.configuration_set, on)
    campaign.note(
        connection,
        found.campaign_id,
        actor=actor,
        action="provider_on" if on else "provider_off",
        detail={"reason": reason, "configuration_set": settings.configuration_set},
    )
