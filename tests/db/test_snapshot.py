"""Freezing a segment: who is in, who is left out and why, in which order, and that nothing half done ever stays."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mailpipe import campaign_file, snapshot, suppression
from mailpipe.errors import SegmentError, SnapshotError
from mailpipe.send import End
from tests.support import World, wait_for

HEADER = "-- title: For one test\n-- owner: team:growth\n-- description: Made by a test.\n"
PLAIN = "SELECT user_id, email, first_name, city FROM users ORDER BY user_id"
PEOPLE = "SELECT 'u' || i AS user_id, 'p' || i || '@mail.example.com' AS email, 'Hanoi' AS city FROM generate_series(1, {}) AS i"


@pytest.fixture
def open_to_all(scene: World) -> World:
    """A world whose people need no row in `users`: everybody has consented."""
    return World(scene.database, scene.with_settings(consent="true"), scene.stand_in, scene.ses, scene.numbers)


def segment(world: World, body: str) -> str:
    """Write a segment file of its own; answers its name."""
    name = f"segment_{next(world.numbers)}"
    (world.settings.segments / f"{name}.sql").write_text(HEADER + body + "\n")
    return name


def take(world: World, body: str, **fields: Any) -> tuple[str, snapshot.Snapshot]:
    key = world.create(segment=segment(world, body), **fields)
    return key, world.freeze(key)


def recipients(world: World, key: str) -> list[tuple[Any, ...]]:
    return world.execute(
        "SELECT r.seq, r.user_id, r.email FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s ORDER BY r.seq",
        {"key": key},
    )


def suppress(world: World, address: str, scope: str = "all") -> None:
    world.execute(
        "INSERT INTO mailpipe.suppression VALUES (%(a)s, %(s)s, 'manual', 'test')", {"a": address, "s": scope}
    )


def traces(world: World, key: str) -> dict[str, int]:
    """What a snapshot of this campaign has left anywhere."""
    found = world.campaign(key)
    row = world.execute(
        "SELECT (SELECT count(*) FROM mailpipe.recipient WHERE campaign_id = %(id)s),"
        " (SELECT count(*) FROM mailpipe.chunk WHERE campaign_id = %(id)s),"
        " (SELECT count(*) FROM mailpipe.outcome WHERE campaign_id = %(id)s),"
        " (SELECT count(*) FROM mailpipe.snapshot WHERE campaign_id = %(id)s),"
        " (SELECT count(*) FROM pg_class WHERE relname LIKE %(table)s)",
        {"id": found.campaign_id, "table": f"recipient\\_{found.campaign_id}%"},
    )[0]
    return dict(zip(("recipients", "chunks", "outcomes", "snapshots", "tables"), row, strict=True))


NOTHING = {"recipients": 0, "chunks": 0, "outcomes": 0, "snapshots": 0, "tables": 0}


@pytest.mark.parametrize("people", [0, 1, 49, 50, 51, 500, 501])
def test_everybody_has_a_number_and_a_chunk(open_to_all: World, people: int) -> None:
    key, taken = take(open_to_all, PEOPLE.format(people), chunk_size=100)
    assert (taken.returned, taken.recipients, taken.excluded) == (people, people, {})
    assert [row[0] for row in recipients(open_to_all, key)] == list(range(1, people + 1))
    states = open_to_all.states(key)
    assert len(states) == people and set(states.values()) <= {("pending", None)}


def test_one_address_in_two_spellings_of_case_is_one_person(open_to_all: World) -> None:
    body = """SELECT * FROM (VALUES ('1', 'Ana@Mail.Example.com'), ('2', 'ana@mail.example.com'), ('3', 'ben@mail.example.com'))
              AS x(user_id, email)"""
    key, taken = take(open_to_all, body)
    assert taken.excluded == {"duplicate": 1}
    assert taken.returned == 3
    assert recipients(open_to_all, key) == [(1, "1", "Ana@Mail.Example.com"), (2, "3", "ben@mail.example.com")]


def test_one_user_id_with_two_addresses_is_one_person(open_to_all: World) -> None:
    body = """SELECT * FROM (VALUES (7, 'a@mail.example.com'), (7, 'b@mail.example.com'), (8, 'c@mail.example.com'))
              AS x(user_id, email)"""
    key, taken = take(open_to_all, body)
    assert taken.excluded == {"duplicate": 1}
    assert [row[1:] for row in recipients(open_to_all, key)] == [
        ("7", "a@mail.example.com"),
        ("8", "c@mail.example.com"),
    ]


def test_who_is_left_out_as_the_same_user_takes_nobody_along(open_to_all: World) -> None:
    """Row 2 goes for its user id; row 3 has row 2's address, and is the only one left with it."""
    body = """SELECT * FROM (VALUES (1, 'a@mail.example.com'), (1, 'b@mail.example.com'), (2, 'B@mail.example.com'),
              (3, 'A@mail.example.com'), (2, 'z@mail.example.com')) AS x(user_id, email)"""
    key, taken = take(open_to_all, body)
    assert [row[1] for row in recipients(open_to_all, key)] == ["1", "2"]
    assert taken.excluded == {"duplicate": 3}
    assert taken.returned == 5


