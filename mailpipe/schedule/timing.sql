-- Due times of a staged audience. Run in the transaction of the snapshot, between staging and numbering.

-- name: zones
SELECT DISTINCT coalesce(timezone, '') FROM {{staged}};

-- name: rank
CREATE TEMPORARY TABLE due_rank (zone text NOT NULL, rank integer NOT NULL) ON COMMIT DROP;

-- name: ranks
INSERT INTO due_rank SELECT x.text, x.rank FROM unnest(CAST(:texts AS text[]), CAST(:ranks AS integer[])) AS x(text, rank);

-- name: known
-- Else the planner expects more zones than there are, and sorts a million texts to join them.
ANALYZE due_rank;

-- name: refuse
INSERT INTO refused
SELECT s.place, x.reason FROM {{staged}} s
JOIN unnest(CAST(:texts AS text[]), CAST(:reasons AS text[])) AS x(text, reason) ON x.text = coalesce(s.timezone, '')
WHERE s.place NOT IN (SELECT place FROM refused);

-- name: people
SELECT coalesce(timezone, ''), count(*) FROM {{table}} GROUP BY 1;

-- name: keep_due
INSERT INTO mailpipe.due (campaign_id, due_at, first_slice, last_slice, people)
SELECT :campaign_id, x.due_at, x.first_slice, x.last_slice, x.people
FROM unnest(CAST(:dues AS timestamptz[]), CAST(:firsts AS smallint[]), CAST(:lasts AS smallint[]), CAST(:people AS integer[]))
    AS x(due_at, first_slice, last_slice, people);
