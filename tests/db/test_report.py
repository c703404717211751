"""What people are told: one person's fate, progress with an honest ETA, exports, and how a campaign ended."""

from __future__ import annotations

import csv
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mailpipe import campaign, event, report
from mailpipe.db import Connection
from mailpipe.errors import CampaignError
from mailpipe.report import Reason
from tests.support import STATES, World, wait_for


@pytest.fixture
def connection(scene: World) -> Iterator[Connection]:
    with scene.database.connection() as connection:
        yield connection


def mixed(scene: World) -> str:
    """A finished campaign with every kind of end: 106 people."""
    scene.people(106)
    scene.execute("UPDATE users SET city = NULL WHERE user_id IN (2, 5)")
    scene.execute("UPDATE users SET email = 'no address' WHERE user_id = 3")
    scene.execute("UPDATE users SET email = 'Person4@Bücher.example.com' WHERE user_id = 4")
    key = scene.ready(chunk_size=1000)
    scene.execute("DELETE FROM users WHERE user_id = 7")
    scene.stand_in.add_faults(
        {"kind": "entry_status", "status": "INVALID_PARAMETER", "positions": [3], "count": 1},
        {"kind": "reset_after_accept", "after": 1, "count": 1},
    )
    scene.with_threads(1).send(key)
    assert scene.keep_promises(key) == {"sent": 106 - 55, "unknown": 50, "failed": 3, "skipped": 2}
    return key


class TestWho:
    def test_a_person_is_found_by_address_in_any_case_and_by_user_id(
        self, scene: World, connection: Connection
    ) -> None:
        scene.people(60)
        key = scene.ready()
        scene.send(key)
        ids = {int(line["seq"]): line["message_id"] for line in scene.journal(key)}
        for seq in (1, 49, 50, 51, 60):
            address = f"person{seq}@mail.example.com"
            for person in (address, address.upper(), f"  {address} ", f"Person{seq}@Mail.Example.COM", str(seq)):
                [fate] = report.who(connection, key, person)
                assert (fate.seq, fate.user_id, fate.state, fate.message_id) == (seq, str(seq), "sent", ids[seq])
                assert fate.called_at is not None and fate.attempt == 1

    def test_an_international_domain_is_found_in_both_spellings(self, scene: World, connection: Connection) -> None:
        key = mixed(scene)
        for person in ("person4@bücher.example.com", "PERSON4@xn--bcher-kva.example.com"):
            assert [fate.seq for fate in report.who(connection, key, person)] == [4]

    @pytest.mark.parametrize("person", ["nobody@mail.example.com", "99999", "", "%", "no@such@thing", "'; --"])
    def test_somebody_who_was_never_in_it_is_not_found(self, scene: World, connection: Connection, person: str) -> None:
        scene.people(3)
        key = scene.ready()
        assert report.who(connection, key, person) == []

    def test_every_end_is_told_with_its_reason(self, scene: World, connection: Connection) -> None:
        key = mixed(scene)
        told = {user: report.who(connection, key, user)[0] for user in ("1", "2", "3", "7", "8", "9", "70", "106")}
        assert {user: (fate.state, fate.reason) for user, fate in told.items()} == {
            "1": ("sent", None),
            "2": ("failed", "missing_variable"),
            "3": ("skipped", "unusable_address"),
            "7": ("skipped", "opted_out"),
            "8": ("failed", "invalid_parameter"),
            "9": ("sent", None),
            "70": ("unknown", "connection_lost"),
            "106": ("sent", None),
        }
        assert told["2"].detail == "city"
        assert [told[user].message_id is None for user in ("1", "2", "3", "7", "70", "106")] == [
            False,
            True,
            True,
            True,
            True,
            False,
        ]
        ids = {int(line["seq"]): line["message_id"] for line in scene.journal(key)}
        assert all(told[user].message_id == ids[int(user)] for user in ("1", "9", "106"))

    def test_behind_somebody_who_was_refused_the_ids_are_still_the_right_ones(
        self, scene: World, connection: Connection
    ) -> None:
        scene.people(10)
        key = scene.ready()
        scene.stand_in.add_faults(
            {"kind": "entry_status", "status": "INVALID_PARAMETER", "positions": [0, 4, 5], "count": 1}
        )
        scene.send(key)
        ids = {int(line["seq"]): line["message_id"] for line in scene.journal(key)}
        found = {seq: report.who(connection, key, str(seq))[0].message_id for seq in range(1, 11)}
        assert found == {seq: ids.get(seq) for seq in range(1, 11)}
        assert sum(value is None for value in found.values()) == 3

    def test_somebody_tried_twice_has_the_id_of_the_mail_that_went_out(
        self, scene: World, connection: Connection
    ) -> None:
        scene.people(4)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "throttle_entries", "positions": [1, 2], "count": 1})
        scene.send(key)
        ids = {int(line["seq"]): line["message_id"] for line in scene.journal(key)}
        assert {seq: report.who(connection, key, str(seq))[0].message_id for seq in range(1, 5)} == ids

    def test_events_are_told(self, scene: World, connection: Connection) -> None:
        scene.people(2)
        key = scene.ready()
        scene.send(key)
        event.fold(
            connection, [event.Event("delivery", key, 1), event.Event("bounce", key, 1), event.Event("send", key, 2)]
        )
        assert report.who(connection, key, "1")[0].events == ["bounce", "delivery"]
        told = report.who(connection, key, "2")[0].to_json()
        assert told["events"] == ["send"] and "@" not in str(told)

    def test_ids_that_ses_writes_in_another_form_come_back(self, scene: World, connection: Connection) -> None:
        scene.people(3)
        key = scene.ready()
        scene.send(key)
        connection.execute(
            "UPDATE mailpipe.call SET message_ids = NULL, message_ids_text = 'one two three' WHERE campaign_id = %s",
            (scene.campaign(key).campaign_id,),
        )
        assert [report.who(connection, key, str(seq))[0].message_id for seq in (1, 2, 3)] == ["one", "two", "three"]


