"""Who reads, and at which hour of their own day: counts for each person, folded day by day from what was sent and what came back.

`rule` is the arithmetic, `days` knows which days are folded, `fold` folds one, `hours` knows people's clocks, `history` keeps the
days as Parquet, `intake` brings in histories that others kept, `look` answers questions. What follows for a campaign (when, to whom
first) belongs to others. This package alone writes `engagement`, `engagement_state`, `engagement_fold` and `engagement_import`.
"""
