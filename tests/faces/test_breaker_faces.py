"""The breaker in Dagster: its rates as checks with numbers, and a sensor that looks a second time."""

from __future__ import annotations

from typing import Any, cast

import dagster as dg

from assets.checks import of_finding
from assets.report import campaign_report
from assets.resources import DatabaseResource
from mailpipe.breaker import Counts, assess
from mailpipe.feedback.upkeep import Kept
from mailpipe.lines import Lines
from sensors.breaker import breaker, told
from tests.db.test_campaign_feedback import TIERED
from tests.db.test_feedback import COMPLAINT, DELIVERY, take
from tests.db.test_feedback import told as event
from tests.faces.conftest import Faces
from tests.faces.test_sensors import tick


def test_a_rate_warns_from_half_of_its_line_and_is_an_error_beyond_it() -> None:
    seen = {}
    for complaints in (0, 60, 110):
        result = of_finding(assess(Counts(100_000, 90_000, complaints, 0, 0), Lines())[0])
        seen[complaints] = (result.passed, result.severity.value)
        assert result.metadata["rate"].value == complaints / 100_000
        assert result.metadata["sample"].value == 100_000
    assert seen == {0: (True, "WARN"), 60: (False, "WARN"), 110: (False, "ERROR")}
    assert of_finding(assess(Counts(10, 9, 9, 0, 0), Lines())[0]).passed, "too few to say anything"


def test_a_tick_says_what_it_did() -> None:
    assert told(Kept(0, [])) == "no campaign is beyond its lines"
    assert "until a person resumes: flash-sale" in told(Kept(2, ["flash-sale"]))
    assert told(Kept(2, [])) == "2 events found their person late"


def test_the_second_look_pauses_what_the_first_did_not(faces: Faces) -> None:
    world = faces.world
    world.people(20)
    key = world.ready(lines={"complaints": 0.5, "complaints_after": 1})
    world.send(key, (0, 0))
    take(world, event(COMPLAINT, key, 1))
    world.execute("UPDATE mailpipe.campaign SET state = 'sending', spec = jsonb_set(spec, '{lines,complaints}', '0.01')"
                  " WHERE key = %(key)s", {"key": key})  # fmt: skip
    skipped = tick(breaker, faces)
    assert isinstance(skipped, dg.SkipReason | type(skipped))
    assert world.campaign(key).state == "paused"
    assert key in str(skipped.skip_message)


def test_the_report_of_a_campaign_tells_who_complains_and_checks_its_rates(faces: Faces) -> None:
    world = faces.world
    (world.settings.segments / "tiered.sql").write_text(TIERED)
    world.people(10)
    key = world.ready(segment="tiered", lines={"complaints": 0.2, "complaints_after": 5})
    world.send(key)
    take(world, event(COMPLAINT, key, 5), event(COMPLAINT, key, 6), event(DELIVERY, key, 1))
    with dg.build_asset_context(partition_key=key) as context:
        result = cast(dg.MaterializeResult[Any], campaign_report(context, database=DatabaseResource()))
    metadata: dict[str, Any] = dict(result.metadata or {})
    assert metadata["share_at_gmail"] == 0
    assert 9 < metadata["delivery_p95_seconds"] < 12
    rows = [dict(record.data) for record in metadata["complaints_by_tier"].records]
    assert rows[0] == {"tier": "basic", "sent": 6, "complaints": 2}
