"""Gates between waves and days: what lets the next part go, what holds it, and that caps hold and nobody is lost on the way."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from mailpipe import campaign, reconcile
from mailpipe.errors import CampaignError
from mailpipe.waves import advance, standing
from tests.support import World

RAMP = {"ramp": [60, 120, 240]}


@pytest.fixture
def scene(scene: World) -> World:
    """Without anybody's past."""
    scene.execute("TRUNCATE mailpipe.engagement")
    return scene


def ready(world: World, people: int, **fields: Any) -> str:
    """A started campaign of a domain that nobody else sends from."""
    world.people(people)
    key = world.ready(sender=f"Shop <news@d{next(world.numbers)}.example.com>", **fields)
    world.send(key)
    return key


def told(world: World, key: str, kind: str, label: str, people: int = 10_000) -> None:
    """Let SES tell this of the first `people` of those sent in a part."""
    found = world.execute(
        "SELECT c.campaign_id, c.chunk_no, c.size FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s AND c.labels[1] = %(label)s AND c.sent > 0 ORDER BY c.first_seq",
        {"key": key, "label": label},
    )
    for campaign_id, chunk_no, size in found:
        mask = "1" * min(size, people) + "0" * (size - min(size, people))
        people -= min(size, people)
        world.execute(
            "INSERT INTO mailpipe.event_mask VALUES (%(id)s, %(no)s, %(kind)s, 1, %(mask)s::bit varying)",
            {"id": campaign_id, "no": chunk_no, "kind": kind, "mask": mask},
        )


def days_pass(world: World, key: str, days: float = 1) -> None:
    """Let everything that was planned and done lie so much longer back."""
    values = {"id": world.campaign(key).campaign_id, "by": timedelta(days=days)}
    world.execute("UPDATE mailpipe.chunk SET due_at = due_at - %(by)s WHERE campaign_id = %(id)s", values)
    world.execute("UPDATE mailpipe.call SET at = at - %(by)s WHERE campaign_id = %(id)s", values)
    world.execute(
        "UPDATE mailpipe.snapshot SET timing = jsonb_set(timing, '{waves,begins}',"
        " to_jsonb((timing #>> '{waves,begins}')::timestamptz - %(by)s)) WHERE campaign_id = %(id)s",
        values,
    )


def look(world: World, key: str) -> standing.Gate:
    with world.database.connection() as connection:
        gate = standing.look(connection, campaign.get(connection, key))
    assert gate is not None
    return gate


def advanced(world: World, key: str) -> tuple[str, int, str] | None:
    with world.database.connection() as connection:
        done = advance.run(connection, key)
        assert advance.run(connection, key) is None
    return None if done is None else (done.label, done.people, done.verdict)


def sizes(world: World, key: str) -> dict[str, int]:
    rows = world.execute(
        "SELECT labels[1], sum(size) FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id) WHERE g.key = %(key)s"
        " GROUP BY 1 ORDER BY 1",
        {"key": key},
    )
    return {label: int(people) for label, people in rows}


def by_day(world: World, key: str) -> list[int]:
    rows = world.execute(
        "SELECT sum(accepted) FROM mailpipe.call k JOIN mailpipe.campaign g USING (campaign_id) WHERE g.key = %(key)s"
        " GROUP BY (k.at AT TIME ZONE 'UTC')::date ORDER BY (k.at AT TIME ZONE 'UTC')::date",
        {"key": key},
    )
    return [int(people) for (people,) in rows]


def test_a_warm_up_goes_day_by_day_until_everybody_is_mailed(scene: World) -> None:
    key = ready(scene, 500, warmup=RAMP)
    assert sizes(scene, key) == {"day:1": 60, "day:2": 120, "day:3": 240, "day:4": 80}
    for day, people in enumerate((120, 240, 80), start=2):
        told(scene, key, "delivery", f"day:{day - 1}")
        assert advanced(scene, key) is None, "a day went before its time"
        assert not look(scene, key).open
        days_pass(scene, key)
        with scene.database.connection() as connection:
            assert reconcile.run(connection, key).released == people
        scene.send(key)
    assert scene.campaign(key).state == "done"
    assert by_day(scene, key) == [60, 120, 240, 80]
    assert scene.keep_promises(key) == {"sent": 500}
    kept = scene.execute(
        "SELECT stage, verdict, rung, actor FROM mailpipe.wave_gate w JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s ORDER BY stage",
        {"key": key},
    )
    assert kept == [(1, "pass", 2, "mailpipe"), (2, "pass", 3, "mailpipe"), (3, "pass", 4, "mailpipe")]


