-- name: visits
-- Everything that people, or machines before them, did with the mails of a campaign, beside the time of their delivery.
SELECT v.seq, v.kind, v.at, d.at AS delivered_at, coalesce(v.agent, '') AS agent, v.ip, v.link
FROM mailpipe.event v LEFT JOIN LATERAL (
    SELECT min(e.at) AS at FROM mailpipe.event e
    WHERE e.campaign_id = v.campaign_id AND e.seq = v.seq AND e.kind = 'delivery'
) d ON true
WHERE v.campaign_id = :campaign_id AND v.kind IN ('open', 'click') ORDER BY v.seq, v.at;
