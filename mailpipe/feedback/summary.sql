-- name: by_variable
-- Who was sent to, by the value of one variable. A value that begins like a date is told by its age.
WITH people AS (
    SELECT d.seq, r.variables[CAST(:place AS integer)] AS value
    FROM mailpipe.delivery d JOIN mailpipe.recipient r ON r.campaign_id = d.campaign_id AND r.seq = d.seq
    WHERE d.campaign_id = :campaign_id AND d.state = 'sent'
),
told AS (
    SELECT seq, bool_or(kind = 'complaint') AS complained, bool_or(kind = 'hard_bounce') AS bounced
    FROM mailpipe.feedback WHERE campaign_id = :campaign_id AND kind IN ('complaint', 'hard_bounce') GROUP BY seq
),
grouped AS (
    SELECT CASE WHEN p.value IS NULL THEN '(none)'
                WHEN p.value !~ '^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])' THEN p.value
                WHEN a.days <= 7 THEN 'up to 7 days' WHEN a.days <= 30 THEN 'up to 30 days' WHEN a.days <= 90 THEN 'up to 90 days'
                WHEN a.days <= 365 THEN 'up to a year' ELSE 'more than a year' END AS value, t.complained, t.bounced
    FROM people p LEFT JOIN told t ON t.seq = p.seq
    CROSS JOIN LATERAL (
        SELECT CASE WHEN p.value ~ '^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])'
                    THEN -- Day by day from the first of the month: a date that no calendar has is none that fails.
                         CAST(CAST(:as_of AS timestamptz) AS date) - CAST(substr(p.value, 1, 8) || '01' AS date)
                         - CAST(substr(p.value, 9, 2) AS integer) + 1 END AS days
    ) a
)
SELECT value, count(*) AS sent, count(*) FILTER (WHERE complained) AS complaints, count(*) FILTER (WHERE bounced) AS hard_bounces
FROM grouped GROUP BY value ORDER BY complaints DESC, sent DESC, value LIMIT 50;
