-- Windows that close. SKIP LOCKED leaves alone what somebody is writing at this moment, and a campaign that is being moved.

-- name: expire
WITH over AS MATERIALIZED (
    SELECT c.campaign_id, c.chunk_no FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)
    WHERE g.state IN ('sending', 'paused') AND c.campaign_id = coalesce(CAST(:campaign_id AS integer), c.campaign_id)
      AND c.state = 'pending' AND c.expires_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp())
    FOR UPDATE OF c SKIP LOCKED FOR SHARE OF g SKIP LOCKED
)
UPDATE mailpipe.chunk c SET state = 'expired' FROM over o
WHERE c.campaign_id = o.campaign_id AND c.chunk_no = o.chunk_no
RETURNING c.size - bit_count(c.finished);

-- name: caught
SELECT DISTINCT c.campaign_id, c.timezone, c.quiet_at, g.spec ->> 'quiet_hours',
       coalesce(CAST(:now AS timestamptz), statement_timestamp())
FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)
WHERE g.state IN ('sending', 'paused') AND c.campaign_id = coalesce(CAST(:campaign_id AS integer), c.campaign_id)
  AND c.state = 'pending' AND c.held IS NULL AND c.quiet_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp());

-- name: put_off
-- The new due time is noted, so that somebody is launched for it.
WITH caught AS MATERIALIZED (
    SELECT c.chunk_no FROM mailpipe.chunk c
    WHERE c.campaign_id = :campaign_id AND c.timezone = :timezone AND c.quiet_at = :quiet_at AND c.state = 'pending' AND c.held IS NULL
    FOR UPDATE OF c SKIP LOCKED
),
moved AS (
    UPDATE mailpipe.chunk c
    SET due_at = CASE WHEN :waits THEN greatest(c.due_at, :due_at) ELSE c.due_at END, quiet_at = :next_quiet_at
    FROM caught k WHERE c.campaign_id = :campaign_id AND c.chunk_no = k.chunk_no
    RETURNING c.slice, c.size - bit_count(c.finished) AS people
),
noted AS (
    INSERT INTO mailpipe.due (campaign_id, due_at, first_slice, last_slice, people)
    SELECT :campaign_id, :due_at, min(slice), max(slice), sum(people) FROM moved WHERE :waits HAVING count(*) > 0
    ON CONFLICT (campaign_id, due_at) DO UPDATE
    SET first_slice = least(due.first_slice, excluded.first_slice), last_slice = greatest(due.last_slice, excluded.last_slice),
        people = due.people + excluded.people, launched_at = NULL
)
SELECT coalesce(sum(people), 0) FROM moved;

-- name: open_now
-- The whole audience of an approved campaign is due at this moment, in one launch. Who is held stays so, and goes when it is planned.
WITH held AS MATERIALIZED (
    SELECT campaign_id FROM mailpipe.campaign WHERE campaign_id = :campaign_id AND state = 'approved' FOR UPDATE
),
moved AS (
    UPDATE mailpipe.chunk c SET due_at = statement_timestamp() FROM held h
    WHERE c.campaign_id = h.campaign_id AND c.state = 'pending' AND c.held IS NULL AND c.due_at > statement_timestamp()
),
gone AS (
    DELETE FROM mailpipe.due d USING held h WHERE d.campaign_id = h.campaign_id AND d.due_at > statement_timestamp()
    RETURNING d.first_slice, d.last_slice, d.people
)
INSERT INTO mailpipe.due (campaign_id, due_at, first_slice, last_slice, people)
SELECT :campaign_id, statement_timestamp(), min(first_slice), max(last_slice), sum(people) FROM gone HAVING count(*) > 0
RETURNING people;
