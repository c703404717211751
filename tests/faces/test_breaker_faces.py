"""The breaker in Dagster: its rates as checks with numbers, and a sensor that looks a second time."""

from __future__ import annotations

import dagster as dg

from assets.checks import of_finding
from mailpipe.breaker import Counts, assess
from mailpipe.feedback.upkeep import Kept
from mailpipe.lines import Lines
from sensors.breaker import breaker, told
from tests.db.test_feedback import COMPLAINT, take
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
    assert told(Kept(0, [], [])) == "no campaign is beyond its lines"
    assert "until a person resumes: flash-sale" in told(Kept(2, [], ["flash-sale"]))
    assert told(Kept(2, ["event_202601"], [])) == "2 events found their person late; dropped event_202601"


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
