-- What must hold for every campaign at any time. Each query answers how many people break it; reads only.

-- name: missing
-- People whom no chunk holds, or who are held twice, or numbers that nobody has.
SELECT abs(s.recipients - r.people) + abs(s.recipients - r.last) + abs(s.recipients - c.people) + c.gaps
FROM mailpipe.snapshot s,
     (SELECT count(*) AS people, coalesce(max(seq), 0) AS last FROM mailpipe.recipient WHERE campaign_id = :campaign_id) r,
     (SELECT coalesce(sum(size), 0) AS people, count(*) FILTER (WHERE first_seq <> expected) AS gaps
      FROM (SELECT size, first_seq, 1 + coalesce(sum(size) OVER (ORDER BY first_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
            AS expected FROM mailpipe.chunk WHERE campaign_id = :campaign_id) k) c
WHERE s.campaign_id = :campaign_id;

-- name: accepted_twice
-- A call's positions are the people accepted in it, except where `codes` names the letter of each. Whom somebody has ordered to
-- mail again may be accepted once for each attempt.
WITH accepted AS (
    SELECT chunk_no, positions FROM mailpipe.call WHERE campaign_id = :campaign_id AND codes IS NULL
    UNION ALL
    SELECT k.chunk_no, people.positions FROM mailpipe.call k, LATERAL (
        SELECT CAST(string_agg(CASE WHEN get_bit(k.positions, i) = 1
                   AND substr(k.codes, 1 + CAST(bit_count(substring(k.positions FROM 1 FOR i)) AS integer), 1) = 's'
                   THEN '1' ELSE '0' END, '' ORDER BY i) AS bit varying) AS positions
        FROM generate_series(0, length(k.positions) - 1) i
    ) people WHERE k.campaign_id = :campaign_id AND k.codes IS NOT NULL AND k.accepted > 0
)
SELECT coalesce(sum(acceptances - people), 0) - (
    SELECT coalesce(sum(least(n.times, o.attempt) - least(n.times, 1)), 0)
    FROM mailpipe.outcome o JOIN mailpipe.chunk c USING (campaign_id, chunk_no), LATERAL (
        SELECT count(*) AS times FROM accepted a WHERE a.chunk_no = o.chunk_no AND get_bit(a.positions, o.seq - c.first_seq) = 1
    ) n WHERE o.campaign_id = :campaign_id AND o.attempt > 1
) FROM (
    SELECT sum(bit_count(positions)) AS acceptances, bit_count(bit_or(positions)) AS people FROM accepted GROUP BY chunk_no
) chunk;

-- name: mailed_while_suppressed
-- Suppressed well before the request left: consent is read when a call is opened, moments before.
SELECT count(DISTINCT r.seq)
FROM mailpipe.suppression s
JOIN mailpipe.recipient r ON r.campaign_id = :campaign_id AND mailpipe.email_key(r.email) = s.email_key
 AND hashtextextended(mailpipe.email_key(r.email), 0) = hashtextextended(s.email_key, 0)
JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
JOIN mailpipe.call k ON k.campaign_id = :campaign_id AND k.chunk_no = c.chunk_no AND get_bit(k.positions, r.seq - c.first_seq) = 1
WHERE s.at < k.at - make_interval(secs => k.seconds + :moments) AND k.accepted > 0
  AND (k.codes IS NULL OR substr(
       k.codes, 1 + CAST(bit_count(substring(k.positions FROM 1 FOR r.seq - c.first_seq)) AS integer), 1) = 's');
