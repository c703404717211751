-- Freezing a segment. All statements of one snapshot run in one transaction, those of `stage.sql` too.

-- name: claim
-- Two snapshots of one campaign meet here. What the first one made is seen by the second's next statement, not by this one.
SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR UPDATE;

-- name: chunks
COPY mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, expires_at, quiet_at, timezone, variant, held, labels, opened, finished)
FROM STDIN;

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
