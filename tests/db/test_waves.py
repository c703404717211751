"""Waves and warm-up in the database: who is in which part, what the domain may send, and that nothing goes before its gate."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailpipe import provider
from mailpipe.errors import CampaignError
from mailpipe.schedule import window
from tests.support import World

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def scene(scene: World) -> World:
    """Without anybody's past."""
    scene.execute("TRUNCATE mailpipe.engagement")
    return scene


def engage(world: World, tiers: dict[int, tuple[int, int]]) -> None:
    """Let people of these user ids (first, last) be in a tier."""
    days = {1: 5, 2: 60, 3: 120}
    for tier, (first, last) in tiers.items():
        since = 100 if tier == 4 else 900
        world.execute(
            "INSERT INTO mailpipe.engagement (person_id, as_of, since, last_engaged_at, last_clicked_at, tier)"
            " SELECT i, current_date, now() - make_interval(days => %(since)s), now() - make_interval(days => %(days)s),"
            " now() - make_interval(days => %(days)s), %(tier)s FROM generate_series(%(first)s::int, %(last)s::int) AS i",
            {"first": first, "last": last, "tier": tier, "since": since, "days": days.get(tier)},
        )


def chunks(world: World, key: str) -> list[dict[str, Any]]:
    rows = world.execute(
        "SELECT c.chunk_no, c.first_seq, c.size, c.due_at, c.held, c.labels, c.state FROM mailpipe.chunk c"
        " JOIN mailpipe.campaign g USING (campaign_id) WHERE g.key = %(key)s ORDER BY c.first_seq",
        {"key": key},
    )
    return [dict(zip(("no", "first", "size", "due_at", "held", "labels", "state"), row, strict=True)) for row in rows]


def stages(world: World, key: str) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for chunk in chunks(world, key):
        counted[chunk["labels"][0]] += chunk["size"]
    return dict(counted)


def test_who_reads_most_goes_first_and_a_hash_decides_among_equals(scene: World) -> None:
    scene.people(300)
    engage(scene, {1: (201, 250), 2: (251, 300), 3: (1, 50)})
    key = scene.create(
        waves=[{"tiers": ["T1", "T2"], "within": "30m"}, {"rest": True, "spread": "36h"}],
        due_at=NOW,
        sender="a@a.example.com",
    )
    taken = scene.freeze(key)
    assert stages(scene, key) == {"wave:1": 100, "wave:2": 200}
    first = [chunk for chunk in chunks(scene, key) if chunk["labels"][0] == "wave:1"]
    assert {chunk["held"] for chunk in first} == {None}
    assert {chunk["held"] for chunk in chunks(scene, key)[len(first) :]} == {"wave"}
    rows = scene.execute(
        "SELECT d.user_id::int, d.labels[2] FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s ORDER BY d.seq",
        {"key": key},
    )
    assert [tier for _, tier in rows] == ["T1"] * 50 + ["T2"] * 50 + ["T3"] * 50 + ["T4"] * 150
    assert {person for person, tier in rows if tier == "T1"} == set(range(201, 251))
    plan = taken.timing["waves"]
    assert [(one["label"], one["people"], one["tiers"]) for one in plan["stages"]] == [
        ("wave:1", 100, {"T1": 50, "T2": 50}),
        ("wave:2", 200, {"T3": 50, "T4": 150}),
    ]


def test_a_warm_up_takes_days_and_leaves_out_who_never_reacts(scene: World) -> None:
    scene.people(1_000)
    engage(scene, {1: (901, 1_000), 5: (1, 100)})
    key = scene.create(warmup={"ramp": "moderate", "at": "10:00"}, sender="a@b.example.com")
    taken = scene.freeze(key)
    assert taken.excluded == {"inactive_tier": 100}
    assert stages(scene, key) == {"day:1": 50, "day:2": 100, "day:3": 500, "day:4": 250}
    days = sorted({(chunk["labels"][0], chunk["due_at"]) for chunk in chunks(scene, key)})
    assert [at.hour for _, at in days] == [10] * 4
    assert [at - days[0][1] for _, at in days] == [timedelta(days=number) for number in range(4)]
    tiers = [chunk["labels"][1] for chunk in chunks(scene, key)]
    assert tiers == sorted(tiers)
    assert taken.timing["waves"]["stages"][-1]["people"] == 250
    # All of them may be mailed where the file says so.
    everybody = scene.create(warmup={"ramp": [400], "exclude": []}, sender="a@c.example.com")
    assert scene.freeze(everybody).excluded == {}
    assert stages(scene, everybody) == {"day:1": 400, "day:2": 400, "day:3": 200}


