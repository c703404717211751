"""A campaign cut into chunks as a test wants them, and the ledger's steps on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mailpipe import campaign, ledger
from mailpipe.db import Connection
from mailpipe.ledger import Answered, Lease, Opened
from mailpipe.message import Recipient
from mailpipe.ses.answer import Answer, Kind, Result
from tests.support import World, opening

SENT, FAILED, RETRY, AGAIN, UNKNOWN = Kind.SENT, Kind.FAILED, Kind.RETRY, Kind.AGAIN, Kind.UNKNOWN


def message_id(number: int) -> str:
    return f"{number:016x}-01234567-89ab-4def-8123-456789abcdef-000000"


def answer(*kinds: Kind, first: int = 1) -> Answer:
    """What SES says to as many people; the message ids are numbered from `first` on."""
    results = [
        Result(kind, message_id=message_id(first + i)) if kind is SENT else Result(kind, f"because_{kind}", "text")
        for i, kind in enumerate(kinds)
    ]
    return Answer(tuple(results), seconds=0.1)


class Table:
    """A sending campaign of `people`, cut into chunks of the sizes that a test wants, and the ledger's steps on it."""

    def __init__(self, world: World, connection: Connection, sizes: Sequence[int]) -> None:
        self.world, self.connection = world, connection
        world.clean()
        world.people(sum(sizes))
        self.key = world.ready()
        self.campaign_id = world.campaign(self.key).campaign_id
        first = 1
        connection.execute("DELETE FROM mailpipe.chunk WHERE campaign_id = %s", (self.campaign_id,))
        for number, size in enumerate(sizes):
            connection.execute(
                "INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)"
                " VALUES (%s, %s, %s, %s, %s, now(), repeat('0', %s)::varbit, repeat('0', %s)::varbit)",
                (self.campaign_id, number, number, first, size, size, size),
            )
            first += size
        campaign.start(connection, self.key, actor="test")

    def lease(
        self, owner: str = "one", *, seconds: float = 60, slices: tuple[int, int] = (0, 99), low: int = 0
    ) -> Lease | None:
        return ledger.lease(self.connection, self.campaign_id, slices, owner=owner, seconds=seconds, low=low)

    def hold(self, owner: str = "one", *, seconds: float = 60) -> Lease:
        held = self.lease(owner, seconds=seconds)
        assert held is not None
        return held

    def people(self, held: Lease) -> list[Recipient]:
        return ledger.people(self.connection, held)

    def open(self, held: Lease, *seqs: int, seconds: float = 60) -> Opened | None:
        """Open a call for these people, or for everybody of the chunk."""
        wanted = seqs or tuple(range(held.first_seq, held.first_seq + held.size))
        opened = self.open_window(held, wanted, seconds=seconds)
        return None if opened is None else opened[0]

    def open_window(
        self, held: Lease, *calls: Sequence[int], answered: Sequence[Answered] = (), seconds: float = 60
    ) -> tuple[Opened, ...] | None:
        """Open calls for these people by one commit, with the record of answers."""
        people = [[Recipient(seq, str(seq), "unread", None, None, ()) for seq in seqs] for seqs in calls]
        return ledger.open_calls(
            self.connection, held, people, opening=opening(self.campaign_id), seconds=seconds, answered=answered
        )

    def call(self, held: Lease, *seqs: int) -> Opened:
        opened = self.open(held, *seqs)
        assert opened is not None
        return opened

    def record(self, held: Lease, opened: Opened, said: Answer, tries: dict[int, int] | None = None) -> bool:
        return ledger.record(self.connection, held, [Answered(opened, said, tries or {})])

    def expire(self) -> tuple[int, int]:
        """Let every lease of the campaign end now, and sweep."""
        self.connection.execute(
            "UPDATE mailpipe.chunk SET leased_until = now() - interval '1 second' WHERE campaign_id = %s AND state = 'leased'",
            (self.campaign_id,),
        )
        return ledger.expire_leases(self.connection, self.campaign_id)

    def chunk(self, number: int = 0) -> dict[str, Any]:
        names = ("state", "owner", "fence", "calls", "opened", "finished", "sent", "failed", "skipped", "unknown")
        row = self.connection.execute(
            f"SELECT {', '.join(names)} FROM mailpipe.chunk WHERE campaign_id = %s AND chunk_no = %s".encode(),
            (self.campaign_id, number),
        ).fetchone()
        assert row is not None
        return dict(zip(names, row, strict=True))

    def states(self) -> dict[int, str]:
        """State of everybody, after a look at the counters."""
        self.world.balance(self.key)
        return {seq: state for seq, (state, _) in sorted(self.world.states(self.key).items())}

    def row(self) -> str:
        """The states of all people as one letter each; `-` is pending."""
        letters = {"pending": "-", "sending": "o", "sent": "s", "failed": "f", "skipped": "x", "unknown": "u"}
        return "".join(letters[state] for state in self.states().values())

    def calls(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT no, positions, accepted, codes FROM mailpipe.call WHERE campaign_id = %s ORDER BY chunk_no, no",
            (self.campaign_id,),
        ).fetchall()

    def outcomes(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT seq, state, reason, tries FROM mailpipe.outcome WHERE campaign_id = %s ORDER BY seq",
            (self.campaign_id,),
        ).fetchall()


def somebody_waits_for_a_lock(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    return row is not None and row[0] > 0
