"""The shared limiter on the server: slots for all processes in one line, refusals that cost nothing, limits that hold at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, pairwise

import psycopg
import pytest

from mailpipe import campaign, pace
from mailpipe.db import Connection, Database
from mailpipe.pace import Pace, Refusal, Slot, rule
from mailpipe.ses.answer import Block
from mailpipe.ses.client import Account
from tests.support import World, wait_for


@pytest.fixture
def connection(scene: World) -> Iterator[Connection]:
    with scene.database.connection() as connection:
        yield connection


def limit(connection: Connection, rate: float | None, **fields: float) -> None:
    connection.execute("UPDATE mailpipe.pace SET account_rate = %s", (rate,))
    for name, value in fields.items():
        connection.execute(f"UPDATE mailpipe.pace SET {name} = %s".encode(), (value,))


def last_slot(connection: Connection, name: str = "pace_account") -> int:
    """The last slot of a line, in microseconds since 1970."""
    row = connection.execute("SELECT pg_sequence_last_value(%s::regclass)", (f"mailpipe.{name}",)).fetchone()
    assert row is not None
    return int(row[0] or 0) // 128


def wait_for_slots(connection: Connection, seconds: float) -> None:
    """Until slots are given away that lie so many seconds after this moment."""
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    assert row is not None
    wanted = (float(row[0]) + seconds) * 1e6
    wait_for(lambda: last_slot(connection) >= wanted, f"slots of the next {seconds} s")


def take(shared: Pace, connection: Connection, *, lead: float = 0.0, recipients: int | None = None) -> Slot:
    """The next slot, however often it has to be asked for."""
    give_up = time.monotonic() + 20
    while not isinstance(slot := shared.take(connection, patience=60, lead=lead, recipients=recipients), Slot):
        assert time.monotonic() < give_up, f"no slot: {slot}"
        time.sleep(min(slot.wait, 0.02))
    return slot


def slots_of_many(database: Database, takers: list[Pace], seconds: float) -> list[list[Slot]]:
    """Take slots for a while, each taker in a thread with a connection of its own."""
    together = threading.Barrier(len(takers))

    def run(shared: Pace) -> list[Slot]:
        found: list[Slot] = []
        with database.connection() as connection:
            together.wait()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                slot = shared.take(connection, patience=60, lead=0.01)
                if isinstance(slot, Slot):
                    found.append(slot)
                else:
                    time.sleep(min(slot.wait, 0.05))
        return found

    with ThreadPoolExecutor(len(takers)) as pool:
        return [future.result() for future in [pool.submit(run, one) for one in takers]]


def most_in_a_window(slots: list[Slot]) -> int:
    """The most recipients whose calls can arrive within a second: the first as late as it may be and longer on its way."""
    calls = sorted((slot.at, slot.lateness, slot.call_size) for slot in slots)
    return max(
        sum(size for at, _, size in calls[i:] if at <= first + lateness + pace.TRANSIT + pace.WINDOW)
        for i, (first, lateness, _) in enumerate(calls)
    )


def test_all_processes_stand_in_one_line(scene: World, connection: Connection) -> None:
    limit(connection, 2000)
    slots = list(chain(*slots_of_many(scene.database, [Pace("normal") for _ in range(6)], 1.5)))
    assert most_in_a_window(slots) <= 2000
    assert sum(slot.call_size for slot in slots) > 1500


@pytest.mark.parametrize("rate", [14, 600])
def test_lanes_and_campaigns_together_stay_within_the_limit(scene: World, connection: Connection, rate: int) -> None:
    """While transactional lanes come and go, small and large campaigns start and the rate changes."""
    limit(connection, rate)
    campaigns = [scene.campaign(scene.create(rate=own)).campaign_id for own in (None, 3.0, 200.0)]
    bulk = [Pace("normal", campaigns[0]), Pace("low", campaigns[1]), Pace("normal", campaigns[2])]
    critical = Pace("critical")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slots_of_many, scene.database, bulk, 5.5)
        wait_for_slots(connection, 0.5)
        second = pool.submit(slots_of_many, scene.database, [critical, Pace("high")], 5.0)
        slots = list(chain(*first.result(), *second.result()))
    assert most_in_a_window(slots) <= rate
    assert last_slot(connection, "pace_reserve") > 0 or rate < rule.ONE_LINE


def test_a_limit_halved_while_all_are_busy_and_a_dump_looks_on_holds_within_a_second(
    scene: World, connection: Connection
) -> None:
    limit(connection, 600)
    with scene.database.connection() as dump, ThreadPoolExecutor(1) as pool:
        dump.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ")
        dump.execute(b"SELECT count(*) FROM mailpipe.campaign")
        busy = pool.submit(slots_of_many, scene.database, [Pace("normal") for _ in range(5)], 4.0)
        wait_for_slots(connection, 1.0)
        limit(connection, 300)
        changed = time.monotonic()
        slots = list(chain(*busy.result()))
        dump.execute(b"ROLLBACK")
    assert most_in_a_window(slots) <= 600
    assert most_in_a_window([slot for slot in slots if slot.at >= changed + 1]) <= 300
    assert max(slot.at for slot in slots) > changed + 2


def test_what_a_killed_process_has_booked_stays_spent(scene: World, connection: Connection) -> None:
    limit(connection, 600)
    url = scene.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(url, autocommit=True)) as other:
        mine = [take(Pace("normal"), other) for _ in range(2)]
        before = last_slot(connection)
        connection.execute("SELECT pg_terminate_backend(%s)", (other.info.backend_pid,))
    slots = mine + [take(Pace("normal"), connection) for _ in range(14)]
    assert last_slot(connection) > before
    assert most_in_a_window(slots) <= 600


def test_slots_of_one_line_keep_their_distance_exactly_and_other_kinds_a_whole_window(scene: World) -> None:
    together = threading.Barrier(4)
    gap, apart = rule.microseconds(0.01), rule.microseconds(0.2)

    def run(tag: int) -> list[tuple[float, int]]:
        with scene.database.connection() as connection:
            together.wait()
            rows = [
                connection.execute(
                    pace.QUERIES["take"],
                    {
                        "lines": ["mailpipe.pace_account"], "gaps": [gap], "tags": [tag], "apart": apart, "share": None,
                        "share_gap": 0, "near": 0.0, "hole": 1e6, "counters": [], "most": [], "recipients": 1, "returned": 0,
                        "valid_until": 1e12, "lead": 0.0, "patience": 600,
                    },
                ).fetchone()
                for _ in range(30)
            ]  # fmt: skip
        return [(row[1], tag) for row in rows if row is not None and row[0]]

    with ThreadPoolExecutor(4) as pool:
        slots = sorted(slot for future in [pool.submit(run, tag) for tag in (1, 1, 2, 2)] for slot in future.result())
    assert len(slots) == 120
    for (first, kind), (second, other) in pairwise(slots):
        assert (second - first) * 1e6 >= (gap if kind == other else apart) - 1
    assert {tag for _, tag in slots} == {1, 2}


def test_a_slot_is_never_early_and_its_lateness_is_what_is_left(connection: Connection) -> None:
    limit(connection, 100)
    shared = Pace("normal")
    for _ in range(5):
        slot = take(shared, connection)
        true = last_slot(connection) / 1e6 - time.time() + time.monotonic()
        assert slot.at >= true - 0.002
        assert 0 < slot.lateness <= pace.LATENESS
        assert slot.call_size == 50


def test_a_slot_is_at_least_the_lead_ahead_and_not_far_ahead(connection: Connection) -> None:
    limit(connection, 1000)
    slot = take(Pace("normal"), connection, lead=0.3)
    assert 0.1 < slot.wait <= 0.32
    shared = Pace("normal")
    while isinstance(booked := shared.take(connection, patience=60), Slot):
        assert booked.wait <= rule.AHEAD["normal"]


def test_a_slot_beyond_patience_is_told_and_not_booked(connection: Connection) -> None:
    limit(connection, 1)
    shared = Pace("normal")
    take(shared, connection)
    before = last_slot(connection)
    refusal = shared.take(connection, patience=0.1)
    assert isinstance(refusal, Refusal)
    assert 0.5 < refusal.wait < 1.1
    assert last_slot(connection) == before


def test_a_slot_is_spent_although_its_transaction_is_taken_back(connection: Connection) -> None:
    limit(connection, 1)
    before = last_slot(connection)
    with connection.transaction(force_rollback=True):
        take(Pace("normal"), connection)
    assert last_slot(connection) > before


def test_without_any_limit_nobody_waits_and_nothing_is_late(connection: Connection) -> None:
    slot = Pace("normal").take(connection, patience=0)
    assert isinstance(slot, Slot)
    assert slot.wait <= 0
    assert slot.lateness == float("inf")


def test_what_was_decided_by_old_limits_is_not_booked(connection: Connection) -> None:
    limit(connection, 100)
    shared = Pace("normal")
    shared._limits = replace(shared.limits(connection), read_at=time.time() - 5)
    assert shared.take(connection, patience=60) == Refusal(0.0)
    assert last_slot(connection) == 0
    take(shared, connection)


def test_a_clock_that_was_set_back_costs_two_seconds(connection: Connection) -> None:
    limit(connection, 600)
    shared = Pace("normal")
    first = take(shared, connection)
    ahead = "now() + interval '1 hour'"
    connection.execute(
        f"SELECT setval('mailpipe.pace_account', CAST(extract(epoch FROM {ahead}) * 1e6 AS bigint) * 128 + 50)"
    )
    connection.execute(
        f"UPDATE mailpipe.pace SET blocked_until = {ahead}, blocked_reason = 'rate', eased_at = {ahead}, ease = 0.5"
    )
    connection.execute(f"UPDATE mailpipe.pace_claim SET wanted_at = {ahead}, since = {ahead}")
    shared = Pace("normal")
    limits = shared.limits(connection)
    assert limits.blocked_for is None and limits.ease == 0.5
    assert connection.execute("SELECT wanted_at <= now() AND since <= now() FROM mailpipe.pace_claim").fetchone() == (
        True,
    )
    second = take(shared, connection)
    # What was booked before may still be used for a second.
    assert 1 + rule.REACH < second.at - first.at < 4
    third = take(shared, connection)
    assert third.at - second.at == pytest.approx(rule.REACH / 12 / 0.5, rel=0.2), "and nothing is forgotten"
    shared.block(connection, "quota")
    assert pace.state(connection).blocked_reason == "quota", "a block of another time does not stand in the way"


class TestLanes:
    def test_a_transactional_lane_uses_its_reserve_after_bulk_has_let_go_of_it(self, connection: Connection) -> None:
        limit(connection, 600)
        bulk, critical = Pace("normal"), Pace("critical")
        assert bulk.limits(connection).call_size == 50
        take(critical, connection, recipients=1)
        assert last_slot(connection, "pace_reserve") == 0, "at first it borrows"
        wait_for(lambda: bulk.limits(connection).call_size == 15, "bulk to make room", seconds=2)
        connection.execute("UPDATE mailpipe.pace_claim SET since = since - interval '3 s' WHERE lane = 'critical'")
        wait_for(lambda: bool(take(critical, connection, recipients=1)) and last_slot(connection, "pace_reserve") > 0,
                 "the reserve", seconds=3)  # fmt: skip
        connection.execute(
            "UPDATE mailpipe.pace_claim SET wanted_at = wanted_at - interval '8 s' WHERE lane = 'critical'"
        )
        wait_for(lambda: bulk.limits(connection).call_size == 50, "bulk to have it back", seconds=2)

    def test_while_bulk_is_busy_one_transactional_mail_goes_at_once_and_a_burst_borrows(
        self, scene: World, connection: Connection
    ) -> None:
        limit(connection, 600)
        critical = Pace("critical")
        critical.limits(connection)
        connection.execute("UPDATE mailpipe.pace_claim SET since = since - interval '3 s'")
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(slots_of_many, scene.database, [Pace("normal"), Pace("low")], 2.0)
            wait_for_slots(connection, 0.7)
            alone = take(critical, connection, recipients=1)
            # So many that bulk's line alone reaches further than the next slot of the reserve, also when bulk is starved.
            burst = [take(critical, connection, recipients=50) for _ in range(16)]
            busy.result()
        assert alone.wait < 0.1
        assert {slot.call_size for slot in burst} == {7, 15}, "of the reserve, and of bulk's line"
        assert burst[7].wait < 0.6, "bulk books no further ahead than it must"

    def test_campaigns_of_a_lane_share_and_low_goes_on(self, scene: World, connection: Connection) -> None:
        limit(connection, 2000)
        campaigns = [scene.campaign(scene.create()).campaign_id for _ in range(3)]
        # The first one has three processes.
        takers = [Pace("normal", campaigns[0]) for _ in range(3)] + [
            Pace("normal", campaigns[1]),
            Pace("low", campaigns[2]),
        ]
        for shared in takers:
            shared.limits(connection)
        counts = [len(slots) for slots in slots_of_many(scene.database, takers, 3.0)]
        first, second, low = sum(counts[:3]), counts[3], counts[4]
        assert second > first / 2, "three processes are not three campaigns"
        assert 0 < low < second / 2, "low goes on, but normal goes first"

    def test_ten_campaigns_that_start_together_all_move(self, scene: World, connection: Connection) -> None:
        limit(connection, 1000)
        takers = [Pace("normal", scene.campaign(scene.create()).campaign_id) for _ in range(10)]
        for shared in takers:
            shared.limits(connection)
        counts = [len(slots) for slots in slots_of_many(scene.database, takers, 3.0)]
        assert sum(counts) > 40
        assert min(counts) >= 1 and max(counts) <= sum(counts) / 4, counts


class TestDay:
    def test_campaigns_stop_at_their_share_and_messages_go_on_to_the_end(self, connection: Connection) -> None:
        limit(connection, 5000, daily_quota=100, sent_last_day=0)
        bulk, critical = Pace("normal"), Pace("critical")
        assert [take(bulk, connection, recipients=40).call_size, take(bulk, connection, recipients=40).call_size] == [
            40,
            10,
        ]
        refusal = refused(bulk, connection)
        assert refusal.reason == "quota"
        found = pace.read(connection)
        assert (found.day.left_for_marketing, found.day.left) == (0, 50)
        sizes = [take(critical, connection, recipients=20).call_size for _ in range(3)]
        assert sizes == [20, 20, 10]
        assert refused(critical, connection).reason == "quota"

    def test_what_ses_has_counted_counts_if_it_is_more(self, scene: World, connection: Connection) -> None:
        pace.keep_account(connection, Account(5000.0, 100.0, 80.0, True, True), scene.settings)
        assert pace.read(connection).day.left == 20
        take(Pace("normal"), connection, recipients=15)
        assert pace.read(connection).day.left == 5
        pace.keep_account(connection, Account(5000.0, 100.0, 81.0, True, True), scene.settings)
        assert pace.read(connection).day.left == 19

    def test_what_was_not_handed_over_does_not_count(self, connection: Connection) -> None:
        limit(connection, 5000, daily_quota=100, sent_last_day=0)
        bulk = Pace("normal")
        take(bulk, connection, recipients=40)
        bulk.give_back(35)
        take(bulk, connection, recipients=1)
        assert pace.read(connection).day.used == 6

    def test_what_is_given_back_when_all_of_the_day_is_booked_can_be_had_again(self, connection: Connection) -> None:
        """A slot that was missed: it had taken the last of the share."""
        limit(connection, 5000, daily_quota=100, sent_last_day=0)
        bulk = Pace("normal")
        assert [take(bulk, connection, recipients=50).call_size, refused(bulk, connection).reason] == [50, "quota"]
        bulk.give_back(30)
        assert take(bulk, connection, recipients=50).call_size == 30
        assert refused(bulk, connection).reason == "quota"
        assert pace.read(connection).day.used_by_marketing == 50

    def test_a_day_later_it_is_free_again_and_until_then_it_is_said_when(self, connection: Connection) -> None:
        limit(connection, 5000, daily_quota=100, sent_last_day=0, marketing_share=1.0)
        bulk = Pace("normal")
        take(bulk, connection, recipients=50)
        connection.execute("UPDATE mailpipe.pace_count SET at = at - interval '20 hours'")
        connection.execute("INSERT INTO mailpipe.pace_count VALUES (now() - interval '10 hours', 50, 50)")
        take(Pace("normal"), connection, recipients=50)
        limits = pace.read(connection)
        assert limits.day.used == 100
        connection.execute("INSERT INTO mailpipe.pace_count VALUES (now(), 100, 100)")
        frees = pace.quota_frees(connection, limits.day)
        assert frees is not None
        assert 13.9 < (frees - datetime.now(UTC)).total_seconds() / 3600 < 14.1
        connection.execute("UPDATE mailpipe.pace_count SET at = at - interval '14 hours'")
        assert pace.read(connection).day.used == 50
        assert pace.quota_frees(connection, pace.read(connection).day) is None


def refused(shared: Pace, connection: Connection) -> Refusal:
    """The refusal that comes once the limits are read anew."""
    wait_for(lambda: not isinstance(shared.take(connection, patience=60), Slot), "a refusal", seconds=3)
    found = shared.take(connection, patience=60)
    assert isinstance(found, Refusal)
    return found


class TestCampaigns:
    def test_the_smaller_limit_holds_and_both_lines_move(self, scene: World, connection: Connection) -> None:
        limit(connection, 1000)
        slow = scene.campaign(scene.create(rate=10.0)).campaign_id
        shared = Pace("normal", slow)
        first, second = (take(shared, connection) for _ in range(2))
        assert first.call_size == 10
        assert second.at - first.at >= rule.REACH - pace.LATENESS
        assert last_slot(connection) == last_slot(connection, f"pace_campaign_{slow}")

    def test_a_changed_rate_holds_within_a_second_or_so(self, scene: World, connection: Connection) -> None:
        limit(connection, 1000)
        key = scene.create(rate=10.0)
        shared = Pace("normal", scene.campaign(key).campaign_id)
        assert shared.limits(connection).call_size == 10
        campaign.change(connection, scene.settings, scene.ses, key, actor="ben", rate=100.0)
        wait_for(lambda: shared.limits(connection).call_size == 50, "the new rate", seconds=2)

    def test_a_limit_of_the_account_that_falls_holds_within_a_second_or_so(
        self, scene: World, connection: Connection
    ) -> None:
        limit(connection, 1000)
        shared = Pace("normal")
        assert shared.limits(connection).call_size == 50
        pace.keep_account(connection, Account(14.0, 200.0, 3.0, True, False), scene.settings)
        wait_for(lambda: shared.limits(connection).call_size == 14, "the new limit", seconds=2)
        found = pace.state(connection)
        assert (found.account_rate, found.daily_quota, found.sent_last_day) == (14.0, 200.0, 3.0)

    def test_our_own_ceiling_holds_and_can_be_taken_away(self, scene: World, connection: Connection) -> None:
        account = Account(1000.0, -1.0, 0.0, True, True)
        pace.keep_account(connection, account, scene.with_settings(rate=20.0))
        assert pace.read(connection).account == 20.0
        pace.keep_account(connection, account, scene.settings)
        assert pace.read(connection).account == 1000.0
        pace.order_rate(connection, 300.0)
        assert pace.read(connection).account == 300.0


class TestBlocks:
    @pytest.mark.parametrize(("reason", "seconds"), [("rate", pace.THROTTLE_WAIT), ("quota", pace.QUOTA_WAIT)])
    def test_when_ses_refuses_everybody_waits(self, connection: Connection, reason: Block, seconds: float) -> None:
        limit(connection, 1000)
        Pace("normal").block(connection, reason)
        refusal = Pace("normal").take(connection, patience=600)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == reason
        assert refusal.wait == pytest.approx(seconds, abs=0.5)
        assert pace.state(connection).blocked_reason == reason

    def test_the_one_who_met_it_waits_at_once(self, connection: Connection) -> None:
        limit(connection, 1000)
        shared = Pace("normal")
        take(shared, connection)
        shared.block(connection, "rate")
        assert isinstance(shared.take(connection, patience=60), Refusal)

    def test_a_shorter_wait_does_not_end_a_longer_one(self, connection: Connection) -> None:
        limit(connection, 1000)
        shared = Pace("normal")
        shared.block(connection, "quota")
        shared.block(connection, "rate")
        refusal = Pace("normal").take(connection, patience=600)
        assert isinstance(refusal, Refusal)
        assert refusal.wait > pace.QUOTA_WAIT - 5
        assert refusal.reason == "quota", "people must be told what they wait for"

    def test_a_wait_that_is_over_is_no_wait(self, connection: Connection) -> None:
        limit(connection, 1000)
        connection.execute("UPDATE mailpipe.pace SET blocked_until = now() - interval '1 s', blocked_reason = 'quota'")
        take(Pace("normal"), connection)
        assert pace.state(connection).blocked_until is None

    def test_a_refusal_for_the_rate_slows_down_at_once_and_once_and_it_grows_again(
        self, connection: Connection
    ) -> None:
        limit(connection, 1000)
        for _ in range(5):
            Pace("normal").block(connection, "rate")
        assert pace.read(connection).ease == pytest.approx(0.85, abs=0.02)
        connection.execute("UPDATE mailpipe.pace SET eased_at = eased_at - interval '2.5 s', blocked_until = now()")
        assert pace.read(connection).ease == pytest.approx(0.9, abs=0.03)
        shared = Pace("normal")
        first, second = take(shared, connection), take(shared, connection)
        assert second.at - first.at == pytest.approx(rule.REACH / 20 / 0.9, rel=0.07)
        connection.execute("UPDATE mailpipe.pace SET eased_at = eased_at - interval '1 hour'")
        assert pace.read(connection).ease == 1.0

    def test_a_limit_of_calls_is_found_by_trial(self, connection: Connection) -> None:
        limit(connection, 600)
        Pace("normal").block(connection, "calls")
        assert pace.read(connection).call_rate == pytest.approx(6, abs=0.1)
        for _ in range(6):
            connection.execute(
                "UPDATE mailpipe.pace SET call_rate_at = call_rate_at - interval '1.1 s', blocked_until = now()"
            )
            Pace("normal").block(connection, "calls")
        assert pace.read(connection).call_rate == pytest.approx(1, abs=0.1)
        connection.execute("UPDATE mailpipe.pace SET blocked_until = now()")
        shared = Pace("normal")
        first, second = take(shared, connection), take(shared, connection)
        assert second.at - first.at >= 0.95
        assert second.call_size == 50
        connection.execute("UPDATE mailpipe.pace SET call_rate_at = call_rate_at - interval '50 s'")
        assert pace.read(connection).call_rate == pytest.approx(2, abs=0.2)