def test_a_bad_day_is_repeated_and_a_second_one_drops_two_and_nobody_is_lost(scene: World) -> None:
    scene.people(900)
    scene.execute(
        "UPDATE users SET email = 'p' || user_id || '@gmail.example.com' WHERE user_id %% 3 = 0".replace("%%", "%")
    )
    key = scene.ready(sender=f"Shop <news@d{next(scene.numbers)}.example.com>", warmup={"ramp": [30, 60, 120, 240]})
    scene.send(key)
    for verdict, people, bounces in (
        ("pass", 60, 0),
        ("pass", 120, 0),
        ("repeat", 120, 30),
        ("drop", 30, 30),
        ("pass", 60, 0),
    ):
        label = look(scene, key).stage.label
        told(scene, key, "delivery", label)
        if bounces:
            told(scene, key, "hard_bounce", label, bounces)
        days_pass(scene, key)
        done = advanced(scene, key)
        assert done is not None and done[1:] == (people, verdict)
        scene.send(key)
    assert by_day(scene, key) == [30, 60, 120, 120, 30, 60]
    assert sum(sizes(scene, key).values()) == 900
    # The shares of providers hold on days that were cut anew, too.
    rows = scene.execute(
        "SELECT labels[1], labels[3], sum(size)::int FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE g.key = %(key)s AND held IS NULL GROUP BY 1, 2 ORDER BY 1, 2",
        {"key": key},
    )
    assert {(label, name): people for label, name, people in rows if label in ("day:4", "day:5")} == {
        ("day:4", "gmail"): 40, ("day:4", "other"): 80, ("day:5", "gmail"): 10, ("day:5", "other"): 20
    }  # fmt: skip
    assert scene.balance(key) == {"sent": 420, "pending": 480}


def test_nothing_goes_while_ses_says_nothing_and_that_is_told(scene: World) -> None:
    key = ready(scene, 200, warmup=RAMP)
    days_pass(scene, key)
    assert advanced(scene, key) is None
    gate = look(scene, key)
    assert gate.judgement is not None and gate.judgement.verdict == "silent"
    assert "SES has told what became of 0 of 60 people" in gate.text
    with scene.database.connection() as connection:
        assert standing.held_back(connection, key) == 120
    told(scene, key, "delivery", "day:1")
    assert advanced(scene, key) == ("day:2", 120, "pass")
    with scene.database.connection() as connection:
        assert standing.held_back(connection, key) == 0


def test_who_is_not_mailed_yet_goes_first_and_counts_for_the_next_day(scene: World) -> None:
    scene.people(500)
    key = scene.ready(sender=f"Shop <news@d{next(scene.numbers)}.example.com>", warmup=RAMP, chunk_size=100)
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
    days_pass(scene, key)
    gate = look(scene, key)
    assert gate.judgement is not None and gate.judgement.verdict == "unfinished"
    assert advanced(scene, key) is None
    scene.send(key)
    told(scene, key, "delivery", "day:1")
    # Day 1 really began today: day 2 waits a day from then.
    assert advanced(scene, key) is None
    days_pass(scene, key)
    assert advanced(scene, key) == ("day:3", 120, "pass")


def test_what_others_of_the_domain_send_on_the_day_is_counted_when_the_day_comes(scene: World) -> None:
    key = ready(scene, 500, warmup=RAMP)
    told(scene, key, "delivery", "day:1")
    days_pass(scene, key)
    other = scene.create(
        sender=scene.campaign(key).spec.sender, segment="everybody", key=f"other-{next(scene.numbers)}"
    )
    scene.approve(other)
    scene.execute("UPDATE users SET is_active = is_active AND user_id <= 100, marketing_opt_in = user_id <= 100")
    scene.freeze(other)
    scene.send(other)
    assert by_day(scene, other) == [100]
    assert advanced(scene, key) == ("day:2", 20, "pass")
    assert sum(sizes(scene, key).values()) == 500


