-- The volume of a sending domain by days. Which campaigns are its own is read from their files, as `Spec.sender_domain` does.

-- part: of_domain
lower(rtrim(substring(g.spec ->> 'sender' FROM '[^@]*$'), '> ')) = :domain AND g.campaign_id IS DISTINCT FROM CAST(:but AS integer)

-- name: sent
SELECT CAST(k.at AT TIME ZONE CAST(:zone AS text) AS date), sum(k.accepted)
FROM mailpipe.campaign g JOIN mailpipe.call k USING (campaign_id)
WHERE {{of_domain}} AND k.at > statement_timestamp() - CAST(:since AS interval) AND k.accepted > 0
GROUP BY 1;

-- name: planned
-- Who is late is mailed today.
SELECT CAST(greatest(c.due_at, statement_timestamp()) AT TIME ZONE CAST(:zone AS text) AS date), sum(c.size - bit_count(c.finished))
FROM mailpipe.campaign g JOIN mailpipe.chunk c USING (campaign_id)
WHERE {{of_domain}} AND g.state IN ('approved', 'sending', 'paused') AND c.state IN ('pending', 'leased')
GROUP BY 1;
