-- What is decided about people later, by events and by persons' orders.

-- name: settle_unknown
-- An event names people whom SES did accept (`sent`) or refused for good (`failed`); only `unknown` and `sent` may change so.
-- The attempt that was looked at is asked again: a re-send may have been ordered meanwhile.
WITH told AS (
    SELECT x.* FROM unnest(CAST(:seqs AS integer[]), CAST(:states AS text[]), CAST(:reasons AS text[]), CAST(:attempts AS smallint[]))
        AS x(seq, state, reason, attempt)
    LEFT JOIN mailpipe.outcome o ON o.campaign_id = :campaign_id AND o.seq = x.seq
    JOIN mailpipe.chunk k ON k.campaign_id = :campaign_id AND k.chunk_no = :chunk_no
    WHERE coalesce(o.attempt, 1) = x.attempt AND (o.state = 'unknown' OR x.state = 'failed'
          AND coalesce(o.state, 'sent') = 'sent' AND get_bit(k.finished, x.seq - k.first_seq) = 1)
),
was AS (SELECT t.*, o.state IS NOT DISTINCT FROM 'unknown' AS was_unknown FROM told t
        LEFT JOIN mailpipe.outcome o ON o.campaign_id = :campaign_id AND o.seq = t.seq),
gone AS (
    DELETE FROM mailpipe.outcome o USING was
    WHERE o.campaign_id = :campaign_id AND o.seq = was.seq AND was.state = 'sent' AND was.attempt = 1
),
again AS (
    UPDATE mailpipe.outcome o SET state = 'sent', reason = was.reason, detail = NULL, at = clock_timestamp() FROM was
    WHERE o.campaign_id = :campaign_id AND o.seq = was.seq AND was.state = 'sent' AND was.attempt > 1
),
failed AS (
    INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)
    SELECT :campaign_id, was.seq, :chunk_no, 'failed', was.reason FROM was WHERE was.state = 'failed'
    ON CONFLICT (campaign_id, seq) DO UPDATE SET state = 'failed', reason = excluded.reason, detail = NULL, at = clock_timestamp()
),
totals AS (
    SELECT count(*) FILTER (WHERE was_unknown) AS from_unknown, count(*) FILTER (WHERE state = 'failed') AS to_failed,
           count(*) FILTER (WHERE state = 'sent') AS to_sent,
           count(*) FILTER (WHERE state = 'failed' AND NOT was_unknown) AS from_sent, count(*) AS people
    FROM was
)
UPDATE mailpipe.chunk c
SET unknown = c.unknown - t.from_unknown, failed = c.failed + t.to_failed, sent = c.sent + t.to_sent - t.from_sent
FROM totals t WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND t.people > 0
RETURNING t.people;

-- name: lock_unknown
-- The chunks that hold `unknown` people of these, locked in their order: two orders never wait for each other in a circle.
SELECT c.chunk_no FROM mailpipe.chunk c
WHERE c.campaign_id = :campaign_id AND c.unknown > 0 AND EXISTS (
    SELECT FROM mailpipe.outcome o WHERE o.campaign_id = c.campaign_id AND o.chunk_no = c.chunk_no AND o.state = 'unknown'
      AND (CAST(:seqs AS integer[]) IS NULL OR o.seq = ANY(CAST(:seqs AS integer[]))))
ORDER BY c.chunk_no FOR UPDATE OF c;

-- name: send_again
-- By a person's order alone: `unknown` people of locked chunks are pending again, as a new attempt.
WITH again AS (
    UPDATE mailpipe.outcome o
    SET state = 'retry', reason = 'resend', detail = NULL, tries = 0, attempt = o.attempt + 1, at = clock_timestamp()
    WHERE o.campaign_id = :campaign_id AND o.chunk_no = ANY(CAST(:chunks AS integer[])) AND o.state = 'unknown'
      AND (CAST(:seqs AS integer[]) IS NULL OR o.seq = ANY(CAST(:seqs AS integer[])))
    RETURNING o.chunk_no, o.seq
),
masks AS (
    SELECT c.chunk_no, count(*) AS people, bit_or(set_bit(CAST(repeat('0', c.size) AS bit varying), a.seq - c.first_seq, 1)) AS mask
    FROM again a JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND c.chunk_no = a.chunk_no GROUP BY c.chunk_no
),
counted AS (
    UPDATE mailpipe.chunk c
    SET finished = c.finished & ~ m.mask, unknown = c.unknown - m.people,
        state = CASE c.state WHEN 'done' THEN 'pending' ELSE c.state END
    FROM masks m WHERE c.campaign_id = :campaign_id AND c.chunk_no = m.chunk_no
)
SELECT seq FROM again ORDER BY seq;

-- name: call_sent
-- By a person's word alone: `unknown` people of locked chunks count as sent, and their rows say on whose word.
WITH believed AS (
    UPDATE mailpipe.outcome o SET state = 'sent', reason = 'resolved', detail = NULL, at = clock_timestamp()
    WHERE o.campaign_id = :campaign_id AND o.chunk_no = ANY(CAST(:chunks AS integer[])) AND o.state = 'unknown'
      AND (CAST(:seqs AS integer[]) IS NULL OR o.seq = ANY(CAST(:seqs AS integer[])))
    RETURNING o.chunk_no, o.seq
),
counted AS (
    UPDATE mailpipe.chunk c SET sent = c.sent + b.people, unknown = c.unknown - b.people
    FROM (SELECT chunk_no, count(*) AS people FROM believed GROUP BY chunk_no) b
    WHERE c.campaign_id = :campaign_id AND c.chunk_no = b.chunk_no
)
SELECT seq FROM believed ORDER BY seq;

-- name: narrow
-- People who are pending and whose ids are not in the temporary table `kept` are skipped. Of a campaign that cannot send at this moment
-- and whose chunks are in nobody's hands: the caller holds its lock.
WITH left_out AS (
    SELECT c.chunk_no, c.first_seq, c.size, r.seq
    FROM mailpipe.chunk c
    JOIN mailpipe.recipient r ON r.campaign_id = c.campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
    WHERE c.campaign_id = :campaign_id AND c.state = 'pending' AND get_bit(c.finished, r.seq - c.first_seq) = 0
      AND NOT EXISTS (SELECT FROM kept k WHERE k.user_id = r.user_id)
),
masks AS (
    SELECT chunk_no, count(*) AS people, bit_or(set_bit(CAST(repeat('0', size) AS bit varying), seq - first_seq, 1)) AS mask
    FROM left_out GROUP BY chunk_no
),
marked AS (
    INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)
    SELECT :campaign_id, seq, chunk_no, 'skipped', 'narrowed' FROM left_out
    ON CONFLICT (campaign_id, seq) DO UPDATE SET state = 'skipped', reason = 'narrowed', detail = NULL, at = clock_timestamp()
),
counted AS (
    UPDATE mailpipe.chunk c
    SET finished = c.finished | m.mask, skipped = c.skipped + m.people,
        state = CASE WHEN bit_count(c.finished | m.mask) = c.size THEN 'done' ELSE c.state END
    FROM masks m WHERE c.campaign_id = :campaign_id AND c.chunk_no = m.chunk_no
)
SELECT coalesce(sum(people), 0) FROM masks;
