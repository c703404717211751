-- name: refuse
-- Counted are mails that were sent or may have been, and those that are on their way: two campaigns frozen at the same time
-- know of each other. Whether earlier or later makes no difference: any `days` days in a row hold at most `mails`.
WITH near AS MATERIALIZED (
    SELECT c.campaign_id, c.chunk_no, c.first_seq, c.size, c.finished | c.opened AS begun,
           g.state IN ('approved', 'sending', 'paused') AND c.state IN ('pending', 'leased') AS coming
    FROM mailpipe.chunk c JOIN mailpipe.campaign g USING (campaign_id)
    WHERE g.campaign_id <> ALL(CAST(:but AS integer[]))
      AND c.due_at > CAST(:due_at AS timestamptz) - make_interval(days => :days)
      AND c.due_at < CAST(:due_at AS timestamptz) + make_interval(days => :days)
),
counted AS (
    SELECT hashtextextended(r.user_id, 0) AS person FROM near n
    JOIN mailpipe.recipient r ON r.campaign_id = n.campaign_id AND r.seq BETWEEN n.first_seq AND n.first_seq + n.size - 1
    LEFT JOIN mailpipe.outcome o ON o.campaign_id = r.campaign_id AND o.seq = r.seq
    WHERE coalesce(o.state, 'sent') NOT IN ('failed', 'skipped')
      AND (n.coming OR substring(n.begun FROM r.seq - n.first_seq + 1 FOR 1) = B'1')
    GROUP BY 1 HAVING count(*) >= :mails
)
INSERT INTO refused
SELECT s.place, 'frequency_cap' FROM {{staged}} s JOIN counted k ON k.person = hashtextextended(s.user_id, 0)
WHERE s.place NOT IN (SELECT place FROM refused);
