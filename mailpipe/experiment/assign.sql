-- Who of a staged audience is in which arm, and who is left out. Run in the transaction of the snapshot.

-- part: standing
-- Of the rows with one address only the first is going to stay.
SELECT place, user_id FROM (
    SELECT s.place, s.user_id, row_number() OVER (
        PARTITION BY hashtextextended(mailpipe.email_key(s.email), 0), CASE WHEN s.email <> '' THEN 0 ELSE s.place END ORDER BY s.place) AS no
    FROM {{staged}} AS s WHERE s.place NOT IN (SELECT r.place FROM refused r)
) AS every WHERE no = 1

-- name: rank
-- Somebody under two addresses is one person, and has one rank.
CREATE TEMPORARY TABLE experiment_rank ON COMMIT DROP AS
SELECT place, CASE WHEN :exact THEN dense_rank() OVER (ORDER BY position) - 1 ELSE position END AS value
FROM (SELECT person.place, {{position}} AS position FROM ({{standing}}) AS person OFFSET 0) AS hashed;

-- name: people
SELECT coalesce(CASE WHEN CAST(:exact AS boolean) THEN max(value) + 1 ELSE count(*) END, 0) FROM experiment_rank;

-- name: analyze
ANALYZE experiment_rank;

-- name: hold_out
WITH ranked AS MATERIALIZED (
    SELECT place, user_id, position, dense_rank() OVER (ORDER BY position) - 1 AS rank
    FROM (SELECT person.place, person.user_id, {{position}} AS position FROM ({{standing}}) AS person OFFSET 0) AS hashed
),
held_out AS (
    INSERT INTO refused (place, reason)
    SELECT place, 'holdout' FROM ranked
    WHERE CASE WHEN :exact THEN rank < round(CAST(:share AS numeric) * (SELECT max(rank) + 1 FROM ranked)) ELSE position < :bound END
    RETURNING place
)
INSERT INTO mailpipe.holdout (campaign_id, person_id)
SELECT DISTINCT CAST(:campaign_id AS integer), user_id FROM ranked JOIN held_out USING (place);
