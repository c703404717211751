-- Freezing a segment. All statements of one snapshot run in one transaction; `{{table}}` is the campaign's own partition, which
-- is filled bare, indexed, and only then attached: half the time of inserting into indexed tables.

-- name: claim
-- Two snapshots of one campaign meet here. What the first one made is seen by the second's next statement, not by this one.
SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR UPDATE;

-- name: fill
-- One pass over the segment, in its own order. Sub-queries inside CASE are never turned into joins, so nothing can reorder the
-- rows between the segment's ORDER BY and the running count that becomes `seq`. Who is left out keeps a reason until counted.
CREATE TABLE {{table}} AS
SELECT {{campaign_id}} AS campaign_id,
       CAST(count(*) FILTER (WHERE reason IS NULL) OVER (ROWS UNBOUNDED PRECEDING) AS integer) AS seq,
       user_id, email, timezone, locale, variables, reason
FROM (
    SELECT person.*,
           CASE WHEN EXISTS (SELECT FROM mailpipe.suppression s WHERE s.email_key = lower(person.email)) THEN 'suppressed'
                WHEN ({{consent}}) IS NOT TRUE THEN 'opted_out' END AS reason
    FROM (
        SELECT CAST(segment.user_id AS text) AS user_id, btrim(segment.email, E' \t\r\n') AS email, {{timezone}} AS timezone,
               {{locale}} AS locale, CAST(ARRAY[{{variables}}] AS text[]) AS variables
        FROM (
{{segment}}
        ) AS segment
    ) AS person
) AS judged;

-- name: no_user
SELECT count(*) FROM {{table}} WHERE user_id IS NULL;

-- name: excluded
SELECT reason, count(*) FROM {{table}} WHERE reason IS NOT NULL GROUP BY reason;

-- name: drop_excluded
DELETE FROM {{table}} WHERE reason IS NOT NULL;

-- name: unusual
-- Addresses that the plain rule does not cover: international domains, and what SES cannot take.
SELECT seq, email FROM {{table}}
WHERE email IS NULL OR octet_length(email) <> char_length(email) OR email NOT LIKE '_%@_%._%' OR length(email) > 254
   OR email LIKE '%..%' OR email LIKE '%@%@%' OR email LIKE '%.' OR email LIKE '.%' OR email LIKE '%.@%' OR email LIKE '%@.%'
   OR email LIKE '% %';

-- name: suppressed_after_all
-- Whether somebody's address, as it will be sent, is on the list that its first spelling was not on.
SELECT EXISTS (SELECT FROM {{table}} t JOIN mailpipe.suppression s ON s.email_key = lower(t.email)
               WHERE t.seq = ANY(CAST(:changed AS integer[])));

-- name: readdress
UPDATE {{table}} t SET email = x.email
FROM unnest(CAST(:seqs AS integer[]), CAST(:emails AS text[])) AS x(seq, email) WHERE t.seq = x.seq;

-- name: tidy
ALTER TABLE {{table}} DROP COLUMN reason, ALTER campaign_id SET NOT NULL, ALTER seq SET NOT NULL, ALTER user_id SET NOT NULL,
    ALTER email SET NOT NULL, ALTER variables SET NOT NULL,
    ADD CONSTRAINT recipient_seq_check CHECK (seq >= 1), ADD CHECK (campaign_id = {{campaign_id}});

-- name: index_user
CREATE UNIQUE INDEX ON {{table}} (campaign_id, hashtextextended(user_id, 0));

-- name: index_email
CREATE UNIQUE INDEX ON {{table}} (campaign_id, hashtextextended(lower(email), 0)) WHERE email <> '';

