-- name: held_out
SELECT count(*) FROM mailpipe.holdout WHERE campaign_id = :campaign_id;

-- name: effect
-- Who bought after the first mail, of all people of the campaign and of those who were held out; whichever way they came.
WITH span AS (SELECT min(k.at) AS first FROM mailpipe.call k WHERE k.campaign_id = :campaign_id),
buyers AS MATERIALIZED (
    SELECT DISTINCT o.user_id FROM ({{orders}}) AS o, span
    WHERE o.ordered_at >= span.first AND o.ordered_at < span.first + make_interval(days => :days)
)
SELECT (SELECT s.recipients FROM mailpipe.snapshot s WHERE s.campaign_id = :campaign_id) AS mailed,
       (SELECT count(*) FROM buyers b JOIN mailpipe.recipient r ON r.campaign_id = :campaign_id
        AND hashtextextended(r.user_id, 0) = hashtextextended(b.user_id, 0) AND r.user_id = b.user_id) AS mailed_buyers,
       (SELECT count(*) FROM mailpipe.holdout h WHERE h.campaign_id = :campaign_id) AS held_out,
       (SELECT count(*) FROM buyers b JOIN mailpipe.holdout h ON h.campaign_id = :campaign_id AND h.person_id = b.user_id) AS held_out_buyers;
