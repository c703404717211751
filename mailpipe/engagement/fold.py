"""Folds one UTC day into `engagement`: its mails, and what people did about them within 24 hours.

A day is folded when the 24 hours of its last mail are over too, and a grace for late news: so a mail and its reaction of the next
day are counted together, once, with the exact hours that the mail was exposed. What comes later than 24 hours after its mail says
nothing about hours; it makes somebody engaged all the same (`last_engaged_at`, the tier). Days are folded strictly in order, each
in one transaction; a day that is folded is never changed again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from psycopg.rows import namedtuple_row

from mailpipe import orders
from mailpipe.db import Connection, queries
from mailpipe.engagement import days, history, hours, rule
from mailpipe.engagement.days import DAY, WINDOW, Folded, State, midnight
from mailpipe.errors import EngagementError
from mailpipe.feedback import machine
from mailpipe.feedback.machine import Visit
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

_BATCH = 20_000


def fold(connection: Connection, settings: Settings, day: date, *, now: datetime | None = None) -> Folded:
    """Fold one day. One that was folded, or lies before the first mail, changes nothing, and its counts are answered. `connection`
    is in autocommit mode.

    Raises:
        EngagementError: the day is not over yet, or an earlier one is missing.
        OrdersError: MAILPIPE_ORDERS or MAILPIPE_OPT_INS cannot be used.
    """
    now = now or datetime.now(UTC)
    if now < days.ready_at(day):
        raise EngagementError(
            f"{day}: cannot be folded before {days.ready_at(day):%Y-%m-%d %H:%M} UTC, when the 24 hours of its last mail are over"
        )
    with connection.transaction():
        connection.execute(QUERIES["lock"])
        before = days.state(connection)
        if before.folded_to is not None and day <= before.folded_to:
            return days.get(connection, day)
        first = days.first_due(connection)
        if first is None or day < first:
            return days.get(connection, day)
        if day > first:
            raise EngagementError(f"{day}: {first} has to be folded first; days are folded in order")
        done = _fold(connection, settings, day, before)
    history.drop(settings.history_folder, day, settings.history_days)
    return done


def through(connection: Connection, settings: Settings, day: date, *, now: datetime | None = None) -> Folded:
    """Fold every day that waits, up to this one, and answer this one's counts. Several may do this at once, for any days: each
    day is folded by whoever comes first. Raises what `fold` does.
    """
    first = days.first_due(connection)
    while first is not None and first < day:
        fold(connection, settings, first, now=now)
        first = days.first_due(connection)
    return fold(connection, settings, day, now=now)


def _fold(connection: Connection, settings: Settings, day: date, before: State) -> Folded:
    started = time.monotonic()
    began = midnight(day)
    span = {"day": day, "since": began, "until": began + DAY}
    seen_until = began + DAY + WINDOW
    known = {**span, "until": seen_until}
    # Its temporary tables are joined whole, and hashed.
    connection.execute(b"SET LOCAL work_mem = '128MB'")
    connection.execute(QUERIES.texts["tables"].encode())
    _keep_exposures(connection, before)
    _classify(connection, began, seen_until)
    counts = _Counts()
    with history.writing(settings.history_folder, day) as files:
        found = connection.execute(QUERIES["campaigns"], span).fetchall()
        _keep_readers(connection, [one[0] for one in found if one[3]], day)
        connection.execute(QUERIES["decay"], {"day": day, "thinning": before.thinning})
        connection.execute(b"ANALYZE engagement_decay, engagement_reaction")
        for campaign_id, key, mailed, _ in found:
            if mailed:
                _add(connection, campaign_id, span, seen_until)
                counts.add(connection)
                files.add("mails", connection, QUERIES["export_mails"], key)
                files.add("reactions", connection, QUERIES["export_reactions"], key)
        connection.execute(QUERIES["engaged"])
        bought = _ask(connection, settings, known, span)
        connection.execute(QUERIES["tiers"], {"until": seen_until})
        tiers: dict[int, int] = dict(connection.execute(QUERIES["count_tiers"]).fetchall())
        _keep_state(connection, before, day, counts)
        people = connection.execute(QUERIES["people"], span).fetchone()
        assert people is not None
        done = Folded(
            day, people[0], counts.mails, counts.opens, counts.clicks, counts.machines, bought,
            [tiers.get(tier, 0) for tier in range(1, 6)], round(time.monotonic() - started, 3),
        )  # fmt: skip
        connection.execute(QUERIES["keep_fold"], {k: v for k, v in done.to_json().items() if k != "already"})
    return done


@dataclass
class _Counts:
    mails: int = 0
    opens: int = 0
    clicks: int = 0
    machines: int = 0
    seen_mails: int = 0
    seen_opens: int = 0
    seen_clicks: int = 0

    def __post_init__(self) -> None:
        self.ages = [0] * rule.HOURS

    def add(self, connection: Connection) -> None:
        row = connection.execute(QUERIES["counted"], {"open": rule.OPEN, "click": rule.CLICK}).fetchone()
        assert row is not None
        self.mails += row[0]
        self.opens += row[1]
        self.clicks += row[2]
        self.machines += row[3]
        self.seen_mails += row[4]
        self.seen_opens += row[5]
        self.seen_clicks += row[6]
        for age, number in connection.execute(QUERIES["ages"]).fetchall():
            self.ages[age] += number


def _keep_exposures(connection: Connection, before: State) -> None:
    with connection.cursor() as cursor, cursor.copy(b"COPY engagement_exposure FROM STDIN") as copy:
        for row in rule.exposures(before.freshness):
            copy.write_row(row)
    connection.execute(b"ANALYZE engagement_exposure")


def _classify(connection: Connection, since: datetime, until: datetime) -> None:
    """Tell people from machines, and keep what the people did. The same rule as everywhere: `feedback.machine`."""
    with connection.cursor("visits", row_factory=namedtuple_row) as cursor:
        cursor.itersize = _BATCH
        cursor.execute(QUERIES["visits"], {"since": since, "until": until, "context": since - DAY})
        reactions = _reactions(cursor, since, until)
        while batch := list(itertools.islice(reactions, _BATCH)):
            with connection.cursor() as writer, writer.copy(b"COPY engagement_reaction FROM STDIN") as copy:
                for row in batch:
                    copy.write_row(row)


def _reactions(rows: Iterator[Any], since: datetime, until: datetime) -> Iterator[tuple[Any, ...]]:
    for (campaign_id, seq), group in itertools.groupby(rows, key=lambda row: (row.campaign_id, row.seq)):
        own = [Visit(one.seq, one.kind, one.at, one.delivered_at, one.agent, one.ip, one.link) for one in group]
        human = [one for one in own if one.at >= since and machine.is_human(one, own, now=until + machine.SETTLED)]
        opened = [one.at for one in human if one.kind == "open"]
        clicked = [one.at for one in human if one.kind == "click"]
        apple = any(one.kind == "open" and machine.agent(one.agent, one.ip) == "apple_mpp" for one in own)
        yield (
            campaign_id, seq, min(opened, default=None), min(clicked, default=None),
            max(opened + clicked, default=None), max(clicked, default=None), apple and not opened, own[0].at,
        )  # fmt: skip


def _keep_readers(connection: Connection, campaigns: list[int], day: date) -> None:
    """Everybody who reacted, to whichever mail: who is behind the proxy has to be known before exposure is counted."""
    for campaign_id in campaigns:
        connection.execute(QUERIES["readers"], {"campaign_id": campaign_id})
    connection.execute(b"ANALYZE engagement_reader")
    connection.execute(QUERIES["new_readers"], {"day": day})
    connection.execute(QUERIES["flags"])


def _add(connection: Connection, campaign_id: int, span: dict[str, Any], seen_until: datetime) -> None:
    """The mails of one campaign. Nobody is twice in a campaign, so each is one update of one row."""
    texts = [row[0] for row in connection.execute(QUERIES["timezones"], {"campaign_id": campaign_id})]
    hours.add(connection, texts, span["since"], span["until"])
    zoneless = hours.unknown(texts)
    if zoneless:
        known_zones = [row[0] for row in connection.execute(QUERIES["known_zones"])]
        hours.add(connection, known_zones, span["since"], span["until"])
    connection.execute(b"TRUNCATE engagement_sent, engagement_mail")
    connection.execute(QUERIES["sent"], {**span, "campaign_id": campaign_id})
    connection.execute(b"ANALYZE engagement_sent")
    connection.execute(
        _MAILS_OF_ZONELESS if zoneless else _MAILS,
        {"campaign_id": campaign_id, "click": rule.CLICK, "open": rule.OPEN, "zoneless": zoneless},
    )
    connection.execute(b"ANALYZE engagement_mail")
    known = {**span, "until": seen_until}
    row = connection.execute(QUERIES["zoneless"]).fetchone()
    if row is not None and row[0]:
        connection.execute(QUERIES["settle_zones"])
    connection.execute(_ADD, known)
    connection.execute(QUERIES["new_people"], known)


def _ask(connection: Connection, settings: Settings, known: dict[str, Any], span: dict[str, Any]) -> int:
    """What the team's own tables say: who bought, and since when people want mail. Answers the buyers of the day."""
    if settings.opt_ins is not None:
        opt_ins = orders.checked(connection, settings.opt_ins, "MAILPIPE_OPT_INS", at="opted_in_at")
        connection.execute(QUERIES.filled("opted_in", opt_ins=opt_ins), {})
    bought = orders.relation(connection, settings)
    if bought is None:
        return 0
    connection.execute(QUERIES.filled("bought", orders=bought), known)
    row = connection.execute(QUERIES.filled("buyers", orders=bought), span).fetchone()
    return int(row[0]) if row else 0


