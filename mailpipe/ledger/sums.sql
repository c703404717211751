-- What the chunks say: sums over them, and never a number that is kept beside them.

-- part: states
coalesce(sum(size), 0) AS total, coalesce(sum(sent), 0) AS sent, coalesce(sum(failed), 0) AS failed,
coalesce(sum(skipped), 0) + coalesce(sum(size - bit_count(finished)) FILTER (WHERE state IN ('cancelled', 'expired')), 0) AS skipped,
coalesce(sum(unknown), 0) AS unknown, coalesce(sum(bit_count(opened)), 0) AS sending,
coalesce(sum(size - bit_count(finished | opened)) FILTER (WHERE state NOT IN ('cancelled', 'expired')), 0) AS pending

-- name: counts
SELECT {{states}}, count(*) AS chunks, count(*) FILTER (WHERE state = 'pending') AS queued_chunks,
       count(*) FILTER (WHERE state = 'leased') AS processing_chunks
FROM mailpipe.chunk WHERE campaign_id = :campaign_id;

-- name: slices
SELECT slice, {{states}}
FROM mailpipe.chunk WHERE campaign_id = :campaign_id AND slice BETWEEN :first_slice AND :last_slice GROUP BY slice ORDER BY slice;

-- name: next_due
-- Seconds until the next chunk of these slices may be leased: a pending one when it is due, one in other hands when its lease ends.
SELECT extract(epoch FROM min(due_at) FILTER (WHERE state = 'pending' AND held IS NULL) - clock_timestamp()),
       extract(epoch FROM min(leased_until) - clock_timestamp()) FROM mailpipe.chunk
WHERE campaign_id = :campaign_id AND slice BETWEEN :first_slice AND :last_slice AND state IN ('pending', 'leased');
