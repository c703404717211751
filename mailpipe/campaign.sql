-- Each move names the state it was decided on: no row changed means that somebody else moved first.

-- name: create
INSERT INTO mailpipe.campaign (key, spec, rate, due_at, author)
VALUES (:key, :spec, :rate, coalesce(CAST(:due_at AS timestamptz), clock_timestamp()), :author)
ON CONFLICT (key) DO NOTHING
RETURNING campaign_id;

-- name: get
SELECT campaign_id, key, state, state_reason, spec, template_version, rate, due_at, author, approver, created_at, changed_at,
       clock_timestamp() AS now
FROM mailpipe.campaign WHERE key = :key;

-- name: lock
-- Held until the end of the transaction: no move can come between. Comes before any lock on a chunk, as in every move.
SELECT FROM mailpipe.campaign WHERE key = :key FOR UPDATE;

-- name: get_all
SELECT campaign_id, key, state, state_reason, spec, template_version, rate, due_at, author, approver, created_at, changed_at,
       clock_timestamp() AS now
FROM mailpipe.campaign ORDER BY campaign_id DESC;

-- name: keep_template
-- A version that is published again is the latest one again: messages name the template and get the latest.
INSERT INTO mailpipe.template_version (name, template, content) VALUES (:name, :template, :content)
ON CONFLICT (name) DO UPDATE SET published_at = clock_timestamp();

-- name: keep_variant
INSERT INTO mailpipe.campaign_variant (campaign_id, variant, template_version) VALUES (:campaign_id, :variant, :version)
ON CONFLICT (campaign_id, variant) DO UPDATE SET template_version = excluded.template_version;

-- name: of_series
SELECT key, spec -> 'experiment' FROM mailpipe.campaign WHERE spec -> 'experiment' ->> 'series' = :series
ORDER BY campaign_id DESC LIMIT 1;

-- name: template
SELECT content FROM mailpipe.template_version WHERE name = :name;

-- name: has_snapshot
-- And when its people are first due.
SELECT (SELECT min(d.due_at) FROM mailpipe.due d WHERE d.campaign_id = :campaign_id) FROM mailpipe.snapshot WHERE campaign_id = :campaign_id;

-- name: approve
UPDATE mailpipe.campaign
SET state = 'approved', template_version = :template_version, approver = :approver, approved_at = clock_timestamp(),
    changed_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND state = :state;

-- name: start
-- With a canary, everybody but its first slices is due later than now.
WITH started AS (
    UPDATE mailpipe.campaign SET state = 'sending', state_reason = NULL, changed_at = clock_timestamp()
    WHERE campaign_id = :campaign_id AND state = :state
    RETURNING campaign_id, spec -> 'canary' AS canary
),
held AS (
    UPDATE mailpipe.chunk c
    SET due_at = greatest(c.due_at, clock_timestamp() + make_interval(secs => CAST(s.canary ->> 'wait' AS double precision)))
    FROM started s
    WHERE jsonb_typeof(s.canary) = 'object' AND c.campaign_id = s.campaign_id AND c.state = 'pending'
      AND c.slice > (SELECT max(slice) FROM (SELECT DISTINCT k.slice FROM mailpipe.chunk k WHERE k.campaign_id = :campaign_id
                     ORDER BY k.slice LIMIT CAST(s.canary ->> 'slices' AS integer)) AS first)
)
SELECT campaign_id FROM started;

-- name: pause
UPDATE mailpipe.campaign SET state = 'paused', state_reason = :reason, changed_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND state = :state;

-- name: resume
-- A campaign that was paused before it had a snapshot goes back to where it was: approved.
UPDATE mailpipe.campaign
SET state = CASE WHEN EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = :campaign_id) THEN 'sending' ELSE 'approved' END,
    state_reason = NULL, changed_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND state = :state;

-- name: cancel
UPDATE mailpipe.campaign SET state = 'cancelled', state_reason = :reason, changed_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND state = :state;

-- name: cancel_chunks
-- Leased chunks follow when their holder gives them back, or when their lease ends.
UPDATE mailpipe.chunk SET state = 'cancelled' WHERE campaign_id = :campaign_id AND state = 'pending';

-- name: change
UPDATE mailpipe.campaign
SET spec = :spec, rate = :rate, template_version = :template_version, changed_at = clock_timestamp()
WHERE campaign_id = :campaign_id AND state = :state;

-- name: retime
-- Whose audience is frozen has its due times there, and nobody moves them from here.
UPDATE mailpipe.campaign c SET spec = :spec, due_at = coalesce(CAST(:due_at AS timestamptz), clock_timestamp()), changed_at = clock_timestamp()
WHERE c.campaign_id = :campaign_id AND c.state = :state
  AND NOT EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = c.campaign_id);

-- name: finish
UPDATE mailpipe.campaign c SET state = 'done', state_reason = NULL, changed_at = clock_timestamp()
WHERE c.campaign_id = :campaign_id AND c.state = 'sending'
  AND EXISTS (SELECT FROM mailpipe.snapshot s WHERE s.campaign_id = c.campaign_id)
  AND NOT EXISTS (SELECT FROM mailpipe.chunk k WHERE k.campaign_id = c.campaign_id AND k.state NOT IN ('done', 'expired'));

-- name: reopen
-- An answer that came after its people were given up as `unknown` can prove that they were not mailed; a person can order a re-send.
UPDATE mailpipe.campaign c SET state = 'sending', changed_at = clock_timestamp()
WHERE c.campaign_id = :campaign_id AND c.state = 'done'
  AND EXISTS (SELECT FROM mailpipe.chunk k WHERE k.campaign_id = c.campaign_id AND k.state = 'pending');

-- name: history
SELECT at, actor, action, detail FROM mailpipe.audit WHERE campaign_id = :campaign_id ORDER BY audit_id;

-- name: audit
INSERT INTO mailpipe.audit (campaign_id, actor, action, detail) VALUES (:campaign_id, :actor, :action, :detail);

-- name: topics
SELECT DISTINCT spec ->> 'topic' FROM mailpipe.campaign WHERE state IN ('sending', 'paused', 'done') AND spec ? 'topic' ORDER BY 1;
