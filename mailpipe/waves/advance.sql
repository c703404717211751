-- From one part of a campaign to the next. Whoever writes here has locked the campaign.

-- name: keep
-- Frozen; only a person's `hold` ends, by a person's `pass`.
INSERT INTO mailpipe.wave_gate AS g (campaign_id, stage, verdict, rung, actor, reason, numbers)
VALUES (:campaign_id, :stage, :verdict, :rung, :actor, :reason, :numbers)
ON CONFLICT (campaign_id, stage) DO UPDATE
SET verdict = excluded.verdict, rung = excluded.rung, actor = excluded.actor, reason = excluded.reason, numbers = excluded.numbers,
    at = clock_timestamp()
WHERE g.verdict = 'hold';

-- name: plan
SELECT timing -> 'waves' FROM mailpipe.snapshot WHERE campaign_id = :campaign_id;

-- name: own
-- What the campaign itself has sent by day, and who of those let go is still to be mailed: today.
SELECT day, sum(people) FROM (
    SELECT CAST(k.at AT TIME ZONE CAST(:zone AS text) AS date) AS day, k.accepted AS people FROM mailpipe.call k
    WHERE k.campaign_id = :campaign_id AND k.at > statement_timestamp() - interval '3 days'
    UNION ALL
    SELECT CAST(statement_timestamp() AT TIME ZONE CAST(:zone AS text) AS date), c.size - bit_count(c.finished) FROM mailpipe.chunk c
    WHERE c.campaign_id = :campaign_id AND c.held IS NULL AND c.state IN ('pending', 'leased')
) AS own GROUP BY day;

-- name: held
SELECT chunk_no, first_seq, size, due_at, labels FROM mailpipe.chunk
WHERE campaign_id = :campaign_id AND held = 'wave' AND state = 'pending' ORDER BY first_seq FOR UPDATE;

-- name: last
SELECT max(chunk_no) FROM mailpipe.chunk WHERE campaign_id = :campaign_id;

-- name: split
-- Of a held chunk nobody was in a call: all that is finished in it is skipped.
WITH old AS MATERIALIZED (
    SELECT c.*, substring(c.finished FROM 1 FOR CAST(:head AS integer)) AS before, substring(c.finished FROM CAST(:head AS integer) + 1) AS behind
    FROM mailpipe.chunk c
    WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND c.held = 'wave' AND c.state = 'pending'
),
tail AS (
    INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, state, opened, finished, skipped, expires_at, quiet_at,
                                timezone, variant, held, labels)
    SELECT campaign_id, :new_no, slice, first_seq + :head, size - :head, due_at,
           CASE WHEN bit_count(behind) = size - :head THEN 'done' ELSE 'pending' END,
           CAST(repeat('0', size - :head) AS bit varying), behind, bit_count(behind), expires_at, quiet_at, timezone, variant, held, labels
    FROM old
),
moved AS (
    UPDATE mailpipe.outcome o SET chunk_no = :new_no FROM old
    WHERE o.campaign_id = old.campaign_id AND o.chunk_no = old.chunk_no AND o.seq >= old.first_seq + :head
)
UPDATE mailpipe.chunk c
SET size = :head, opened = CAST(repeat('0', :head) AS bit varying), finished = old.before, skipped = bit_count(old.before),
    state = CASE WHEN bit_count(old.before) = :head THEN 'done' ELSE 'pending' END
FROM old WHERE c.campaign_id = old.campaign_id AND c.chunk_no = old.chunk_no;

-- name: move
UPDATE mailpipe.chunk c SET due_at = x.due_at, expires_at = x.expires_at, labels = CAST(x.labels AS text[])
FROM unnest(CAST(:numbers AS integer[]), CAST(:dues AS timestamptz[]), CAST(:ends AS timestamptz[]), CAST(:labels AS text[]))
    AS x(chunk_no, due_at, expires_at, labels)
WHERE c.campaign_id = :campaign_id AND c.chunk_no = x.chunk_no AND c.held = 'wave' AND c.state = 'pending';
