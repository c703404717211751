-- The shared limiter. Its functions and sequences are part of the schema.

-- name: claim
-- Says that somebody wants slots, and counts what was handed over. Together with `limits` in one transaction: it holds the lock of the
-- limiter until then, so that whoever looks later sees this claim.
SELECT mailpipe.claim_pace(:lane, :campaign_id, :served);

-- name: limits
-- Everything that decides how fast may be sent now, read twice a second by each process.
SELECT p.ceiling, p.account_rate, g.rate, p.blocked_reason,
       -- Nobody waits longer than that, unless the clock was set back.
       CASE WHEN p.blocked_until < clock_timestamp() + make_interval(secs => 2 * :longest)
           THEN CAST(extract(epoch FROM p.blocked_until - clock_timestamp()) AS double precision) END AS blocked_for,
       CAST(extract(epoch FROM clock_timestamp() - p.account_read_at) AS double precision) AS account_age,
       p.order_rate, p.call_ceiling, p.call_rate + :call_raise * mailpipe.seconds_since(p.call_rate_at) AS call_rate,
       least(1, p.ease + :raise * coalesce(mailpipe.seconds_since(p.eased_at), 0)) AS ease,
       p.marketing_share, p.reserve_share, p.most, p.provider_rates, p.transit,
       p.daily_quota, p.sent_last_day, u.handed, u.marketing,
       u.handed - coalesce(p.handed_at_read, u.handed) AS handed_since,
       u.handed - coalesce(d.handed, 0) AS handed_day, u.marketing - coalesce(d.marketing, 0) AS marketing_day,
       CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS read_at,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(c.lane, c.campaign_id, k.rate, mailpipe.seconds_since(c.since),
                                                    mailpipe.seconds_since(c.wanted_at))), '[]')
        FROM mailpipe.pace_claim c LEFT JOIN mailpipe.campaign k USING (campaign_id)
        WHERE c.wanted_at > clock_timestamp() - make_interval(secs => :hold)) AS claims
FROM mailpipe.pace p
CROSS JOIN (SELECT coalesce(pg_sequence_last_value('mailpipe.pace_handed'), 0) AS handed,
                   coalesce(pg_sequence_last_value('mailpipe.pace_marketing'), 0) AS marketing) u
LEFT JOIN LATERAL (
    SELECT m.handed, m.marketing FROM mailpipe.pace_count m WHERE m.at <= clock_timestamp() - interval '24 hours' ORDER BY m.at DESC LIMIT 1
) d ON true
LEFT JOIN mailpipe.campaign g ON g.campaign_id = :campaign_id;

-- name: take
SELECT granted, slot, again, present, stale, spent, CAST(extract(epoch FROM statement_timestamp()) AS double precision)
FROM mailpipe.take_slot(CAST(CAST(:lines AS text[]) AS regclass[]), CAST(:gaps AS bigint[]), CAST(:tags AS integer[]), :apart, CAST(:share AS regclass), :share_gap, :near, :hole, CAST(CAST(:counters AS text[]) AS regclass[]), CAST(:most AS bigint[]),
                        :recipients, :returned, :valid_until, :lead, :patience);

-- name: block
-- A shorter wait neither ends a longer one nor takes its name.
UPDATE mailpipe.pace SET blocked_until = clock_timestamp() + make_interval(secs => :seconds), blocked_reason = :reason
WHERE blocked_until IS NULL OR blocked_until < clock_timestamp() + make_interval(secs => :seconds)
   OR blocked_until > clock_timestamp() + make_interval(secs => 2 * :longest);

-- name: count_refusal
SELECT nextval(CAST(:counter AS regclass));

-- name: refusals
SELECT x.reason, coalesce(pg_sequence_last_value(CAST('mailpipe.pace_refused_' || x.reason AS regclass)), 0)
FROM unnest(CAST(:reasons AS text[])) AS x(reason);

-- name: ease
-- Slower at once, and only once for all the calls that were on their way.
UPDATE mailpipe.pace
SET ease = greatest(:least, least(1, ease + :raise * coalesce(mailpipe.seconds_since(eased_at), 0)) * :cut), eased_at = clock_timestamp()
WHERE eased_at IS NULL OR mailpipe.seconds_since(eased_at) > :once;

-- name: ease_calls
UPDATE mailpipe.pace
SET call_rate = greatest(1, least(:calls, call_rate + :call_raise * mailpipe.seconds_since(call_rate_at)) * :cut), call_rate_at = clock_timestamp()
WHERE call_rate_at IS NULL OR mailpipe.seconds_since(call_rate_at) > :once;

-- name: keep_account
UPDATE mailpipe.pace
SET account_rate = :rate, daily_quota = :daily_quota, sent_last_day = :sent_last_day, account_read_at = clock_timestamp(),
    handed_at_read = coalesce(pg_sequence_last_value('mailpipe.pace_handed'), 0);

-- name: configure
UPDATE mailpipe.pace
SET ceiling = CAST(:ceiling AS double precision), call_ceiling = CAST(:call_ceiling AS double precision),
    marketing_share = :marketing_share, reserve_share = :reserve_share, most = :most, provider_rates = :provider_rates,
    transit = :transit;

-- name: order_rate
UPDATE mailpipe.pace SET order_rate = CAST(:rate AS double precision);

-- name: state
SELECT ceiling, account_rate, daily_quota, sent_last_day, account_read_at,
       CASE WHEN blocked_until > clock_timestamp() THEN blocked_until END AS blocked_until,
       CASE WHEN blocked_until > clock_timestamp() THEN blocked_reason END AS blocked_reason
FROM mailpipe.pace;

-- name: quota_frees
-- When so much of what was handed over is more than 24 hours ago that one more fits.
SELECT greatest(min(at) + interval '24 hours', clock_timestamp() + make_interval(secs => :wait)) FROM mailpipe.pace_count
WHERE marketing > :marketing AND handed > :handed;
