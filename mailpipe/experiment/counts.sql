-- What came back of the arms of an experiment, as of an instant. Reads only.

-- name: arms
SELECT c.variant, sum(c.size) AS assigned, sum(c.sent) AS sent,
       coalesce(sum((SELECT bit_count(bit_or(m.mask)) FROM mailpipe.event_mask m
                     WHERE m.campaign_id = c.campaign_id AND m.chunk_no = c.chunk_no AND m.kind = 'delivery')), 0) AS delivered
FROM mailpipe.chunk c WHERE c.campaign_id = :campaign_id AND 'test' = ANY(c.labels) GROUP BY c.variant;

-- name: complaints
SELECT c.variant, count(DISTINCT f.seq)
FROM mailpipe.feedback f JOIN mailpipe.chunk c ON c.campaign_id = f.campaign_id AND f.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
WHERE f.campaign_id = :campaign_id AND f.kind = 'complaint' AND f.at <= :at AND 'test' = ANY(c.labels) GROUP BY c.variant;

-- name: visits
-- Opens and clicks of one arm.
SELECT v.seq, v.kind, v.at, d.at AS delivered_at, coalesce(v.agent, '') AS agent, v.ip, v.link
FROM mailpipe.chunk c
JOIN mailpipe.event v ON v.campaign_id = c.campaign_id AND v.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
LEFT JOIN LATERAL (
    SELECT min(e.at) AS at FROM mailpipe.event e
    WHERE e.campaign_id = v.campaign_id AND e.seq = v.seq AND e.kind = 'delivery'
) d ON true
WHERE c.campaign_id = :campaign_id AND 'test' = ANY(c.labels) AND c.variant = :variant
  AND v.kind IN ('open', 'click') AND v.at <= :at
ORDER BY v.seq, v.at;

-- name: buyers
-- By the arm that a person was given to, whichever link they came by. An order before the mail is none of its.
SELECT c.variant, count(DISTINCT r.seq)
FROM ({{orders}}) AS o
JOIN mailpipe.recipient r ON r.campaign_id = :campaign_id AND hashtextextended(r.user_id, 0) = hashtextextended(o.user_id, 0)
 AND r.user_id = o.user_id
JOIN mailpipe.chunk c ON c.campaign_id = r.campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
JOIN LATERAL (SELECT min(k.at) AS at FROM mailpipe.call k WHERE k.campaign_id = c.campaign_id AND k.chunk_no = c.chunk_no) AS mailed ON true
WHERE 'test' = ANY(c.labels) AND coalesce(o.campaign, :key) = :key AND o.ordered_at >= mailed.at AND o.ordered_at <= :at
  AND (CAST(:within AS double precision) IS NULL OR o.ordered_at <= mailed.at + make_interval(secs => :within))
GROUP BY c.variant;
