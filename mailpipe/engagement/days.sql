-- What is folded. Who writes it is told in fold.sql.

-- name: state
SELECT folded_to, freshness, thinning, ages, mails, opens, clicks FROM mailpipe.engagement_state;

-- name: first_call
SELECT CAST(min(at) AT TIME ZONE 'UTC' AS date) FROM mailpipe.call;

-- name: folded
SELECT day, people, mails, opens, clicks, machines, bought, tiers, seconds FROM mailpipe.engagement_fold WHERE day = :day;
