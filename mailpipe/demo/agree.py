"""The comparison, person by person, of what the provider accepted (the stand-in's journal) with what the ledger says.

Two witnesses that share no code: the journal is written by the stand-in before it answers, the ledger by the sender.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mailpipe import campaign, snapshot
from mailpipe.db import Connection, Database
from mailpipe.errors import CampaignError

_EXAMPLES = 5
_PAGE = 10_000
_MANY = 255

MEANING = {
    "doubled": "people were accepted more than once",
    "missing": "people are sent in the ledger, but the provider never accepted them",
    "not_sent": "people were accepted by the provider, but the ledger does not call them sent",
    "wrong_address": "people were sent to another address than the snapshot's",
    "foreign": "lines of the journal are about nobody of this campaign",
    "unfinished": "people are still pending or in a call",
    "miscounted": "recipients have no state or more than one",
}
"""Every way to disagree; the numbers beside them count the people (for `foreign`: the lines)."""


@dataclass
class Agreement:
    """What came out. `accepted` counts lines of the journal, `states` people; `examples` holds a few seqs (or line numbers)
    of each kind of fault, never an address."""

    recipients: int
    accepted: int = 0
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)

    @property
    def agree(self) -> bool:
        return not self.faults

    def fault(self, kind: str, where: int) -> None:
        self.faults[kind] += 1
        known = self.examples.setdefault(kind, [])
        if len(known) < _EXAMPLES:
            known.append(where)

    def lines(self) -> list[str]:
        """The faults in words; empty when there are none."""
        where = {kind: ", ".join(str(number) for number in numbers) for kind, numbers in self.examples.items()}
        return [
            f"{self.faults[kind]:,} {text} ({'line' if kind == 'foreign' else 'seq'} {where[kind]}"
            f"{', ...' if self.faults[kind] > _EXAMPLES else ''})"
            for kind, text in MEANING.items()
            if self.faults[kind]
        ]


def compare(database: Database, key: str, journal: Path) -> Agreement:
    """Hold a journal that is this campaign's alone against the ledger. Takes about ten bytes of memory a recipient.

    Agreed is: every line of the journal is one person who is `sent` (or failed because SES could not render their mail), at
    the address of the snapshot; every `sent` is in the journal, nobody twice; every recipient has one state, and none is
    pending or in a call.

    Raises:
        CampaignError: there is no such campaign, or it has no snapshot.
    """
    with database.transaction() as connection:
        found = campaign.get(connection, key)
        taken = snapshot.get(connection, found.campaign_id)
        if taken is None:
            raise CampaignError(f"campaign {key!r} has no snapshot yet")
        result = Agreement(taken.recipients)
        accepted, addresses = _read(journal, key, result)
        _hold(_people(connection, found.campaign_id), accepted, addresses, result)
    return result


def _read(journal: Path, key: str, result: Agreement) -> tuple[bytearray, array[int]]:
    """How often each seq was accepted, and a hash of the address it was accepted for."""
    accepted = bytearray(result.recipients + 1)
    addresses = array("q", bytes(8 * (result.recipients + 1)))
    with journal.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            result.accepted += 1
            seq, address = _parse(line, key)
            if not 1 <= seq <= result.recipients:
                result.fault("foreign", number)
                continue
            accepted[seq] = min(accepted[seq] + 1, _MANY)
            addresses[seq] = hash(address)
    return accepted, addresses


def _parse(line: bytes, key: str) -> tuple[int, str]:
    """Seq and address of a line; seq 0 if it is not of this campaign."""
    try:
        content: Any = json.loads(line)
        if content["campaign"] == key and content["recipients"] == 1:
            return int(content["seq"]), str(content["to"]).lower()
    except (ValueError, TypeError, KeyError):
        pass
    return 0, ""


def _people(connection: Connection, campaign_id: int) -> Iterator[tuple[int, str, str | None, str, int]]:
    with connection.cursor("agree") as cursor:
        cursor.itersize = _PAGE
        cursor.execute(
            "SELECT seq, state, reason, mailpipe.email_key(email), attempt FROM mailpipe.delivery WHERE campaign_id = %s",
            (campaign_id,),
        )
        yield from cursor


def _hold(
    people: Iterable[tuple[int, str, str | None, str, int]],
    accepted: bytearray,
    addresses: array[int],
    result: Agreement,
) -> None:
    seen = bytearray(result.recipients + 1)
    for seq, state, reason, address, attempt in people:
        result.states[state] += 1
        if not 1 <= seq <= result.recipients or seen[seq]:
            result.fault("miscounted", seq)
            continue
        seen[seq] = 1
        if state in ("pending", "sending"):
            result.fault("unfinished", seq)
        if accepted[seq] > attempt:
            result.fault("doubled", seq)
        if state == "sent" and not accepted[seq]:
            result.fault("missing", seq)
        if accepted[seq] and state != "sent" and (state, reason) != ("failed", "rendering_failure"):
            result.fault("not_sent", seq)
        if accepted[seq] and addresses[seq] != hash(address):
            result.fault("wrong_address", seq)
    for seq in range(1, result.recipients + 1):
        if not seen[seq]:
            result.fault("miscounted", seq)
