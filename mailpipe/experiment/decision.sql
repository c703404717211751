-- The one decision of an experiment. Whoever comes second changes nothing.

-- name: get
SELECT campaign_id, decide_at, decided_at, outcome, winner, reason, actor, rule, machine_rule, numbers, released
FROM mailpipe.experiment WHERE campaign_id = :campaign_id;

-- name: waiting
-- Campaigns whose experiment is not decided; one without a rest is done by then. `complete`: nobody of the test is pending or in a call; `last_mail` is when the last one left.
SELECT g.key, g.campaign_id, t.complete, coalesce(t.last_mail, clock_timestamp()) AS last_mail, e.decide_at, clock_timestamp() AS now
FROM mailpipe.campaign g
LEFT JOIN mailpipe.experiment e ON e.campaign_id = g.campaign_id
CROSS JOIN LATERAL (
    SELECT bool_and(c.state NOT IN ('pending', 'leased')) AS complete,
           max((SELECT max(k.at) FROM mailpipe.call k WHERE k.campaign_id = c.campaign_id AND k.chunk_no = c.chunk_no)) AS last_mail
    FROM mailpipe.chunk c WHERE c.campaign_id = g.campaign_id AND 'test' = ANY(c.labels)
) t
WHERE g.campaign_id = coalesce(CAST(:campaign_id AS integer), g.campaign_id) AND g.state IN ('sending', 'paused', 'done') AND jsonb_typeof(g.spec -> 'experiment') = 'object' AND e.decided_at IS NULL
  AND EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = g.campaign_id)
ORDER BY g.campaign_id;

-- name: note
-- The time of the decision is fixed by the first who sees that the test is out.
INSERT INTO mailpipe.experiment (campaign_id, decide_at) VALUES (:campaign_id, :decide_at) ON CONFLICT (campaign_id) DO NOTHING;

-- name: freeze
INSERT INTO mailpipe.experiment AS e (campaign_id, decide_at, decided_at, outcome, winner, reason, actor, rule, machine_rule, numbers, released)
VALUES (:campaign_id, :at, clock_timestamp(), :outcome, :winner, :reason, :actor, :rule, :machine_rule, :numbers, :released)
ON CONFLICT (campaign_id) DO UPDATE
SET decided_at = excluded.decided_at, outcome = excluded.outcome, winner = excluded.winner, reason = excluded.reason, actor = excluded.actor,
    rule = excluded.rule, machine_rule = excluded.machine_rule, numbers = excluded.numbers, released = excluded.released
WHERE e.decided_at IS NULL;

-- name: first_held
SELECT min(due_at) FROM mailpipe.chunk WHERE campaign_id = :campaign_id AND held = 'experiment' AND state = 'pending';
