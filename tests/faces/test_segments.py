"""Segments as assets: one per file, editable parameters, numbers without people, and a broken file that breaks nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import definitions
from assets import resources
from assets.segments import as_of, build
from mailpipe import segment as segments
from tests.faces.conftest import Faces

HEADER = "-- title: People\n-- owner: team:growth\n-- description: For tests.\n"
CHECKOUT = Path(definitions.__file__).parent / "assets" / "segments"
FEW = (
    HEADER
    + """\
-- param least int = 1: the first user id
-- param country text = null: two letters; null takes all
-- param since date = 2019-01-01: signed up on that day or later

SELECT user_id, email, locale, timezone, first_name
FROM users
WHERE user_id >= :least AND created_at >= :since AND created_at <= :as_of
  AND (:country IS NULL OR locale LIKE '%-' || :country)
"""
)


def test_each_file_is_an_asset_with_its_parameters_as_a_form() -> None:
    files, problems = segments.load_all(CHECKOUT)
    assert not problems
    made = {asset.key.to_user_string(): asset for asset in build(CHECKOUT)}
    assert sorted(made) == [segment.name for segment in files]
    for segment in files:
        asset = made[segment.name]
        shape: Any = asset.op.config_schema.as_field().config_type
        fields = shape.fields if segment.parameters else {}
        assert fields.keys() == {parameter.name for parameter in segment.parameters}
        for parameter in segment.parameters:
            assert fields[parameter.name].default_value == parameter.default
            assert fields[parameter.name].description == parameter.description
        (spec,) = asset.specs
        assert spec.owners == [segment.owner]
        assert spec.description is not None
        assert segment.sql in spec.description


def test_a_broken_file_is_there_says_why_and_leaves_the_others_alone(tmp_path: Path, faces: Faces) -> None:
    (tmp_path / "few.sql").write_text(FEW)
    (tmp_path / "broken.sql").write_text(HEADER + "SELECT user_id FROM users; DROP TABLE users\n")
    (tmp_path / "Not A Name.sql").write_text(FEW)
    made = {asset.key.to_user_string(): asset for asset in build(tmp_path)}
    assert sorted(made) == ["broken", "broken_segment_0", "few"]
    (spec,) = made["broken"].specs
    assert spec.description is not None
    assert f"{tmp_path / 'broken.sql'}:4:" in spec.description
    assert spec.tags["mailpipe/broken"] == "true"
    result = dg.materialize([made["broken"]], instance=faces.instance, partition_key="2026-02-01", raise_on_error=False)
    assert f"{tmp_path / 'broken.sql'}:4:" in faces.failure(result)


@pytest.mark.parametrize("name", ["snapshot", "deliveries", "campaign_report"])
def test_a_file_cannot_take_the_place_of_an_asset_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.sql").write_text(FEW)
    (asset,) = build(tmp_path)
    assert asset.key.to_user_string() == "broken_segment_0"
    (spec,) = asset.specs
    assert f"the asset {name} is mailpipe's own" in str(spec.description)


def test_a_file_may_be_called_like_a_job(tmp_path: Path) -> None:
    for name in ("send", "reconcile", "report", "create", "settle", "freeze"):
        (tmp_path / f"{name}.sql").write_text(FEW)
    others = [asset for asset in definitions.defs.assets or [] if isinstance(asset, dg.AssetsDefinition)]
    both = dg.Definitions(
        assets=[*others, *build(tmp_path)], jobs=definitions.defs.jobs, resources=definitions.defs.resources
    )
    assert {job.name for job in both.get_repository_def().get_all_jobs()} >= {"send", "reconcile", "report"}


def test_its_numbers_are_plotted_and_its_parameters_may_be_changed(faces: Faces) -> None:
    folder = faces.world.settings.segments
    (folder / "few.sql").write_text(FEW)
    faces.world.people(40)
    (asset,) = [asset for asset in build(folder) if asset.key.to_user_string() == "few"]

    def people(config: dict[str, object], day: str = "2026-02-01") -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [asset],
            instance=faces.instance,
            partition_key=day,
            resources=resources.build(),
            run_config={"ops": {"segment_few": {"config": config}}},
            raise_on_error=False,
        )

    (event,) = people({}).get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["people"].value == 40
    assert isinstance(metadata["people"], dg.IntMetadataValue)
    assert isinstance(metadata["sample"], dg.TableMetadataValue)
    assert isinstance(metadata["by_provider"], dg.TableMetadataValue)
    locales = metadata["by_locale"]
    assert isinstance(locales, dg.TableMetadataValue)
    assert [record.data for record in locales.records] == [{"value": "vi-VN", "people": 40, "share": 1.0}]
    (event,) = people({"least": 31}).get_asset_materialization_events()
    assert event.materialization.metadata["people"].value == 10
    (event,) = people({"country": "FR"}).get_asset_materialization_events()
    assert event.materialization.metadata["people"].value == 0
    # The fixture's people signed up in 2020.
    (event,) = people({"since": "2021-01-01"}).get_asset_materialization_events()
    assert event.materialization.metadata["people"].value == 0
    assert "parameter since" in faces.failure(people({"since": "yesterday"}))
    assert "@mail.example.com" not in faces.everything_written()


def test_what_only_the_server_finds_wrong_is_told_with_file_and_line(faces: Faces) -> None:
    folder = faces.world.settings.segments
    path = folder / "wrong.sql"
    path.write_text(HEADER + "SELECT user_id, email\nFROM nowhere\n")
    try:
        (asset,) = [asset for asset in build(folder) if asset.key.to_user_string() == "wrong"]
        result = dg.materialize(
            [asset],
            instance=faces.instance,
            partition_key="2026-02-01",
            resources=resources.build(),
            raise_on_error=False,
        )
        assert f'{path}:5: relation "nowhere" does not exist' in faces.failure(result)
    finally:
        path.unlink()


def test_a_day_stands_for_its_end_and_today_for_now() -> None:
    midnight, now = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 9, 12, tzinfo=UTC)
    assert as_of(midnight, now) == midnight
    assert as_of(datetime(2026, 3, 10, tzinfo=UTC), now) == now
