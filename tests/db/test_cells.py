"""Cells on a real ledger: people of one audience who get another mail, at another time, or wait for a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailpipe import campaign, hold, reconcile, report, snapshot
from mailpipe.cells import Assigner, Cell, Column
from mailpipe.db import Connection
from mailpipe.schedule import window
from mailpipe.schedule.when import Window
from mailpipe.send import End
from tests.support import World

NOW = datetime.now(UTC)


@dataclass(frozen=True)
class ByNumber:
    """Every tenth person gets variant a, the next one b; the others wait, and the last tenth is refused."""

    held: Any = "experiment"

    def columns(self, connection: Connection, staged: str) -> Sequence[Column]:
        connection.execute(
            f"INSERT INTO refused SELECT place, 'holdout' FROM {staged} WHERE CAST(user_id AS integer) % 10 = 9"
            " AND place NOT IN (SELECT place FROM refused)".encode()
        )
        connection.execute(
            "CREATE TEMPORARY TABLE arms ON COMMIT DROP AS"
            f" SELECT place, CAST(user_id AS integer) % 10 AS tenth FROM {staged}".encode()
        )
        return [Column("arm", "CASE arms.tenth WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE '' END", "JOIN arms USING (place)")]

    def cell(self, keys: Mapping[str, Any], so_far: Cell) -> Cell:
        if keys["arm"]:
            return replace(so_far, variant=keys["arm"], labels=("test",))
        later = replace(so_far.window, due_at=so_far.window.due_at + timedelta(hours=2))
        return replace(so_far, window=later, held=self.held, labels=("rest",))

    def to_json(self, people: Mapping[Cell, int]) -> dict[str, Any]:
        return {"arms": {cell.variant or "rest": number for cell, number in people.items()}}


@pytest.fixture
def split(scene: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which every campaign is an experiment."""
    assigners: list[Assigner] = [ByNumber()]
    monkeypatch.setattr(snapshot, "_assigners", lambda _settings, _found: assigners)
    return scene


def with_variant(scene: World, key: str, variant: str, template: str) -> None:
    with scene.database.connection() as connection:
        version = campaign.publish(connection, scene.settings, scene.ses, template)
    scene.execute(
        "INSERT INTO mailpipe.campaign_variant VALUES (%(id)s, %(variant)s, %(version)s)",
        {"id": scene.campaign(key).campaign_id, "variant": variant, "version": version},
    )


def test_a_chunk_holds_people_of_one_cell_and_everybody_is_in_one(split: World) -> None:
    split.people(1_000)
    split.execute("UPDATE users SET email = 'PERSON10@mail.example.com' WHERE user_id = 20")
    key = split.create(chunk_size=100)
    taken = split.freeze(key)
    assert taken.excluded == {"holdout": 100, "duplicate": 1}
    assert taken.timing["arms"] == {"a": 99, "b": 100, "rest": 700}
    found = split.execute(
        "SELECT user_id, variant, labels FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id) WHERE key = %(key)s",
        {"key": key},
    )
    for user_id, variant, labels in found:
        assert (variant, labels) == {0: ("a", ["test"]), 1: ("b", ["test"])}.get(int(user_id) % 10, (None, ["rest"]))
    numbers = split.execute(
        "SELECT min(seq), max(seq), count(*) FROM mailpipe.recipient WHERE campaign_id = %(id)s",
        {"id": split.campaign(key).campaign_id},
    )
    assert numbers == [(1, 899, 899)]


def test_cells_and_zones_work_together(split: World) -> None:
    split.people(200)
    split.execute("UPDATE users SET timezone = CASE WHEN user_id % 4 < 2 THEN 'Asia/Tokyo' ELSE 'Europe/Berlin' END")
    morning = (NOW + timedelta(days=3)).replace(hour=10, minute=0, second=0, microsecond=0, tzinfo=None)
    key = split.create(send_at=morning.isoformat())
    taken = split.freeze(key)
    found = split.execute(
        "SELECT timezone, labels[1], d.due_at, count(*) FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE key = %(key)s GROUP BY 1, 2, 3 ORDER BY 3",
        {"key": key},
    )
    assert [(zone, label) for zone, label, _, _ in found] == [
        ("Asia/Tokyo", "test"),
        ("Asia/Tokyo", "rest"),
        ("Europe/Berlin", "test"),
        ("Europe/Berlin", "rest"),
    ]
    assert sum(one["people"] for one in taken.timing["due"]) == taken.recipients == 180
    order = split.execute(
        "SELECT bool_and(due_at >= before) FROM (SELECT d.due_at, lag(d.due_at) OVER (ORDER BY seq) AS before"
        " FROM mailpipe.delivery d"
        " JOIN mailpipe.campaign g USING (campaign_id) WHERE key = %(key)s) AS x WHERE before IS NOT NULL",
        {"key": key},
    )
    assert order == [(True,)]


