"""Ways for a mail to leave, behind one protocol: Amazon SES (`ses`), an SMTP server (`smtp`), an HTTP webhook (`webhook`).

`protocol` says what a mail is and what an adapter promises; `connect` makes the one that the settings ask for. When a mail may
leave is decided in `pace`, to whom in the ledger and the outbox.
"""

from typing import Literal

Name = Literal["ses", "smtp", "webhook"]