def test_the_same_address_with_space_tab_or_line_end_around_it_is_one_person(open_to_all: World) -> None:
    body = r"""SELECT * FROM (VALUES (1, 'a@mail.example.com'), (2, E' a@mail.example.com\n'), (3, E'\ta@mail.example.com\r\n'))
               AS x(user_id, email)"""
    key, taken = take(open_to_all, body)
    assert recipients(open_to_all, key) == [(1, "1", "a@mail.example.com")]
    assert taken.excluded == {"duplicate": 2}


@pytest.mark.parametrize(
    "spelling", ["Gone@Mail.Example.COM", " gone@mail.example.com", r"gone@mail.example.com\t\r\n"]
)
@pytest.mark.parametrize("scope", ["all", "marketing"])
def test_suppressed_people_are_left_out_however_their_address_is_spelled(
    open_to_all: World, spelling: str, scope: str
) -> None:
    suppress(open_to_all, "gone@mail.example.com", scope)
    key, taken = take(
        open_to_all,
        f"SELECT * FROM (VALUES (1, E'{spelling}'), (2, 'here@mail.example.com')) AS x(user_id, email)",
    )
    assert taken.excluded == {"suppressed": 1}
    assert recipients(open_to_all, key) == [(1, "2", "here@mail.example.com")]


def test_people_who_opted_out_of_the_topic_or_of_all_marketing_are_left_out(scene: World) -> None:
    scene.people(4)
    topic = scene.campaign(scene.create()).spec.topic
    with scene.database.connection() as connection:
        suppression.unsubscribe(connection, "1", topic)
        suppression.unsubscribe(connection, "2", "marketing")
        suppression.unsubscribe(connection, "3", "another-topic")
    suppress(scene, "person4@mail.example.com", "topic:another-topic")
    key, taken = take(scene, PLAIN)
    assert taken.excluded == {"opted_out": 2}
    assert [user_id for _, user_id, _ in recipients(scene, key)] == ["3", "4"]


def test_people_without_consent_are_left_out_with_their_number(scene: World) -> None:
    scene.people(10)
    scene.execute("UPDATE users SET marketing_opt_in = false WHERE user_id IN (2, 3)")
    scene.execute("UPDATE users SET is_active = false WHERE user_id = 9")
    suppress(scene, "person1@mail.example.com")
    suppress(scene, "person2@mail.example.com")
    key, taken = take(scene, PLAIN)
    assert taken.excluded == {"opted_out": 2, "suppressed": 2}
    assert (taken.returned, taken.recipients) == (10, 6)
    assert [row[:2] for row in recipients(scene, key)] == [
        (1, "4"),
        (2, "5"),
        (3, "6"),
        (4, "7"),
        (5, "8"),
        (6, "10"),
    ]


def test_somebody_whom_the_consent_query_does_not_know_is_left_out(scene: World) -> None:
    scene.people(2)
    _, taken = take(scene, "SELECT user_id + 1 AS user_id, email FROM users")
    assert taken.excluded == {"opted_out": 1}


