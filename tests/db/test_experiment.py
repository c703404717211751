"""Experiments on a real ledger: who tries which mail, who waits, and the one decision."""

from __future__ import annotations

import csv
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, hold, invariant, report
from mailpipe.cli import main
from mailpipe.errors import CampaignError, SnapshotError, TemplateError
from mailpipe.experiment import buckets, counts, decision, look
from mailpipe.send import End
from tests.db.test_feedback import COMPLAINT, DELIVERY, take, told
from tests.ses_events import shape
from tests.support import World, wait_for

CLICK = shape("Click")
TWO: list[dict[str, Any]] = [{"name": "plain"}, {"name": "question", "subject": "Are you there, {{first_name}}?"}]
HALVES: list[dict[str, Any]] = [{**one, "share": 0.45} for one in TWO]
AGO = timedelta(minutes=30)
"""So long ago the test is out in these tests: the decision is due two minutes after it."""


def experiment(variants: list[dict[str, Any]] = HALVES, **fields: Any) -> dict[str, Any]:
    return {"variants": variants, "decide_after": "2m", **fields}


def arms(scene: World, key: str) -> dict[str | None, list[str]]:
    """User ids by variant, in sending order."""
    found: dict[str | None, list[str]] = {}
    for variant, user_id in scene.execute(
        "SELECT d.variant, d.user_id FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE key = %(key)s ORDER BY d.seq",
        {"key": key},
    ):
        found.setdefault(variant, []).append(user_id)
    return found


def after_the_test(scene: World, people: int = 1_200, *, end: End = End.NOTHING_DUE, **fields: Any) -> str:
    """A campaign whose test went out some time ago."""
    scene.people(people)
    key = scene.ready(**{"experiment": experiment(), **fields})
    assert scene.send(key).end is end
    scene.execute(
        "UPDATE mailpipe.call SET at = at - %(ago)s WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id, "ago": AGO},
    )
    return key


def clicks(scene: World, key: str, variant: str, number: int, *, after: float = 10) -> None:
    """So many people of an arm click, some seconds after the test was out."""
    at = (datetime.now(UTC) - AGO + timedelta(seconds=after)).isoformat(timespec="milliseconds")
    seqs = scene.execute(
        "SELECT seq FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE key = %(key)s AND d.variant = %(variant)s AND 'test' = ANY(d.labels) ORDER BY seq LIMIT %(number)s",
        {"key": key, "variant": variant, "number": number},
    )
    take(scene, *(told(CLICK, key, seq, at=at) for (seq,) in seqs))


def tick(scene: World) -> decision.Ticked:
    with scene.database.connection() as connection:
        return decision.tick(connection, scene.settings)


def decided(scene: World, key: str) -> decision.Decision:
    with scene.database.connection() as connection:
        found = decision.get(connection, scene.campaign(key).campaign_id)
    assert found is not None
    return found


def test_arms_have_their_share_to_one_person_and_sql_hashes_as_python_does(scene: World) -> None:
    scene.people(1_003)
    scene.execute("UPDATE users SET email = 'PERSON10@mail.example.com' WHERE user_id IN (20, 30, 40)")
    key = scene.create(experiment=experiment(TWO))
    taken = scene.freeze(key)
    assert taken.excluded == {"duplicate": 3}
    assert taken.timing["experiment"]["arms"] == {"plain": 100, "question": 100}
    assert taken.timing["experiment"]["rest"] == 800
    salt = buckets.split_salt(key, None)
    everybody = [str(number) for number in range(1, 1_004) if number not in (20, 30, 40)]
    order = sorted(everybody, key=lambda person: buckets.position(salt, person))
    found = arms(scene, key)
    assert set(found["plain"]) == set(order[:100])
    assert set(found["question"]) == set(order[100:200])


@pytest.mark.parametrize(
    ("people", "sizes", "rest"), [(0, [0, 0], 0), (1, [0, 0], 1), (4, [0, 1], 3), (16, [2, 1], 13), (20, [2, 2], 16)]
)
def test_few_people_are_shared_out_too(scene: World, people: int, sizes: list[int], rest: int) -> None:
    scene.people(people)
    key = scene.create(experiment=experiment(TWO), holdout=0.01)
    kept = scene.freeze(key).timing["experiment"]
    assert (list(kept["arms"].values()), kept["rest"]) == (sizes, rest)
    with scene.database.connection() as connection:
        assert look.look(connection, scene.settings, key).verdict_now.winner == "plain"


