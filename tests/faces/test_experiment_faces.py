"""Experiments in Dagster: mails of variants with the frozen audience, numbers of arms in the report, and a sensor that decides."""

from __future__ import annotations

from typing import Any, cast

import dagster as dg
import pytest

from assets.report import campaign_report
from assets.resources import DatabaseResource
from mailpipe.experiment.decision import Ticked
from mailpipe.send import End
from sensors.experiments import experiments, told
from tests.db.test_experiment import after_the_test, clicks, experiment
from tests.faces.conftest import Faces
from tests.faces.test_sensors import tick


def test_a_tick_says_what_was_decided_and_what_comes() -> None:
    assert told(Ticked((), None)) == "no experiment waits for its time"
    assert told(Ticked(("sale",), None, ("other: no orders",))) == "decided sale; failed: other: no orders"


def test_a_sensor_decides_and_the_report_shows_the_arms(faces: Faces) -> None:
    world = faces.world
    key = after_the_test(world)
    clicks(world, key, "plain", 30)
    clicks(world, key, "question", 70)
    assert f"decided {key}" in str(tick(experiments, faces).skip_message)
    assert "decided" not in str(tick(experiments, faces).skip_message)
    faces.register(key)
    done = faces.run("report", partition_key=key)
    assert done.success
    (event,) = done.get_asset_materialization_events()
    made = event.step_materialization_data.materialization
    assert made.metadata["experiment_winner"].value == "question"
    assert made.metadata["rate_question"].value == 70 / 540
    assert float(str(made.metadata["chance_question"].value)) > 0.99
    checks = {one.check_name: one.passed for one in done.get_asset_check_evaluations()}
    assert checks["arms_are_comparable"]


def test_the_report_shows_who_was_held_out_and_what_the_mail_did(faces: Faces, monkeypatch: pytest.MonkeyPatch) -> None:
    world = faces.world
    world.people(200)
    key = world.ready(holdout=0.1)
    world.send(key)

    def report() -> dict[str, object]:
        with dg.build_asset_context(partition_key=key) as context:
            made = cast(dg.MaterializeResult[Any], campaign_report(context, database=DatabaseResource()))
        return dict(made.metadata or {})

    metadata = report()
    assert metadata["held_out"] == 20 and "effect" not in metadata
    monkeypatch.setenv("MAILPIPE_ORDERS", "SELECT user_id, now() AS ordered_at FROM users")
    metadata = report()
    assert (metadata["buyers_mailed"], metadata["buyers_held_out"], metadata["effect"]) == (180, 20, 0)


def test_a_person_decides_with_a_form(faces: Faces) -> None:
    world = faces.world
    world.people(200)
    key = world.ready(experiment=experiment())
    world.send(key)
    form = {"campaign": key, "actor": "ana", "reason": "wrong price in plain", "variant": "question"}
    assert faces.run("decide_experiment", form).success
    assert world.send(key).end is End.COMPLETE
    assert not faces.run("decide_experiment", {**form, "variant": "plain"}).success


def test_the_frozen_audience_shows_the_mail_of_every_variant(faces: Faces) -> None:
    faces.world.people(100)
    key = faces.world.create(experiment=experiment())
    faces.register(key)
    done = faces.run("snapshot", partition_key=key)
    (event,) = done.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert "experiment: plain 45, question 45 people" in str(metadata["experiment"].value)
    assert float(str(metadata["smallest_lift"].value)) > 2
    shown = metadata["variants"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [(row.data["variant"], row.data["subject"]) for row in shown.records] == [
        ("plain", "Hello Ana"),
        ("question", "Are you there, Ana?"),
    ]
