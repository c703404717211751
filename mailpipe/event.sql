-- What SES says later, folded into a bit per recipient and kind. Any order, any number of times: the same end.

-- name: fold
-- In the order of the key, so that two folders never wait for each other in a circle. Answers how many chunks gained a bit.
WITH told AS (
    SELECT g.campaign_id, x.seq, x.kind
    FROM unnest(CAST(:keys AS text[]), CAST(:seqs AS integer[]), CAST(:kinds AS text[])) AS x(key, seq, kind)
    JOIN mailpipe.campaign g ON g.key = x.key
),
placed AS (
    SELECT t.campaign_id, c.chunk_no, t.kind, bit_or(set_bit(CAST(repeat('0', c.size) AS bit varying), t.seq - c.first_seq, 1)) AS mask
    FROM told t JOIN LATERAL (
        SELECT k.chunk_no, k.first_seq, k.size FROM mailpipe.chunk k
        WHERE k.campaign_id = t.campaign_id AND k.first_seq <= t.seq ORDER BY k.first_seq DESC LIMIT 1
    ) c ON t.seq < c.first_seq + c.size
    GROUP BY t.campaign_id, c.chunk_no, t.kind
)
INSERT INTO mailpipe.event_mask AS e (campaign_id, chunk_no, kind, mask)
SELECT campaign_id, chunk_no, kind, mask FROM placed ORDER BY campaign_id, chunk_no, kind
ON CONFLICT (campaign_id, chunk_no, kind) DO UPDATE SET mask = e.mask | excluded.mask WHERE (e.mask | excluded.mask) <> e.mask;

-- name: settles
-- Whose state an event changes: `unknown` people whom SES did accept, and accepted people whose mail it then could not make.
SELECT e.chunk_no, o.seq, 'sent' AS state, e.kind AS reason
FROM mailpipe.outcome o
JOIN mailpipe.chunk c ON c.campaign_id = o.campaign_id AND c.chunk_no = o.chunk_no
JOIN mailpipe.event_mask e ON e.campaign_id = o.campaign_id AND e.chunk_no = o.chunk_no
 AND e.kind NOT IN ('rendering_failure', 'reject') AND get_bit(e.mask, o.seq - c.first_seq) = 1
WHERE o.campaign_id = :campaign_id AND o.state = 'unknown'
  AND NOT EXISTS (SELECT FROM mailpipe.event_mask f WHERE f.campaign_id = e.campaign_id AND f.chunk_no = e.chunk_no
                  AND f.kind IN ('rendering_failure', 'reject') AND get_bit(f.mask, o.seq - c.first_seq) = 1)
UNION
SELECT e.chunk_no, c.first_seq + i, 'failed', e.kind
FROM mailpipe.event_mask e
JOIN mailpipe.chunk c ON c.campaign_id = e.campaign_id AND c.chunk_no = e.chunk_no
CROSS JOIN LATERAL generate_series(0, c.size - 1) AS i
LEFT JOIN mailpipe.outcome o ON o.campaign_id = e.campaign_id AND o.seq = c.first_seq + i
WHERE e.campaign_id = :campaign_id AND e.kind IN ('rendering_failure', 'reject') AND get_bit(e.mask, i) = 1
  AND get_bit(c.finished, i) = 1 AND (o.state IS NULL OR o.state = 'unknown')
ORDER BY 1, 2;
