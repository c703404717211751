"""The shared limiter on the server: slots for all processes in one line, refusals that cost nothing, limits that hold at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from mailpipe import campaign, pace
from mailpipe.db import Connection, Database
from mailpipe.pace import Pace, Refusal, Slot
from mailpipe.ses.client import Account
from tests.support import World, wait_for


@pytest.fixture
def connection(scene: World) -> Iterator[Connection]:
    with scene.database.connection() as connection:
        yield connection


def limit(connection: Connection, rate: float | None, *, ceiling: float | None = None) -> None:
    connection.execute("UPDATE mailpipe.pace SET account_rate = %s, ceiling = %s", (rate, ceiling))


def last_slot(connection: Connection, name: str = "pace_account") -> int:
    row = connection.execute("SELECT pg_sequence_last_value(%s::regclass)", (f"mailpipe.{name}",)).fetchone()
    assert row is not None
    return int(row[0] or 0)


def take(shared: Pace, connection: Connection, *, patience: float = 60, lead: float = 0.0) -> Slot:
    """The next slot; on a busy machine an answer can be so long on its way that the slot is given up."""
    while not isinstance(slot := shared.take(connection, patience=patience, lead=lead), Slot):
        assert slot.wait == 0.0, "this is no slot given up but a wait"
    return slot


def slots_of_many(database: Database, campaigns: list[int], each: int) -> list[float]:
    """Take slots in as many threads as there are campaigns, each with a connection and a clock of its own."""
    together = threading.Barrier(len(campaigns))

    def take(campaign_id: int) -> list[float]:
        found: list[float] = []
        shared = Pace("normal", campaign_id)
        with database.connection() as connection:
            together.wait()
            while len(found) < each:
                slot = shared.take(connection, patience=60)
                # An answer that was long on its way is a slot given up, as it is for a worker.
                if isinstance(slot, Slot):
                    found.append(slot.at)
        return found

    with ThreadPoolExecutor(len(campaigns)) as pool:
        return sorted(slot for future in [pool.submit(take, one) for one in campaigns] for slot in future.result())


def test_all_processes_stand_in_one_line(scene: World, connection: Connection) -> None:
    limit(connection, 5000)
    slots = slots_of_many(scene.database, [0] * 6, 40)
    assert slots[-1] - slots[0] >= 239 * pace.distance(5000) / 1e6 - pace.LATENESS


def test_slots_on_the_server_s_clock_keep_their_distance_exactly(scene: World) -> None:
    together = threading.Barrier(5)
    distance = pace.distance(700)

    def take() -> list[float]:
        with scene.database.connection() as connection:
            together.wait()
            rows = [
                connection.execute(
                    pace.QUERIES["take"],
                    {"sequences": ["mailpipe.pace_account"], "spacings": [distance], "lead": 0.0, "patience": 600},
                ).fetchone()
                for _ in range(30)
            ]
        return [row[1] for row in rows if row is not None and row[0]]

    with ThreadPoolExecutor(5) as pool:
        slots = sorted(slot for future in [pool.submit(take) for _ in range(5)] for slot in future.result())
    assert len(slots) == 150
    assert all((second - first) * 1e6 >= distance - 1 for first, second in pairwise(slots))


def test_a_slot_is_never_early_and_its_lateness_is_what_is_left(connection: Connection) -> None:
    limit(connection, 100)
    shared = Pace("normal", 0)
    for _ in range(5):
        slot = take(shared, connection)
        true = last_slot(connection) / 1e6 - time.time() + time.monotonic()
        assert slot.at >= true - 0.002
        assert 0 < slot.lateness <= pace.LATENESS
        assert slot.call_size == 50


def test_a_slot_is_at_least_the_lead_ahead(connection: Connection) -> None:
    limit(connection, 100)
    slot = take(Pace("normal", 0), connection, lead=0.3)
    assert 0.1 < slot.wait <= 0.32


def test_a_slot_beyond_patience_is_told_and_not_reserved(connection: Connection) -> None:
    limit(connection, 1)
    shared = Pace("normal", 0)
    take(shared, connection)
    before = last_slot(connection)
    refusal = shared.take(connection, patience=0.5)
    assert isinstance(refusal, Refusal)
    assert 0.5 < refusal.wait < 1.2
    assert last_slot(connection) == before


def test_a_slot_is_spent_although_its_transaction_is_taken_back(connection: Connection) -> None:
    limit(connection, 1)
    before = last_slot(connection)
    with connection.transaction(force_rollback=True):
        take(Pace("normal", 0), connection)
    assert last_slot(connection) > before


def test_without_any_limit_nobody_waits_and_nothing_is_late(connection: Connection) -> None:
    slot = Pace("normal", 0).take(connection, patience=0)
    assert isinstance(slot, Slot)
    assert slot.wait <= 0
    assert slot.lateness == float("inf")


class TestCampaigns:
    def test_the_smaller_limit_holds_and_both_lines_move(self, scene: World, connection: Connection) -> None:
        limit(connection, 1000)
        slow = scene.campaign(scene.create(rate=10.0)).campaign_id
        shared = Pace("normal", slow)
        first, second = (take(shared, connection) for _ in range(2))
        assert first.call_size == 10
        assert second.at - first.at >= pace.distance(10) / 1e6 - pace.LATENESS
        assert last_slot(connection) == last_slot(connection, f"pace_campaign_{slow}")

    def test_campaigns_share_the_account(self, scene: World, connection: Connection) -> None:
        limit(connection, 3000)
        campaigns = [scene.campaign(scene.create(rate=rate)).campaign_id for rate in (None, 2900.0, 5000.0)]
        slots = slots_of_many(scene.database, campaigns, 30)
        assert slots[-1] - slots[0] >= 89 * pace.distance(3000) / 1e6 - pace.LATENESS

    def test_a_changed_rate_holds_within_a_second_or_so(self, scene: World, connection: Connection) -> None:
        limit(connection, 1000)
        key = scene.create(rate=10.0)
        shared = Pace("normal", scene.campaign(key).campaign_id)
        assert shared.limits(connection).call_size == 10
        campaign.change(connection, scene.settings, scene.ses, key, actor="ben", rate=100.0)
        wait_for(lambda: shared.limits(connection).call_size == 50, "the new rate", seconds=2)

    def test_a_limit_of_the_account_that_falls_holds_within_a_second_or_so(self, connection: Connection) -> None:
        limit(connection, 1000)
        shared = Pace("normal", 0)
        assert shared.limits(connection).call_size == 50
        pace.keep_account(connection, Account(14.0, 200.0, 3.0, True, False), ceiling=None)
        wait_for(lambda: shared.limits(connection).call_size == 14, "the new limit", seconds=2)
        found = pace.state(connection)
        assert (found.account_rate, found.daily_quota, found.sent_last_day) == (14.0, 200.0, 3.0)

    def test_our_own_ceiling_holds_and_can_be_taken_away(self, connection: Connection) -> None:
        account = Account(1000.0, -1.0, 0.0, True, True)
        pace.keep_account(connection, account, ceiling=20.0)
        assert pace.read(connection).account == 20.0
        pace.keep_account(connection, account, ceiling=None)
        assert pace.read(connection).account == 1000.0


class TestBlocks:
    @pytest.mark.parametrize(("reason", "seconds"), [("rate", pace.THROTTLE_WAIT), ("quota", pace.QUOTA_WAIT)])
    def test_when_ses_refuses_everybody_waits(self, connection: Connection, reason: str, seconds: float) -> None:
        limit(connection, 1000)
        Pace("normal", 0).block(connection, reason)
        refusal = Pace("normal", 1).take(connection, patience=600)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == reason
        assert refusal.wait == pytest.approx(seconds, abs=0.5)
        assert pace.state(connection).blocked_reason == reason

    def test_the_one_who_met_it_waits_at_once(self, connection: Connection) -> None:
        limit(connection, 1000)
        shared = Pace("normal", 0)
        take(shared, connection)
        shared.block(connection, "rate")
        assert isinstance(shared.take(connection, patience=60), Refusal)

    def test_a_shorter_wait_does_not_end_a_longer_one(self, connection: Connection) -> None:
        limit(connection, 1000)
        shared = Pace("normal", 0)
        shared.block(connection, "quota")
        shared.block(connection, "rate")
        refusal = Pace("normal", 1).take(connection, patience=600)
        assert isinstance(refusal, Refusal)
        assert refusal.wait > pace.QUOTA_WAIT - 5
        assert refusal.reason == "quota", "people must be told what they wait for"

    def test_a_wait_that_is_over_is_no_wait(self, connection: Connection) -> None:
        limit(connection, 1000)
        connection.execute("UPDATE mailpipe.pace SET blocked_until = now() - interval '1 s', blocked_reason = 'quota'")
        take(Pace("normal", 0), connection)
        assert pace.state(connection).blocked_until is None