UNUSABLE = [
    "no-at-sign",
    "two@@mail.example.com",
    "sp ace@mail.example.com",
    "đặng@mail.example.com",
    "dot.@mail.example.com",
]
HARDLY_USABLE = ["", "   ", "a@b", ".a@mail.example.com", "a..b@mail.example.com", "a@mail.example.com."]


@pytest.mark.parametrize("address", UNUSABLE + HARDLY_USABLE)
def test_an_address_that_ses_cannot_take_is_skipped_and_not_lost(open_to_all: World, address: str) -> None:
    key, taken = take(
        open_to_all,
        f"SELECT * FROM (VALUES (1, 'a@mail.example.com'), (2, '{address}'), (3, 'c@mail.example.com')) AS x(user_id, email)",
    )
    assert (taken.recipients, taken.excluded) == (3, {})
    assert open_to_all.states(key) == {1: ("pending", None), 2: ("skipped", "unusable_address"), 3: ("pending", None)}


@pytest.mark.parametrize("address", ["a@-.example.com", "a@mail.example.invalid", r"a\x0bb@mail.example.com"])
def test_an_address_that_only_the_full_validation_refuses_is_skipped_before_the_call(
    open_to_all: World, address: str
) -> None:
    key, _ = take(
        open_to_all,
        f"SELECT *, 'Hue' AS city FROM (VALUES (1, 'a@mail.example.com'), (2, E'{address}')) AS x(user_id, email)",
    )
    open_to_all.approve(key)
    open_to_all.send(key)
    assert open_to_all.keep_promises(key) == {"sent": 1, "skipped": 1}
    assert open_to_all.states(key)[2] == ("skipped", "unusable_address")


def test_people_without_any_address_are_not_one_person(open_to_all: World) -> None:
    """An empty address is no address: each of them is skipped for the right reason, and nobody is called a duplicate."""
    key, taken = take(
        open_to_all,
        "SELECT * FROM (VALUES (1, NULL), (2, ''), (3, '  '), (4, 'd@mail.example.com'), (5, 'D@mail.example.com'), (6, NULL))"
        " AS x(user_id, email)",
    )
    assert taken.excluded == {"duplicate": 1}
    assert Counter(open_to_all.states(key).values()) == {("skipped", "unusable_address"): 4, ("pending", None): 1}
    assert [row[1] for row in recipients(open_to_all, key)] == ["1", "2", "3", "4", "6"]


def test_a_chunk_of_nothing_but_unusable_addresses_is_done_at_once(open_to_all: World) -> None:
    key, _ = take(open_to_all, "SELECT i AS user_id, 'nobody' || i AS email FROM generate_series(1, 30) AS i")
    progress = open_to_all.progress(key)
    assert (progress.skipped, progress.pending, progress.queued_chunks) == (30, 0, 0)


def test_an_international_domain_is_kept_in_the_form_that_is_sent(open_to_all: World) -> None:
    key, _ = take(open_to_all, "SELECT 1 AS user_id, 'Leser@Bücher.example.com' AS email")
    assert recipients(open_to_all, key) == [(1, "1", "Leser@xn--bcher-kva.example.com")]


def test_two_spellings_of_an_international_domain_are_one_person(open_to_all: World) -> None:
    key, taken = take(
        open_to_all,
        "SELECT * FROM (VALUES (1, 'x@bücher.example.com'), (2, 'X@xn--bcher-kva.example.com'), (3, 'y@bücher.example.com'))"
        " AS x(user_id, email)",
    )
    assert taken.excluded == {"duplicate": 1}
    assert [row[1] for row in recipients(open_to_all, key)] == ["1", "3"]


def test_a_suppression_of_the_punycode_form_holds_for_the_other_spelling(open_to_all: World) -> None:
    suppress(open_to_all, "x@xn--bcher-kva.example.com")
    body = """SELECT * FROM (VALUES (1, 'a@mail.example.com'), (2, 'X@Bücher.example.com'), (3, 'no address'),
              (4, 'b@mail.example.com')) AS x(user_id, email)"""
    key, taken = take(open_to_all, body)
    assert taken.excluded == {"suppressed": 1}
    assert [row[:2] for row in recipients(open_to_all, key)] == [(1, "1"), (2, "3"), (3, "4")]
    assert open_to_all.states(key)[2] == ("skipped", "unusable_address")


