"""The invented audience on a real server: the promised numbers, the same people again, no harm to others."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from mailpipe import address
from mailpipe.db import Connection, Database
from mailpipe.demo import audience
from mailpipe.errors import UserError

AS_OF = datetime(2026, 3, 29, tzinfo=UTC)
PEOPLE = 5000


def number(connection: Connection, sql: str) -> int:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return int(row[0])


def fingerprint(connection: Connection) -> list[object]:
    users = "SELECT md5(string_agg(users::text, '|' ORDER BY user_id)) FROM users"
    suppressed = "SELECT email_key, scope, reason FROM mailpipe.suppression ORDER BY email_key"
    return [connection.execute(users).fetchall(), connection.execute(suppressed).fetchall()]


@pytest.mark.parametrize("people", [100, 101, 128, PEOPLE])
def test_every_kind_occurs_exactly_as_often_as_promised(database: Database, people: int) -> None:
    with database.connection() as connection:
        made = audience.build(connection, people, as_of=AS_OF)
        assert made.people == number(connection, "SELECT count(*) FROM users") == people
        assert made.inactive == number(connection, "SELECT count(*) FROM users WHERE NOT is_active")
        assert made.opted_out == number(connection, "SELECT count(*) FROM users WHERE NOT marketing_opt_in")
        assert made.without_city == number(connection, "SELECT count(*) FROM users WHERE city IS NULL")
        assert made.without_first_name == number(connection, "SELECT count(*) FROM users WHERE first_name IS NULL")
        for kind in ("bounce", "complaint"):
            where = f"email ~ '^{kind}[+][0-9]+@simulator[.]amazonses[.]com$'"
            assert getattr(made, kind) == number(connection, f"SELECT count(*) FROM users WHERE {where}")
        assert made.duplicate == people - number(connection, "SELECT count(DISTINCT lower(email)) FROM users")
        assert number(connection, "SELECT count(DISTINCT email) FROM users") == people
        assert made.suppressed == number(connection, "SELECT count(*) FROM mailpipe.suppression")
        assert made.suppressed == number(
            connection, "SELECT count(*) FROM users JOIN mailpipe.suppression ON email_key = lower(email)"
        )
        assert made.recipients == number(
            connection,
            "SELECT count(DISTINCT lower(email)) FROM users WHERE is_active AND marketing_opt_in"
            " AND NOT EXISTS (SELECT FROM mailpipe.suppression WHERE email_key = lower(email))",
        )
        assert min(vars(made).values()) >= 1


def test_exactly_the_promised_addresses_are_unusable_and_none_could_reach_anybody(database: Database) -> None:
    with database.connection() as connection:
        made = audience.build(connection, PEOPLE, as_of=AS_OF)
        emails = [row[0] for row in connection.execute("SELECT email FROM users").fetchall()]
        keys = {row[0] for row in connection.execute("SELECT email_key FROM mailpipe.suppression").fetchall()}
    usable, unusable = [], 0
    for email in emails:
        try:
            usable.append(address.send_form(email))
        except address.AddressError:
            unusable += 1
    assert unusable == made.unusable
    domains = {email.rpartition("@")[2] for email in usable}
    assert all(
        domain == "simulator.amazonses.com" or domain.endswith((".example.com", ".example.net", ".example.org"))
        for domain in domains
    )
    assert "xn--bcher-kva.example.com" in domains
    assert keys == {address.key(key) for key in keys}


def test_the_same_seed_makes_the_same_people_and_another_one_others(database: Database) -> None:
    with database.connection() as connection:
        audience.build(connection, 500, 1, as_of=AS_OF)
        first = fingerprint(connection)
        audience.build(connection, 500, 2, as_of=AS_OF)
        second = fingerprint(connection)
        audience.build(connection, 500, 1, as_of=AS_OF)
        assert fingerprint(connection) == first != second
        assert number(connection, "SELECT count(*) FROM mailpipe.suppression") == audience.counts(500).suppressed


def test_people_are_from_everywhere_and_have_real_zones(database: Database) -> None:
    with database.connection() as connection:
        audience.build(connection, PEOPLE, as_of=AS_OF)
        zones = [row[0] for row in connection.execute("SELECT DISTINCT timezone FROM users").fetchall()]
        assert len(zones) >= 25
        assert all(ZoneInfo(zone).utcoffset(AS_OF) is not None for zone in zones)
        assert number(connection, "SELECT count(DISTINCT country) FROM users") == 25
        assert number(connection, "SELECT count(DISTINCT locale) FROM users") >= 25
        assert number(connection, "SELECT count(*) FROM users WHERE first_name ~ '[^ -~]'") > PEOPLE / 20
        assert number(connection, "SELECT count(*) FROM users WHERE last_login_at IS NULL") > PEOPLE / 30
        late = "last_login_at > '2026-03-29+0' OR created_at > '2026-03-29+0' OR last_login_at < created_at"
        assert number(connection, f"SELECT count(*) FROM users WHERE {late}") == 0
        codes = number(connection, "SELECT count(*) FROM users WHERE (referral_code IS NULL) = (source = 'referral')")
        assert codes == 0


def test_a_table_that_is_not_the_demos_is_left_alone(database: Database) -> None:
    with database.connection() as connection:
        connection.execute("CREATE TABLE public.users (user_id bigint)")
        connection.execute("INSERT INTO public.users VALUES (1)")
        with pytest.raises(UserError, match="not made by the demo"):
            audience.build(connection, 100)
        assert number(connection, "SELECT count(*) FROM users") == 1


def test_suppressions_from_elsewhere_survive_a_new_audience(database: Database) -> None:
    with database.connection() as connection:
        connection.execute("INSERT INTO mailpipe.suppression VALUES ('a@shop.example.com', 'all', 'manual', 'support')")
        audience.build(connection, 300)
        audience.build(connection, 50)
        assert connection.execute("SELECT source FROM mailpipe.suppression").fetchall() == [("support",)]


@pytest.mark.parametrize("people", [1, 2, 3, 7, 99])
def test_small_audiences_work_too(database: Database, people: int) -> None:
    with database.connection() as connection:
        made = audience.build(connection, people)
        assert number(connection, "SELECT count(*) FROM users") == people
        assert made.duplicate == people - number(connection, "SELECT count(DISTINCT lower(email)) FROM users")


def test_those_who_opt_out_later_come_late_in_the_order_and_are_the_same_each_time(
    database: Database,
) -> None:
    chosen = []
    with database.connection() as connection:
        for _ in range(2):
            made = audience.build(connection, 1000, as_of=AS_OF)
            order = [
                row[0]
                for row in connection.execute(
                    "SELECT user_id FROM users WHERE is_active AND marketing_opt_in"
                    " ORDER BY last_login_at DESC NULLS LAST, user_id"
                ).fetchall()
            ]
            assert audience.opt_out_some(connection, 0.01) == 10
            gone = {
                row[0] for row in connection.execute("SELECT user_id FROM users WHERE NOT marketing_opt_in").fetchall()
            } & set(order)
            assert len(gone) == 10
            assert min(order.index(user_id) for user_id in gone) >= len(order) * 0.74
            assert number(connection, "SELECT count(*) FROM users WHERE NOT marketing_opt_in") == made.opted_out + 10
            chosen.append(gone)
    assert chosen[0] == chosen[1]


def test_numbers_that_do_not_work_are_refused() -> None:
    with pytest.raises(UserError, match="at least one person"):
        audience.counts(0)
    with pytest.raises(UserError, match="stay below"):
        audience.counts(100, audience.Shares(inactive=0.5))
