-- Which database this is, and the high-water mark of what was sent with it.

-- name: read
SELECT instance_id, mark, CASE WHEN confirmed_at > clock_timestamp() - interval '1 day' THEN confirmed_surplus ELSE 0 END
FROM mailpipe.instance;

-- name: advance
-- No row: the database is not the one, or not as far as the one, that the caller has seen before.
UPDATE mailpipe.instance SET mark = greatest(mark, clock_timestamp())
WHERE instance_id = :instance_id AND (CAST(:known AS timestamptz) IS NULL OR mark >= :known)
RETURNING mark;

-- name: confirm
-- Beyond every marker that any machine holds: all were written by the clock of a database that is past.
UPDATE mailpipe.instance
SET mark = greatest(mark, CAST(:known AS timestamptz), clock_timestamp()), confirmed_at = clock_timestamp(),
    confirmed_surplus = :surplus
RETURNING mark;

-- name: accepted_last_day
SELECT (SELECT coalesce(sum(c.accepted), 0)
        FROM mailpipe.campaign g JOIN mailpipe.call c USING (campaign_id) WHERE c.at > statement_timestamp() - interval '1 day')
     + (SELECT count(*) FROM mailpipe.message_call m WHERE m.result = 'sent' AND m.at > statement_timestamp() - interval '1 day');
