-- Taking in events. Each statement is order-free, and writes in the order of its key: two of them never wait for each other in a circle.

-- name: campaigns
SELECT key, campaign_id FROM mailpipe.campaign WHERE key = ANY(CAST(:keys AS text[]));

-- name: by_message_id
-- Calls hold their message ids packed, and no index of them: the time at which SES took the mail says where to look, :late how many
-- seconds after it the call may have been recorded.
SELECT x.place, g.campaign_id, g.key, c.first_seq, CAST(k.positions AS text), k.codes, k.message_ids, k.message_ids_text
FROM unnest(CAST(:places AS integer[]), CAST(:packed AS text[]), CAST(:ids AS text[]), CAST(:times AS timestamptz[]))
    AS x(place, packed, id, at)
JOIN mailpipe.campaign g ON g.created_at < x.at + make_interval(secs => :late)
 AND (g.state IN ('sending', 'paused') OR g.changed_at > x.at - interval '1 hour')
CROSS JOIN LATERAL (
    SELECT * FROM mailpipe.call k
    WHERE k.campaign_id = g.campaign_id AND k.at BETWEEN x.at - interval '30 seconds' AND x.at + make_interval(secs => :late)
      AND CASE WHEN k.message_ids IS NOT NULL AND x.packed ~ '^[0-9a-f]{48}$' THEN position(decode(x.packed, 'hex') IN k.message_ids) > 0
               ELSE x.id = ANY(string_to_array(k.message_ids_text, ' ')) END
    LIMIT 1
) k
JOIN mailpipe.chunk c ON c.campaign_id = k.campaign_id AND c.chunk_no = k.chunk_no;

-- name: keep
INSERT INTO mailpipe.event (at, digest, kind, campaign_id, seq, attempt, message, ses_id, accepted_at, detail, link, agent, ip, sns_id, body)
SELECT * FROM unnest(
    CAST(:ats AS timestamptz[]), CAST(:digests AS bytea[]), CAST(:kinds AS text[]), CAST(:campaign_ids AS integer[]),
    CAST(:seqs AS integer[]), CAST(:attempts AS smallint[]), CAST(:messages AS text[]), CAST(:ses_ids AS text[]),
    CAST(:accepted AS timestamptz[]), CAST(:details AS text[]), CAST(:links AS text[]), CAST(:agents AS text[]), CAST(:ips AS text[]),
    CAST(:sns_ids AS text[]), CAST(:bodies AS text[]))
ON CONFLICT DO NOTHING
RETURNING at, digest;

-- name: unbound
-- The newest first: what others send through the same topic never finds anybody, and must not keep the rest waiting.
SELECT body, digest FROM mailpipe.event
WHERE campaign_id IS NULL AND message IS NULL AND received_at > :since ORDER BY received_at DESC LIMIT :limit;

-- name: bind
UPDATE mailpipe.event e SET campaign_id = x.campaign_id, seq = x.seq, attempt = x.attempt
FROM unnest(CAST(:ats AS timestamptz[]), CAST(:digests AS bytea[]), CAST(:campaign_ids AS integer[]), CAST(:seqs AS integer[]),
            CAST(:attempts AS smallint[])) AS x(at, digest, campaign_id, seq, attempt)
WHERE e.at = x.at AND e.digest = x.digest AND e.campaign_id IS NULL AND e.message IS NULL;

-- name: feedback
-- The first time of each kind is kept, whichever is told first.
INSERT INTO mailpipe.feedback AS f (campaign_id, seq, attempt, kind, at, detail)
SELECT DISTINCT ON (x.campaign_id, x.seq, x.attempt, x.kind) x.*
FROM unnest(CAST(:campaign_ids AS integer[]), CAST(:seqs AS integer[]), CAST(:attempts AS smallint[]), CAST(:kinds AS text[]),
            CAST(:ats AS timestamptz[]), CAST(:details AS text[])) AS x(campaign_id, seq, attempt, kind, at, detail)
ORDER BY x.campaign_id, x.seq, x.attempt, x.kind, x.at
ON CONFLICT (campaign_id, seq, attempt, kind) DO UPDATE SET at = excluded.at, detail = excluded.detail WHERE excluded.at < f.at;

-- name: soft_bounce
INSERT INTO mailpipe.soft_bounce AS s (email_key, campaign_id, at)
SELECT * FROM unnest(CAST(:keys AS text[]), CAST(:campaign_ids AS integer[]), CAST(:ats AS timestamptz[]))
ON CONFLICT (email_key, campaign_id) DO UPDATE SET at = greatest(s.at, excluded.at);

-- name: repeated
SELECT email_key, count(*) FROM mailpipe.soft_bounce
WHERE email_key = ANY(CAST(:keys AS text[])) AND at > :since GROUP BY email_key HAVING count(*) >= :times ORDER BY email_key;

-- name: email
SELECT email FROM mailpipe.recipient WHERE campaign_id = :campaign_id AND seq = :seq;

-- name: troubled
-- Chunks with somebody whose state these events may change: `unknown` people, or a mail that SES could not make.
SELECT c.campaign_id, array_agg(DISTINCT c.chunk_no)
FROM unnest(CAST(:campaign_ids AS integer[]), CAST(:seqs AS integer[]), CAST(:attempts AS smallint[]), CAST(:kinds AS text[]))
    AS x(campaign_id, seq, attempt, kind)
JOIN LATERAL (
    SELECT k.campaign_id, k.chunk_no, k.first_seq, k.size, k.unknown FROM mailpipe.chunk k
    WHERE k.campaign_id = x.campaign_id AND k.first_seq <= x.seq ORDER BY k.first_seq DESC LIMIT 1
) c ON x.seq < c.first_seq + c.size
WHERE c.unknown > 0 OR x.kind IN ('rendering_failure', 'reject')
GROUP BY c.campaign_id ORDER BY c.campaign_id;