def test_a_variant_gets_its_own_mail_and_the_others_wait_for_the_decision(split: World) -> None:
    split.people(300)
    key = split.create()
    split.approve(key)
    with_variant(split, key, "b", "goodbye")
    split.freeze(key)
    assert split.send(key).end is End.NOTHING_DUE
    now = split.progress(key)
    assert now.waiting == "210 people wait for the decision of the experiment" and now.eta_minutes is None
    own = split.campaign(key).template_version
    assert Counter((line["template"] == own) for line in split.journal(key)) == {True: 30, False: 30}
    found = split.campaign(key)
    with split.database.connection() as connection:
        assert hold.waiting(connection, found.campaign_id) == {"experiment": 210}
        assert reconcile.unattended(connection) == []
        assert not campaign.finish(connection, found.campaign_id)
        assert hold.release(connection, found.campaign_id, held="wave") == 0
        assert hold.release(connection, found.campaign_id, held="experiment", variant="b", due_at=NOW) == 210
        assert hold.release(connection, found.campaign_id, held="experiment", variant="a") == 0
    split.execute("UPDATE mailpipe.chunk SET due_at = now() WHERE campaign_id = %(id)s", {"id": found.campaign_id})
    assert split.send(key).end is End.COMPLETE
    assert Counter((line["template"] == own) for line in split.journal(key)) == {True: 30, False: 240}
    assert split.keep_promises(key)["sent"] == 270


def test_freed_people_are_launched_when_they_are_due(split: World) -> None:
    split.people(100)
    key = split.ready()
    found = split.campaign(key)

    def dues() -> list[tuple[Any, ...]]:
        return split.execute(
            "SELECT people, launched_at IS NULL FROM mailpipe.due WHERE campaign_id = %(id)s ORDER BY due_at",
            {"id": found.campaign_id},
        )

    assert dues() == [(20, True)]
    split.send(key)
    assert dues() == [(20, False)]
    with split.database.connection() as connection:
        hold.release(connection, found.campaign_id, held="experiment", variant="a")
    assert dues() == [(20, False), (70, True)]


def test_nobody_is_freed_of_a_campaign_that_is_over(split: World) -> None:
    split.people(100)
    key = split.ready()
    split.send(key)
    with split.database.connection() as connection:
        campaign.cancel(connection, key, actor="ana", reason="wrong price")
        assert hold.release(connection, split.campaign(key).campaign_id, held="experiment", variant="a") == 0
        assert report.progress(connection, key).skipped == 70
    assert split.keep_promises(key)["sent"] == 20


def test_held_people_can_be_planned_for_later(split: World) -> None:
    split.people(100)
    key = split.ready(expires_after="6h")
    campaign_id = split.campaign(key).campaign_id

    def windows() -> list[tuple[Any, ...]]:
        return split.execute(
            "SELECT DISTINCT due_at, expires_at FROM mailpipe.chunk WHERE campaign_id = %(id)s AND held IS NOT NULL",
            {"id": campaign_id},
        )

    ((due_at, expires_at),) = windows()
    with split.database.connection() as connection:
        assert hold.retime(connection, campaign_id, held="experiment", by=timedelta(days=1), label="other") == 0
        assert hold.retime(connection, campaign_id, held="experiment", by=timedelta(days=1), label="rest") == 70
    assert windows() == [(due_at + timedelta(days=1), expires_at + timedelta(days=1))]


def test_quiet_hours_leave_alone_who_is_held(split: World) -> None:
    split.people(100)
    key = split.ready(quiet_hours="00:00-23:59")
    campaign_id = split.campaign(key).campaign_id
    split.send(key)
    split.execute(
        "UPDATE mailpipe.chunk SET quiet_at = now() - interval '1 minute' WHERE campaign_id = %(id)s AND held IS NOT NULL",
        {"id": campaign_id},
    )
    with split.database.connection() as connection:
        assert window.close(connection, campaign_id).deferred == 0
        hold.release(connection, campaign_id, held="experiment", variant="a")
        assert window.close(connection, campaign_id).deferred == 70


def test_cells_are_sent_in_the_order_that_an_assigner_says() -> None:
    plain = Window(NOW)
    cells = [Cell(plain, order=(2,)), Cell(plain, order=(1,)), Cell(Window(NOW - timedelta(hours=1)), order=(3,))]
    assert [cell.order for cell in sorted(cells, key=lambda cell: cell.rank)] == [(3,), (1,), (2,)]