-- name: duplicates
-- The first row of a person stays: first by user, then by address among those who are left. People without any address are not
-- one person. Who turned out to have another spelling of a suppressed address goes too.
CREATE TEMPORARY TABLE duplicate ON COMMIT DROP AS
WITH suppressed AS (
    SELECT t.seq FROM {{table}} t
    WHERE t.seq = ANY(CAST(:changed AS integer[])) AND EXISTS (SELECT FROM mailpipe.suppression s WHERE s.email_key = lower(t.email))
),
by_user AS (
    SELECT t.seq FROM {{table}} t JOIN (
        SELECT hashtextextended(user_id, 0) AS hash, min(seq) AS first FROM {{table}}
        WHERE seq NOT IN (SELECT seq FROM suppressed) GROUP BY 1 HAVING count(*) > 1
    ) d ON hashtextextended(t.user_id, 0) = d.hash AND t.seq > d.first
    WHERE t.seq NOT IN (SELECT seq FROM suppressed)
),
gone AS MATERIALIZED (SELECT seq FROM suppressed UNION SELECT seq FROM by_user),
by_email AS (
    SELECT t.seq FROM {{table}} t JOIN (
        SELECT hashtextextended(lower(email), 0) AS hash, min(seq) AS first FROM {{table}}
        WHERE email <> '' AND seq NOT IN (SELECT seq FROM gone) GROUP BY 1 HAVING count(*) > 1
    ) d ON hashtextextended(lower(t.email), 0) = d.hash AND t.seq > d.first
    WHERE t.seq NOT IN (SELECT seq FROM gone)
)
SELECT seq, 'suppressed' AS reason FROM suppressed
UNION ALL SELECT seq, 'duplicate' FROM by_user
UNION ALL SELECT seq, 'duplicate' FROM by_email;

-- name: left_out
SELECT reason, count(*) FROM duplicate GROUP BY reason;

-- name: renumber
CREATE TABLE {{new}} AS
SELECT campaign_id, CAST(row_number() OVER (ORDER BY seq) AS integer) AS seq, user_id, email, timezone, locale, variables
FROM {{table}} WHERE seq NOT IN (SELECT seq FROM duplicate);

-- name: replace
DROP TABLE {{table}};
ALTER TABLE {{new}} RENAME TO {{name}};
ALTER TABLE {{table}} ALTER campaign_id SET NOT NULL, ALTER seq SET NOT NULL, ALTER user_id SET NOT NULL,
    ALTER email SET NOT NULL, ALTER variables SET NOT NULL,
    ADD CONSTRAINT recipient_seq_check CHECK (seq >= 1), ADD CHECK (campaign_id = {{campaign_id}});

-- name: attach
ALTER TABLE {{table}} ADD PRIMARY KEY (campaign_id, seq);
ALTER TABLE mailpipe.recipient ATTACH PARTITION {{table}} FOR VALUES IN ({{campaign_id}});

-- name: size
SELECT coalesce(max(seq), 0) FROM {{table}};

-- name: chunks
INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, opened, finished)
SELECT :campaign_id, x.chunk_no, x.slice, x.first_seq, x.size, :due_at,
       CAST(repeat('0', x.size) AS bit varying), CAST(repeat('0', x.size) AS bit varying)
FROM unnest(CAST(:numbers AS integer[]), CAST(:slices AS smallint[]), CAST(:firsts AS integer[]), CAST(:sizes AS smallint[]))
    AS x(chunk_no, slice, first_seq, size);

-- name: skip
-- People whose address SES cannot take are in the snapshot, and skipped.
WITH unusable AS (
    INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)
    SELECT c.campaign_id, t.seq, c.chunk_no, 'skipped', 'unusable_address'
    FROM {{table}} t JOIN mailpipe.chunk c ON c.campaign_id = t.campaign_id AND t.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
    WHERE t.seq = ANY(CAST(:seqs AS integer[]))
    RETURNING seq, chunk_no
),
masks AS (
    SELECT u.chunk_no, count(*) AS people, bit_or(set_bit(c.finished, u.seq - c.first_seq, 1)) AS mask
    FROM unusable u JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND c.chunk_no = u.chunk_no GROUP BY u.chunk_no
)
UPDATE mailpipe.chunk c
SET finished = m.mask, skipped = m.people, state = CASE WHEN bit_count(m.mask) = c.size THEN 'done' ELSE c.state END
FROM masks m WHERE c.campaign_id = :campaign_id AND c.chunk_no = m.chunk_no;

-- name: keep
INSERT INTO mailpipe.snapshot (campaign_id, segment, segment_sha256, segment_sql, as_of, parameters, variables, returned, excluded, recipients)
VALUES (:campaign_id, :segment, :sha256, :sql, :as_of, :parameters, :variables, :returned, :excluded, :recipients);

-- name: get
SELECT campaign_id, taken_at, segment, segment_sha256, as_of, parameters, variables, returned, excluded, recipients
FROM mailpipe.snapshot WHERE campaign_id = :campaign_id;
