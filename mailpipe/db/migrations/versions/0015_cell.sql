ALTER TABLE mailpipe.chunk
    ADD COLUMN variant text,
    ADD COLUMN held text CHECK (held IN ('experiment', 'wave')),
    ADD COLUMN labels text[] NOT NULL DEFAULT '{}',
    ADD CHECK (held IS NULL OR state <> 'leased');

CREATE TABLE mailpipe.campaign_variant (
    campaign_id      integer NOT NULL REFERENCES mailpipe.campaign,
    variant          text NOT NULL CHECK (variant ~ '^[a-z0-9_-]{1,32}$'),
    template_version text NOT NULL REFERENCES mailpipe.template_version,
    PRIMARY KEY (campaign_id, variant)
);

CREATE OR REPLACE VIEW mailpipe.delivery AS
SELECT r.campaign_id, r.seq, c.slice, r.user_id, r.email, r.timezone, r.locale,
       coalesce(o.attempt, CAST(1 AS smallint)) AS attempt, c.chunk_no, c.due_at,
       CASE
           WHEN o.state <> 'retry' THEN o.state
           WHEN get_bit(c.opened, r.seq - c.first_seq) = 1 THEN 'sending'
           WHEN get_bit(c.finished, r.seq - c.first_seq) = 1 THEN 'sent'
           WHEN c.state IN ('cancelled', 'expired') THEN 'skipped'
           ELSE 'pending'
       END AS state,
       CASE
           WHEN o.state <> 'retry' THEN o.reason
           WHEN c.state IN ('cancelled', 'expired') AND get_bit(c.finished, r.seq - c.first_seq) = 0 THEN c.state
           ELSE o.reason
       END AS reason,
       c.variant, c.labels
FROM mailpipe.chunk c
JOIN mailpipe.recipient r ON r.campaign_id = c.campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
LEFT JOIN mailpipe.outcome o ON o.campaign_id = r.campaign_id AND o.seq = r.seq;