class TestExport:
    def test_everybody_is_written_once_with_state_and_reason(self, scene: World, tmp_path: Path) -> None:
        key = mixed(scene)
        assert report.export(scene.database, key, tmp_path / "all.csv") == 106
        with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["seq"]) for row in rows] == list(range(1, 107))
        states = scene.states(key)
        assert {int(row["seq"]): (row["state"], row["reason"] or None) for row in rows} == states
        assert rows[3]["email"] == "Person4@xn--bcher-kva.example.com"
        assert rows[0]["user_id"] == "1" and rows[0]["slice"] == "0" and rows[0]["attempt"] == "1"
        assert list(tmp_path.iterdir()) == [tmp_path / "all.csv"]

    @pytest.mark.parametrize("state", STATES)
    def test_one_state_alone_can_be_written(self, scene: World, tmp_path: Path, state: str) -> None:
        key = mixed(scene) if state != "pending" else scene.ready()
        expected = Counter(found for found, _ in scene.states(key).values())[state]
        assert report.export(scene.database, key, tmp_path / "some.csv", state=state) == expected

    def test_parquet_holds_the_same(self, scene: World, tmp_path: Path) -> None:
        key = mixed(scene)
        report.export(scene.database, key, tmp_path / "all.csv")
        assert report.export(scene.database, key, tmp_path / "all.parquet") == 106
        table = pq.read_table(tmp_path / "all.parquet").to_pylist()
        with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
            assert [{name: str(value) for name, value in row.items()} for row in table] == list(csv.DictReader(file))

    @pytest.mark.parametrize("name", ["empty.csv", "empty.parquet"])
    def test_a_campaign_of_nobody_gives_a_file_without_rows(self, scene: World, tmp_path: Path, name: str) -> None:
        key = scene.ready()
        assert report.export(scene.database, key, tmp_path / name) == 0
        assert (tmp_path / name).stat().st_size > 0

    def test_what_cannot_be_written_is_told_and_leaves_nothing(self, scene: World, tmp_path: Path) -> None:
        scene.people(2)
        key = scene.ready()
        (tmp_path / "kept.csv").write_text("before")
        with pytest.raises(CampaignError, match=r"expected a name that ends in \.csv or \.parquet"):
            report.export(scene.database, key, tmp_path / "all.xlsx")
        with pytest.raises(CampaignError, match="expected pending, sending"):
            report.export(scene.database, key, tmp_path / "kept.csv", state="gone")
        with pytest.raises(CampaignError, match="no campaign 'nobody'"):
            report.export(scene.database, "nobody", tmp_path / "kept.csv")
        with pytest.raises(CampaignError, match="cannot be written"):
            report.export(scene.database, key, tmp_path / "missing" / "all.csv")
        assert [path.name for path in tmp_path.iterdir()] == ["kept.csv"]
        assert (tmp_path / "kept.csv").read_text() == "before"


