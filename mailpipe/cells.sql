-- Cells of a staged audience. Run in the transaction of the snapshot, between staging and numbering.

-- name: keys
-- One row per person who is not refused, with the number of the zone's group and the assigners' keys.
CREATE TEMPORARY TABLE person_key ON COMMIT DROP AS
SELECT person.place, {{group}} AS zone_group, {{columns}}
FROM {{staged}} AS person
{{joins}}
WHERE person.place NOT IN (SELECT r.place FROM refused r);

-- name: combinations
CREATE TEMPORARY TABLE cell_key ON COMMIT DROP AS
SELECT CAST(row_number() OVER () AS integer) AS number, CAST(0 AS integer) AS cell_rank, zone_group, {{names}}
FROM (SELECT DISTINCT zone_group, {{names}} FROM person_key) AS met;

-- name: met
SELECT number, zone_group, {{names}} FROM cell_key;

-- name: rank
UPDATE cell_key k SET cell_rank = x.cell_rank
FROM unnest(CAST(:numbers AS integer[]), CAST(:ranks AS integer[])) AS x(number, cell_rank) WHERE k.number = x.number;

-- name: known
-- Else the planner expects more combinations than there are, and sorts a million people to join them.
ANALYZE cell_key;

-- name: place
CREATE TEMPORARY TABLE placed ON COMMIT DROP AS
SELECT p.place, k.cell_rank FROM person_key p JOIN cell_key k USING (zone_group, {{names}});

-- name: people
SELECT cell_rank, count(*) FROM placed WHERE place NOT IN (SELECT place FROM refused) GROUP BY cell_rank;
