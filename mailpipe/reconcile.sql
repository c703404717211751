-- What wants a worker. It only reads. Calls are asked for by the statement's time: by the clock's, which may be another for each row, no
-- index can be asked, and all calls that there ever were would be read.

-- name: unattended
SELECT g.key, CAST(min(c.slice) AS integer) AS first_slice, CAST(max(c.slice) AS integer) AS last_slice,
       coalesce(g.spec ->> 'lane', 'normal') AS lane
FROM mailpipe.campaign g JOIN mailpipe.chunk c USING (campaign_id)
WHERE g.state = 'sending'
  AND (c.state = 'pending' AND c.held IS NULL AND c.due_at <= clock_timestamp() AND coalesce(least(c.expires_at, c.quiet_at), 'infinity') > clock_timestamp()
       OR c.state = 'leased' AND c.leased_until <= clock_timestamp())
  AND NOT EXISTS (SELECT FROM mailpipe.chunk l WHERE l.campaign_id = g.campaign_id
                  AND l.state = 'leased' AND l.leased_until > clock_timestamp())
  AND NOT EXISTS (SELECT FROM mailpipe.call k WHERE k.campaign_id = g.campaign_id
                  AND k.at > statement_timestamp() - make_interval(secs => :quiet))
GROUP BY g.campaign_id ORDER BY g.campaign_id;
