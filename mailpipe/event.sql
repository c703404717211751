-- What SES says later, folded into a bit per recipient and kind. Any order, any number of times: the same end.

-- name: fold
-- In the order of the key, so that two folders never wait for each other in a circle. Answers how many chunks gained a bit.
WITH told AS (
    SELECT g.campaign_id, x.seq, x.kind, x.attempt
    FROM unnest(CAST(:keys AS text[]), CAST(:seqs AS integer[]), CAST(:kinds AS text[]), CAST(:attempts AS smallint[]))
        AS x(key, seq, kind, attempt)
    JOIN mailpipe.campaign g ON g.key = x.key
),
placed AS (
    SELECT t.campaign_id, c.chunk_no, t.kind, t.attempt,
           bit_or(set_bit(CAST(repeat('0', c.size) AS bit varying), t.seq - c.first_seq, 1)) AS mask
    FROM told t JOIN LATERAL (
        SELECT k.chunk_no, k.first_seq, k.size FROM mailpipe.chunk k
        WHERE k.campaign_id = t.campaign_id AND k.first_seq <= t.seq ORDER BY k.first_seq DESC LIMIT 1
    ) c ON t.seq < c.first_seq + c.size
    GROUP BY t.campaign_id, c.chunk_no, t.kind, t.attempt
)
INSERT INTO mailpipe.event_mask AS e (campaign_id, chunk_no, kind, attempt, mask)
SELECT campaign_id, chunk_no, kind, attempt, mask FROM placed ORDER BY campaign_id, chunk_no, kind, attempt
ON CONFLICT (campaign_id, chunk_no, kind, attempt) DO UPDATE SET mask = e.mask | excluded.mask WHERE (e.mask | excluded.mask) <> e.mask;

-- name: settles
-- Whose state an event changes: `unknown` people whom SES did accept, at whichever attempt (they have the mail), and people whose
-- present attempt was accepted and whose mail SES then could not make. Told with the attempt that was looked at.
WITH refused AS (
    SELECT chunk_no, kind, attempt, mask FROM mailpipe.event_mask
    WHERE campaign_id = :campaign_id AND kind IN ('rendering_failure', 'reject')
      AND (CAST(:chunks AS integer[]) IS NULL OR chunk_no = ANY(CAST(:chunks AS integer[])))
),
mailed AS (
    SELECT o.seq, e.kind FROM mailpipe.outcome o
    JOIN mailpipe.chunk c ON c.campaign_id = o.campaign_id AND c.chunk_no = o.chunk_no
    JOIN mailpipe.event_mask e ON e.campaign_id = o.campaign_id AND e.chunk_no = o.chunk_no
     AND e.kind NOT IN ('rendering_failure', 'reject') AND get_bit(e.mask, o.seq - c.first_seq) = 1
    WHERE o.campaign_id = :campaign_id AND (o.state = 'unknown' OR o.state = 'sent' AND o.attempt > 1)
      AND (CAST(:chunks AS integer[]) IS NULL OR o.chunk_no = ANY(CAST(:chunks AS integer[])))
      AND NOT EXISTS (SELECT FROM refused f WHERE f.chunk_no = e.chunk_no AND f.attempt = e.attempt
                      AND get_bit(f.mask, o.seq - c.first_seq) = 1)
)
SELECT o.chunk_no, o.seq, 'sent' AS state, m.kind AS reason, o.attempt
FROM mailed m JOIN mailpipe.outcome o ON o.campaign_id = :campaign_id AND o.seq = m.seq AND o.state = 'unknown'
UNION
SELECT f.chunk_no, c.first_seq + i, 'failed', f.kind, f.attempt
FROM refused f
JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND c.chunk_no = f.chunk_no
CROSS JOIN LATERAL generate_series(0, c.size - 1) AS i
LEFT JOIN mailpipe.outcome o ON o.campaign_id = c.campaign_id AND o.seq = c.first_seq + i
WHERE get_bit(f.mask, i) = 1 AND get_bit(c.finished, i) = 1 AND coalesce(o.state, 'sent') IN ('sent', 'unknown')
  AND coalesce(o.attempt, 1) = f.attempt AND NOT EXISTS (SELECT FROM mailed m WHERE m.seq = o.seq)
ORDER BY 1, 2;
