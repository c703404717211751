"""The adapter that the settings and a name ask for."""

from __future__ import annotations

from collections.abc import Callable

from mailpipe.adapters import Name
from mailpipe.adapters.protocol import Adapter
from mailpipe.adapters.ses import SesAdapter
from mailpipe.adapters.smtp import SmtpAdapter
from mailpipe.adapters.smtp_session import server
from mailpipe.adapters.webhook import WebhookAdapter, target
from mailpipe.errors import SettingsError
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings


def connect(settings: Settings, name: Name, *, ses: Callable[[], Ses]) -> Adapter:
    """Nothing is connected yet; `ses` makes the client that the adapter of that name needs.

    Raises:
        SettingsError: the settings of this adapter are missing or unusable; the text names the variable, and holds no secret.
    """
    if name == "ses":
        return SesAdapter(ses(), operation=settings.ses_operation)
    times = {"connect_timeout": settings.connect_timeout, "read_timeout": settings.read_timeout}
    if name == "smtp":
        if settings.smtp_url is None:
            raise SettingsError(
                "MAILPIPE_SMTP_URL: not set, and `adapter: smtp` needs it; for example smtp://127.0.0.1:1025"
            )
        return SmtpAdapter(server(settings.smtp_url, password=settings.smtp_password, **times))
    if settings.webhook_url is None:
        raise SettingsError("MAILPIPE_WEBHOOK_URL: not set, and `adapter: webhook` needs it")
    return WebhookAdapter(target(settings.webhook_url, secret=settings.webhook_secret, **times))