def test_arms_go_out_mixed_and_before_the_rest(scene: World) -> None:
    scene.people(1_500)
    key = scene.create(experiment=experiment([{**one, "share": 0.3} for one in TWO]), chunk_size=100)
    scene.freeze(key)
    chunks = scene.execute(
        "SELECT variant FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id) WHERE key = %(key)s ORDER BY chunk_no",
        {"key": key},
    )
    names = [variant for (variant,) in chunks]
    last = max(place for place, name in enumerate(names) if name is not None)
    assert all(name is not None for name in names[: last + 1])
    runs = [name for place, name in enumerate(names[: last + 1]) if place == 0 or names[place - 1] != name]
    assert len(runs) >= 9


def test_in_a_series_everybody_keeps_their_arm_whoever_else_is_there(scene: World) -> None:
    scene.people(900)
    first = scene.create(experiment=experiment(series="autumn"))
    scene.freeze(first)
    scene.people(300, first=901)
    again = scene.create(experiment=experiment(series="autumn"))
    scene.freeze(again)
    before, after = arms(scene, first), arms(scene, again)
    for name in ("plain", "question"):
        assert 300 < len(before[name]) < 510
        assert set(before[name]) < set(after[name])
    other = scene.create(experiment=experiment())
    scene.freeze(other)
    assert len(set(arms(scene, other)["plain"]) & set(after["plain"])) < 350
    with pytest.raises(CampaignError, match=r"series 'autumn' has the variants plain 0\.45, question 0\.45"):
        scene.create(experiment=experiment(TWO, series="autumn"))


def test_who_is_held_out_gets_no_mail_and_is_remembered(scene: World) -> None:
    scene.people(1_000)
    key = scene.ready(holdout=0.05)
    assert scene.send(key).end is End.COMPLETE
    campaign_id = scene.campaign(key).campaign_id
    kept = scene.execute("SELECT person_id FROM mailpipe.holdout WHERE campaign_id = %(id)s", {"id": campaign_id})
    assert len(kept) == 50
    assert not {person for (person,) in kept} & set(arms(scene, key)[None])
    assert scene.keep_promises(key) == {"sent": 950}
    both = scene.create(holdout=0.05, experiment=experiment(TWO))
    taken = scene.freeze(both)
    assert taken.excluded == {"holdout": 50}
    assert taken.timing["experiment"]["arms"] == {"plain": 95, "question": 95}


def test_of_everybody_it_is_told_which_mail_is_theirs(scene: World, tmp_path: Path) -> None:
    scene.people(100)
    key = scene.ready(experiment=experiment(TWO))
    someone = arms(scene, key)["question"][0]
    with scene.database.connection() as connection:
        assert [fate.variant for fate in report.who(connection, key, someone)] == ["question"]
    report.export(scene.database, key, tmp_path / "all.csv")
    report.export(scene.database, key, tmp_path / "all.parquet")
    with (tmp_path / "all.csv").open(encoding="utf-8") as file:
        told_ = Counter(row["variant"] for row in csv.DictReader(file))
    assert told_ == {"plain": 10, "question": 10, "": 80}


def test_every_variant_is_mailed_as_it_was_when_it_was_approved(scene: World) -> None:
    scene.people(200)
    key = scene.ready(experiment=experiment([*TWO, {"name": "other", "template": "goodbye"}], utm={"source": "shop"}))
    versions = dict(
        scene.execute(
            "SELECT variant, template_version FROM mailpipe.campaign_variant WHERE campaign_id = %(id)s",
            {"id": scene.campaign(key).campaign_id},
        )
    )
    assert list(versions) == ["plain", "question", "other"]
    assert len(set(versions.values())) == 3
    scene.send(key)
    assert Counter(line["template"] for line in scene.journal(key)) == dict.fromkeys(versions.values(), 20)
    with scene.database.connection() as connection:
        letter = campaign.published_template(connection, versions["question"])
        assert letter.subject == "Are you there, {{first_name}}?"
        campaign.pause(connection, key, actor="ana", reason="wrong")
        with pytest.raises(CampaignError, match="frozen when it was approved"):
            campaign.change(connection, scene.settings, scene.ses, key, actor="ana", template_name="goodbye")


