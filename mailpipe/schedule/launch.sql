-- What is near. Campaigns whose file names no time are started by a person; once they are sending, quiet hours can make them due
-- again like any other.

-- name: freezes
SELECT g.key, g.due_at,
       CAST(floor(extract(epoch FROM greatest(present.now - (g.due_at - lead.time), interval '0')) / extract(epoch FROM CAST(:again AS interval))) AS integer) AS attempt
FROM mailpipe.campaign g
CROSS JOIN (SELECT coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now) present
CROSS JOIN LATERAL (SELECT make_interval(secs => coalesce(CAST(g.spec ->> 'snapshot_lead' AS integer), 900)) AS time) lead
WHERE g.state = 'approved' AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
  AND g.due_at - lead.time <= present.now AND g.due_at > present.now - make_interval(secs => :grace)
  AND NOT EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = g.campaign_id)
ORDER BY g.due_at, g.campaign_id;

-- name: launches
SELECT g.key, d.due_at, d.first_slice, d.last_slice,
       CAST(floor(extract(epoch FROM present.now - (d.due_at - CAST(:ahead AS interval))) / extract(epoch FROM CAST(:again AS interval))) AS integer) AS attempt,
       coalesce(g.spec ->> 'lane', 'normal') AS lane
FROM mailpipe.campaign g JOIN mailpipe.due d USING (campaign_id)
CROSS JOIN (SELECT coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now) present
WHERE d.launched_at IS NULL AND d.due_at - CAST(:ahead AS interval) <= present.now
  AND (g.state = 'sending' OR g.state = 'approved' AND d.due_at > present.now - make_interval(secs => :grace)
                              AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL)
ORDER BY d.due_at, g.campaign_id;

-- name: missed
-- Behind a month they are history.
SELECT g.key, first.due_at FROM mailpipe.campaign g
CROSS JOIN (SELECT coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now) present
CROSS JOIN LATERAL (SELECT coalesce((SELECT min(d.due_at) FROM mailpipe.due d WHERE d.campaign_id = g.campaign_id), g.due_at) AS due_at) first
WHERE g.state = 'approved' AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
  AND first.due_at <= present.now - make_interval(secs => :grace) AND first.due_at > present.now - interval '30 days'
ORDER BY first.due_at, g.campaign_id;

-- name: begun
UPDATE mailpipe.due SET launched_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND launched_at IS NULL AND due_at <= clock_timestamp() + make_interval(secs => :horizon)
  AND first_slice <= :last_slice AND last_slice >= :first_slice;

-- name: soonest
SELECT g.key, coalesce(d.due_at, g.due_at) AS due_at FROM mailpipe.campaign g LEFT JOIN mailpipe.due d USING (campaign_id)
WHERE g.state IN ('approved', 'sending') AND d.launched_at IS NULL AND coalesce(d.due_at, g.due_at) > clock_timestamp()
  AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
ORDER BY 2 LIMIT 1;
