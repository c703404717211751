-- Whether people of an earlier campaign can be an audience: nothing here writes.

-- name: find
-- And the names of its variables (none without a snapshot), and how many of its chunks are in somebody's hands.
SELECT g.campaign_id, g.state, (SELECT s.variables FROM mailpipe.snapshot s WHERE s.campaign_id = g.campaign_id),
       (SELECT count(*) FROM mailpipe.chunk c WHERE c.campaign_id = g.campaign_id AND c.state = 'leased')
FROM mailpipe.campaign g WHERE g.key = :key;

-- name: hold
SELECT FROM mailpipe.campaign WHERE key = :key FOR SHARE;

-- name: by_index
-- The people of each chunk by an index, their outcomes by a hash. What the loops are said to cost then must start no compiler.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true);

-- name: gather
CREATE TEMPORARY TABLE earlier_person ON COMMIT DROP AS
SELECT d.seq FROM mailpipe.chunk c CROSS JOIN LATERAL (
    -- OFFSET, so that it stays a loop over the chunks.
    SELECT d.seq FROM mailpipe.delivery d
    WHERE d.campaign_id = {{campaign_id}} AND d.chunk_no = c.chunk_no AND ({{condition}}) OFFSET 0
) AS d WHERE c.campaign_id = {{campaign_id}};

-- name: as_before
SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL enable_nestloop TO DEFAULT;

-- name: known
ANALYZE earlier_person;