def test_the_better_variant_goes_to_the_rest(scene: World) -> None:
    key = after_the_test(scene)
    clicks(scene, key, "plain", 30)
    clicks(scene, key, "question", 70)
    clicks(scene, key, "plain", 90, after=70)
    assert key in tick(scene).decided
    found = decided(scene, key)
    assert (found.outcome, found.winner, found.actor, found.released) == ("winner", "question", "mailpipe", 120)
    # Clicks of the last minute before the decision are not counted.
    assert [(arm.assigned, arm.delivered, arm.successes) for arm in found.arms] == [(540, 540, 30), (540, 540, 70)]
    assert scene.send(key).end is End.COMPLETE
    versions = dict(
        scene.execute(
            "SELECT template_version, variant FROM mailpipe.campaign_variant WHERE campaign_id = %(id)s",
            {"id": scene.campaign(key).campaign_id},
        )
    )
    assert Counter(versions[line["template"]] for line in scene.journal(key)) == {"plain": 540, "question": 660}
    assert scene.keep_promises(key) == {"sent": 1_200}


def test_an_experiment_without_a_rest_is_decided_all_the_same(scene: World) -> None:
    key = after_the_test(scene, 1_200, experiment=experiment([{**one, "share": 0.5} for one in TWO]), end=End.COMPLETE)
    clicks(scene, key, "question", 70)
    assert key in tick(scene).decided
    found = decided(scene, key)
    assert (found.outcome, found.winner, found.released) == ("winner", "question", 0)
    assert scene.campaign(key).state == "done"


def test_a_decision_is_never_changed(scene: World) -> None:
    key = after_the_test(scene)
    clicks(scene, key, "plain", 50)
    clicks(scene, key, "question", 60)
    assert key in tick(scene).decided
    first = decided(scene, key)
    assert (first.outcome, first.winner) == ("inconclusive", "plain")
    clicks(scene, key, "question", 300, after=20)
    assert key not in tick(scene).decided
    with scene.database.connection() as connection:
        assert decision.decide(connection, scene.settings, key) == first
        with pytest.raises(CampaignError, match="never changed"):
            decision.decide(connection, scene.settings, key, actor="ana", winner="question")
    assert decided(scene, key) == first


def test_complaints_keep_a_variant_from_winning(scene: World) -> None:
    key = after_the_test(scene)
    clicks(scene, key, "plain", 30)
    clicks(scene, key, "question", 70)
    at = (datetime.now(UTC) - AGO + timedelta(seconds=5)).isoformat(timespec="milliseconds")
    seqs = scene.execute(
        "SELECT min(seq) FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE key = %(key)s AND d.variant = 'question'",
        {"key": key},
    )
    take(scene, *(told(COMPLAINT, key, seq, at=at) for (seq,) in seqs))
    tick(scene)
    found = decided(scene, key)
    assert (found.outcome, found.winner) == ("inconclusive", "plain")
    assert "complaint" in (found.reason or "")


def test_orders_decide_where_the_file_says_so(scene: World) -> None:
    scene.execute(
        "CREATE TABLE shop_order (customer bigint, at timestamptz, utm_campaign text);"
        # Somebody who bought before the mail, and somebody who came from another campaign, bought nothing by it.
        " INSERT INTO shop_order SELECT i, now() - interval '1 day', NULL FROM generate_series(1, 1200) i"
        " UNION ALL SELECT i, now() - interval '29 minutes', 'other' FROM generate_series(1, 1200) i"
    )
    config = scene.with_settings(
        orders="SELECT customer AS user_id, at AS ordered_at, utm_campaign AS campaign FROM shop_order"
    )
    key = after_the_test(scene, experiment=experiment(metric="orders"))
    for name, number in (("plain", 30), ("question", 70)):
        scene.execute(
            "INSERT INTO shop_order SELECT CAST(x.id AS bigint), now() - interval '29 minutes', %(key)s"
            " FROM unnest(CAST(%(ids)s AS text[])) AS x(id), generate_series(1, 2)",
            {"key": key, "ids": arms(scene, key)[name][:number]},
        )
    with scene.database.connection() as connection:
        # Without the query nobody can say who won; a person still can.
        (failed,) = [one for one in decision.tick(connection, scene.settings).failed if one.startswith(key)]
        assert "MAILPIPE_ORDERS" in failed
        assert key in decision.tick(connection, config).decided
    found = decided(scene, key)
    assert (found.winner, [arm.successes for arm in found.arms]) == ("question", [30, 70])
    scene.execute("DROP TABLE shop_order")


