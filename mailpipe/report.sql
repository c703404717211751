-- What happened, read from the ledger: nothing here writes.

-- name: outcomes
SELECT state, reason, count(*) FROM mailpipe.outcome WHERE campaign_id = :campaign_id AND state <> 'retry' GROUP BY state, reason
UNION ALL
SELECT 'skipped', state, sum(size - bit_count(finished)) FROM mailpipe.chunk
WHERE campaign_id = :campaign_id AND state IN ('cancelled', 'expired') GROUP BY state HAVING sum(size - bit_count(finished)) > 0
ORDER BY 1, 3 DESC, 2;

-- name: rate
-- Recipients accepted in the last minute of recorded calls, and over how many seconds; of more than 2,000 calls, which is 33 a second,
-- in the last 2,000: they are read in half a millisecond, 20,000 in 8. By the statement's time: the clock's may be another for each row, so the
-- index would not be asked, and all calls of the campaign would be read.
SELECT coalesce(sum(accepted), 0), least(60, extract(epoch FROM clock_timestamp() - min(at)))
FROM (
    SELECT accepted, at FROM mailpipe.call WHERE campaign_id = :campaign_id AND at > statement_timestamp() - interval '60 seconds'
    ORDER BY at DESC LIMIT 2000
) AS last;

-- name: span
SELECT coalesce(sum(accepted), 0), extract(epoch FROM max(at) - min(at)) FROM mailpipe.call WHERE campaign_id = :campaign_id;

-- name: who
SELECT d.seq, d.slice, d.user_id, d.state, d.reason, o.detail, d.attempt, d.variant, k.at, k.positions, k.codes, k.message_ids, k.message_ids_text,
       d.seq - c.first_seq AS position,
       ARRAY(SELECT DISTINCT e.kind FROM mailpipe.event_mask e WHERE e.campaign_id = d.campaign_id AND e.chunk_no = d.chunk_no
             AND get_bit(e.mask, d.seq - c.first_seq) = 1 ORDER BY e.kind) AS events,
       coalesce((SELECT jsonb_agg(jsonb_build_object('kind', f.kind, 'attempt', f.attempt, 'at', f.at, 'detail', f.detail) ORDER BY f.at)
                 FROM mailpipe.feedback f WHERE f.campaign_id = d.campaign_id AND f.seq = d.seq), '[]') AS told
FROM mailpipe.delivery d
JOIN mailpipe.chunk c USING (campaign_id, chunk_no)
LEFT JOIN mailpipe.outcome o ON o.campaign_id = d.campaign_id AND o.seq = d.seq
LEFT JOIN LATERAL (
    SELECT * FROM mailpipe.call k WHERE k.campaign_id = d.campaign_id AND k.chunk_no = d.chunk_no
      AND get_bit(k.positions, d.seq - c.first_seq) = 1 ORDER BY k.no DESC LIMIT 1
) k ON true
WHERE d.campaign_id = :campaign_id AND d.seq IN (
    SELECT r.seq FROM mailpipe.recipient r WHERE r.campaign_id = :campaign_id
      AND (hashtextextended(r.user_id, 0) = hashtextextended(:person, 0) AND r.user_id = :person
           OR hashtextextended(mailpipe.email_key(r.email), 0) = hashtextextended(:email_key, 0) AND mailpipe.email_key(r.email) = :email_key
              AND r.email <> ''));

-- name: export
SELECT d.seq, d.user_id, d.email, d.state, coalesce(d.reason, '') AS reason, d.slice, d.attempt,
       coalesce(d.variant, '') AS variant FROM mailpipe.delivery d
WHERE d.campaign_id = :campaign_id AND (CAST(:state AS text) IS NULL OR d.state = :state) ORDER BY d.seq;

-- name: events
-- A person counts once for each kind, also if a second attempt told the same.
SELECT kind, sum(bit_count(mask)) FROM (
    SELECT kind, bit_or(mask) AS mask FROM mailpipe.event_mask WHERE campaign_id = :campaign_id GROUP BY chunk_no, kind
) chunk GROUP BY kind ORDER BY kind;
