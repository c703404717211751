-- Rates of a campaign, from the ledger and its event bits.

-- name: counts
-- Events can be faster than our own record of the call: whoever SES told of was sent.
WITH told AS (
    SELECT chunk_no, kind, bit_or(mask) AS mask FROM mailpipe.event_mask
    WHERE campaign_id = :campaign_id AND kind IN ('send', 'delivery', 'complaint', 'hard_bounce', 'delivery_delay')
    GROUP BY chunk_no, kind
),
chunk AS (
    SELECT chunk_no, coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'send'), 0) AS sent,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'delivery'), 0) AS delivered,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'complaint'), 0) AS complaints,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'hard_bounce'), 0) AS hard_bounces,
           coalesce(sum(bit_count(mask)) FILTER (WHERE kind = 'delivery_delay'), 0) AS delayed
    FROM told GROUP BY chunk_no
)
SELECT c.slice, sum(greatest(c.sent, t.sent)) AS sent, coalesce(sum(t.delivered), 0) AS delivered,
       coalesce(sum(t.complaints), 0) AS complaints, coalesce(sum(t.hard_bounces), 0) AS hard_bounces,
       coalesce(sum(t.delayed), 0) AS delayed
FROM mailpipe.chunk c LEFT JOIN chunk t ON t.chunk_no = c.chunk_no
WHERE c.campaign_id = :campaign_id GROUP BY c.slice ORDER BY c.slice;

-- name: baseline
SELECT sent, delivered, complaints, hard_bounces, delayed FROM mailpipe.breaker_trip
WHERE campaign_id = :campaign_id ORDER BY at DESC LIMIT 1;

-- name: trip
INSERT INTO mailpipe.breaker_trip (campaign_id, reason, sent, delivered, complaints, hard_bounces, delayed)
VALUES (:campaign_id, :reason, :sent, :delivered, :complaints, :hard_bounces, :delayed);

-- name: sending
SELECT key FROM mailpipe.campaign WHERE campaign_id = ANY(CAST(:campaign_ids AS integer[])) AND state = 'sending' ORDER BY campaign_id;

-- name: all_sending
SELECT campaign_id FROM mailpipe.campaign WHERE state = 'sending' ORDER BY campaign_id;

-- name: gmail
SELECT count(*) FILTER (WHERE mailpipe.email_key(email) LIKE ANY(CAST(:patterns AS text[]))), count(*)
FROM mailpipe.recipient WHERE campaign_id = :campaign_id;

-- name: keep_postmaster
INSERT INTO mailpipe.postmaster_rate (domain, day, rate) VALUES (:domain, :day, :rate)
ON CONFLICT (domain, day) DO UPDATE SET rate = excluded.rate;

-- name: postmaster
SELECT day, rate FROM mailpipe.postmaster_rate
WHERE domain = :domain AND day > current_date - CAST(:days AS integer) ORDER BY rate DESC, day DESC LIMIT 1;
