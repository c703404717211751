-- The order of people in waves. Run in the transaction of the snapshot, between staging and numbering.

-- name: people
-- Everybody's place in line as one number, which sorts four times as fast as its parts: the lot (family, wave and tier, as `Waves` counts
-- them), then a hash, so that nobody goes first for having a low number. Who is in no history of engagement has been mailed by nobody
-- yet: T4.
CREATE TEMPORARY TABLE wave_person ON COMMIT DROP AS
SELECT place, lot, (CAST(lot AS bigint) << 48) | (hash & 281474976710655) AS line
FROM (
    SELECT place, tier + 10 * (CAST(:waves AS integer[]))[tier] + 1000 * ({{family}}) AS lot, hash
    FROM (
        SELECT person.place, person.email, hashtextextended(person.user_id, :salt) AS hash,
               CASE WHEN e.person_id IS NULL THEN 4
                    ELSE mailpipe.engagement_tier(e.last_engaged_at, e.last_clicked_at, e.last_bought_at, e.since, CAST(:at AS timestamptz))
               END AS tier
        FROM {{staged}} AS person
        LEFT JOIN mailpipe.engagement e ON e.person_id = person.user_id
        WHERE person.place NOT IN (SELECT r.place FROM refused r)
    ) AS person
) AS sorted;

-- name: refuse
INSERT INTO refused SELECT place, 'inactive_tier' FROM wave_person WHERE lot % 10 = ANY(CAST(:tiers AS integer[]));

-- name: numbers
SELECT lot, count(*) FROM wave_person WHERE lot % 10 <> ALL(CAST(:tiers AS integer[])) GROUP BY lot ORDER BY lot;

-- name: pieces
-- `firsts` are the ranks in line at which pieces begin.
CREATE TEMPORARY TABLE wave_piece ON COMMIT DROP AS
SELECT place, width_bucket(rank, CAST(:firsts AS integer[])) - 1 AS piece
FROM (
    SELECT place, CAST(row_number() OVER (ORDER BY line) AS integer) AS rank
    FROM wave_person WHERE lot % 10 <> ALL(CAST(:tiers AS integer[]))
) AS line;