def _keep_state(connection: Connection, before: State, day: date, counts: _Counts) -> None:
    since = before.folded_to or day
    fade = 0.5 ** ((day - since).days / 60)
    ages = [fade * old + new for old, new in zip(before.ages, counts.ages, strict=True)]
    mails = fade * before.mails + counts.seen_mails
    opens, clicks = fade * before.opens + counts.seen_opens, fade * before.clicks + counts.seen_clicks
    connection.execute(
        QUERIES["keep_state"],
        {
            "folded_to": day,
            "freshness": rule.freshness(ages, mails),
            "thinning": rule.thinning(opens, clicks),
            "ages": ages,
            "mails": mails,
            "opens": opens,
            "clicks": clicks,
        },
    )


_MAILS = QUERIES.filled("mails", zone="", given="coalesce(r.timezone, '')")
_MAILS_OF_ZONELESS = QUERIES.filled(
    "mails", zone=QUERIES.texts["zone_of_person"], given="coalesce(e.zone, r.timezone, '')"
)
_ADD = QUERIES.filled(
    "add",
    ex=", ".join(f"e.ex[{n}] * w.old + x.x[{n}] * w.exposed" for n in range(1, 25)),
    ev=", ".join(
        f"e.ev[{n}] * w.old + CASE WHEN m.reacted_hour = {n - 1} THEN m.weight * w.new ELSE 0 END" for n in range(1, 25)
    ),
)
