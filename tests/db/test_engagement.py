"""Folding days into one row for each person: exact, once, in order, and machines weigh nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mailpipe import settings as reading
from mailpipe.db import Connection, Database
from mailpipe.engagement import days, fold, history, rule
from mailpipe.errors import EngagementError, OrdersError
from mailpipe.schedule import zones
from mailpipe.settings import Settings
from tests.db.test_feedback import HARD, take, told
from tests.past_mails import APPLE, Past
from tests.ses_events import shape
from tests.support import World

OPEN, CLICK = shape("Open"), shape("Click")
DAY = date(2026, 3, 2)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
LATER = datetime(2026, 6, 1, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
CURVE = rule.DEFAULT_FRESHNESS


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connection() as connection:
        yield connection


@pytest.fixture
def past(connection: Connection) -> Past:
    return Past(connection)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return reading.load({"MAILPIPE_HOME": str(tmp_path), "MAILPIPE_VAR": str(tmp_path)})


def folded(connection: Connection, config: Settings, day: date = DAY, **more: Any) -> days.Folded:
    return fold.fold(connection, config, day, now=LATER, **more)


def row(connection: Connection, person: str) -> dict[str, Any]:
    cursor = connection.execute("SELECT * FROM mailpipe.engagement WHERE person_id = %s", (person,))
    found = cursor.fetchone()
    assert found is not None and cursor.description is not None
    return dict(zip([column.name for column in cursor.description], found, strict=True))


def everything(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT e.* FROM mailpipe.engagement e ORDER BY person_id").fetchall()


def hours(values: list[float]) -> dict[int, float]:
    return {hour: value for hour, value in enumerate(values) if value}


def test_a_mail_and_its_reaction_count_at_the_hours_of_the_person(
    connection: Connection, past: Past, config: Settings
) -> None:
    sent = past.mailed(NOON, ["opens", "clicks", "silent"], zones={"clicks": "Asia/Ho_Chi_Minh"})
    past.visit(sent, 1, NOON + 2 * HOUR + MINUTE)
    past.visit(sent, 2, NOON + HOUR)
    past.visit(sent, 2, NOON + 3 * HOUR, "click")
    done = folded(connection, config)
    assert (done.people, done.mails, done.opens, done.clicks, done.machines) == (3, 3, 1, 1, 0)
    opens, clicks, silent = (row(connection, one) for one in ("opens", "clicks", "silent"))
    assert hours(opens["ev"]) == {14: 1.0} and hours(clicks["ev"]) == {22: 2.0} and hours(silent["ev"]) == {}
    # 12:00 in UTC is 19:00 in Ho Chi Minh City; the risk ends with the reaction.
    assert opens["ex"] == pytest.approx(rule.exposure(CURVE, 12, 2))
    assert clicks["ex"] == pytest.approx(rule.exposure(CURVE, 19, 3))
    assert sum(silent["ex"]) == pytest.approx(1)
    assert (opens["zone"], clicks["zone"]) == ("UTC", "Asia/Ho_Chi_Minh")
    assert (opens["events"], opens["mails"], silent["events"]) == (1, 1, 0)
    assert (opens["tier"], clicks["tier"], silent["tier"]) == (2, 1, 4)
    assert (clicks["last_sent_at"], clicks["last_clicked_at"]) == (NOON, NOON + 3 * HOUR)
    assert silent["last_engaged_at"] is None and silent["since"] == NOON


def test_a_day_folded_twice_changes_nothing(connection: Connection, past: Past, config: Settings) -> None:
    sent = past.mailed(NOON, ["1", "2"])
    past.visit(sent, 1, NOON + HOUR)
    first = folded(connection, config)
    before = everything(connection)
    again = folded(connection, config)
    assert not first.already and again.already and (again.mails, again.opens) == (2, 1)
    assert everything(connection) == before


def test_days_are_folded_in_order_and_only_when_their_mails_are_old_enough(
    connection: Connection, past: Past, config: Settings
) -> None:
    past.mailed(NOON, ["1"])
    ready = datetime(2026, 3, 4, 2, tzinfo=UTC)
    assert days.ready_at(DAY) == ready
    with pytest.raises(EngagementError, match="2026-03-02: cannot be folded before 2026-03-04 02:00 UTC"):
        fold.fold(connection, config, DAY, now=ready - MINUTE)
    with pytest.raises(EngagementError, match="2026-03-02 has to be folded first"):
        folded(connection, config, DAY + timedelta(days=1))
    assert everything(connection) == []
    assert days.due(connection, ready - MINUTE) == []
    assert days.due(connection, ready + timedelta(days=1)) == [DAY, DAY + timedelta(days=1)]
    fold.fold(connection, config, DAY, now=ready)
    assert days.due(connection, ready + timedelta(days=1)) == [DAY + timedelta(days=1)]
    with pytest.raises(EngagementError, match="2026-03-03 has to be folded first"):
        folded(connection, config, DAY + timedelta(days=2))


def test_a_day_before_the_first_mail_has_nothing_in_it(connection: Connection, past: Past, config: Settings) -> None:
    assert days.due(connection, LATER) == []
    assert folded(connection, config, DAY - timedelta(days=1)).mails == 0
    past.mailed(NOON, ["1"])
    assert folded(connection, config, DAY - timedelta(days=9)).already
    assert folded(connection, config).mails == 1


def test_the_reaction_of_the_next_day_belongs_to_its_mail(connection: Connection, past: Past, config: Settings) -> None:
    late = NOON + 11 * HOUR
    sent = past.mailed(late, ["1", "2"])
    past.visit(sent, 1, late + 9 * HOUR)
    past.visit(sent, 2, late + 25 * HOUR)
    folded(connection, config)
    soon = row(connection, "1")
    assert hours(soon["ev"]) == {8: 1.0} and soon["ex"] == pytest.approx(rule.exposure(CURVE, 23, 9))
    folded(connection, config, DAY + timedelta(days=1))
    assert hours(row(connection, "1")["ev"]) == {8: 1.0}
    # After 24 hours it says nothing about hours, but somebody is engaged.
    slow = row(connection, "2")
    assert hours(slow["ev"]) == {} and sum(slow["ex"]) == pytest.approx(1)
    assert (slow["last_engaged_at"], slow["tier"]) == (late + 25 * HOUR, 2)


def test_what_was_counted_fades_by_half_in_sixty_days(connection: Connection, past: Past, config: Settings) -> None:
    second = NOON + timedelta(days=6)
    for at in (NOON, second):
        sent = past.mailed(at, ["1"])
        past.visit(sent, 1, at + HOUR, "click")
    quiet = past.mailed(NOON, ["2"])
    past.visit(quiet, 1, NOON + HOUR)
    for number in range(7):
        folded(connection, config, DAY + timedelta(days=number))
    both = row(connection, "1")
    part = 0.5 ** (6 / 60)
    assert hours(both["ev"]) == {13: pytest.approx(2 + 2 * part)}
    assert (both["mails"], both["events"], both["as_of"]) == (
        pytest.approx(1 + part),
        pytest.approx(1 + part),
        second.date(),
    )
    # Untouched rows keep their own day; the reader brings them to the present.
    other = connection.execute(
        "SELECT e.as_of, e.ev[14] * mailpipe.engagement_weight(e.as_of, s.folded_to), e.tier"
        " FROM mailpipe.engagement e, mailpipe.engagement_state s WHERE person_id = '2'"
    ).fetchone()
    assert other == (DAY, pytest.approx(part), 2)


def test_machines_weigh_nothing_and_people_behind_the_proxy_count_by_clicks(
    connection: Connection, past: Past, config: Settings
) -> None:
    sent = past.mailed(NOON, ["proxied", "clicking", "scanned", "both"])
    past.visit(sent, 1, NOON + HOUR, agent=APPLE)
    past.visit(sent, 2, NOON + HOUR, agent=APPLE)
    past.visit(sent, 2, NOON + 2 * HOUR, "click")
    for number in range(3):
        past.visit(sent, 3, NOON + HOUR, "click", agent="curl/8.5", link=f"{number}")
    past.visit(sent, 4, NOON + HOUR, agent=APPLE)
    past.visit(sent, 4, NOON + 5 * HOUR)
    done = folded(connection, config)
    assert (done.opens, done.clicks, done.machines) == (1, 1, 2)
    proxied, clicking, scanned, both = (row(connection, one) for one in ("proxied", "clicking", "scanned", "both"))
    thin = rule.thinning(0, 0)
    assert proxied["machine"] and hours(proxied["ev"]) == {} and sum(proxied["ex"]) == pytest.approx(thin)
    assert (proxied["last_engaged_at"], proxied["tier"]) == (None, 4)
    assert clicking["machine"] and hours(clicking["ev"]) == {14: 2.0} and clicking["tier"] == 1
    assert clicking["ex"] == pytest.approx([thin * x for x in rule.exposure(CURVE, 12, 2)])
    assert not scanned["machine"] and scanned["last_clicked_at"] is None and sum(scanned["ex"]) == pytest.approx(1)
    assert not both["machine"] and hours(both["ev"]) == {17: 1.0}


def test_only_what_reached_a_mailbox_was_exposed(connection: Connection, past: Past, config: Settings) -> None:
    sent = past.mailed(NOON, ["ok", "refused", "bounced", "late", "delayed"], codes="sfsss")
    past.mask(sent, "bounce", "00100")
    past.mask(sent, "delivery_delay", "00011")
    past.mask(sent, "delivery", "10001")
    assert folded(connection, config).mails == 2
    assert [one[0] for one in everything(connection)] == ["delayed", "ok"]


def test_who_gets_a_zone_later_keeps_the_hours(connection: Connection, past: Past, config: Settings) -> None:
    for at, zone in ((NOON, "nowhere"), (NOON + timedelta(days=1), "Asia/Ho_Chi_Minh")):
        sent = past.mailed(at, ["1"], zones={"1": zone})
        past.visit(sent, 1, at + HOUR)
    folded(connection, config)
    assert row(connection, "1")["zone"] is None and hours(row(connection, "1")["ev"]) == {13: 1.0}
    folded(connection, config, DAY + timedelta(days=1))
    assert row(connection, "1")["zone"] == "Asia/Ho_Chi_Minh"
    assert list(hours(row(connection, "1")["ev"])) == [20]
    assert max(range(24), key=row(connection, "1")["ex"].__getitem__) == 19


def test_a_segment_that_tells_no_zone_counts_by_the_one_that_is_known(
    connection: Connection, past: Past, config: Settings
) -> None:
    past.mailed(NOON, ["1"], zones={"1": "Asia/Ho_Chi_Minh"})
    folded(connection, config)
    at = NOON + timedelta(days=1)
    sent = past.mailed(at, ["1", "2"], zones={"1": "", "2": ""})
    past.visit(sent, 1, at + HOUR)
    folded(connection, config, at.date())
    assert row(connection, "1")["zone"] == "Asia/Ho_Chi_Minh" and list(hours(row(connection, "1")["ev"])) == [20]
    assert row(connection, "2")["zone"] is None and max(range(24), key=row(connection, "2")["ex"].__getitem__) == 12


def test_whatever_order_rows_arrive_in_the_fold_is_the_same(
    connection: Connection, past: Past, config: Settings
) -> None:
    """Events are told late, early and mixed; two databases that hold the same rows fold the same."""
    rng = random.Random(5)
    people = [str(number) for number in range(12)]
    zones = {one: rng.choice(["UTC", "Asia/Tokyo", "America/Lima", "nowhere"]) for one in people}
    mails = [
        (NOON + timedelta(days=day, hours=rng.randrange(-12, 12)), rng.sample(people, 8))
        for day in range(3)
        for _ in "ab"
    ]
    visits = [
        (
            number,
            seq,
            at + timedelta(minutes=rng.randrange(1, 2400)),
            rng.choice(["open", "click"]),
            rng.choice([None, APPLE]),
        )
        for number, (at, _) in enumerate(mails)
        for seq in range(1, 9)
        if rng.random() < 0.6
    ]
    results = []
    for _ in range(3):
        connection.execute(
            "TRUNCATE mailpipe.engagement, mailpipe.engagement_state, mailpipe.engagement_fold, mailpipe.event, mailpipe.call"
        )
        ids = {}
        for number in rng.sample(range(len(mails)), len(mails)):
            ids[number] = past.mailed(*mails[number], zones=zones)
        for number, seq, at, kind, agent in rng.sample(visits, len(visits)):
            past.visit(ids[number], seq, at, kind, **({"agent": agent} if agent else {}))
        for day in range(3):
            folded(connection, config, DAY + timedelta(days=day))
            folded(connection, config, DAY)
        results.append(everything(connection))
    assert len(results[0]) == 12
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert flat(one) == pytest.approx(flat(two), rel=1e-4, abs=1e-6)


def flat(values: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        match value:
            case list():
                found += value
            case datetime():
                found.append(value.timestamp())
            case float() | int():
                found.append(value)
            case _:
                found.append(float(hash(str(value)) % 1_000_003))
    return found


def test_the_whole_audience_teaches_how_fresh_a_mail_is(connection: Connection, past: Past, config: Settings) -> None:
    sent = past.mailed(NOON, ["1", "2", "3"])
    past.visit(sent, 1, NOON + 5 * HOUR)
    past.visit(sent, 2, NOON + HOUR, agent=APPLE)
    folded(connection, config)
    found = days.state(connection)
    assert (found.folded_to, found.mails, found.opens, found.clicks) == (DAY, 2, 1, 0)
    assert found.ages == [1.0 if age == 5 else 0.0 for age in range(24)]
    assert found.freshness == pytest.approx(rule.freshness(found.ages, found.mails))
    assert found.thinning == pytest.approx(rule.thinning(1, 0))


def test_buyers_and_opt_ins_come_from_the_teams_own_tables(connection: Connection, past: Past, tmp_path: Path) -> None:
    connection.execute(
        "CREATE TABLE shop_order (buyer bigint, at timestamptz); CREATE TABLE member (id bigint, joined timestamptz);"
        "INSERT INTO shop_order VALUES (1, '2026-03-02 15:00Z'), (9, '2026-01-20Z'), (8, '2026-03-03 15:00Z'), (2, '2020-01-01Z');"
        "INSERT INTO member VALUES (2, '2024-01-01Z'), (1, '2024-01-01Z')"
    )
    config = reading.load(
        {
            "MAILPIPE_HOME": str(tmp_path),
            "MAILPIPE_ORDERS": "SELECT buyer AS user_id, at AS ordered_at FROM shop_order -- 100 %;\n;",
            "MAILPIPE_OPT_INS": "SELECT id AS user_id, joined AS opted_in_at FROM member",
        }
    )
    past.mailed(NOON, ["1", "2", "3"])
    day = timedelta(days=1)
    assert folded(connection, replace(config, orders=None), DAY).bought == 0
    assert folded(connection, config, DAY + day).bought == 1
    # Nobody had asked for orders before: those of the day before, and of January, are not missed.
    tiers = {one: row(connection, one)["tier"] for one in ("1", "2", "3", "9")}
    assert tiers == {"1": 1, "2": 5, "3": 4, "9": 2}


@pytest.mark.parametrize(
    ("query", "told"),
    [("SELECT 1 AS user_id", "MAILPIPE_ORDERS: has no column ordered_at. It has: user_id"),
     ("SELECT nothing FROM nowhere", 'MAILPIPE_ORDERS: relation "nowhere" does not exist'),
     ("SELECT 1 AS user_id, localtimestamp AS ordered_at", "is no timestamptz"),
     ("SELECT 1 AS user_id, now() AS ordered_at WHERE :as_of", "takes no parameters")],
)  # fmt: skip
def test_orders_that_cannot_be_used_are_told_and_nothing_is_folded(
    connection: Connection, past: Past, tmp_path: Path, query: str, told: str
) -> None:
    config = reading.load({"MAILPIPE_HOME": str(tmp_path), "MAILPIPE_ORDERS": query})
    past.mailed(NOON, ["1"])
    with pytest.raises(OrdersError, match=told):
        folded(connection, config)
    assert everything(connection) == [] and days.state(connection).folded_to is None


class TestHistory:
    def test_a_day_is_kept_without_addresses(self, connection: Connection, past: Past, config: Settings) -> None:
        connection.execute("SET TimeZone = 'America/New_York'")
        sent = past.mailed(NOON, ['with "quotes", and\nlines', "2"], zones={"2": "Asia/Tokyo"}, variant="b")
        past.visit(sent, 2, NOON + HOUR)
        past.visit(sent, 2, NOON + 2 * HOUR, "click")
        folded(connection, config)
        mails = history.read(config.history_folder, "mails", DAY, DAY).to_pylist()
        assert [(one["person_id"], one["variant"], one["hour"], one["sent_at"]) for one in mails] == [
            ('with "quotes", and\nlines', "b", 12, NOON),
            ("2", "b", 21, NOON),
        ]
        reactions = history.read(config.history_folder, "reactions", DAY, DAY).to_pylist()
        assert [(one["kind"], one["hour"], one["latency"]) for one in reactions] == [
            ("open", 22, 3600.0),
            ("click", 23, 7200.0),
        ]
        assert {"email", "name"}.isdisjoint(mails[0]) and "@" not in str(mails + reactions)

    def test_a_fold_that_fails_leaves_no_half_day_and_the_next_one_replaces_it(
        self, connection: Connection, past: Past, config: Settings, tmp_path: Path
    ) -> None:
        past.mailed(NOON, ["1"])
        wrong = reading.load(
            {"MAILPIPE_HOME": str(tmp_path), "MAILPIPE_VAR": str(tmp_path), "MAILPIPE_ORDERS": "SELECT"}
        )
        with pytest.raises(OrdersError):
            folded(connection, wrong)
        assert history.days(config.history_folder, "mails") == []
        assert list(config.history_folder.iterdir()) == []
        place = history.partition(config.history_folder, "mails", DAY)
        place.mkdir(parents=True)
        (place / history.FILE).write_text("of an earlier attempt")
        folded(connection, config)
        assert history.read(config.history_folder, "mails", DAY, DAY).num_rows == 1

    def test_old_days_go(self, connection: Connection, past: Past, tmp_path: Path) -> None:
        config = reading.load(
            {"MAILPIPE_HOME": str(tmp_path), "MAILPIPE_HISTORY": str(tmp_path / "h"), "MAILPIPE_HISTORY_DAYS": "1"}
        )
        for number in range(3):
            past.mailed(NOON + timedelta(days=number), ["1"])
            folded(connection, config, DAY + timedelta(days=number))
        assert history.days(tmp_path / "h", "mails") == [DAY + timedelta(days=1), DAY + timedelta(days=2)]
        assert history.read(tmp_path / "h", "reactions", DAY, LATER.date()).num_rows == 0


def test_a_campaign_that_was_really_sent_is_folded_person_by_person(scene: World) -> None:
    """Nothing here writes rows of its own: a run sent it, SES's events came in, and some people were refused."""
    scene.people(120)
    # Refused by the stand-in for good.
    scene.execute("UPDATE users SET email = 'person7@[not-a-host' WHERE user_id = 7")
    key = scene.ready()
    scene.send(key)
    now = datetime.now(UTC)

    def after(seconds: float) -> str:
        return (now + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")

    seqs = dict(
        scene.execute(
            "SELECT user_id, seq FROM mailpipe.recipient JOIN mailpipe.campaign USING (campaign_id) WHERE key = %(key)s",
            {"key": key},
        )
    )
    take(
        scene,
        told(OPEN, key, seqs["1"], at=after(600)),
        told(CLICK, key, seqs["1"], at=after(700)),
        told(OPEN, key, seqs["2"], at=after(600)),
        told(HARD, key, seqs["3"]),
    )
    states = scene.states(key)
    sent = {user for user, seq in seqs.items() if states[seq][0] == "sent"}
    with scene.database.connection() as connection:
        for day in days.due(connection, now + timedelta(days=3)):
            done = fold.fold(connection, scene.settings, day, now=now + timedelta(days=3))
            if done.mails:
                assert (done.mails, done.people) == (len(sent) - 1, len(sent) - 1)
                assert (done.opens, done.clicks) == (1, 1)
        people = dict(connection.execute("SELECT person_id, tier FROM mailpipe.engagement").fetchall())
        assert set(people) == sent - {"3"}
        assert (people["1"], people["2"], people["4"]) == (1, 2, 4)
        assert row(connection, "1")["zone"] == "Asia/Ho_Chi_Minh"
        local = zones.wall("Asia/Ho_Chi_Minh", now + timedelta(seconds=700)).hour
        assert hours(row(connection, "1")["ev"]) == {local: 2.0}