def test_where_hours_differ_only_what_follows_the_own_mail_counts(scene: World) -> None:
    """The early arm has no head start: a click an hour after its mail is as late as one of the other arm would be."""
    scene.people(1_200)
    hours: list[dict[str, Any]] = [{"name": "plain", "share": 0.45}, {"name": "late", "hour": 23, "share": 0.45}]
    yesterday = (datetime.now(UTC) - timedelta(days=1)).replace(hour=10, minute=0, second=0, microsecond=0, tzinfo=None)
    key = scene.ready(send_at=yesterday.isoformat(), timezone="UTC", experiment=experiment(hours))
    scene.execute(
        "UPDATE mailpipe.chunk SET due_at = now() WHERE campaign_id = %(id)s", {"id": scene.campaign(key).campaign_id}
    )
    scene.send(key, late=True)
    scene.execute(
        "UPDATE mailpipe.call SET at = at - %(ago)s WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id, "ago": AGO},
    )
    delivered = (datetime.now(UTC) - 2 * AGO).isoformat(timespec="milliseconds")
    seqs = [
        seq
        for (seq,) in scene.execute(
            "SELECT seq FROM mailpipe.delivery d JOIN mailpipe.campaign g USING (campaign_id)"
            " WHERE key = %(key)s AND d.variant = 'plain' ORDER BY seq LIMIT 60",
            {"key": key},
        )
    ]
    take(scene, *(told(DELIVERY, key, seq, at=delivered) for seq in seqs))
    clicks(scene, key, "plain", 60)
    with scene.database.connection() as connection:
        now = scene.campaign(key)
        assert [arm.successes for arm in counts.arms(connection, scene.settings, now, at=now.now)] == [0, 0]


def test_nothing_is_decided_before_its_time_and_the_time_is_fixed_once(scene: World) -> None:
    scene.people(400)
    key = scene.ready(experiment=experiment())
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
    assert key not in tick(scene).decided
    with scene.database.connection() as connection:
        assert decision.get(connection, scene.campaign(key).campaign_id) is None
    scene.send(key)
    assert key not in tick(scene).decided
    fixed = decided(scene, key).decide_at
    assert timedelta(seconds=100) < fixed - datetime.now(UTC) < timedelta(minutes=2)
    scene.execute("UPDATE mailpipe.call SET at = at + interval '1 hour'")
    assert key not in tick(scene).decided
    assert decided(scene, key).decide_at == fixed


def test_a_person_decides_sooner_and_against_the_numbers(scene: World) -> None:
    scene.people(400)
    key = scene.ready(experiment=experiment())
    scene.send(key)
    with scene.database.connection() as connection:
        with pytest.raises(CampaignError, match="and not sooner"):
            decision.decide(connection, scene.settings, key, actor="ana")
        with pytest.raises(CampaignError, match="it has: plain, question"):
            decision.decide(connection, scene.settings, key, actor="ana", winner="other")
        found = decision.decide(
            connection, scene.settings, key, actor="ana", winner="question", reason="the other has a wrong price"
        )
        history = campaign.history(connection, found.campaign_id)
    assert (found.outcome, found.winner, found.actor, found.reason) == (
        "manual",
        "question",
        "ana",
        "the other has a wrong price",
    )
    assert history[-1]["action"] == "decide" and history[-1]["actor"] == "ana"
    assert scene.send(key).end is End.COMPLETE


def test_a_paused_campaign_is_decided_and_sends_nothing_and_a_cancelled_one_is_not_decided(scene: World) -> None:
    key = after_the_test(scene, 400)
    with scene.database.connection() as connection:
        campaign.pause(connection, key, actor="ana", reason="look")
    assert key in tick(scene).decided
    assert scene.send(key).end is End.NOT_SENDING
    assert scene.progress(key).sent == 360
    other = after_the_test(scene, 0)
    with scene.database.connection() as connection:
        campaign.cancel(connection, other, actor="ana", reason="sold out")
        assert other not in decision.tick(connection, scene.settings).decided
        with pytest.raises(CampaignError, match="is cancelled"):
            decision.decide(connection, scene.settings, other, actor="ana", winner="plain")


