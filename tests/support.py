"""A small world for tests that send: people, a stand-in that keeps a journal, and the promises counted afterwards."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mailpipe import campaign, campaign_file, embedded_postgres, ledger, report, snapshot
from mailpipe.db import Database
from mailpipe.pace.rule import MAX_CALL
from mailpipe.send import Outcome, run
from mailpipe.ses.client import Ses, connect
from mailpipe.settings import DEFAULT_CONSENT, Settings
from mailpipe.simulator.child import StandIn

SEGMENT = """\
-- title: Everybody
-- owner: team:growth
-- description: All people of the tests.
SELECT user_id, email, timezone, locale, first_name, city FROM users WHERE created_at <= :as_of ORDER BY user_id
"""
TEMPLATE = {
    "template.yaml": "description: For tests\n"
    "variables:\n  first_name: {sample: Ana, default: there}\n  city: {sample: Hanoi}\n",
    "subject.txt": "Hello {{first_name}}\n",
    "body.html": '<p>Hello {{first_name}} of {{city}}</p><a href="{{unsubscribe_url}}" ses:no-track>Unsubscribe</a>\n',
    "body.txt": "Hello {{first_name}} of {{city}}\n{{unsubscribe_url}}\n",
}
USERS = """\
CREATE TABLE IF NOT EXISTS users (
    user_id bigint PRIMARY KEY, email text, timezone text, locale text, first_name text, city text,
    is_active boolean NOT NULL DEFAULT true, marketing_opt_in boolean DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT '2020-01-01Z')"""
LEAD = 2.0
"""Seconds from the opening of a call until SES has accepted it, at the most: who is suppressed meanwhile still gets this mail."""
STATES = ("pending", "sending", "sent", "failed", "skipped", "unknown")


THREADS = 9
"""Calls at once of a run; three to a sender, where they follow each other closely."""


def opening(campaign_id: int) -> ledger.Opening:
    """How a run opens the calls of a campaign of the tests."""
    return ledger.opening(campaign_id, "news", consent=DEFAULT_CONSENT)


@dataclass
class World:
    """Everything that a campaign needs, on throw-away parts."""

    database: Database
    settings: Settings
    stand_in: StandIn
    ses: Ses
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """For names that nobody else has."""

    def with_settings(self, **changes: Any) -> Settings:
        """These settings with some of them changed."""
        return replace(self.settings, **changes)

    def people(self, number: int, *, first: int = 1) -> None:
        """Put `number` ordinary people with user ids from `first` on into `users`."""
        with self.database.connection() as connection:
            connection.execute(USERS)
            connection.execute(
                "INSERT INTO users SELECT i, 'person' || i || '@mail.example.com', 'Asia/Ho_Chi_Minh', 'vi-VN', 'Name' || i,"
                " 'Hanoi' FROM generate_series(%s::int, %s::int) AS i",
                (first, first + number - 1),
            )

    def with_threads(self, number: int) -> World:
        """The same world, sending with so many threads."""
        return replace(self, settings=self.with_settings(threads=number))

    def clean(self) -> None:
        """Nobody in `users`, nobody suppressed, no limit but the stand-in's own, no faults. Campaigns stay as they are."""
        self.stand_in.clear_faults()
        self.stand_in.change(
            rate=100_000,
            rate_tolerance=0,
            call_rate=100_000,
            daily_quota=-1,
            sending_enabled=True,
            suspended=False,
            latency_ms=0,
            jitter_ms=0,
        )
        with self.database.connection() as connection:
            connection.execute(
                "TRUNCATE users, mailpipe.suppression, mailpipe.opt_out, mailpipe.suppression_sync, mailpipe.suppression_at_ses"
            )
            connection.execute("DELETE FROM mailpipe.pace; INSERT INTO mailpipe.pace DEFAULT VALUES")
            connection.execute("TRUNCATE mailpipe.pace_claim, mailpipe.pace_count")
            connection.execute(
                "SELECT setval(CAST('mailpipe.' || sequencename AS regclass), 1, false) FROM pg_sequences"
                " WHERE schemaname = 'mailpipe' AND sequencename LIKE 'pace_%'"
            )

    def cut_connections(self) -> None:
        """Let the server drop every connection of the pool but this one."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'mailpipe' AND pid <> pg_backend_pid()"
        )

    def execute(self, statement: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self.database.connection() as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def create(self, **fields: Any) -> str:
        """A draft campaign; answers its key."""
        key: str = fields.pop("key", f"campaign-{next(self.numbers)}")
        spec = campaign_file.parse(
            {
                "key": key,
                "segment": "everybody",
                "template": "hello",
                "sender": "Shop <news@mail.example.com>",
                **fields,
            },
            where="test",
        )
        with self.database.connection() as connection:
            campaign.create(connection, self.settings, spec, author="ana")
        return key

    def approve(self, key: str) -> None:
        with self.database.connection() as connection:
            campaign.approve(connection, self.settings, self.ses, key, approver="ben")

    def freeze(self, key: str) -> snapshot.Snapshot:
        with self.database.connection() as connection:
            return snapshot.take(connection, self.settings, key)

    def ready(self, **fields: Any) -> str:
        """An approved campaign with its snapshot; answers its key."""
        key = self.create(**fields)
        self.approve(key)
        self.freeze(key)
        return key

    def send(self, key: str, slices: tuple[int, int] = (0, 99), **options: Any) -> Outcome:
        return run(self.database, self.settings, self.ses, key, slices, **{"horizon": 0.0, **options})

    def progress(self, key: str) -> report.Progress:
        with self.database.connection() as connection:
            return report.progress(connection, key)

    def campaign(self, key: str) -> campaign.Campaign:
        with self.database.connection() as connection:
            return campaign.get(connection, key)

    def states(self, key: str) -> dict[int, tuple[str, str | None]]:
        """State and reason of everybody, by seq."""
        rows = self.execute(
            "SELECT d.seq, d.state, d.reason FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s",
            {"key": key},
        )
        assert len({row[0] for row in rows}) == len(rows), "somebody has two states"
        return {seq: (state, reason) for seq, state, reason in rows}

    def journal(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self.stand_in.journal() if line["campaign"] == key]

    def keep_promises(self, key: str) -> dict[str, int]:
        """Check the invariants against the stand-in's journal; answers people by state.

        At most one accepted message per person and attempt; no second attempt that nobody ordered; everybody in exactly one state;
        every `sent` is in the journal, unless it is a person's word; everybody in the journal is `sent`, `unknown`, failed after
        SES had accepted, or waits for a re-send that was ordered; nobody is `unknown` but in a call without a clear answer; nobody
        was mailed who had been suppressed for a while.
        """
        states = self.states(key)
        journal = [(int(line["seq"]), int(line["attempt"])) for line in self.journal(key)]
        accepted = Counter(seq for seq, _ in journal)
        assert not [one for one, times in Counter(journal).items() if times > 1], "somebody was mailed twice"
        ordered = self.ordered(key)
        assert all(attempt <= 1 + ordered[seq] for seq, attempt in journal), (
            "somebody was mailed again, and nobody ordered it"
        )
        sent = {seq for seq, (state, reason) in states.items() if state == "sent" and reason != "resolved"}
        believed = {seq for seq, (state, reason) in states.items() if state == "sent" and reason == "resolved"}
        unsure = {
            seq
            for seq, (state, reason) in states.items()
            if state in ("unknown", "sending") or (state, reason) == ("failed", "rendering_failure")
        }
        assert sent <= accepted.keys(), "somebody is called sent whom the provider never accepted"
        fit = sent | believed | unsure | ordered.keys()
        assert accepted.keys() <= fit, "the provider accepted somebody whom the ledger does not call sent"
        assert self.unexplained(key) == [], "somebody is unknown who was in no call without a clear answer"
        assert self.mailed_against_their_will(key) == set(), "somebody was mailed who had been suppressed"
        return self.balance(key)

    def unexplained(self, key: str) -> list[tuple[Any, ...]]:
        """Chunks with more `unknown` people than calls can have left: those in calls that were opened and have no answer, and those
        whose answer says nothing."""
        return self.execute(
            "SELECT c.chunk_no, c.unknown FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id),"
            " LATERAL (SELECT count(*) AS answered,"
            " coalesce(sum(length(codes) - length(replace(codes, 'u', ''))), 0) AS unclear FROM mailpipe.call k"
            " WHERE k.campaign_id = c.campaign_id AND k.chunk_no = c.chunk_no AND k.no <= c.calls) AS k"
            " WHERE g.key = %(key)s AND c.unknown > (c.calls - k.answered) * %(most)s + k.unclear",
            {"key": key, "most": MAX_CALL},
        )

    def mailed_against_their_will(self, key: str) -> set[int]:
        """Whom the provider has accepted more than LEAD seconds after their suppression was committed."""
        rows = self.execute(
            "SELECT r.seq, extract(epoch FROM min(s.at)) FROM mailpipe.suppression s JOIN mailpipe.recipient r"
            " ON mailpipe.email_key(r.email) = s.email_key JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s AND s.scope = 'all' GROUP BY r.seq",
            {"key": key},
        )
        suppressed = {seq: float(at) for seq, at in rows}
        journal = {int(line["seq"]): float(line["at"]) for line in self.journal(key)}
        return {seq for seq, at in journal.items() if at > suppressed.get(seq, at) + LEAD}

    def ordered(self, key: str) -> Counter[int]:
        """How often a person has ordered to mail each of these people again, as the audit tells; checked against the attempts."""
        rows = self.execute(
            "SELECT a.detail -> 'seqs' FROM mailpipe.audit a JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s AND a.action = 'resend' AND a.actor <> '' AND a.detail ->> 'reason' <> ''",
            {"key": key},
        )
        ordered = Counter(seq for (seqs,) in rows for first, last in seqs for seq in range(first, last + 1))
        attempts = self.execute(
            "SELECT d.seq, d.attempt FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE g.key = %(key)s AND d.attempt > 1",
            {"key": key},
        )
        assert {seq: attempt - 1 for seq, attempt in attempts} == ordered, "attempts and orders disagree"
        return ordered

    def balance(self, key: str) -> dict[str, int]:
        """Check that counters, slices and people say the same; answers people by state."""
        states = self.states(key)
        with self.database.connection() as connection:
            campaign_id = campaign.get(connection, key).campaign_id
            counts = ledger.counts(connection, campaign_id)
            slices = ledger.slices(connection, campaign_id).values()
        by_state = Counter(state for state, _ in states.values())
        for state in STATES:
            assert getattr(counts, state) == by_state.get(state, 0), f"the counter of {state} disagrees with the people"
            assert sum(getattr(one, state) for one in slices) == by_state.get(state, 0), (
                f"the slices disagree in {state}"
            )
        assert sum(by_state.values()) == counts.total == len(states)
        return dict(by_state)


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = 20) -> None:
    """Wait until a condition holds; the test fails when it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


@contextmanager
def make_world(database: Database, folder: Path, **options: Any) -> Iterator[World]:
    """A world around a fresh database; `options` are those of the stand-in."""
    segments = folder / "home" / "assets" / "segments"
    segments.mkdir(parents=True)
    (segments / "everybody.sql").write_text(SEGMENT)
    for template in ("hello", "goodbye"):
        home = folder / "home" / "assets" / "templates" / template
        home.mkdir(parents=True)
        for name, text in TEMPLATE.items():
            (home / name).write_text(text.replace("Hello", template.capitalize()))
    settings = Settings(
        home=folder / "home", var=folder / "var", allow_unsafe_durability=True, threads=THREADS, marketing_share=1.0
    )
    with database.connection() as connection:
        connection.execute(USERS)
    stand_in = StandIn(folder / "stand-in", **options)
    try:
        settings = replace(settings, ses_endpoint=stand_in.url)
        ses = connect(settings, endpoint=stand_in.url, connections=THREADS)
        yield World(database, settings, stand_in, ses)
        ses.close()
    finally:
        # Nobody waits for its graceful end.
        stand_in.kill()
    # A test may have started the embedded server; as root its data can lie elsewhere.
    if settings.var.is_dir():
        embedded_postgres.remove(settings.var)
