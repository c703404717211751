"""How the assets are cut: by day, by campaign, and by campaign and slice. Names and order are never changed again: Dagster
keeps them with everything that happened.
"""

import dagster as dg

DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_offset=1)
"""Of segments. A day stands for its end in UTC, today for now."""

FOLDED_DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_offset=-1)
"""Of engagement. A day is one of UTC, and is there when the 24 hours of its last mail are over too."""

CAMPAIGNS = dg.DynamicPartitionsDefinition(name="campaign")
"""One partition per campaign. A key that is removed and added again brings its old colours back: keys are never reused."""

SLICES = tuple(f"{number:02d}" for number in range(100))

CAMPAIGN_SLICES = dg.MultiPartitionsDefinition({"campaign": CAMPAIGNS, "slice": dg.StaticPartitionsDefinition(SLICES)})
"""A hundredth of a campaign, so that its partition bar is a per cent bar."""

OWNERS = ["team:growth"]
