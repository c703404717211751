"""A chunk in a worker's hands, and the calls that are opened for its people: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mailpipe.ses.answer import Answer


class Addressee(Protocol):
    """Somebody who is to be mailed."""

    @property
    def seq(self) -> int: ...
    @property
    def attempt(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unfit:
    """A person who is out before any call."""

    seq: int
    state: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A chunk in the hands of one worker. `fence` grows with each lease: an older holder can write nothing any more.
    `template_version` is what the chunk's people get now."""

    campaign_id: int
    chunk_no: int
    slice: int
    first_seq: int
    size: int
    fence: int
    finished: str
    owner: str
    template_version: str

    def mask(self, seqs: Sequence[int]) -> str:
        """The bits of these people, as PostgreSQL writes a bit string."""
        bits = bytearray(b"0" * self.size)
        for seq in seqs:
            bits[seq - self.first_seq] = 49
        return bits.decode()

    @property
    def key(self) -> dict[str, Any]:
        return {
            "campaign_id": self.campaign_id,
            "chunk_no": self.chunk_no,
            "fence": self.fence,
            "owner": self.owner,
            "template_version": self.template_version,
            "first_seq": self.first_seq,
            "size": self.size,
        }


@dataclass(frozen=True, slots=True)
class Opened:
    """A call that the ledger holds as opened: `no` counts the chunk's requests (0: not known), `seqs` are the people to mail,
    `attempts` the number of the attempt for those whom somebody has ordered to mail again."""

    no: int
    seqs: tuple[int, ...]
    attempts: Mapping[int, int] = field(default_factory=dict)

    @property
    def people(self) -> frozenset[int]:
        return frozenset(self.seqs)


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to an opened call, to be recorded. `tries` gives the earlier counted refusals of people who have some."""

    opened: Opened
    answer: Answer
    tries: Mapping[int, int] = field(default_factory=dict)
