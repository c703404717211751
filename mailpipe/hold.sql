-- Chunks that wait for a decision. Each statement names what they wait for, so whoever decides a second time frees nobody.

-- name: release
-- The new due times are noted, so that somebody is launched for them. Of a campaign that is over nobody is freed.
WITH campaign AS MATERIALIZED (
    SELECT campaign_id FROM mailpipe.campaign
    WHERE campaign_id = :campaign_id AND state IN ('approved', 'sending', 'paused') FOR SHARE
),
freed AS (
    UPDATE mailpipe.chunk c
    SET held = NULL, variant = coalesce(CAST(:variant AS text), c.variant), due_at = greatest(c.due_at, CAST(:due_at AS timestamptz))
    FROM campaign g
    WHERE c.campaign_id = g.campaign_id AND c.held = :held AND c.state = 'pending'
      AND (CAST(:label AS text) IS NULL OR CAST(:label AS text) = ANY(c.labels))
    RETURNING c.slice, c.due_at, c.size - bit_count(c.finished) AS people
),
noted AS (
    INSERT INTO mailpipe.due (campaign_id, due_at, first_slice, last_slice, people)
    SELECT :campaign_id, due_at, min(slice), max(slice), sum(people) FROM freed GROUP BY due_at HAVING sum(people) > 0
    ON CONFLICT (campaign_id, due_at) DO UPDATE
    SET first_slice = least(due.first_slice, excluded.first_slice), last_slice = greatest(due.last_slice, excluded.last_slice),
        people = due.people + excluded.people, launched_at = NULL
)
SELECT coalesce(sum(people), 0) FROM freed;

-- name: retime
WITH moved AS (
    UPDATE mailpipe.chunk c
    SET due_at = c.due_at + CAST(:by AS interval), quiet_at = c.quiet_at + CAST(:by AS interval),
        expires_at = CASE WHEN g.spec ->> 'expires_after' IS NULL THEN c.expires_at ELSE c.expires_at + CAST(:by AS interval) END
    FROM mailpipe.campaign g
    WHERE g.campaign_id = c.campaign_id AND c.campaign_id = :campaign_id AND c.held = :held AND c.state = 'pending'
      AND (CAST(:label AS text) IS NULL OR CAST(:label AS text) = ANY(c.labels))
    RETURNING c.size - bit_count(c.finished) AS people
)
SELECT coalesce(sum(people), 0) FROM moved;

-- name: waiting
SELECT held, sum(size - bit_count(finished)) FROM mailpipe.chunk
WHERE campaign_id = :campaign_id AND held IS NOT NULL AND state = 'pending' GROUP BY held ORDER BY held;
