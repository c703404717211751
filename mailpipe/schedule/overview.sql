-- What there is and how it stands. Reads only.

-- name: recurring
WITH chosen AS (
    SELECT s.*, CASE WHEN NOT s.is_active THEN 'paused' WHEN s.next_run_at IS NULL THEN 'done'
                     WHEN s.approver IS NULL AND s.spec ->> 'approval' = 'series' THEN 'pending' ELSE 'active' END AS status
    FROM mailpipe.schedule s
    WHERE s.deleted_at IS NULL AND s.schedule_id > :after AND s.schedule_id = coalesce(CAST(:only AS integer), s.schedule_id)
)
SELECT s.schedule_id AS number, newest.key AS campaign_id, 'recurring' AS type,
       s.cron_expression AS cron, NULL AS scheduled_at, s.next_run_at AS next_run, s.last_run_at AS last_run, s.status,
       (SELECT coalesce(sum(c.size - bit_count(c.finished | c.opened)), 0)
        FROM mailpipe.occurrence o JOIN mailpipe.campaign g USING (campaign_id) JOIN mailpipe.chunk c USING (campaign_id)
        WHERE o.schedule_id = s.schedule_id AND g.state IN ('approved', 'sending', 'paused')
          AND c.state IN ('pending', 'leased')) AS pending
FROM chosen s LEFT JOIN LATERAL (
    SELECT g.key FROM mailpipe.occurrence o JOIN mailpipe.campaign g USING (campaign_id)
    WHERE o.schedule_id = s.schedule_id ORDER BY o.due_at DESC LIMIT 1
) newest ON true
WHERE s.status = coalesce(CAST(:status AS text), s.status)
ORDER BY s.schedule_id LIMIT :most;

-- name: campaigns
WITH chosen AS (
    SELECT g.campaign_id, g.key, g.state, g.due_at, g.spec ->> 'send_at' AS send_at, g.spec ->> 'timezone' AS timezone,
           CASE WHEN g.spec ->> 'mode' = 'optimised' THEN 'optimised'
                WHEN g.spec ->> 'send_at' IS NOT NULL AND g.spec ->> 'timezone' = 'recipient' THEN 'local' ELSE 'scheduled' END AS type,
           CASE g.state WHEN 'draft' THEN 'pending' WHEN 'approved' THEN 'pending' WHEN 'cancelled' THEN 'failed' ELSE g.state END AS status
    FROM mailpipe.campaign g
    WHERE g.campaign_id < coalesce(CAST(:below AS integer), 2147483647)
      AND g.campaign_id = coalesce(CAST(:only AS integer), g.campaign_id)
),
page AS (
    SELECT * FROM chosen
    WHERE type = coalesce(CAST(:kind AS text), type) AND status = coalesce(CAST(:status AS text), status)
    ORDER BY campaign_id DESC LIMIT :most
)
SELECT p.campaign_id AS number, p.key AS campaign_id, p.type, NULL AS cron,
       CASE WHEN p.type = 'local' THEN left(p.send_at, 16) ELSE to_char(p.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END AS scheduled_at,
       CASE WHEN p.state IN ('done', 'cancelled') THEN NULL
            WHEN due.launches = 0 THEN p.due_at ELSE due.next_run END AS next_run,
       due.last_run, p.status,
       CASE WHEN p.state IN ('approved', 'sending', 'paused') THEN
           (SELECT coalesce(sum(c.size - bit_count(c.finished | c.opened)), 0) FROM mailpipe.chunk c
            WHERE c.campaign_id = p.campaign_id AND c.state IN ('pending', 'leased')) ELSE 0 END AS pending
FROM page p CROSS JOIN LATERAL (
    SELECT count(*) AS launches, min(d.due_at) FILTER (WHERE d.launched_at IS NULL) AS next_run, max(d.launched_at) AS last_run
    FROM mailpipe.due d WHERE d.campaign_id = p.campaign_id
) due
ORDER BY p.campaign_id DESC;

-- name: queues
SELECT coalesce(g.spec ->> 'lane', 'normal'), sum(c.size - bit_count(c.finished | c.opened)), sum(bit_count(c.opened))
FROM mailpipe.campaign g JOIN mailpipe.chunk c USING (campaign_id)
WHERE g.state IN ('approved', 'sending', 'paused') AND c.state IN ('pending', 'leased')
GROUP BY 1;

-- name: behind
-- Campaigns with people who should have been mailed by now. What nobody has started within the grace is told elsewhere.
SELECT g.key, g.state, g.state_reason, min(c.due_at), sum(c.size - bit_count(c.finished | c.opened))
FROM mailpipe.campaign g JOIN mailpipe.chunk c USING (campaign_id)
WHERE (g.state IN ('sending', 'paused')
       OR g.state = 'approved' AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
          AND c.due_at > clock_timestamp() - make_interval(secs => :grace))
  AND c.state IN ('pending', 'leased') AND c.held IS NULL AND c.due_at < clock_timestamp() - CAST(:tolerance AS interval)
GROUP BY g.campaign_id ORDER BY 4 LIMIT :most;

-- name: unapproved
-- Drafts whose audience should be frozen by now.
SELECT g.key, g.due_at FROM mailpipe.campaign g
WHERE g.state = 'draft' AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
  AND g.due_at - make_interval(secs => coalesce(CAST(g.spec ->> 'snapshot_lead' AS integer), 900)) < clock_timestamp()
  AND g.due_at > clock_timestamp() - interval '30 days'
ORDER BY g.due_at LIMIT :most;

-- name: unfrozen
-- Approved and due, and nobody has even frozen the audience. What is beyond the grace is told elsewhere.
SELECT g.key, g.due_at FROM mailpipe.campaign g
WHERE g.state = 'approved' AND coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL
  AND NOT EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = g.campaign_id)
  AND g.due_at < clock_timestamp() - CAST(:tolerance AS interval) AND g.due_at > clock_timestamp() - make_interval(secs => :grace)
ORDER BY g.due_at LIMIT :most;

-- name: lost
SELECT s.key, o.slot, o.due_at, o.state, o.reason FROM mailpipe.occurrence o JOIN mailpipe.schedule s USING (schedule_id)
WHERE o.state IN ('missed', 'failed') AND o.at > clock_timestamp() - interval '3 days'
ORDER BY o.due_at DESC LIMIT :most;

-- name: ahead
SELECT g.key, g.spec ->> 'send_at', g.spec ->> 'timezone', coalesce(d.due_at, g.due_at) AS due_at, d.people
FROM mailpipe.campaign g LEFT JOIN mailpipe.due d USING (campaign_id)
WHERE g.state IN ('draft', 'approved', 'sending', 'paused') AND coalesce(d.due_at, g.due_at) >= :now
  AND coalesce(d.due_at, g.due_at) < :until
  AND (d.due_at IS NOT NULL OR coalesce(g.spec ->> 'due_at', g.spec ->> 'send_at') IS NOT NULL)
ORDER BY 4 LIMIT 1000;

-- name: key
SELECT key FROM mailpipe.schedule WHERE :kind = 's' AND schedule_id = :number AND deleted_at IS NULL
UNION ALL
SELECT key FROM mailpipe.campaign WHERE :kind = 'c' AND campaign_id = :number;