def test_of_several_who_decide_at_once_one_does(scene: World) -> None:
    key = after_the_test(scene, 400)
    barrier = threading.Barrier(4)
    found: list[decision.Decision] = []
    refused: list[str] = []

    def race(winner: str) -> None:
        with scene.database.connection() as connection:
            barrier.wait()
            try:
                found.append(decision.decide(connection, scene.settings, key, actor=winner, winner=winner))
            except CampaignError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=race, args=(name,)) for name in ("plain", "question", "plain", "question")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = decided(scene, key)
    assert found and all(one == final for one in found)
    assert len(found) + len(refused) == 4 and all("never changed" in text for text in refused)
    assert final.released == 40
    with scene.database.connection() as connection:
        assert hold.waiting(connection, final.campaign_id) == {}
        assert [one["action"] for one in campaign.history(connection, final.campaign_id)].count("decide") == 1


def test_who_dies_while_deciding_has_decided_nothing_and_the_next_one_does(scene: World) -> None:
    key = after_the_test(scene, 400)
    campaign_id = scene.campaign(key).campaign_id
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%mailpipe.chunk%%'"
    ended: list[str] = []

    def die() -> None:
        try:
            with scene.database.connection() as connection:
                decision.decide(connection, scene.settings, key, actor="ana", winner="question")
        except psycopg.OperationalError as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=die)
    with scene.database.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(
            "SELECT FROM mailpipe.chunk WHERE campaign_id = %s AND held IS NOT NULL FOR UPDATE", (campaign_id,)
        )
        thread.start()
        wait_for(lambda: bool(scene.execute(waits)), "somebody who is about to free the rest")
        scene.execute(f"SELECT pg_terminate_backend(pid) FROM ({waits}) AS waiting")
        thread.join()
    assert ended == ["AdminShutdown"]
    assert not scene.execute(
        "SELECT FROM mailpipe.experiment WHERE campaign_id = %(id)s AND decided_at IS NOT NULL", {"id": campaign_id}
    )
    with scene.database.connection() as connection:
        assert hold.waiting(connection, campaign_id) == {"experiment": 40}
    assert key in tick(scene).decided
    assert scene.send(key).end is End.COMPLETE


def windows(scene: World, key: str) -> list[tuple[Any, ...]]:
    return scene.execute(
        "SELECT DISTINCT d.timezone, d.variant, c.held, d.due_at FROM mailpipe.delivery d"
        " JOIN mailpipe.chunk c USING (campaign_id, chunk_no) JOIN mailpipe.campaign g USING (campaign_id)"
        " WHERE key = %(key)s ORDER BY d.due_at, d.timezone, d.variant",
        {"key": key},
    )


MORNING = (datetime.now(UTC) + timedelta(days=5)).replace(hour=10, minute=0, second=0, microsecond=0)


def test_by_local_time_the_rest_is_mailed_at_the_same_time_of_another_day(scene: World) -> None:
    scene.people(200)
    scene.execute("UPDATE users SET timezone = CASE WHEN user_id % 2 = 0 THEN 'Asia/Tokyo' ELSE 'America/Lima' END")
    key = scene.ready(send_at=MORNING.replace(tzinfo=None).isoformat(), experiment=experiment())
    tokyo, lima = MORNING - timedelta(hours=9), MORNING + timedelta(hours=5)
    day = timedelta(days=1)
    assert {(zone, held, due) for zone, _, held, due in windows(scene, key)} == {
        ("Asia/Tokyo", None, tokyo),
        ("America/Lima", None, lima),
        ("Asia/Tokyo", "experiment", tokyo + day),
        ("America/Lima", "experiment", lima + day),
    }
    found = scene.campaign(key)
    with scene.database.connection() as connection:
        told_ = connection.execute(
            "SELECT timing -> 'experiment' FROM mailpipe.snapshot WHERE campaign_id = %s", (found.campaign_id,)
        ).fetchone()
    assert told_ is not None and told_[0]["days"] == 1
    assert datetime.fromisoformat(told_[0]["decide_at"]) == lima + timedelta(minutes=2)


