"""Ways for a mail to leave, behind one protocol: Amazon SES (`ses`), an SMTP server (`smtp`), an HTTP webhook (`webhook`).

`protocol` says what a mail is and what an adapter promises; `connect` makes the one that the settings ask for. When a mail may
leave is decided in `pace`, to whom in the ledger and the outbox.
"""

from collections.abc import Mapping
from typing import Literal

Name = Literal["ses", "smtp", "webhook"]
MOST: Mapping[str, int] = {"smtp": 10, "webhook": 50}
"""Mails of a call for the adapters that SES's limits do not concern. Those of an SMTP call leave one after the other, so the last
one leaves later than its slot by the time of the others."""
