-- The order of people in waves. Run in the transaction of the snapshot, between staging and numbering.

-- name: people
-- Who is no part of the history of engagement has been mailed by nobody yet: T4.
CREATE TEMPORARY TABLE wave_person ON COMMIT DROP AS
SELECT person.place, {{family}} AS family,
       CASE WHEN e.person_id IS NULL THEN CAST(4 AS smallint)
            ELSE mailpipe.engagement_tier(e.last_engaged_at, e.last_clicked_at, e.last_bought_at, e.since, CAST(:at AS timestamptz))
       END AS tier,
       hashtextextended(person.user_id, :salt) AS hash
FROM {{staged}} AS person
LEFT JOIN mailpipe.engagement e ON e.person_id = person.user_id
WHERE person.place NOT IN (SELECT r.place FROM refused r);

-- name: refuse
INSERT INTO refused SELECT place, 'inactive_tier' FROM wave_person WHERE tier = ANY(CAST(:tiers AS smallint[]));

-- name: numbers
SELECT family, tier, count(*) FROM wave_person WHERE tier <> ALL(CAST(:tiers AS smallint[])) GROUP BY family, tier;

-- name: pieces
-- Everybody in one line: by family, wave, tier, and hash, so that nobody goes first for having a low number. `firsts` are the ranks in
-- that line at which pieces begin.
CREATE TEMPORARY TABLE wave_piece ON COMMIT DROP AS
SELECT place, width_bucket(rank, CAST(:firsts AS integer[])) - 1 AS piece
FROM (
    SELECT place, CAST(row_number() OVER (
        ORDER BY family COLLATE "C", (CAST(:waves AS smallint[]))[tier], tier, hash, place) AS integer) AS rank
    FROM wave_person WHERE tier <> ALL(CAST(:tiers AS smallint[]))
) AS line;
