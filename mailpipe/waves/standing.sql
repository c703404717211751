-- The parts of a campaign that goes in waves: nothing here writes.

-- name: stages
-- Events can be faster than our own record of the call: whoever SES told of was sent.
WITH masks AS (
    SELECT chunk_no, kind, bit_or(mask) AS mask FROM mailpipe.event_mask WHERE campaign_id = :campaign_id GROUP BY chunk_no, kind
),
told AS (
    SELECT chunk_no, coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'send'), 0) AS sent,
           coalesce(bit_count(bit_or(mask) FILTER (WHERE kind <> 'send')), 0) AS told,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'hard_bounce'), 0) AS hard_bounces,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'complaint'), 0) AS complaints,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'delivery_delay'), 0) AS delayed
    FROM masks GROUP BY chunk_no
)
SELECT c.labels[1] AS label, coalesce(substring(array_to_string(c.labels, ' ') FROM 'T[1-5] (\w+)'), 'other') AS family,
       c.held IS NOT NULL AND c.state = 'pending' AS held, min(c.due_at) AS at, CAST(sum(c.size) AS integer) AS people,
       CAST(sum(greatest(c.sent, coalesce(t.sent, 0))) AS integer) AS sent,
       CAST(coalesce(sum(c.size - bit_count(c.finished)) FILTER (WHERE c.state IN ('pending', 'leased')), 0) AS integer) AS left,
       CAST(coalesce(sum(t.told), 0) AS integer) AS told, CAST(coalesce(sum(t.hard_bounces), 0) AS integer) AS hard_bounces,
       CAST(coalesce(sum(t.complaints), 0) AS integer) AS complaints, CAST(coalesce(sum(t.delayed), 0) AS integer) AS delayed
FROM mailpipe.chunk c LEFT JOIN told t USING (chunk_no)
WHERE c.campaign_id = :campaign_id AND cardinality(c.labels) > 0
GROUP BY 1, 2, 3;

-- name: began
SELECT min(k.at) FROM mailpipe.chunk c JOIN mailpipe.call k USING (campaign_id, chunk_no)
WHERE c.campaign_id = :campaign_id AND CAST(:label AS text) = c.labels[1];

-- name: verdicts
SELECT stage, verdict, reason, rung FROM mailpipe.wave_gate WHERE campaign_id = :campaign_id ORDER BY stage;
