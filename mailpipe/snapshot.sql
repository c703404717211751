-- Freezing a segment. All statements of one snapshot run in one transaction; `{{table}}` is the campaign's own partition, which
-- is filled bare, indexed, and only then attached: half the time of inserting into indexed tables.

-- name: claim
-- Two snapshots of one campaign meet here. What the first one made is seen by the second's next statement, not by this one.
SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR UPDATE;

-- name: stage
-- One pass over the segment, in its own order; the running number keeps that order whatever is done with the rows later. Who is left
-- out and which addresses need a closer look is found in the same pass: each further one over a million rows takes its tenth of a
-- second. Addresses are compared as hashes, like everywhere in a snapshot: a quarter of the time of comparing texts. Not logged: the
-- table does not outlive the transaction.
CREATE UNLOGGED TABLE {{staged}} AS
SELECT person.*,
       CASE WHEN user_id IS NULL THEN 'nameless'
            WHEN email_hash IN (SELECT hashtextextended(email_key, 0) FROM mailpipe.suppression WHERE scope = ANY(CAST(:scopes AS text[])))
            THEN 'suppressed'
            WHEN user_id IN (SELECT person_id FROM mailpipe.opt_out WHERE topic = ANY(CAST(:topics AS text[])))
              OR ({{consent}}) IS NOT TRUE THEN 'opted_out' END AS refusal,
       -- What the plain rule does not cover: international domains, and what SES cannot take.
       email IS NULL OR octet_length(email) <> char_length(email) OR email NOT LIKE '_%@_%._%' OR octet_length(email) > 254
       OR email LIKE '%..%' OR email LIKE '%@%@%' OR email LIKE '%.' OR email LIKE '.%' OR email LIKE '%.@%' OR email LIKE '%@.%'
       OR email LIKE '% %' AS unusual
FROM (
    SELECT numbered.*, hashtextextended(mailpipe.email_key(email), 0) AS email_hash FROM (
        SELECT CAST(row_number() OVER () AS integer) AS place, CAST(segment.user_id AS text) AS user_id,
               btrim(segment.email, E' \t\r\n') AS email, {{timezone}} AS timezone, {{locale}} AS locale,
               CAST(ARRAY[{{variables}}] AS text[]) AS variables
        FROM (
{{segment}}
        ) AS segment
    ) AS numbered
    OFFSET 0
) AS person;

-- name: refuse
CREATE TEMPORARY TABLE refused ON COMMIT DROP AS
SELECT place, refusal AS reason FROM {{staged}} WHERE refusal IS NOT NULL;

-- name: unusual
SELECT place, email FROM {{staged}} WHERE unusual;

-- name: readdress
UPDATE {{staged}} t SET email = x.email, email_hash = hashtextextended(mailpipe.email_key(x.email), 0)
FROM unnest(CAST(:places AS integer[]), CAST(:emails AS text[])) AS x(place, email) WHERE t.place = x.place;

-- name: refuse_readdressed
-- Whose address is suppressed in the spelling that would be sent.
INSERT INTO refused
SELECT t.place, 'suppressed' FROM {{staged}} t
WHERE t.place = ANY(CAST(:places AS integer[])) AND t.place NOT IN (SELECT place FROM refused)
  AND EXISTS (SELECT FROM mailpipe.suppression s
              WHERE s.email_key = mailpipe.email_key(t.email) AND s.scope = ANY(CAST(:scopes AS text[])));

-- name: refuse_duplicates
-- The first row of a person stays, of those that are not refused already.
INSERT INTO refused
SELECT place, 'duplicate'
FROM (
    SELECT place, row_number() OVER (PARTITION BY {{hash}} ORDER BY place) AS no FROM {{staged}}
    WHERE {{hash}} IN (SELECT hash FROM (SELECT {{hash}} AS hash FROM {{staged}} WHERE {{known}}) AS every GROUP BY hash HAVING count(*) > 1)
      AND {{known}} AND place NOT IN (SELECT place FROM refused)
) AS ranked
WHERE no > 1;

-- name: excluded
SELECT reason, count(*) FROM refused GROUP BY reason;

-- name: fill
CREATE TABLE {{table}} AS
SELECT {{campaign_id}} AS campaign_id, CAST(row_number() OVER (ORDER BY {{order}}place) AS integer) AS seq,
       user_id, email, timezone, locale, variables
FROM {{staged}} AS person {{join}} WHERE place NOT IN (SELECT place FROM refused);

-- name: tidy
ALTER TABLE {{table}} ALTER campaign_id SET NOT NULL, ALTER seq SET NOT NULL, ALTER user_id SET NOT NULL,
    ALTER email SET NOT NULL, ALTER variables SET NOT NULL,
    ADD CONSTRAINT recipient_seq_check CHECK (seq >= 1), ADD CHECK (campaign_id = {{campaign_id}});

-- name: index_user
CREATE UNIQUE INDEX ON {{table}} (hashtextextended(user_id, 0), campaign_id);

-- name: index_email
CREATE UNIQUE INDEX ON {{table}} (hashtextextended(mailpipe.email_key(email), 0), campaign_id) WHERE email <> '';

-- name: attach
ALTER TABLE {{table}} ADD PRIMARY KEY (campaign_id, seq);
ALTER TABLE mailpipe.recipient ATTACH PARTITION {{table}} FOR VALUES IN ({{campaign_id}});
DROP TABLE {{staged}};

-- name: chunks
INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, expires_at, quiet_at, timezone, variant, held, labels,
                            opened, finished)
SELECT :campaign_id, x.chunk_no, x.slice, x.first_seq, x.size, x.due_at, x.expires_at, x.quiet_at, x.timezone,
       x.variant, x.held, CAST(x.labels AS text[]),
       CAST(repeat('0', x.size) AS bit varying), CAST(repeat('0', x.size) AS bit varying)
FROM unnest(CAST(:numbers AS integer[]), CAST(:slices AS smallint[]), CAST(:firsts AS integer[]), CAST(:sizes AS smallint[]),
            CAST(:dues AS timestamptz[]), CAST(:ends AS timestamptz[]), CAST(:quiets AS timestamptz[]), CAST(:zones AS text[]),
            CAST(:variants AS text[]), CAST(:helds AS text[]), CAST(:labels AS text[]))
    AS x(chunk_no, slice, first_seq, size, due_at, expires_at, quiet_at, timezone, variant, held, labels);

-- name: seqs
-- Which numbers the people of these places have got, if they were not left out.
SELECT r.seq FROM {{staged}} s
JOIN {{table}} r ON hashtextextended(r.user_id, 0) = hashtextextended(s.user_id, 0) AND r.user_id = s.user_id
WHERE r.campaign_id = :campaign_id AND s.place = ANY(CAST(:places AS integer[])) AND s.place NOT IN (SELECT place FROM refused);

-- name: skip
-- People whose address SES cannot take are in the snapshot, and skipped.
WITH unusable AS (
    INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)
    SELECT c.campaign_id, x.seq, c.chunk_no, 'skipped', 'unusable_address'
    FROM unnest(CAST(:seqs AS integer[])) AS x(seq)
    JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND x.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
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
INSERT INTO mailpipe.snapshot (campaign_id, segment, segment_sha256, segment_sql, as_of, parameters, variables, returned, excluded, recipients, timing)
VALUES (:campaign_id, :segment, :sha256, :sql, :as_of, :parameters, :variables, :returned, :excluded, :recipients, :timing);

-- name: get
SELECT campaign_id, taken_at, segment, segment_sha256, as_of, parameters, variables, returned, excluded, recipients, timing
FROM mailpipe.snapshot WHERE campaign_id = :campaign_id;