def test_a_person_can_hold_a_gate_and_let_it_pass(scene: World) -> None:
    key = ready(scene, 200, warmup=RAMP)
    told(scene, key, "delivery", "day:1")
    with scene.database.connection() as connection:
        with pytest.raises(CampaignError, match="say why"):
            advance.decide(connection, key, "hold", actor="ana", reason=" ")
        held = advance.decide(connection, key, "hold", actor="ana", reason="complaints at Gmail")
        assert held.text == "held by a person: complaints at Gmail"
        days_pass(scene, key)
        assert advance.run(connection, key) is None
        advance.decide(connection, key, "pass", actor="ben", reason="Postmaster Tools is green")
    assert sizes(scene, key) == {"day:1": 60, "day:2": 120, "day:3": 20}
    scene.send(key)
    assert by_day(scene, key) == [60, 120]
    with scene.database.connection() as connection:
        found = scene.campaign(key)
        actions = [(one["actor"], one["action"]) for one in campaign.history(connection, found.campaign_id)][-2:]
        assert actions == [("ana", "gate hold"), ("ben", "gate pass")]


def test_waves_without_a_ramp_wait_for_their_gate_and_move_together_when_it_is_late(scene: World) -> None:
    waves = [{"tiers": ["T1"], "within": "30m"}, {"tiers": ["T4"], "within": "1h"}, {"rest": True, "spread": "2h"}]
    scene.people(300)
    scene.execute(
        "INSERT INTO mailpipe.engagement (person_id, as_of, since, last_clicked_at, tier)"
        " SELECT i, current_date, now(), CASE WHEN i <= 100 THEN now() ELSE now() - interval '120 days' END, 1"
        " FROM generate_series(1, 200) AS i"
    )
    key = scene.ready(sender=f"Shop <news@d{next(scene.numbers)}.example.com>", waves=waves)
    scene.send(key)
    assert sizes(scene, key) == {"wave:1": 100, "wave:2": 100, "wave:3": 100}
    told(scene, key, "delivery", "wave:1")
    told(scene, key, "complaint", "wave:1", 5)
    days_pass(scene, key, 1 / 24)
    assert advanced(scene, key) is None
    assert "bad: complaints: 5 of 100 are 5.00%" in look(scene, key).text
    with scene.database.connection() as connection:
        advance.decide(connection, key, "pass", actor="ana", reason="a test list")
    gate = look(scene, key)
    assert (gate.stage.label, gate.following.label) == ("wave:2", "wave:3")
    assert gate.following.at - gate.stage.at == timedelta(hours=1)
    scene.send(key)
    assert scene.balance(key) == {"sent": 200, "pending": 100}


def test_nobody_goes_while_the_campaign_is_paused_or_cancelled(scene: World) -> None:
    key = ready(scene, 200, warmup=RAMP)
    told(scene, key, "delivery", "day:1")
    days_pass(scene, key)
    with scene.database.connection() as connection:
        campaign.pause(connection, key, actor="ana", reason="wrong price")
        assert advance.run(connection, key) is None
        campaign.cancel(connection, key, actor="ana", reason="wrong price")
        assert advance.run(connection, key) is None
    assert Counter(state for state, _ in scene.states(key).values()) == {"sent": 60, "skipped": 140}
    rest = scene.create(segment=None, audience={"campaign": key, "delivery": "rest"})
    assert scene.freeze(rest).recipients == 140


def test_of_two_who_judge_at_the_same_time_one_lets_the_part_go(scene: World) -> None:
    key = ready(scene, 300, warmup=RAMP)
    told(scene, key, "delivery", "day:1")
    days_pass(scene, key)

    def judged(_: int) -> advance.Advanced | None:
        with scene.database.connection() as connection:
            return advance.run(connection, key)

    with ThreadPoolExecutor(2) as pool:
        done = [one for one in pool.map(judged, range(2)) if one is not None]
    assert [(one.label, one.people) for one in done] == [("day:2", 120)]


def test_people_who_are_skipped_stay_so_when_their_chunk_is_cut(scene: World) -> None:
    scene.people(600)
    scene.execute("UPDATE users SET email = 'nobody' || user_id WHERE user_id % 10 = 0")
    key = scene.ready(sender=f"Shop <news@d{next(scene.numbers)}.example.com>", warmup={"ramp": [50, 400]})
    scene.send(key)
    told(scene, key, "delivery", "day:1")
    told(scene, key, "hard_bounce", "day:1", 30)
    days_pass(scene, key)
    before = scene.balance(key)
    done = advanced(scene, key)
    assert done is not None and done[2] == "repeat" and done[1] <= 50
    laid = sizes(scene, key)
    assert (laid["day:1"], laid["day:2"], sum(laid.values())) == (50, 50, 600)
    assert scene.balance(key) == before
    skipped = {seq for seq, (state, _) in scene.states(key).items() if state == "skipped"}
    scene.send(key)
    assert {seq for seq, (state, _) in scene.states(key).items() if state == "skipped"} == skipped
    assert len(skipped) == 60