def test_providers_get_their_share_of_every_day(scene: World) -> None:
    scene.people(600)
    scene.execute("UPDATE users SET email = 'p' || user_id || '@gmail.com.example.com' WHERE user_id <= 300")
    scene.execute("UPDATE users SET email = 'p' || user_id || '@yahoo.example.com' WHERE user_id > 500")
    key = scene.create(warmup={"ramp": [60, 120]}, sender="a@d.example.com")
    scene.freeze(key)
    shares: dict[str, Counter[str]] = {}
    for chunk in chunks(scene, key):
        shares.setdefault(chunk["labels"][0], Counter())[chunk["labels"][2]] += chunk["size"]
    assert [dict(shares[day]) for day in ("day:1", "day:2")] == [
        {"gmail": 30, "other": 20, "yahoo": 10},
        {"gmail": 60, "other": 40, "yahoo": 20},
    ]


def test_other_campaigns_of_the_domain_use_up_the_day(scene: World) -> None:
    scene.people(300)
    other = scene.ready(sender="Shop <x@E.example.com>", chunk_size=100)
    scene.send(other)
    key = scene.create(warmup={"ramp": [310, 400]}, sender="Shop <y@e.example.com>")
    taken = scene.freeze(key)
    assert stages(scene, key) == {"day:1": 10, "day:2": 290}
    assert [one["others"] for one in taken.timing["waves"]["stages"]] == [300, 0]
    # Its best day tells where on the ramp the domain is already.
    further = scene.create(warmup={"ramp": "aggressive"}, sender="Shop <z@e.example.com>")
    assert scene.freeze(further).timing["waves"]["start_day"] == 3


@pytest.mark.parametrize("people", [0, 1, 3])
def test_nobody_and_few_people_can_go_in_waves(scene: World, people: int) -> None:
    if people:
        scene.people(people)
    key = scene.create(
        waves=[{"tiers": ["T1"], "within": "1h"}, {"rest": True, "spread": "2h"}], sender="a@f.example.com"
    )
    assert scene.freeze(key).recipients == people
    assert sum(stages(scene, key).values()) == people
    assert {chunk["held"] for chunk in chunks(scene, key)} <= {None}


def test_a_plan_that_goes_beyond_the_end_of_the_mail_is_refused(scene: World) -> None:
    scene.people(300)
    ends = (NOW + timedelta(days=1, hours=12)).isoformat()
    key = scene.create(warmup={"ramp": [100]}, sender="a@g.example.com", expires_at=ends)
    with pytest.raises(CampaignError, match=r"day:3 is planned for .* after expires_at"):
        scene.freeze(key)
    within = scene.create(warmup={"ramp": [100]}, sender="a@h.example.com", expires_after="6h")
    assert scene.freeze(within).recipients == 300


def test_those_who_are_held_stay_so_when_everybody_shall_go_now(scene: World) -> None:
    scene.people(300)
    due = (NOW + timedelta(days=2)).isoformat()
    key = scene.ready(warmup={"ramp": [100]}, sender="a@i.example.com", due_at=due)
    with scene.database.connection() as connection:
        assert window.open_now(connection, scene.campaign(key).campaign_id) == 100
    days = {
        chunk["labels"][0]: (chunk["held"], chunk["due_at"] > NOW + timedelta(days=1)) for chunk in chunks(scene, key)
    }
    assert days == {"day:1": (None, False), "day:2": ("wave", True), "day:3": ("wave", True)}


def test_the_database_tells_providers_apart_as_the_rest_does(scene: World) -> None:
    names = (
        "gmail.com",
        "GoogleMail.com",
        "hotmail.co.uk",
        "ymail.com",
        "aol.com",
        "icloud.com",
        "gmx.net",
        "shop.example.com",
        "",
    )
    rows = scene.execute(
        f"SELECT email, {provider.number_sql('email')} FROM unnest(%(all)s::text[]) AS email",
        {"all": [f"a@{name}" for name in names]},
    )
    assert {email: provider.FAMILIES[number] for email, number in rows} == {
        f"a@{name}": provider.family(f"a@{name}") for name in names
    }
