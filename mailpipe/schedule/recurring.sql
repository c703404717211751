-- name: create
INSERT INTO mailpipe.schedule (key, cron_expression, timezone, next_slot, next_run_at, wake_at, spec, author)
VALUES (:key, :cron, :timezone, :slot, :at, CAST(:at AS timestamptz) - make_interval(secs => :lead), :spec, :author)
ON CONFLICT (key) DO NOTHING RETURNING schedule_id;

-- name: get
SELECT schedule_id, key, cron_expression, timezone, is_active, next_slot, next_run_at, last_run_at, spec, author, approver,
       template_version, created_at, changed_at, clock_timestamp() AS now
FROM mailpipe.schedule WHERE key = :key AND deleted_at IS NULL;

-- name: get_all
SELECT schedule_id, key, cron_expression, timezone, is_active, next_slot, next_run_at, last_run_at, spec, author, approver,
       template_version, created_at, changed_at, clock_timestamp() AS now
FROM mailpipe.schedule WHERE deleted_at IS NULL ORDER BY schedule_id;

-- name: awake
SELECT schedule_id FROM mailpipe.schedule
WHERE is_active AND wake_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp())
ORDER BY wake_at, schedule_id LIMIT :most;

-- name: next_wake
SELECT key, wake_at FROM mailpipe.schedule WHERE is_active AND wake_at IS NOT NULL ORDER BY wake_at LIMIT 1;

-- name: take
-- Another daemon that is at it right now makes it; what it has done already, the time says.
SELECT schedule_id, key, cron_expression, timezone, is_active, next_slot, next_run_at, last_run_at, spec, author, approver,
       template_version, created_at, changed_at, coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now
FROM mailpipe.schedule
WHERE schedule_id = :schedule_id AND is_active AND wake_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp())
FOR UPDATE SKIP LOCKED;

-- name: note
INSERT INTO mailpipe.occurrence (schedule_id, slot, due_at, state, campaign_id, reason)
VALUES (:schedule_id, :slot, :due_at, :state, :campaign_id, :reason)
ON CONFLICT (schedule_id, slot) DO NOTHING;

-- name: known
SELECT state FROM mailpipe.occurrence WHERE schedule_id = :schedule_id AND slot = :slot;

-- name: advance
UPDATE mailpipe.schedule
SET next_slot = :slot, next_run_at = :at, wake_at = CAST(:at AS timestamptz) - make_interval(secs => :lead),
    last_run_at = coalesce(CAST(:last_run_at AS timestamptz), last_run_at)
WHERE schedule_id = :schedule_id;

-- name: switch
UPDATE mailpipe.schedule SET is_active = :is_active, changed_at = clock_timestamp() WHERE schedule_id = :schedule_id AND deleted_at IS NULL;

-- name: approve
UPDATE mailpipe.schedule SET approver = :approver, template_version = :template_version, changed_at = clock_timestamp()
WHERE schedule_id = :schedule_id AND deleted_at IS NULL AND changed_at = :changed_at;

-- name: change
UPDATE mailpipe.schedule
SET cron_expression = :cron, timezone = :timezone, spec = :spec, author = :author,
    approver = CASE WHEN :keeps THEN approver END, template_version = CASE WHEN :keeps THEN template_version END,
    changed_at = clock_timestamp()
WHERE schedule_id = :schedule_id AND deleted_at IS NULL;

-- name: delete
UPDATE mailpipe.schedule SET is_active = false, deleted_at = clock_timestamp(), changed_at = clock_timestamp()
WHERE schedule_id = :schedule_id AND deleted_at IS NULL;

-- name: occurrences
SELECT o.slot, o.due_at, o.state, g.key, g.state, o.reason FROM mailpipe.occurrence o LEFT JOIN mailpipe.campaign g USING (campaign_id)
WHERE o.schedule_id = :schedule_id ORDER BY o.due_at DESC LIMIT :most;
