-- Send times of a staged audience. Run in the transaction of the snapshot, between staging and numbering.

-- name: texts
SELECT DISTINCT coalesce(timezone, '') FROM {{staged}};

-- name: number_texts
CREATE TEMPORARY TABLE send_text ON COMMIT DROP AS
SELECT x.text, CAST(x.number - 1 AS integer) AS number FROM unnest(CAST(:texts AS text[])) WITH ORDINALITY AS x(text, number);

-- name: known
ANALYZE send_text;

-- name: staged
-- Everybody who is not refused, in fields of fixed length, thousands in one row: as many rows as people would take five times as long
-- to read. A worth of zeros: nothing is known of this person.
SELECT string_agg(int4send(CAST(s.place AS integer)) || int4send(t.number) || decode(md5(:salt || s.user_id), 'hex') || coalesce(h.worth, decode(repeat('00', 24), 'hex')), '')
FROM {{staged}} s
JOIN send_text t ON t.text = coalesce(s.timezone, '')
LEFT JOIN mailpipe.send_hours h ON h.person_id = s.user_id
WHERE s.place NOT IN (SELECT place FROM refused)
GROUP BY s.place / 4096;

-- name: of_utc
-- Whose hours were learned by the clock of UTC: no zone was known of them then, whatever the segment knows now.
SELECT coalesce(string_agg(int4send(CAST(s.place AS integer)), ''), '')
FROM {{staged}} s JOIN mailpipe.engagement e ON e.person_id = s.user_id
WHERE e.zone IS NULL;

-- name: refuse
INSERT INTO refused SELECT x.place, 'expired' FROM unnest(CAST(:places AS integer[])) AS x(place);

-- name: curves
SELECT zone, worth FROM mailpipe.send_curve;

-- name: note
-- A person who was staged twice is noted once, and numbered once.
INSERT INTO mailpipe.send_explored (campaign_id, user_id, hour, best_hour, propensity)
SELECT :campaign_id, s.user_id, x.hour, x.best_hour, x.propensity
FROM unnest(CAST(:places AS integer[]), CAST(:hours AS smallint[]), CAST(:best AS smallint[]), CAST(:propensities AS real[]))
    AS x(place, hour, best_hour, propensity)
JOIN {{staged}} s USING (place)
ON CONFLICT DO NOTHING;

-- name: create_choice
CREATE TEMPORARY TABLE send_choice (place integer NOT NULL, key integer NOT NULL) ON COMMIT DROP;

-- name: put
COPY send_choice (place, key) FROM STDIN (FORMAT BINARY);

-- name: known_choice
ANALYZE send_choice;