class TestProgress:
    def test_its_keys_are_those_that_others_rely_on(self, scene: World) -> None:
        told = scene.progress(mixed(scene)).to_json()
        assert {
            *STATES,
            "total",
            "delivered",
            "rate_per_second",
            "eta_minutes",
            "queued_chunks",
            "processing_chunks",
            "state",
        } <= (told.keys())
        assert sum(told[state] for state in STATES) == told["total"] == 106
        assert (told["state"], told["eta_minutes"], told["queued_chunks"], told["processing_chunks"]) == (
            "done",
            0.0,
            0,
            0,
        )

    def test_before_the_snapshot_and_before_the_start_nothing_moves(self, scene: World) -> None:
        key = scene.create()
        assert (scene.progress(key).total, scene.progress(key).state) == (0, "draft")
        scene.people(3)
        scene.freeze(key)
        found = scene.progress(key)
        assert (found.total, found.pending, found.rate_per_second, found.eta_minutes) == (3, 3, 0.0, None)

    def test_the_rate_is_measured_and_the_eta_follows_it(self, scene: World) -> None:
        """The provider becomes half as fast while the configured rate stays: so does the rate that is told."""
        scene.people(6000)
        key = scene.ready(chunk_size=100, rate=50_000)
        rates = []
        for latency in (100, 200):
            scene.stand_in.change(latency_ms=latency)
            stop = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                run = pool.submit(scene.with_threads(2).send, key, stop=stop)
                # The minute before is over: what is told rests on the present speed alone.
                self.age(scene, key, 61)
                begin = scene.progress(key).sent
                wait_for(lambda: scene.progress(key).sent >= begin + 1400, "some seconds of sending", seconds=40)  # noqa: B023
                found = scene.progress(key)
                stop.set()
                run.result()
            rates.append(found.rate_per_second)
            assert found.eta_minutes is not None
            left = found.pending + found.sending
            assert found.eta_minutes == pytest.approx(left / found.rate_per_second / 60, rel=0.02, abs=0.02)
            assert found.rate_per_second < 10_000
        assert 0.3 < rates[1] / rates[0] < 0.75

    def test_when_nothing_has_moved_for_a_minute_there_is_no_eta(self, scene: World) -> None:
        scene.people(120)
        key = scene.ready(chunk_size=100)
        scene.send(key, (0, 40))
        assert scene.progress(key).eta_minutes is not None
        self.age(scene, key, 61)
        found = scene.progress(key)
        assert (found.rate_per_second, found.eta_minutes) == (0.0, None)
        assert found.pending > 0

    def test_the_rate_falls_while_nothing_moves(self, scene: World) -> None:
        scene.people(120)
        key = scene.ready(chunk_size=100)
        scene.send(key, (0, 40))
        self.age(scene, key, 30)
        assert scene.progress(key).rate_per_second == pytest.approx(scene.progress(key).sent / 30, rel=0.2)

    def test_of_very_many_calls_the_last_ones_tell_the_rate(self, scene: World) -> None:
        """They can be read at any speed, and they are the present one: 200 a second after 50 a second."""
        scene.people(10)
        key = scene.ready()
        scene.execute(
            "INSERT INTO mailpipe.call (campaign_id, chunk_no, no, at, seconds, positions, accepted, message_ids)"
            " SELECT %(id)s, 0, n, now() - n * interval '5 ms' - greatest(n - 2000, 0) * interval '15 ms', 0.1, B'1', 1,"
            " decode(repeat('00', 24), 'hex') FROM generate_series(1, 5000) AS n",
            {"id": scene.campaign(key).campaign_id},
        )
        assert scene.progress(key).rate_per_second == pytest.approx(200, rel=0.05)

    def test_a_paused_campaign_has_no_eta(self, scene: World, connection: Connection) -> None:
        scene.people(120)
        key = scene.ready(chunk_size=100)
        scene.send(key, (0, 40))
        campaign.pause(connection, key, actor="ben", reason="lunch")
        found = scene.progress(key)
        assert (found.eta_minutes, found.state, found.state_reason, found.waiting) == (None, "paused", "lunch", None)

    def test_what_is_waited_for_is_said(self, scene: World, connection: Connection) -> None:
        scene.people(2)
        key = scene.ready()
        campaign.start(connection, key, actor="ben")
        assert scene.progress(key).waiting is None
        until = datetime.now(UTC) + timedelta(seconds=50)
        connection.execute("UPDATE mailpipe.pace SET blocked_until = %s, blocked_reason = 'quota'", (until,))
        assert scene.progress(key).waiting == f"waiting for quota until {until:%Y-%m-%d %H:%M:%S} UTC"
        connection.execute("UPDATE mailpipe.pace SET blocked_until = NULL, blocked_reason = NULL")
        connection.execute("UPDATE mailpipe.chunk SET due_at = now() + interval '100 s'")
        assert str(scene.progress(key).waiting).startswith("next people are due in ")

    def age(self, scene: World, key: str, seconds: float) -> None:
        scene.execute(
            "UPDATE mailpipe.call SET at = at - make_interval(secs => %(s)s) WHERE campaign_id = %(id)s",
            {"s": seconds, "id": scene.campaign(key).campaign_id},
        )


