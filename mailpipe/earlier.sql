-- Whether people of an earlier campaign can be an audience: nothing here writes.

-- name: find
-- And the names of its variables (none without a snapshot), and how many of its chunks are in somebody's hands.
SELECT g.campaign_id, g.state, (SELECT s.variables FROM mailpipe.snapshot s WHERE s.campaign_id = g.campaign_id),
       (SELECT count(*) FROM mailpipe.chunk c WHERE c.campaign_id = g.campaign_id AND c.state = 'leased')
FROM mailpipe.campaign g WHERE g.key = :key;

-- name: hold
SELECT FROM mailpipe.campaign WHERE key = :key FOR SHARE;

-- name: joins
-- Until they are analysed the planner takes a campaign's people and their outcomes for a handful, and compares each with each: minutes
-- for a million. Each person's chunk is found by a loop all the same, as there is no other way; its cost then must start no compiler.
SELECT set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true);