def test_the_order_of_the_segment_is_the_order_of_sending(open_to_all: World) -> None:
    body = """SELECT i AS user_id, 'p' || i || '@mail.example.com' AS email FROM generate_series(1, 3000) AS i
              ORDER BY hashint4(i), i"""
    key, _ = take(open_to_all, body)
    expected = open_to_all.execute("SELECT i::text FROM generate_series(1, 3000) AS i ORDER BY hashint4(i), i")
    assert [row[1] for row in recipients(open_to_all, key)] == [row[0] for row in expected]


def test_the_order_survives_people_who_are_left_out(open_to_all: World) -> None:
    suppress(open_to_all, "p17@mail.example.com")
    body = """SELECT i % 900 AS user_id, 'p' || i % 900 || '@mail.example.com' AS email FROM generate_series(1, 1000) AS i
              ORDER BY i DESC"""
    key, taken = take(open_to_all, body)
    # 17 and 917 are the suppressed one; 1 to 100 come a second time, but for 17.
    assert taken.excluded == {"suppressed": 2, "duplicate": 99}
    wanted = list(dict.fromkeys(str(i % 900) for i in range(1000, 0, -1) if i % 900 != 17))
    assert [row[1] for row in recipients(open_to_all, key)] == wanted
    assert sum(taken.excluded.values()) + taken.recipients == taken.returned == 1000


def test_columns_become_variables_as_text_and_null_stays_null(open_to_all: World) -> None:
    body = """SELECT 5 AS user_id, 'a@mail.example.com' AS email, 'Asia/Tokyo' AS timezone, 'ja-JP' AS locale, 12 AS points,
              1234.50::numeric(10, 2) AS price, NULL::text AS city, true AS gold, date '2026-02-28' AS until, 'x' AS "select"
              """
    key, taken = take(open_to_all, body)
    assert taken.variables == ["points", "price", "city", "gold", "until", "select"]
    row = open_to_all.execute(
        "SELECT r.timezone, r.locale, r.variables FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s",
        {"key": key},
    )[0]
    assert row == ("Asia/Tokyo", "ja-JP", ["12", "1234.50", None, "true", "2026-02-28", "x"])


def test_a_segment_without_further_columns_has_no_variables(open_to_all: World) -> None:
    key, taken = take(open_to_all, "SELECT 1 AS user_id, 'a@mail.example.com' AS email")
    assert taken.variables == []
    assert open_to_all.execute(
        "SELECT variables, timezone FROM mailpipe.recipient r JOIN mailpipe.campaign g USING (campaign_id) WHERE g.key = %(k)s",
        {"k": key},
    ) == [([], None)]


@pytest.mark.parametrize(
    "condition",
    [
        "email LIKE 'person%@%'",
        "10 % 4 = 2",
        "'50%' <> '%s'",
        "created_at::date < :as_of::date",
        "'it''s: :as_of' <> $$ :nothing %(x)s $$",
        "email NOT LIKE '%{{segment}}%'",
    ],
)
def test_percent_signs_casts_and_quotes_of_a_segment_are_left_alone(scene: World, condition: str) -> None:
    scene.people(3)
    _, taken = take(
        scene, f"SELECT user_id, email, first_name, city FROM users WHERE {condition} ORDER BY user_id -- 100 %"
    )
    assert taken.recipients == 3


def test_parameters_of_the_campaign_reach_the_segment(open_to_all: World) -> None:
    name = f"segment_{next(open_to_all.numbers)}"
    (open_to_all.settings.segments / f"{name}.sql").write_text(
        HEADER
        + "-- param many int = 3: how many people\n"
        + "SELECT i AS user_id, 'p' || i || '@mail.example.com' AS email FROM generate_series(1, :many) AS i\n"
    )
    key = open_to_all.create(segment=name, parameters={"many": "7"})
    taken = open_to_all.freeze(key)
    assert taken.recipients == 7
    assert taken.parameters == {"many": "7"}


