-- The shared limiter. Its function and sequences are part of the schema.

-- name: limits
-- Everything that decides how fast may be sent now, read once a second by each process.
SELECT p.ceiling, p.account_rate, g.rate, p.blocked_reason,
       CAST(extract(epoch FROM p.blocked_until - clock_timestamp()) AS double precision) AS blocked_for,
       CAST(extract(epoch FROM clock_timestamp() - p.account_read_at) AS double precision) AS account_age
FROM mailpipe.pace p LEFT JOIN mailpipe.campaign g ON g.campaign_id = :campaign_id;

-- name: take
SELECT granted, slot, present, CAST(extract(epoch FROM statement_timestamp()) AS double precision)
FROM mailpipe.take_slot(CAST(CAST(:sequences AS text[]) AS regclass[]), CAST(:spacings AS bigint[]), :lead, :patience);

-- name: block
-- A shorter wait neither ends a longer one nor takes its name.
UPDATE mailpipe.pace SET blocked_until = clock_timestamp() + make_interval(secs => :seconds), blocked_reason = :reason
WHERE blocked_until IS NULL OR blocked_until < clock_timestamp() + make_interval(secs => :seconds);

-- name: keep_account
UPDATE mailpipe.pace
SET account_rate = :rate, daily_quota = :daily_quota, sent_last_day = :sent_last_day, account_read_at = clock_timestamp();

-- name: set_ceiling
UPDATE mailpipe.pace SET ceiling = CAST(:ceiling AS double precision);

-- name: state
SELECT ceiling, account_rate, daily_quota, sent_last_day, account_read_at,
       CASE WHEN blocked_until > clock_timestamp() THEN blocked_until END AS blocked_until,
       CASE WHEN blocked_until > clock_timestamp() THEN blocked_reason END AS blocked_reason
FROM mailpipe.pace;
