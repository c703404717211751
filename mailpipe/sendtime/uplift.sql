-- What came of the people of optimised campaigns.

-- name: people
-- Whose mail was accepted, by group; of who explored by hour as well.
SELECT g.label, coalesce(x.hour, -1), coalesce(x.best_hour, -1), coalesce(x.propensity, CAST(1 AS real)),
       count(*) AS people, count(*) FILTER (WHERE NOT coalesce(e.machine, false)) AS readable
FROM mailpipe.delivery d
JOIN unnest(CAST(:labels AS text[])) AS g(label) ON g.label = ANY(d.labels)
LEFT JOIN mailpipe.send_explored x ON g.label = 'explore' AND x.campaign_id = d.campaign_id AND x.user_id = d.user_id
LEFT JOIN mailpipe.engagement e ON e.person_id = d.user_id
WHERE d.campaign_id = :campaign_id AND d.state = 'sent'
GROUP BY 1, 2, 3, 4;

-- name: visits
SELECT v.seq, v.kind, v.at, coalesce(d.at, c.due_at) AS delivered_at, coalesce(v.agent, '') AS agent, v.ip, v.link
FROM mailpipe.chunk c
JOIN mailpipe.event v ON v.campaign_id = c.campaign_id AND v.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
LEFT JOIN LATERAL (
    SELECT min(e.at) AS at FROM mailpipe.event e
    WHERE e.campaign_id = v.campaign_id AND e.seq = v.seq AND e.kind = 'delivery'
) d ON true
WHERE c.campaign_id = :campaign_id AND c.labels && CAST(:labels AS text[]) AND v.kind IN ('open', 'click')
ORDER BY v.seq, v.at;

-- name: of_people
-- Which cell of the count somebody is in. Nobody is in one whose mail was not accepted.
SELECT g.label, coalesce(x.hour, -1), coalesce(x.best_hour, -1), coalesce(x.propensity, CAST(1 AS real)), s.kind,
       count(*) AS people, count(*) FILTER (WHERE NOT coalesce(e.machine, false)) AS readable
FROM unnest(CAST(:seqs AS integer[]), CAST(:kinds AS text[])) AS s(seq, kind)
JOIN mailpipe.delivery d ON d.campaign_id = :campaign_id AND d.seq = s.seq AND d.state = 'sent'
JOIN unnest(CAST(:labels AS text[])) AS g(label) ON g.label = ANY(d.labels)
LEFT JOIN mailpipe.send_explored x ON g.label = 'explore' AND x.campaign_id = d.campaign_id AND x.user_id = d.user_id
LEFT JOIN mailpipe.engagement e ON e.person_id = d.user_id
GROUP BY 1, 2, 3, 4, 5;

-- name: forget
DELETE FROM mailpipe.send_counted WHERE campaign_id = :campaign_id;

-- name: keep
INSERT INTO mailpipe.send_counted (campaign_id, label, hour, best_hour, propensity, people, clickers, readable, openers)
SELECT :campaign_id, * FROM unnest(CAST(:labels AS text[]), CAST(:hours AS smallint[]), CAST(:bests AS smallint[]),
    CAST(:propensities AS real[]), CAST(:people AS integer[]), CAST(:clickers AS integer[]), CAST(:readable AS integer[]), CAST(:openers AS integer[]));

-- name: counted
SELECT g.key, s.label, s.hour, s.best_hour, s.propensity, s.people, s.clickers, s.readable, s.openers
FROM mailpipe.send_counted s JOIN mailpipe.campaign g USING (campaign_id)
WHERE s.campaign_id = coalesce(CAST(:campaign_id AS integer), s.campaign_id) ORDER BY 1, 2, 3, 4;

-- name: is_settled
-- Counted when everybody's day was over and their events were surely there: nothing would be added any more.
SELECT EXISTS (
    SELECT FROM mailpipe.send_counted s WHERE s.campaign_id = :campaign_id
      AND s.counted_at > (SELECT max(c.due_at) FROM mailpipe.chunk c WHERE c.campaign_id = s.campaign_id) + interval '3 days'
);

-- name: uncounted
-- Optimised campaigns that were sent, whose counts may still change. Events older than this are gone.
SELECT g.key FROM mailpipe.campaign g
WHERE g.spec ->> 'mode' = 'optimised' AND g.state IN ('sending', 'paused', 'done') AND g.due_at > clock_timestamp() - interval '30 days'
ORDER BY 1;
