"""A campaign's life through the forms of the UI, its snapshot and its report."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import AssetCheckEvaluation

from jobs.campaign import form
from mailpipe.campaign_file import Spec
from tests.faces.conftest import Faces

FIELDS = {
    "author": "ana",
    "segment": "everybody",
    "template": "hello",
    "sender": "Shop <news@mail.example.com>",
    "rate": 5_000.0,
    "finish_within": "30m",
}


def create(faces: Faces, **fields: Any) -> str:
    key = fields.pop("key", f"form-{next(faces.world.numbers)}")
    assert faces.run("create_campaign", {**FIELDS, "key": key, **fields}).success
    return str(key)


def red(result: Any) -> list[str]:
    checks: list[AssetCheckEvaluation] = result.get_asset_check_evaluations()
    assert checks, "no check was made"
    return sorted(check.check_name for check in checks if not check.passed)


def test_the_form_has_the_fields_of_a_campaign_file_and_a_name() -> None:
    fields = form()
    assert list(fields) == ["author", *Spec.model_fields]
    required = {name for name, field in fields.items() if field.is_required}
    assert required == {"author", *(name for name, field in Spec.model_fields.items() if field.is_required())}
    assert all(field.description for field in fields.values())


def test_a_campaign_is_created_approved_frozen_sent_and_reported(faces: Faces) -> None:
    faces.world.people(520)
    key = create(faces)
    assert key in faces.instance.get_dynamic_partitions("campaign")
    found = faces.world.campaign(key)
    assert (found.state, found.author, found.spec.finish_within) == ("draft", "ana", 1_800)

    own = faces.run("approve_campaign", {"campaign": key, "approver": "ana"})
    assert "author cannot approve" in faces.failure(own)
    assert faces.run("approve_campaign", {"campaign": key, "approver": "ben"}).success
    assert faces.world.campaign(key).state == "approved"

    frozen = faces.run("snapshot", partition_key=key)
    (event,) = frozen.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert event.partition == key
    assert metadata["recipients"].value == metadata["returned"].value == 520
    assert len(str(metadata["segment_sha256"].value)) == 64
    assert red(frozen) == []

    assert faces.send(f"{key}|00", f"{key}|99", actor="ben").success
    assert faces.world.keep_promises(key) == {"sent": 520}
    reported = faces.run("report", partition_key=key)
    (event,) = reported.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["state"].value == "done"
    assert metadata["total"].value == metadata["sent"].value == 520
    assert metadata["pending"].value == metadata["unknown"].value == 0
    assert red(reported) == []
    assert "@mail.example.com" not in faces.everything_written().replace("news@mail.example.com", "")


def test_a_second_snapshot_is_refused_in_words(faces: Faces) -> None:
    faces.world.people(60)
    key = create(faces)
    assert faces.run("snapshot", partition_key=key).success
    faces.world.people(40, first=61)
    assert "has a snapshot already" in faces.failure(faces.run("snapshot", partition_key=key))
    assert faces.world.progress(key).total == 60


def test_it_is_paused_resumed_and_cancelled_by_somebody_with_a_name_and_a_reason(faces: Faces) -> None:
    faces.world.people(60)
    key = create(faces, due_at="2099-01-01T09:00:00+07:00")
    faces.world.approve(key)
    faces.world.freeze(key)
    faces.world.send(key)
    assert faces.run("pause_campaign", {"campaign": key, "actor": "cleo", "reason": "wrong price"}).success
    paused = faces.world.campaign(key)
    assert (paused.state, paused.state_reason) == ("paused", "wrong price")
    assert faces.run("resume_campaign", {"campaign": key, "actor": "cleo"}).success
    assert faces.world.campaign(key).state == "sending"
    again = faces.run("resume_campaign", {"campaign": key, "actor": "cleo"})
    assert "only a paused one can be resumed" in faces.failure(again)
    assert faces.run("cancel_campaign", {"campaign": key, "actor": "cleo", "reason": "sold out"}).success
    assert faces.world.keep_promises(key) == {"skipped": 60}
    assert faces.world.journal(key) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chunk_size": 7}, "create_campaign: chunk_size:"),
        ({"rate": -1.0}, "create_campaign: rate:"),
        ({"due_at": "2026-11-27T09:00:00"}, "create_campaign: due_at: needs an offset"),
        ({"segment": "nobody"}, "segment 'nobody': not in"),
        ({"template": "nothing"}, "hello"),
        ({"parameters": {"days": 3}}, "no parameter 'days'"),
        ({"key": "Sale!"}, "create_campaign: key:"),
        ({"author": " "}, "author"),
    ],
)
def test_a_wrong_field_is_named(faces: Faces, fields: dict[str, Any], words: str) -> None:
    given = {**FIELDS, "key": f"form-{next(faces.world.numbers)}", **fields}
    assert words in faces.failure(faces.run("create_campaign", given))
    assert faces.instance.get_dynamic_partitions("campaign") == []


def test_a_key_is_never_used_again(faces: Faces) -> None:
    key = create(faces)
    assert "exists already" in faces.failure(faces.run("create_campaign", {**FIELDS, "key": key}))


def test_the_checks_turn_red_when_the_ledger_is_wrong(faces: Faces) -> None:
    """Each rule is broken by hand, behind the back of everything that keeps it."""
    faces.world.people(120)
    key = faces.ready()
    assert faces.send(f"{key}|00", f"{key}|99").success
    world = faces.world
    number = {"id": world.campaign(key).campaign_id}
    world.execute(
        "INSERT INTO mailpipe.suppression (email_key, reason, source, at)"
        " VALUES ('person7@mail.example.com', 'manual', 'test', now() - interval '1 hour')"
    )
    assert red(faces.run("report", partition_key=key)) == ["nobody_suppressed_was_mailed"]
    world.execute("TRUNCATE mailpipe.suppression")
    world.execute(
        "INSERT INTO mailpipe.call (campaign_id, chunk_no, no, seconds, positions, accepted, codes, message_ids_text)"
        " SELECT campaign_id, chunk_no, no + 100, seconds, positions, 1, 's' || repeat('f', CAST(bit_count(positions) AS int) - 1),"
        " 'again' FROM mailpipe.call WHERE campaign_id = %(id)s AND chunk_no = 0 AND no = 1",
        number,
    )
    assert red(faces.run("report", partition_key=key)) == ["nobody_mailed_twice"]
    world.execute("DELETE FROM mailpipe.call WHERE campaign_id = %(id)s AND message_ids_text = 'again'", number)
    world.execute("DELETE FROM mailpipe.chunk WHERE campaign_id = %(id)s AND chunk_no = 1", number)
    assert "nobody_lost" in red(faces.run("report", partition_key=key))


def test_a_warm_up_is_planned_in_the_form_and_shown_day_by_day(faces: Faces) -> None:
    faces.world.people(300)
    key = create(
        faces,
        finish_within=None,
        sender="Shop <news@warm.example.com>",
        warmup={"ramp": [50, 100, 200]},
        waves=[{"tiers": ["T1"], "within": "30m"}, {"rest": True, "spread": "2h"}],
    )
    (event,) = faces.run("snapshot", partition_key=key).get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert [metadata[f"people_day_{day}"].value for day in (1, 2, 3)] == [50, 100, 150]
    assert metadata["waves_parts"].value == 3
    assert "done on day 3" in str(metadata["waves_plot"].value)
    assert faces.run("approve_campaign", {"campaign": key, "approver": "ben"}).success
    assert faces.send(f"{key}|00", f"{key}|99", actor="ben").success
    (event,) = faces.run("report", partition_key=key).get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert (metadata["waves_gone"].value, metadata["waves_to_come"].value) == (1, 2)
    form = {"campaign": key, "actor": "ana", "reason": "Postmaster Tools is not seen yet"}
    for go in (False, True):
        assert faces.run("judge_gate", {**form, "go": go}).success
    verdicts = faces.world.execute(
        "SELECT action FROM mailpipe.audit WHERE campaign_id = %(id)s AND action LIKE 'gate %%' ORDER BY audit_id",
        {"id": faces.world.campaign(key).campaign_id},
    )
    assert verdicts == [("gate hold",), ("gate pass",)]


def test_a_correction_is_created_in_the_form(faces: Faces) -> None:
    faces.world.people(60)
    first = create(faces)
    assert faces.run("approve_campaign", {"campaign": first, "approver": "ben"}).success
    assert faces.run("snapshot", partition_key=first).success
    assert faces.send(f"{first}|00", f"{first}|99", actor="ben").success
    sorry = create(faces, segment=None, audience={"campaign": first, "delivery": ["sent"]})
    (event,) = faces.run("snapshot", partition_key=sorry).get_asset_materialization_events()
    assert event.materialization.metadata["recipients"].value == 60
    assert event.materialization.metadata["segment"].value == f"campaign {first}: sent"