class TestReasons:
    def test_exceptional_ends_are_counted_by_reason(self, scene: World, connection: Connection) -> None:
        key = mixed(scene)
        assert report.reasons(connection, key) == [
            Reason("failed", "missing_variable", 2),
            Reason("failed", "invalid_parameter", 1),
            Reason("skipped", "opted_out", 1),
            Reason("skipped", "unusable_address", 1),
            Reason("unknown", "connection_lost", 50),
        ]

    def test_people_of_a_cancelled_campaign_are_counted_as_skipped(self, scene: World, connection: Connection) -> None:
        scene.people(120)
        scene.execute("UPDATE users SET email = 'no address' WHERE user_id = 120")
        key = scene.ready(chunk_size=100)
        scene.send(key, (0, 20))
        campaign.cancel(connection, key, actor="ben", reason="x")
        assert report.reasons(connection, key) == [
            Reason("skipped", "cancelled", 69),
            Reason("skipped", "unusable_address", 1),
        ]
        assert scene.balance(key) == {"sent": 50, "skipped": 70}

    def test_people_who_are_tried_again_have_no_end_yet(self, scene: World, connection: Connection) -> None:
        scene.people(2)
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "transient_entries"})
        scene.send(key)
        assert report.reasons(connection, key) == []


def test_the_measured_rate_is_that_of_the_whole_campaign(scene: World, connection: Connection) -> None:
    scene.people(120)
    key = scene.ready()
    assert report.measured_rate(connection, key) is None
    scene.send(key)
    measured = report.measured_rate(connection, key)
    assert measured is not None and measured > 0


def test_the_snapshot_is_summed_up(scene: World, connection: Connection) -> None:
    scene.people(2)
    key = scene.create()
    with pytest.raises(CampaignError, match="has no snapshot yet"):
        report.snapshot_summary(connection, key)
    scene.freeze(key)
    told = report.snapshot_summary(connection, key).to_json()
    assert (told["recipients"], told["returned"], told["segment"], told["excluded"]) == (2, 2, "everybody", {})
