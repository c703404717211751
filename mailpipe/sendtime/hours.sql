-- The hours table: read from `engagement`, written anew.

-- name: zones
SELECT coalesce(zone, '') AS zone, count(*) FROM mailpipe.engagement GROUP BY 1 ORDER BY 1;

-- name: state
SELECT folded_to, freshness FROM mailpipe.engagement_state;

-- name: number_zones
CREATE TEMPORARY TABLE send_zone ON COMMIT DROP AS
SELECT x.zone, CAST(x.number - 1 AS integer) AS number FROM unnest(CAST(:zones AS text[])) WITH ORDINALITY AS x(zone, number);

-- name: read
-- Who has ever engaged. Fields of fixed length first, so that a block of rows is one array.
COPY (
    SELECT e.ev, e.ex, z.number, mailpipe.engagement_weight(e.as_of, coalesce(s.folded_to, e.as_of)), e.person_id
    FROM mailpipe.engagement e
    JOIN send_zone z ON z.zone = coalesce(e.zone, '')
    LEFT JOIN mailpipe.engagement_state s ON true
    WHERE e.events > 0
) TO STDOUT (FORMAT BINARY);

-- name: exposed
-- How much the others were exposed, by zone.
SELECT z.number, {{sums}}
FROM (
    SELECT e.zone, e.ex, mailpipe.engagement_weight(e.as_of, coalesce(s.folded_to, e.as_of)) AS weight
    FROM mailpipe.engagement e LEFT JOIN mailpipe.engagement_state s ON true WHERE NOT e.events > 0
) e JOIN send_zone z ON z.zone = coalesce(e.zone, '')
GROUP BY z.number;

-- name: write_others
-- Who has never engaged has the curve of their zone.
INSERT INTO mailpipe.send_hours (person_id, hour, confidence, worth, why)
SELECT e.person_id, x.hour, 0, x.worth, x.why
FROM mailpipe.engagement e
JOIN unnest(CAST(:zones AS text[]), CAST(:hours AS smallint[]), CAST(:worths AS bytea[]), CAST(:whys AS text[]))
    AS x(zone, hour, worth, why) ON x.zone = coalesce(e.zone, '')
WHERE NOT e.events > 0;

-- name: empty
TRUNCATE mailpipe.send_hours, mailpipe.send_curve;

-- name: write
COPY mailpipe.send_hours (person_id, hour, confidence, worth, why) FROM STDIN (FORMAT BINARY);

-- name: write_curves
INSERT INTO mailpipe.send_curve (zone, hour, worth, why, events)
SELECT * FROM unnest(CAST(:zones AS text[]), CAST(:hours AS smallint[]), CAST(:worths AS bytea[]), CAST(:whys AS text[]), CAST(:events AS real[]));

-- name: keep
INSERT INTO mailpipe.send_refresh (folded_to, people, prior, seconds) VALUES (:folded_to, :people, :prior, :seconds)
ON CONFLICT (only_row) DO UPDATE SET refreshed_at = clock_timestamp(), folded_to = EXCLUDED.folded_to, people = EXCLUDED.people,
    prior = EXCLUDED.prior, seconds = EXCLUDED.seconds;

-- name: known
ANALYZE mailpipe.send_hours, mailpipe.send_curve;

-- name: summary
SELECT hour, why, count(*), avg(confidence) FROM mailpipe.send_hours GROUP BY 1, 2 ORDER BY 1, 2;

-- name: refreshed
SELECT refreshed_at, folded_to, people, prior, seconds FROM mailpipe.send_refresh;

-- name: of_person
SELECT h.hour, h.confidence, h.why, h.worth, e.zone, coalesce(e.events * mailpipe.engagement_weight(e.as_of, coalesce(s.folded_to, e.as_of)), 0)
FROM mailpipe.send_hours h
LEFT JOIN mailpipe.engagement e USING (person_id)
LEFT JOIN mailpipe.engagement_state s ON true
WHERE h.person_id = :person_id;

-- name: stale
-- People whose engagement is known, and not their hour: they came with a fold, and nobody has refreshed since.
SELECT (SELECT count(*) FROM mailpipe.engagement) - (SELECT count(*) FROM mailpipe.send_hours);

-- name: behind
SELECT count(*) FROM mailpipe.engagement_fold f WHERE f.day > coalesce((SELECT folded_to FROM mailpipe.send_refresh), '-infinity');
