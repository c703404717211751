"""What exists: segments, snapshots, deliveries and reports as Dagster assets, and the resources that they run with.

`segments/`, `templates/` and `campaigns/` beside this file belong to the people who write campaigns. A module here holds a
decorator, a call into `mailpipe`, and metadata; an `if` about mail belongs in the library.
"""

import warnings

import dagster as dg

# Dagster calls these unfinished. The deliveries rest on them; the tests of the faces hold Dagster to it.
warnings.filterwarnings("ignore", "Parameter `(backfill_policy|owners)`", dg.BetaWarning)
warnings.filterwarnings("ignore", "Specifying a partitions_def on an AssetCheckSpec", dg.PreviewWarning)
