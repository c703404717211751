"""The staged people of a segment: who is left out, and how the others become the campaign's table.

The segment is written once, numbered already, without the suppressed and without those who are there twice. If nobody else has to
be left out and all are due together, the stage becomes the campaign's table; else its people are numbered and written anew. Both
ways give the same rows. Runs in the transaction of a snapshot; when one is taken, and how its people are cut, is `snapshot`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from mailpipe import address, suppression
from mailpipe.cells import Placement
from mailpipe.db import Connection, queries

QUERIES = queries.beside(__file__)

OWN_COLUMNS = ("user_id", "email", "timezone", "locale")
"""All other columns of a segment are variables."""

_PLAIN = (
    # Visible ASCII between single dots and at-signs. All else needs a closer look: international domains, what SES cannot take.
    "email ~ '^([-!-,/-?A-~]+[.@])+[-!-,/-?A-~]+$' AND email LIKE '%@%.%' AND email NOT LIKE '%@%@%'"
    " AND octet_length(email) <= 254"
)


class _Same(NamedTuple):
    """Who is the same person: an SQL hash of each row, and a condition for the rows that have what is hashed."""

    hash: str
    known: str


_USER = _Same("hashtextextended(user_id, 0)", "true")
# People without any address are not one person.
_ADDRESS = _Same("hashtextextended(mailpipe.email_key(email), 0)", "email <> ''")


class Stage:
    """The stage of a campaign (`name`), and its own partition of recipients (`table`) while it is being made.

    Whoever looks at the stage puts people to be left out into the temporary table `refused` (place, reason).
    """

    def __init__(self, connection: Connection, campaign_id: int, topic: str) -> None:
        self.connection = connection
        self.campaign_id = campaign_id
        self.topic = topic
        self.table = f"mailpipe.recipient_{campaign_id}"
        self.name = f"{self.table}_staged"
        self.returned = 0
        self._scopes = suppression.scopes(topic)
        self._names = {
            "campaign_id": str(campaign_id),
            "name": f"recipient_{campaign_id}",
            "table": self.table,
            "staged": self.name,
        }
        self._anew = False
        self._found = 0
        self._unusable: dict[int, int | None] = {}
        self._adopted = False

    def run(
        self, name: str, parameters: dict[str, Any] | None = None, *, segment: bytes = b"", **fragments: str
    ) -> Any:
        text = QUERIES.texts[name]
        for key, fragment in {**self._names, **fragments}.items():
            text = text.replace("{{" + key + "}}", fragment)
        if parameters is None:
            return self.connection.execute(text.encode())
        # The segment is written for psycopg already.
        return self.connection.execute(queries.to_psycopg(text).replace(b"{{segment}}", segment), parameters)

    def fill(self, statement: bytes, bound: Mapping[str, object], columns: Sequence[str], *, anew: bool) -> None:
        """Run the segment (`statement`, which returns `columns`). `anew`: all will be written again, as is known already."""

        def own(name: str) -> str:
            return f"CAST(segment.{name} AS text)" if name in columns else "CAST(NULL AS text)"

        names = [sql.Identifier(name).as_string(self.connection) for name in columns if name not in OWN_COLUMNS]
        self._anew = anew
        # The segment, and the walks over the stage, which give few rows: workers cost less than the planner thinks.
        self.connection.execute(
            "SELECT set_config('parallel_setup_cost', '0', true), set_config('parallel_tuple_cost', '0', true)"
        )
        self.returned = self.run(
            "stage",
            {**bound, "scopes": self._scopes, "topics": suppression.topics(self.topic)},
            segment=statement,
            # What does not outlive the transaction need not be logged, and must not outlive it then.
            kind="UNLOGGED" if anew else "",
            timezone=own("timezone"),
            locale=own("locale"),
            variables=", ".join(f"CAST(segment.{name} AS text)" for name in names),
        ).rowcount
        self.run("note", plain=_PLAIN)
        self.run("refuse")
        self._found = self._number("refused")
        # Hardly any segment has them, and trimming all takes half the time of the look at them.
        if self._number("spaced"):
            self.run("changed")
            self.run("trim")
            self._rewrite()

    def excluded(self) -> dict[str, int]:
        """How many people are left out so far, by reason."""
        return {reason: int(count) for reason, count in self.run("excluded").fetchall()}

    def refuse_unconsenting(self, consent: str) -> None:
        """Leave out those for whom the condition `consent` is not true."""
        if self._number("consenting", consent=consent) != self.returned - self._found:
            self.run("refuse_unconsenting", consent=consent)

    def readdress(self) -> None:
        """Write international domains as they are sent, and find the addresses that SES cannot take."""
        changed: list[tuple[int, str, str]] = []
        for place, text, spaced, seq, tid in self.run("unusual").fetchall():
            form = text or ""
            try:
                form = address.send_form(form)
            except address.AddressError:
                self._unusable[place] = seq
            if spaced or form != text:
                changed.append((place, form, tid))
        if not changed:
            return
        self.run("changed")
        with self.connection.cursor() as cursor, cursor.copy(b"COPY changed FROM STDIN") as copy:
            for row in changed:
                copy.write_row(row)
        self._rewrite()

    def write(self, placed: Placement) -> bool:
        """Number and write who is not refused. False: somebody is still there twice.

        Who is the same person as somebody before is known from the stage, unless more people are refused by now. Hardly any segment
        returns a person under two addresses, or one address in two spellings of an international domain: the unique indexes find
        it out, and it is done again, by address and then by user and address.
        """
        if self._number("refused") == self._found and (
            self._fill(placed, ()) if self._anew or placed.join else self._adopt()
        ):
            return True
        return self._fill(placed, [_ADDRESS]) or self._fill(placed, [_USER, _ADDRESS])

    def unusable(self) -> list[int]:
        """The numbers of the people who are not left out and whose address SES cannot take."""
        if self._adopted or not self._unusable:
            return [seq for seq in self._unusable.values() if seq is not None]
        found = self.run("seqs", {"campaign_id": self.campaign_id, "places": list(self._unusable)}).fetchall()
        return [seq for (seq,) in found]

    def attach(self) -> None:
        """Make the table a part of all recipients; the stage is gone then."""
        self.run("attach")
        if not self._adopted:
            self.run("unstage")

    def _rewrite(self) -> None:
        """Give the people of `changed` their addresses, and refuse whose new one is suppressed."""
        with self._by_place():
            self.run("readdress")
        self.run("refuse_readdressed", {"scopes": self._scopes})
        self.run("unchanged")

    @contextmanager
    def _by_place(self) -> Iterator[None]:
        """For changes of a few rows whose place in the file is known: the planner would rather read a million (0.15 s). What it
        then thinks of the small tables beside them would be reason enough to compile it all (0.2 s)."""
        self.connection.execute("SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)")
        yield
        self.connection.execute("SELECT set_config('enable_seqscan', 'on', true)")

    def _number(self, name: str, **fragments: str) -> int:
        return int(self.run(name, None, segment=b"", **fragments).fetchone()[0])

    def _adopt(self) -> bool:
        """Make the stage the campaign's table. False, and nothing is done, when the unique indexes find somebody twice."""
        try:
            with self.connection.transaction():
                self.run("refuse_twice")
                with self._by_place():
                    self.run("leave_out")
                self.run("adopt")
                self._index()
        except psycopg.errors.UniqueViolation:
            return False
        self._adopted = True
        return True

    def _fill(self, placed: Placement, same: Sequence[_Same]) -> bool:
        """Refuse who is the same person as somebody before (none: whom the stage calls so), number and write the others by cell and
        place. False, and nothing is done, when the unique indexes find somebody twice."""
        try:
            with self.connection.transaction():
                # Sorting a million hashes takes half the time of a hash table of them; the planner expects a few hundred.
                self.connection.execute("SELECT set_config('enable_hashagg', 'off', true)")
                for person in same:
                    self.run("refuse_duplicates", hash=person.hash, known=person.known)
                if not same:
                    self.run("refuse_twice")
                self.run("fill", order=placed.order, join=placed.join)
                self._index()
        except psycopg.errors.UniqueViolation:
            return False
        return True

    def _index(self) -> None:
        for step in ("tidy", "index_user", "index_email"):
            self.run(step)
