"""Send times on a real database: the table of hours, and campaigns that are planned by it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, campaign_file
from mailpipe.cli import main
from mailpipe.db import Connection, Database
from mailpipe.errors import CampaignError
from mailpipe.feedback import archive
from mailpipe.schedule import overview, timing, zones
from mailpipe.send import End
from mailpipe.sendtime import hours, uplift
from tests.support import World

ZONES = ("Asia/Ho_Chi_Minh", "Europe/Berlin", "America/New_York")
SPEC = {"key": "x", "segment": "s", "template": "t", "sender": "Shop <news@mail.example.com>", "mode": "optimised"}
SOON = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connection() as connection:
        yield connection


def engaged(
    connection: Connection,
    people: Sequence[int],
    hour: int,
    *,
    events: float = 10,
    zone: str | None = ZONES[0],
    days_ago: int = 0,
) -> None:
    """People who engaged at one hour, and were mailed at all of them."""
    ev = [float(events) if at == hour else 0.0 for at in range(24)]
    connection.execute(
        "INSERT INTO mailpipe.engagement (person_id, zone, as_of, events, mails, ev, ex, since, tier)"
        " SELECT CAST(i AS text), %s, CURRENT_DATE - %s, %s, 20, %s, %s, now(), 3 FROM unnest(CAST(%s AS integer[])) i",
        (zone, days_ago, float(events), ev, [1.0] * 24, list(people)),
    )


def plan(scene: World, **fields: Any) -> tuple[Any, list[Any]]:
    """A frozen campaign, and of each of its people: id, zone, due time, labels."""
    key = scene.create(mode="optimised", due_at=SOON.isoformat(), **fields)
    taken = scene.freeze(key)
    people = scene.execute(
        "SELECT CAST(user_id AS integer), d.timezone, d.due_at, labels[1] FROM mailpipe.delivery d"
        " JOIN mailpipe.campaign g USING (campaign_id) WHERE key = %(key)s ORDER BY 1",
        {"key": key},
    )
    return taken, people


def local(zone: str, at: datetime) -> int:
    return zones.wall(zone, at).hour


def test_without_engagement_nobody_is_in_the_table_and_the_curve_of_all_says_ten(connection: Connection) -> None:
    found = hours.refresh(connection)
    assert (found.people, hours.summary(connection)) == (0, [])
    assert connection.execute("SELECT zone, hour, why FROM mailpipe.send_curve").fetchall() == [("", 10, "default")]


def test_everybody_in_engagement_gets_an_hour_with_its_reason(connection: Connection) -> None:
    engaged(connection, range(1, 121), 9, events=1, zone="Europe/Berlin")
    engaged(connection, [200], 19, events=40, zone="Europe/Berlin")
    engaged(connection, [201], 0, events=0, zone="Europe/Berlin")
    engaged(connection, [202], 0, events=0, zone=None)
    found = hours.refresh(connection)
    assert (found.people, hours.without_hour(connection)) == (123, 0)
    one, cold = hours.of_person(connection, "200"), hours.of_person(connection, "201")
    assert one is not None and cold is not None
    assert (one.why, one.worth[one.hour]) == ("own", 1) and one.hour in (17, 18, 19)
    assert "40.0 recent mails" in one.text and 0 < one.confidence < 1
    assert (cold.why, cold.confidence) == ("segment", 0) and cold.hour in (8, 9)
    nowhere = hours.of_person(connection, "202")
    assert nowhere is not None and nowhere.why == "everybody" and "everybody else" in nowhere.text
    assert hours.of_person(connection, "999") is None
    curves: dict[str, str] = dict(connection.execute("SELECT zone, why FROM mailpipe.send_curve").fetchall())
    assert curves == {"Europe/Berlin": "segment", "": "everybody"}


def test_a_refresh_replaces_what_was_there_and_old_engagement_counts_less(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO mailpipe.engagement_state (folded_to, freshness, thinning, ages, mails, opens, clicks)"
        " VALUES (CURRENT_DATE, array_fill(CAST(1 AS real), ARRAY[24]), 0.1, array_fill(CAST(0 AS real), ARRAY[24]), 0, 0, 0)"
    )
    engaged(connection, [1], 9)
    engaged(connection, [2], 9, days_ago=400)
    hours.refresh(connection)
    new, old = hours.of_person(connection, "1"), hours.of_person(connection, "2")
    assert new is not None and old is not None and old.confidence < new.confidence / 2
    connection.execute("DELETE FROM mailpipe.engagement WHERE person_id = '2'")
    assert hours.without_hour(connection) == -1
    assert hours.refresh(connection).people == 1
    assert hours.of_person(connection, "2") is None


def test_names_of_people_are_kept_byte_by_byte(connection: Connection) -> None:
    names = ["a\tb", "back\\slash", "Zoë\n", "x" * 500]
    for name in names:
        connection.execute(
            "INSERT INTO mailpipe.engagement (person_id, as_of, since, tier) VALUES (%s, CURRENT_DATE, now(), 3)",
            (name,),
        )
    hours.refresh(connection)
    assert {row[0] for row in connection.execute("SELECT person_id FROM mailpipe.send_hours")} == set(names)


def test_people_are_due_at_their_hour_in_their_zone_and_the_groups_are_labelled(scene: World) -> None:
    scene.people(3_000)
    with scene.database.connection() as connection:
        for number, zone in enumerate(ZONES):
            connection.execute("UPDATE users SET timezone = %s WHERE user_id %% 3 = %s", (zone, number))
            engaged(connection, range(3 + number, 1_001, 3), 18, events=40, zone=zone)
        hours.refresh(connection)
    taken, people = plan(scene)
    assert len(people) == taken.recipients == 3_000
    by_label = Counter(label for *_, label in people)
    assert taken.timing["optimised"]["groups"] == dict(by_label)
    assert by_label["control"] == pytest.approx(300, abs=60) and by_label["explore"] == pytest.approx(150, abs=45)
    explored = dict(
        scene.execute(
            "SELECT CAST(user_id AS integer), ARRAY[hour, best_hour] FROM mailpipe.send_explored WHERE campaign_id = %(id)s",
            {"id": taken.campaign_id},
        )
    )
    assert set(explored) == {person for person, *_, label in people if label == "explore"}
    for person, zone, due_at, label in people:
        hour = local(zone, due_at)
        assert SOON <= due_at < SOON + timedelta(hours=25) and 8 <= hour <= 20
        if label == "control":
            assert hour == 10
        elif label == "explore":
            assert hour == explored[person][0]
        elif 3 <= person <= 1_000:
            assert hour in (16, 17, 18)
    assert len({due_at.minute for _, _, due_at, _ in people}) == 12
    assert taken.timing["optimised"]["without_own_hour"] == 2_002
    propensities = scene.execute("SELECT DISTINCT round(CAST(1 / propensity AS numeric)) FROM mailpipe.send_explored")
    assert [int(one) for (one,) in propensities] == [13]


def test_nobody_has_an_hour_yet_and_all_are_due_at_ten(scene: World) -> None:
    scene.people(50)
    scene.execute("TRUNCATE mailpipe.send_hours, mailpipe.send_curve, mailpipe.engagement")
    _, people = plan(scene, optimise={"explore": 0, "control": 0})
    assert {local(zone, due_at) for _, zone, due_at, _ in people} == {10}
    assert {label for *_, label in people} == {"optimised"}


def test_hours_that_were_learned_without_a_zone_are_of_utc_and_are_moved_to_the_default_zone(scene: World) -> None:
    scene.people(200)
    scene.execute("TRUNCATE mailpipe.send_hours, mailpipe.send_curve, mailpipe.engagement")
    with scene.database.connection() as connection:
        connection.execute("UPDATE users SET timezone = NULL")
        engaged(connection, range(1, 201), 5, events=100, zone=None)
        hours.refresh(connection)
    _, people = plan(scene, default_timezone="Asia/Ho_Chi_Minh", optimise={"explore": 0, "control": 0})
    assert {due_at.hour for _, _, due_at, _ in people} <= {3, 4, 5}


def test_hours_of_an_imported_history_without_zones_are_moved_to_the_zones_that_the_segment_knows(scene: World) -> None:
    scene.people(300)
    scene.execute("TRUNCATE mailpipe.send_hours, mailpipe.send_curve, mailpipe.engagement")
    with scene.database.connection() as connection:
        for number, zone in enumerate(("America/Los_Angeles", "Asia/Ho_Chi_Minh", None)):
            connection.execute("UPDATE users SET timezone = %s WHERE user_id %% 3 = %s", (zone, number))
        engaged(connection, range(1, 201), 3, events=100, zone=None)
        engaged(connection, range(201, 301), 12, events=100, zone="Asia/Ho_Chi_Minh")
        hours.refresh(connection)
    _, people = plan(scene, default_timezone="Asia/Tokyo", optimise={"explore": 0, "control": 0})
    # 3:00 UTC is 10:00 in Vietnam, 12:00 in Tokyo, and 19:00 of the day before in Los Angeles.
    for person, zone, due_at, _ in people:
        if person <= 200:
            assert due_at.hour in (1, 2, 3), (person, zone, due_at)
        elif zone is not None:
            assert local(zone, due_at) in (10, 11, 12), (person, zone, due_at)


def test_the_plan_is_told_before_it_is_launched(scene: World) -> None:
    scene.people(400)
    taken, people = plan(scene)
    by_label = Counter(label for *_, label in people)
    told = "\n".join(timing.told(campaign_file.parse(SPEC, where=""), taken.timing, taken.excluded))
    assert f"{by_label['optimised']} recipients at their own hour, {by_label['control']} at 10:00" in told


def test_runs_are_launched_by_the_hour_and_the_api_calls_it_optimised(scene: World) -> None:
    scene.people(2_000)
    taken, people = plan(scene, optimise={"explore": 0.5, "control": 0})
    dues = scene.execute(
        "SELECT due_at, people FROM mailpipe.due WHERE campaign_id = %(id)s ORDER BY 1", {"id": taken.campaign_id}
    )
    assert 1 < len(dues) <= 26 < len({due_at for *_, due_at, _ in people})
    assert sum(number for _, number in dues) == 2_000
    assert dues[0][0] == min(due_at for *_, due_at, _ in people)
    with scene.database.connection() as connection:
        entries, _ = overview.entries(connection, most=5, kind="optimised")
        assert entries[0].id == f"c{taken.campaign_id}"
        assert f"c{taken.campaign_id}" not in {
            one.id for one in overview.entries(connection, most=500, kind="scheduled")[0]
        }


def test_quiet_hours_and_the_end_of_the_campaign_narrow_the_window(scene: World) -> None:
    scene.people(300)
    ends = SOON + timedelta(hours=20)
    taken, people = plan(scene, quiet_hours="18:00-10:00", expires_at=ends.isoformat(), optimise={"explore": 0.5})
    for _, zone, due_at, _ in people:
        assert 10 <= local(zone, due_at) < 18 and due_at < ends
    chunks = scene.execute(
        "SELECT due_at, quiet_at, timezone FROM mailpipe.chunk WHERE campaign_id = %(id)s", {"id": taken.campaign_id}
    )
    assert all(quiet_at > due_at and local(zone, quiet_at) == 18 for due_at, quiet_at, zone in chunks)


def test_who_has_no_hour_before_the_end_is_left_out(scene: World) -> None:
    scene.people(20)
    scene.execute("UPDATE users SET timezone = 'America/New_York' WHERE user_id <= 10")
    here, there = (zones.wall(zone, SOON).hour for zone in ZONES[::2])
    assert here != there
    hour = (here + 1) % 24
    window = {"window": f"{hour:02}:00-{(hour + 1) % 24:02}:00", "control": 0}
    taken, people = plan(scene, expires_at=(SOON + timedelta(hours=3)).isoformat(), optimise=window)
    assert taken.excluded == {"expired": 10}
    assert {person for person, *_ in people} == set(range(11, 21))


def test_a_crowded_hour_is_relieved_by_the_rate_of_the_campaign(scene: World) -> None:
    scene.people(1_000)
    scene.execute("TRUNCATE mailpipe.send_hours, mailpipe.send_curve, mailpipe.engagement")
    taken, people = plan(scene, rate=0.1, optimise={"explore": 0, "control": 0})
    load = Counter(due_at.replace(minute=0) for *_, due_at, _ in people)
    assert max(load.values()) <= 0.1 * 3600 * 0.8 + 1
    assert taken.timing["optimised"]["moved_for_pace"] >= 1_000 - 289


BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"


def visit(
    scene: World, campaign_id: int, seqs: Sequence[int], kind: str, *, after: str = "1 hour", agent: str = BROWSER
) -> None:
    """People did it so long after their mail was due, and delivered."""
    with scene.database.connection() as connection:
        archive.prepare(connection, [SOON - timedelta(days=days) for days in range(-3, 8)], archive.span(30))
    scene.execute(
        "INSERT INTO mailpipe.event (at, digest, kind, campaign_id, seq, ses_id, agent, ip, link, body)"
        " SELECT c.due_at + CAST(%(after)s AS interval), decode(md5(%(kind)s || %(after)s || s.seq), 'hex'), %(kind)s,"
        " c.campaign_id, s.seq, 'x', %(agent)s, '192.0.2.1', 'https://shop.example.com', '{}'"
        " FROM unnest(CAST(%(seqs)s AS integer[])) s(seq) JOIN mailpipe.chunk c ON c.campaign_id = %(id)s"
        " AND s.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1",
        {"id": campaign_id, "seqs": list(seqs), "kind": kind, "after": after, "agent": agent},
    )


def sent(scene: World, people: int = 4_000) -> tuple[str, int, dict[str, list[int]]]:
    """An optimised campaign that everybody got some days ago, and the numbers of its people by group."""
    scene.people(people)
    scene.execute("TRUNCATE mailpipe.send_hours, mailpipe.send_curve, mailpipe.engagement, mailpipe.event")
    taken, _ = plan(scene)
    scene.execute(
        "UPDATE mailpipe.chunk SET due_at = due_at - interval '3 days', state = 'done', sent = size, finished = ~finished"
        " WHERE campaign_id = %(id)s",
        {"id": taken.campaign_id},
    )
    (key,) = scene.execute("SELECT key FROM mailpipe.campaign WHERE campaign_id = %(id)s", {"id": taken.campaign_id})[0]
    groups = scene.execute(
        "SELECT labels[1], array_agg(seq ORDER BY seq) FROM mailpipe.delivery WHERE campaign_id = %(id)s GROUP BY 1",
        {"id": taken.campaign_id},
    )
    return key, taken.campaign_id, dict(groups)


def test_clicks_of_people_within_a_day_are_counted_by_group_and_compared(scene: World) -> None:
    key, campaign_id, groups = sent(scene)
    visit(scene, campaign_id, groups["optimised"][:340], "click")
    visit(scene, campaign_id, groups["optimised"][:340], "open", after="50 minutes")
    visit(scene, campaign_id, groups["control"][:30], "click")
    visit(scene, campaign_id, groups["control"][30:90], "click", after="25 hours")
    visit(scene, campaign_id, groups["control"][90:120], "click", agent="curl/8.0")
    visit(scene, campaign_id, groups["control"][120:140], "open")
    with scene.database.connection() as connection:
        found = uplift.of(connection, key)
        assert found.to_json()["clicks"]["engaged"] == 340 == found.opens.engaged
        assert (found.clicks.people, found.clicks.other_people) == (len(groups["optimised"]), len(groups["control"]))
        assert (found.clicks.other_engaged, found.opens.other_engaged) == (30, 50)
        assert found.clicks.enough and not found.explored_clicks.enough
        assert found.explored_clicks.text.startswith("not enough data")
        assert uplift.of(connection, key) == found
        together = uplift.pooled(connection)
        assert key in together.campaigns and together.clicks.people >= found.clicks.people


def test_who_explored_is_compared_by_hour_and_opens_behind_the_proxy_are_not_seen(scene: World) -> None:
    key, campaign_id, groups = sent(scene)
    scene.execute(
        "INSERT INTO mailpipe.engagement (person_id, as_of, since, tier, machine)"
        " SELECT user_id, CURRENT_DATE, now(), 3, true FROM mailpipe.recipient WHERE campaign_id = %(id)s AND seq = ANY(%(seqs)s)",
        {"id": campaign_id, "seqs": groups["control"][:100]},
    )
    visit(scene, campaign_id, groups["explore"], "click")
    visit(scene, campaign_id, groups["control"][:120], "open")
    with scene.database.connection() as connection:
        found = uplift.of(connection, key)
        assert (found.opens.other_people, found.opens.other_engaged) == (len(groups["control"]) - 100, 20)
        # Nobody is known, so the best hour is the fixed one: both sides are the same people.
        near = scene.execute(
            "SELECT count(*) FROM mailpipe.send_explored WHERE campaign_id = %(id)s AND abs(hour - best_hour) <= 1",
            {"id": campaign_id},
        )[0][0]
        assert found.explored_clicks.people == near == found.explored_clicks.engaged
        assert found.explored_clicks.difference == 0


def test_what_was_counted_when_nothing_could_come_any_more_outlives_its_events(scene: World) -> None:
    key, campaign_id, groups = sent(scene)
    visit(scene, campaign_id, groups["control"][:30], "click")
    with scene.database.connection() as connection:
        found = uplift.of(connection, key)
        connection.execute(
            "UPDATE mailpipe.chunk SET due_at = due_at - interval '3 days' WHERE campaign_id = %s", (campaign_id,)
        )
        connection.execute("TRUNCATE mailpipe.event")
        assert uplift.of(connection, key) == found
        with pytest.raises(CampaignError, match="no `mode: optimised`"):
            uplift.of(connection, scene.create())
        assert campaign.get(connection, key).spec.mode == "optimised"


def test_an_optimised_campaign_is_sent_like_any_other(scene: World) -> None:
    scene.people(300)
    key = scene.ready(mode="optimised", due_at=SOON.isoformat())
    scene.execute(
        "UPDATE mailpipe.chunk SET due_at = now() - interval '1 minute' WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id},
    )
    assert scene.send(key).end is End.COMPLETE
    assert scene.keep_promises(key)["sent"] == 300


def test_an_experiment_tries_its_arms_at_everybodys_hour_and_the_rest_follows_on_another_day(scene: World) -> None:
    scene.people(1_000)
    arms = {"variants": [{"name": "plain", "share": 0.1}, {"name": "question", "subject": "Hello?", "share": 0.1}]}
    taken, _ = plan(scene, experiment=arms)
    rows = scene.execute(
        "SELECT labels, min(due_at), max(due_at), sum(size) FROM mailpipe.chunk WHERE campaign_id = %(id)s GROUP BY 1",
        {"id": taken.campaign_id},
    )
    first = max(end for labels, _, end, _ in rows if "test" in labels)
    then = min(start for labels, start, _, _ in rows if "rest" in labels)
    assert then > first + timedelta(hours=1)
    assert sum(people for labels, *_, people in rows if "rest" in labels) == 800
    assert (
        sum(people for labels, *_, people in rows if "control" in labels)
        == taken.timing["optimised"]["groups"]["control"]
    )


@pytest.fixture
def cli(scene: World) -> Callable[..., Result]:
    environment = {
        "MAILPIPE_HOME": str(scene.settings.home),
        "MAILPIPE_DATABASE_URL": scene.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": "http://127.0.0.1:1",
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
    }

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, list(arguments), env=environment)
        assert result.exit_code == code, result.output
        return result

    return run


def test_hours_and_uplift_are_told_on_the_command_line(scene: World, cli: Callable[..., Result]) -> None:
    key, campaign_id, groups = sent(scene)
    visit(scene, campaign_id, groups["optimised"][:340], "click")
    visit(scene, campaign_id, groups["control"][:30], "click")
    text = cli("campaign", "uplift", key).stdout
    assert "own hour against the fixed hour, clicks: " in text and "not enough data" in text
    told = json.loads(cli("campaign", "uplift", "--all", "--json").stdout)
    assert key in told["campaigns"] and told["clicks"]["engaged"] >= 340
    assert json.loads(cli("campaign", "uplift", key, "--json").stdout)["explored_clicks"]["enough"] is False
    assert "name a campaign, or take --all" in cli("campaign", "uplift", code=2).stderr
    scene.execute("TRUNCATE mailpipe.send_refresh, mailpipe.engagement")
    assert "no hours yet" in cli("engagement", "hours").stdout
    with scene.database.connection() as connection:
        engaged(connection, [1], 19, events=50)
    told = json.loads(cli("engagement", "hours", "--refresh", "--json").stdout)
    assert told["people"] == 1 and told["hours"][0]["why"] == "own"
    assert json.loads(cli("engagement", "hours", "1", "--json").stdout)["why"] == "own"
    assert "from 50.0 recent mails" in cli("engagement", "hours", "1").stdout
    assert "people in their zone" in cli("engagement", "hours", "2", code=2).stderr
    scene.execute("UPDATE mailpipe.engagement SET zone = NULL")
    assert "19:00 UTC, as their zone is not known" in cli("engagement", "hours", "1").stdout


def test_a_campaign_without_waves_has_no_gates(scene: World, cli: Callable[..., Result]) -> None:
    scene.people(50)
    key = scene.create(mode="optimised", due_at=SOON.isoformat())
    scene.freeze(key)
    assert "nobody waits for a gate" in cli("campaign", "gate", key, code=2).stderr
    assert "nobody waits for a gate" in cli("campaign", "gate", key, "--pass", "--reason", "x", code=2).stderr
