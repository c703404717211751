-- The load, read at one moment. Each statement looks at what is under way alone, never at what is over.

-- name: moment
SELECT clock_timestamp() - make_interval(secs => :settled), date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC',
       (SELECT count(*) FROM mailpipe.audit WHERE action = 'unsubscribe_burst');

-- name: campaigns
SELECT g.campaign_id, g.key AS campaign, coalesce(g.spec ->> 'lane', 'normal') AS lane, g.state,
       coalesce(sum(c.size - bit_count(c.finished) - bit_count(c.opened)) FILTER (WHERE c.state NOT IN ('cancelled', 'expired')), 0) AS pending,
       coalesce(sum(bit_count(c.opened)), 0) AS sending,
       coalesce(sum(c.sent), 0) AS sent, coalesce(sum(c.failed), 0) AS failed, coalesce(sum(c.unknown), 0) AS unknown,
       coalesce(sum(c.skipped), 0)
           + coalesce(sum(c.size - bit_count(c.finished)) FILTER (WHERE c.state IN ('cancelled', 'expired')), 0) AS skipped,
       count(*) FILTER (WHERE c.state = 'pending') AS pending_chunks, count(*) FILTER (WHERE c.state = 'leased') AS leased_chunks,
       CAST(greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(c.due_at) FILTER (WHERE c.state = 'pending' AND c.held IS NULL)), 0))
            AS double precision) AS oldest_age
FROM mailpipe.campaign g LEFT JOIN mailpipe.chunk c USING (campaign_id)
WHERE g.state IN ('sending', 'paused')
GROUP BY g.campaign_id ORDER BY g.campaign_id;

-- name: threads
SELECT t.lane, CAST(sum(CAST(t.threads AS integer)) AS integer)
FROM mailpipe.lane_worker w, jsonb_each_text(w.threads) AS t(lane, threads)
WHERE w.leased_until > clock_timestamp() GROUP BY t.lane;

-- name: campaign_calls
SELECT x.key, k.class, count(*) AS calls, sum(CAST(k.seconds AS double precision)) AS seconds, sum(k.accepted) AS sent,
       sum(k.failed) AS failed, sum(k.retry) AS retry, sum(k.again) AS again, sum(k.unknown) AS unknown
FROM unnest(CAST(:keys AS text[]), CAST(:after AS timestamptz[])) AS x(key, after)
CROSS JOIN LATERAL (
    SELECT width_bucket(CAST(seconds AS double precision), CAST(:bounds AS double precision[])) AS class, seconds, accepted,
           coalesce(length(codes) - length(replace(codes, 'f', '')), 0) AS failed,
           coalesce(length(codes) - length(replace(codes, 'r', '')), 0) AS retry,
           coalesce(length(codes) - length(replace(codes, 'a', '')), 0) AS again,
           coalesce(length(codes) - length(replace(codes, 'u', '')), 0) AS unknown
    FROM mailpipe.call
    WHERE campaign_id = CAST(x.key AS integer) AND at > coalesce(x.after, '-infinity') AND at <= coalesce(CAST(:until AS timestamptz), 'infinity')
) k
GROUP BY x.key, k.class;

-- name: lane_calls
-- All lanes have the same beginning. A call without an answer has no class.
SELECT m.lane AS key, width_bucket(CAST(k.seconds AS double precision), CAST(:bounds AS double precision[])) AS class,
       count(*) AS calls, coalesce(sum(CAST(k.seconds AS double precision)), 0) AS seconds,
       count(*) FILTER (WHERE k.result = 'sent') AS sent, count(*) FILTER (WHERE k.result = 'failed') AS failed,
       count(*) FILTER (WHERE k.result = 'retry') AS retry, count(*) FILTER (WHERE k.result = 'again') AS again,
       count(*) FILTER (WHERE k.result = 'unknown') AS unknown
FROM mailpipe.message_call k JOIN mailpipe.message m USING (message_id)
WHERE k.at > (SELECT min(a) FROM unnest(CAST(:after AS timestamptz[])) AS a) AND k.at <= coalesce(CAST(:until AS timestamptz), 'infinity')
  AND m.lane = ANY(CAST(:keys AS text[]))
GROUP BY 1, 2;

-- name: used
-- The time of the statement, not of the clock: only what is the same for all rows can be looked up in an index.
SELECT ((SELECT coalesce(sum(k.accepted), 0) FROM mailpipe.campaign g JOIN mailpipe.call k USING (campaign_id)
         WHERE g.state IN ('sending', 'paused') AND k.at > statement_timestamp() - make_interval(secs => :recent))
      + (SELECT count(*) FROM mailpipe.message_call k
         WHERE k.result = 'sent' AND k.at > statement_timestamp() - make_interval(secs => :recent))) / :recent;
