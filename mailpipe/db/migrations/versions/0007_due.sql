ALTER TABLE mailpipe.chunk ADD COLUMN expires_at timestamptz, ADD COLUMN quiet_at timestamptz, ADD COLUMN timezone text;
ALTER TABLE mailpipe.chunk DROP CONSTRAINT chunk_state_check;
ALTER TABLE mailpipe.chunk ADD CONSTRAINT chunk_state_check CHECK (state IN ('pending', 'leased', 'done', 'cancelled', 'expired'));
ALTER TABLE mailpipe.chunk ADD CHECK ((quiet_at IS NULL) = (timezone IS NULL));
ALTER TABLE mailpipe.snapshot ADD COLUMN timing jsonb NOT NULL DEFAULT '{}';

CREATE TABLE mailpipe.due (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    due_at      timestamptz NOT NULL,
    first_slice smallint NOT NULL CHECK (first_slice BETWEEN 0 AND 99),
    last_slice  smallint NOT NULL CHECK (last_slice BETWEEN first_slice AND 99),
    people      integer NOT NULL CHECK (people >= 1),
    launched_at timestamptz,
    PRIMARY KEY (campaign_id, due_at)
);
-- Campaigns that are frozen already: one due time each, and runs of those under way have begun.
INSERT INTO mailpipe.due (campaign_id, due_at, first_slice, last_slice, people, launched_at)
SELECT campaign_id, g.due_at, min(slice), max(slice), sum(size),
       CASE WHEN g.state IN ('draft', 'approved') THEN NULL ELSE clock_timestamp() END
FROM mailpipe.chunk JOIN mailpipe.campaign g USING (campaign_id) GROUP BY campaign_id, g.due_at, g.state;

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
       END AS reason
FROM mailpipe.chunk c
JOIN mailpipe.recipient r ON r.campaign_id = c.campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
LEFT JOIN mailpipe.outcome o ON o.campaign_id = r.campaign_id AND o.seq = r.seq;
