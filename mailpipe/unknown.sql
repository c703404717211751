-- The people whose fate is not known. What is done with them is in ledger/orders.sql.

-- name: people
SELECT o.seq, c.slice, r.user_id, o.reason, o.detail, o.attempt, o.at AS since
FROM mailpipe.outcome o
JOIN mailpipe.chunk c ON c.campaign_id = o.campaign_id AND c.chunk_no = o.chunk_no
JOIN mailpipe.recipient r ON r.campaign_id = o.campaign_id AND r.seq = o.seq
WHERE o.campaign_id = :campaign_id AND o.state = 'unknown' ORDER BY o.seq;