def test_a_user_id_that_is_null_is_refused_and_nothing_is_kept(open_to_all: World) -> None:
    key = open_to_all.create(
        segment=segment(
            open_to_all,
            "SELECT * FROM (VALUES (1, 'a@mail.example.com'), (NULL, 'b@mail.example.com')) AS x(user_id, email)",
        )
    )
    with pytest.raises(SnapshotError, match="user_id is NULL in 1 rows"):
        open_to_all.freeze(key)
    assert traces(open_to_all, key) == NOTHING


def test_a_segment_that_fails_while_it_runs_leaves_nothing(open_to_all: World) -> None:
    name = segment(
        open_to_all,
        "SELECT i AS user_id, 'p@mail.example.com' AS email, 10 / (i - 4) AS city FROM generate_series(1, 9) AS i",
    )
    key = open_to_all.create(segment=name)
    with pytest.raises(SegmentError, match=rf"{name}\.sql:\d+: division by zero"):
        open_to_all.freeze(key)
    assert traces(open_to_all, key) == NOTHING
    (open_to_all.settings.segments / f"{name}.sql").write_text(HEADER + PEOPLE.format(4) + "\n")
    assert open_to_all.freeze(key).recipients == 4


def test_a_segment_that_takes_too_long_is_stopped_and_leaves_nothing(open_to_all: World) -> None:
    world = World(
        open_to_all.database,
        open_to_all.with_settings(segment_timeout=0.2, consent="true"),
        open_to_all.stand_in,
        open_to_all.ses,
        open_to_all.numbers,
    )
    key = world.create(
        segment=segment(
            world,
            "SELECT sum(a + b)::bigint AS user_id, 'p@mail.example.com' AS email"
            " FROM generate_series(1, 30000) a, generate_series(1, 30000) b",
        )
    )
    with pytest.raises(SegmentError, match="stopped by the time limit"):
        world.freeze(key)
    assert traces(world, key) == NOTHING


def test_a_consent_query_that_fails_leaves_nothing(scene: World) -> None:
    scene.people(1)
    key = scene.create(segment=segment(scene, "SELECT 'not-a-number' AS user_id, 'p@mail.example.com' AS email"))
    with pytest.raises(SegmentError, match="invalid input syntax for type bigint"):
        scene.freeze(key)
    assert traces(scene, key) == NOTHING


def test_a_second_snapshot_is_refused_and_changes_nothing(open_to_all: World) -> None:
    key, taken = take(open_to_all, PEOPLE.format(60))
    before = traces(open_to_all, key)
    with pytest.raises(SnapshotError, match="has a snapshot already"):
        open_to_all.freeze(key)
    assert traces(open_to_all, key) == before
    assert taken.recipients == 60


def test_of_two_snapshots_at_the_same_time_one_is_refused(open_to_all: World) -> None:
    key = open_to_all.create(segment=segment(open_to_all, PEOPLE.format(2000)))
    together = threading.Barrier(3)

    def freeze() -> str:
        together.wait()
        try:
            open_to_all.freeze(key)
        except SnapshotError as error:
            return str(error)
        return "taken"

    with ThreadPoolExecutor(3) as pool:
        answers = [future.result() for future in [pool.submit(freeze) for _ in range(3)]]
    assert answers.count("taken") == 1
    assert sum("never taken twice" in answer for answer in answers) == 2
    assert traces(open_to_all, key)["recipients"] == 2000


@pytest.mark.parametrize("state", ["cancelled", "done"])
def test_no_snapshot_is_taken_of_a_campaign_that_is_over(open_to_all: World, state: str) -> None:
    key = open_to_all.create(segment=segment(open_to_all, PEOPLE.format(3)))
    open_to_all.approve(key)
    open_to_all.execute(
        "UPDATE mailpipe.campaign SET state = %(state)s WHERE key = %(key)s", {"key": key, "state": state}
    )
    with pytest.raises(SnapshotError, match=f"is {state}"):
        open_to_all.freeze(key)
    assert traces(open_to_all, key) == NOTHING