def test_with_hours_of_their_own_the_rest_is_mailed_at_these_hours_of_another_day(scene: World) -> None:
    scene.people(600)
    key = scene.create(mode="optimised", due_at=MORNING.isoformat(), experiment=experiment(TWO))
    kept = scene.freeze(key).timing["experiment"]
    assert (kept["arms"], kept["rest"]) == ({"plain": 60, "question": 60}, 480)
    assert kept["days"] >= 1
    assert datetime.fromisoformat(kept["rest_from"]) >= datetime.fromisoformat(kept["decide_at"])
    hours = {held: (min(due for _, _, one, due in windows(scene, key) if one == held)) for held in (None, "experiment")}
    assert hours[None] < MORNING + timedelta(days=1)
    assert hours["experiment"] < MORNING + timedelta(days=1 + kept["days"])


def test_an_hour_is_tried_and_the_rest_gets_the_hour_that_wins(scene: World) -> None:
    scene.people(200)
    hours = [{"name": "morning", "share": 0.4}, {"name": "evening", "hour": 18, "share": 0.4}]
    key = scene.ready(send_at=MORNING.replace(tzinfo=None).isoformat(), timezone="UTC", experiment=experiment(hours))
    day = timedelta(days=1)
    assert [(variant, held, due) for _, variant, held, due in windows(scene, key)] == [
        ("morning", None, MORNING),
        ("evening", None, MORNING + timedelta(hours=8)),
        (None, "experiment", MORNING + day),
    ]
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        decision.decide(connection, scene.settings, key, actor="ana", winner="evening")
    assert windows(scene, key)[-1][1:] == ("evening", None, MORNING + day + timedelta(hours=8))


def test_a_decision_that_comes_late_mails_nobody_at_another_time_of_their_day(scene: World) -> None:
    scene.people(200)
    key = scene.ready(send_at=MORNING.replace(tzinfo=None).isoformat(), experiment=experiment())
    scene.execute(
        "UPDATE mailpipe.chunk SET due_at = due_at - interval '9 days' WHERE campaign_id = %(id)s",
        {"id": scene.campaign(key).campaign_id},
    )
    (before,) = {due for _, _, held, due in windows(scene, key) if held}
    with scene.database.connection() as connection:
        campaign.start(connection, key, actor="ana")
        decision.decide(connection, scene.settings, key, actor="ana", winner="plain")
    now = datetime.now(UTC)
    after = max(due for _, _, _, due in windows(scene, key))
    assert now <= after <= now + timedelta(days=1)
    assert (after - before) % timedelta(days=1) == timedelta()


def test_a_rest_that_would_have_expired_is_told_when_the_audience_is_frozen(scene: World) -> None:
    scene.people(100)
    key = scene.create(
        due_at=MORNING.isoformat(),
        expires_at=(MORNING + timedelta(hours=1)).isoformat(),
        experiment=experiment(decide_after="2h"),
    )
    with pytest.raises(SnapshotError, match="expired"):
        scene.freeze(key)


def test_the_rest_respects_quiet_hours(scene: World) -> None:
    scene.people(100)
    evening = MORNING.replace(hour=13)
    key = scene.ready(due_at=evening.isoformat(), quiet_hours="21:00-08:00", experiment=experiment(decide_after="2h"))
    # In Vietnam it is 20:00 then, and 22:00 when it is decided.
    assert {held: due for _, _, held, due in windows(scene, key)} == {
        None: evening,
        "experiment": evening + timedelta(hours=12),
    }


@pytest.mark.parametrize(
    ("variant", "told_"),
    [
        ({"subject": "Hello {{nobody}}"}, "variant b: subject"),
        ({"template": "missing"}, "missing"),
        ({"subject": "two\nlines"}, "control"),
    ],
)
def test_a_variant_that_makes_no_mail_is_refused_when_the_campaign_is_created(
    scene: World, variant: dict[str, Any], told_: str
) -> None:
    with pytest.raises(TemplateError, match=told_):
        scene.create(experiment=experiment([{"name": "a"}, {"name": "b", **variant}]))