def test_a_segment_edited_afterwards_changes_nothing(open_to_all: World) -> None:
    name = segment(open_to_all, PEOPLE.format(5))
    key = open_to_all.create(segment=name)
    taken = open_to_all.freeze(key)
    before = recipients(open_to_all, key)
    (open_to_all.settings.segments / f"{name}.sql").write_text("this is no segment any more")
    assert recipients(open_to_all, key) == before
    open_to_all.approve(key)
    open_to_all.send(key)
    assert open_to_all.keep_promises(key) == {"sent": 5}
    kept = open_to_all.execute(
        "SELECT segment_sql FROM mailpipe.snapshot WHERE campaign_id = %(id)s", {"id": taken.campaign_id}
    )
    assert "generate_series(1, 5)" in kept[0][0]


def test_people_who_come_later_are_not_in_it(scene: World) -> None:
    scene.people(3)
    key = scene.ready()
    scene.people(3, first=4)
    scene.send(key)
    assert scene.keep_promises(key) == {"sent": 3}


def test_recipients_stand_in_a_table_of_the_campaign_alone(open_to_all: World) -> None:
    """Retention drops it, and the parent's indexes and checks hold for it."""
    _, taken = take(open_to_all, PEOPLE.format(3))
    table = f"mailpipe.recipient_{taken.campaign_id}"
    assert open_to_all.execute(f"SELECT count(*) FROM {table}") == [(3,)]
    indexes = open_to_all.execute(
        "SELECT count(*) FROM pg_index WHERE indrelid = %(table)s::regclass AND indisunique AND indisvalid",
        {"table": table},
    )
    assert indexes == [(3,)]
    attached = open_to_all.execute(
        "SELECT count(*) FROM pg_inherits i JOIN pg_index x ON x.indexrelid = i.inhrelid WHERE x.indrelid = %(table)s::regclass",
        {"table": table},
    )
    assert attached == [(3,)]


def test_chunks_carry_the_due_time_of_the_campaign(open_to_all: World) -> None:
    key, _ = take(open_to_all, PEOPLE.format(60), due_at="2030-01-02T03:04:05+07:00")
    due = open_to_all.execute(
        "SELECT DISTINCT c.due_at = timestamptz '2030-01-01 20:04:05Z' FROM mailpipe.chunk c JOIN mailpipe.campaign g"
        " USING (campaign_id) WHERE g.key = %(key)s",
        {"key": key},
    )
    assert due == [(True,)]
    assert campaign_file.Spec.model_fields["due_at"].description


def test_the_segment_sees_the_due_time_as_now(scene: World, tmp_path: Path) -> None:
    """People who join between the snapshot and a due time ahead would be missed otherwise only if they were there; those who
    are there already and count from tomorrow on are in."""
    scene.people(2)
    scene.execute("UPDATE users SET created_at = '2029-12-31Z' WHERE user_id = 2")
    key = scene.create(due_at="2030-01-01T00:00:00+00:00")
    assert scene.freeze(key).recipients == 2
    key = scene.create()
    assert scene.freeze(key).recipients == 1
    key = scene.create(as_of="2019-01-01T00:00:00+00:00")
    assert scene.freeze(key).recipients == 0


def test_its_memory_does_not_grow_with_the_audience(open_to_all: World) -> None:
    """Nobody of the audience passes through this process. With a row of each, the second would take some megabytes more."""
    peaks = []
    for people in (100, 20_000):
        key = open_to_all.create(segment=segment(open_to_all, PEOPLE.format(people)))
        tracemalloc.start()
        assert open_to_all.freeze(key).recipients == people
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 500_000


def test_a_segment_that_takes_long_keeps_no_campaign_from_sending(scene: World) -> None:
    scene.people(60)
    sending = scene.ready()
    scene.execute("CREATE TABLE slow AS SELECT * FROM users")
    key = scene.create(segment=segment(scene, "SELECT user_id, email FROM slow"))
    with scene.database.connection() as holder, ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.execute("LOCK slow")
            freezing = pool.submit(scene.freeze, key)
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'slow'::regclass"
            wait_for(lambda: holder.execute(waits).fetchone() == (1,), "the segment to be asked")
            assert scene.send(sending).end is End.COMPLETE
            assert not freezing.done()
        assert freezing.result().recipients == 60
    assert scene.keep_promises(sending) == {"sent": 60}