def test_the_effect_of_a_campaign_is_seen_by_those_who_were_held_out(scene: World, run: Callable[..., Result]) -> None:
    scene.people(1_000)
    key = scene.ready(holdout=0.2)
    assert "once MAILPIPE_ORDERS is set" in run("campaign", "experiment", key).output
    scene.send(key)
    scene.execute(
        "CREATE TABLE bought AS SELECT user_id AS id, now() AS at FROM mailpipe.recipient WHERE campaign_id = %(id)s AND seq <= 400"
        " UNION ALL SELECT person_id, now() FROM (SELECT * FROM mailpipe.holdout WHERE campaign_id = %(id)s LIMIT 40) AS first",
        {"id": scene.campaign(key).campaign_id},
    )
    config = scene.with_settings(orders="SELECT id AS user_id, at AS ordered_at FROM bought")
    with scene.database.connection() as connection:
        assert look.effect(connection, scene.settings, key) is None
        found = look.effect(connection, config, key)
    assert found is not None and found.difference is not None
    assert (found.mailed, found.held_out, found.mailed_buyers, found.held_out_buyers) == (800, 200, 400, 40)
    difference, least, most = found.difference
    assert difference == pytest.approx(0.3) and 0.2 < least < difference < most < 0.4
    shown = run("campaign", "experiment", key, env_more={"MAILPIPE_ORDERS": config.orders})
    assert "of 800 who were mailed" in shown.output
    scene.execute("DROP TABLE bought")


@pytest.fixture
def run(scene: World, tmp_path: Path) -> Callable[..., Result]:
    environ = {"MAILPIPE_DATABASE_URL": scene.database.url.render_as_string(hide_password=False), "MAILPIPE_USER": "ana",
               "MAILPIPE_SES_ENDPOINT": scene.stand_in.url, "MAILPIPE_VAR": str(tmp_path), "PATH": os.environ["PATH"],
               "MAILPIPE_HOME": str(scene.settings.home), "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1"}  # fmt: skip
    return lambda *arguments, env_more=None: CliRunner().invoke(main, arguments, env=environ | (env_more or {}))


def test_the_command_line_plans_shows_and_decides(scene: World, run: Callable[..., Result]) -> None:
    scene.people(1_200)
    key = scene.ready(experiment=experiment(decide_after="1h"), holdout=0.05)
    planned = run("campaign", "plan", key).output
    assert "60 people are held out" in planned
    assert "experiment: plain 513, question 513 people" in planned
    assert "114 people wait; decided 1 h after the last mail of the test" in planned
    assert (
        "your arms of 513 can see a lift of +164% or more at a rate of 2.0% (clicks); to see +10 % it takes 80,682"
        in planned
    )
    scene.send(key)
    shown = run("campaign", "experiment", key)
    assert shown.exit_code == 0 and "planned to be decided at" in shown.output and "held out" in shown.output
    early = run("campaign", "decide", key)
    assert early.exit_code == 2 and "and not sooner" in early.output
    assert "say why" in run("campaign", "decide", key, "--winner", "question").output
    done = run("campaign", "decide", key, "--winner", "question", "--reason", "the price in plain is wrong", "--json")
    assert json.loads(done.output)["winner"] == "question"
    after = json.loads(run("campaign", "experiment", key, "--json").output)
    assert (after["decision"]["reason"], after["waiting"], after["held_out"]) == ("the price in plain is wrong", 0, 60)
    assert [arm["delivered"] for arm in after["arms"]] == [513, 513]
    assert "the price in plain is wrong" in run("campaign", "experiment", key).output
    assert "no experiment" in run("campaign", "experiment", scene.ready()).output


def test_the_command_line_says_how_many_people_it_takes_and_shows_every_mail(
    scene: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    assert "80,682 people an arm" in run("experiment", "size", "--rate", "0.02", "--lift", "0.1").output
    lift = json.loads(run("experiment", "size", "--rate", "0.02", "--people", "10000", "--json").output)["lift"]
    assert lift == pytest.approx(0.297, abs=0.001)
    assert "--rate" in run("experiment", "size", "--rate", "2", "--lift", "0.1").output
    file = tmp_path / "test.yaml"
    file.write_text(
        "key: subject-test\nsegment: everybody\ntemplate: hello\nsender: Shop <news@mail.example.com>\n"
        "experiment:\n  variants:\n    - {name: plain}\n    - {name: question, subject: 'Well, {{first_name}}?'}\n"
    )
    shown = run("experiment", "preview", str(file))
    assert "Hello Ana" in shown.output and "Well, Ana?" in shown.output
    assert "it has: plain, question" in run("experiment", "preview", str(file), "--variant", "x").output


def test_nobody_is_mailed_twice_by_an_experiment(scene: World) -> None:
    key = after_the_test(scene, 400)
    tick(scene)
    scene.send(key)
    with scene.database.connection() as connection:
        assert invariant.accepted_twice(connection, key) == 0
        assert invariant.stateless_people(connection, key) == 0
