-- What workers do with messages. Every statement re-checks the right to act. Locks are taken in one order: claim, message, queue.

-- name: register
INSERT INTO mailpipe.lane_worker (owner, host, pid, leased_until)
VALUES (:owner, :host, :pid, clock_timestamp() + make_interval(secs => :seconds));

-- name: beat
-- No row: this process was silent for longer than its lease, and its messages are in other hands.
UPDATE mailpipe.lane_worker
SET leased_until = clock_timestamp() + make_interval(secs => :seconds), threads = CAST(:threads AS jsonb)
WHERE owner = :owner
RETURNING 1;

-- name: leave
DELETE FROM mailpipe.lane_worker WHERE owner = :owner;

-- name: claim
-- From the low-water mark: what was deleted before it is not met again, whatever an old snapshot keeps alive. A claim that is lost in
-- a crash of the server is a message that still waits, and opens no call: no flush for it.
WITH due AS (
    DELETE FROM mailpipe.outbox
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM mailpipe.outbox
        WHERE lane = :lane AND due_at >= CAST(:mark AS timestamptz) AND due_at <= statement_timestamp()
          AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
          AND EXISTS (SELECT FROM mailpipe.lane_worker w WHERE w.owner = :owner AND w.leased_until > statement_timestamp())
        ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
    ))
    RETURNING lane, due_at, message_id
),
held AS (
    INSERT INTO mailpipe.outbox_claim (message_id, lane, owner) SELECT message_id, lane, :owner FROM due
    -- A message that waits is in nobody's hands: a claim that is still there has been left behind.
    ON CONFLICT (message_id) DO UPDATE SET owner = excluded.owner, lane = excluded.lane, opened_at = NULL
    RETURNING message_id
)
SELECT m.message_id, m.email, m.sender, m.reply_to, m.template_version, m.variables, m.subject, m.body_text, m.body_html,
       m.attempt, m.tries, due.due_at
FROM held JOIN due USING (message_id) JOIN mailpipe.message m USING (message_id)
ORDER BY due.due_at;

-- name: open
-- Commit this before the request leaves. Who was cancelled meanwhile is not told; who has expired or is suppressed for every mail
-- ends here, seen with the address in the form in which it is sent.
WITH held AS (
    UPDATE mailpipe.outbox_claim c SET opened_at = clock_timestamp()
    FROM unnest(CAST(:ids AS uuid[]), CAST(:keys AS text[])) AS x(message_id, email_key)
    WHERE c.message_id = x.message_id AND c.owner = :owner AND c.opened_at IS NULL
      AND EXISTS (SELECT FROM mailpipe.lane_worker w WHERE w.owner = :owner AND w.leased_until > clock_timestamp())
      AND set_config('synchronous_commit', 'on', true) = 'on' -- whatever the session, a pooler or the role says
    RETURNING c.message_id, x.email_key
),
judged AS (
    SELECT h.message_id,
           CASE WHEN coalesce(m.expires_at, m.send_at + make_interval(secs => :validity)) <= clock_timestamp() THEN 'expired'
                WHEN (SELECT true FROM mailpipe.suppression s WHERE s.email_key = h.email_key AND s.scope = 'all' LIMIT 1)
                    THEN 'suppressed' END AS refusal
    FROM held h JOIN mailpipe.message m USING (message_id)
),
moved AS (
    UPDATE mailpipe.message m
    SET state = CASE WHEN j.refusal IS NULL THEN 'sending' WHEN j.refusal = 'expired' THEN 'expired' ELSE 'skipped' END,
        reason = CASE WHEN j.refusal = 'suppressed' THEN j.refusal WHEN j.refusal IS NULL THEN NULL ELSE m.reason END,
        calls = m.calls + CAST(j.refusal IS NULL AS integer),
        finished_at = CASE WHEN j.refusal IS NOT NULL THEN clock_timestamp() END
    FROM judged j
    WHERE m.message_id = j.message_id AND m.state = 'pending'
    RETURNING m.message_id, m.state, m.calls, m.attempt
)
SELECT h.message_id, m.state, m.calls, m.attempt FROM held h LEFT JOIN moved m USING (message_id);

-- name: drop
-- The claims of messages that have ended without a call.
DELETE FROM mailpipe.outbox_claim c WHERE c.message_id = ANY(CAST(:ids AS uuid[])) AND c.owner = :owner
AND EXISTS (SELECT FROM mailpipe.message m WHERE m.message_id = c.message_id AND m.finished_at IS NOT NULL);

-- name: refuse
-- Messages that cannot be made, before any call.
WITH gone AS (
    DELETE FROM mailpipe.outbox_claim c WHERE c.message_id = ANY(CAST(:ids AS uuid[])) AND c.owner = :owner AND c.opened_at IS NULL
    RETURNING c.message_id
)
UPDATE mailpipe.message m SET state = x.state, reason = x.reason, detail = x.detail, finished_at = clock_timestamp()
FROM gone JOIN unnest(CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:reasons AS text[]), CAST(:details AS text[]))
    AS x(message_id, state, reason, detail) USING (message_id)
WHERE m.message_id = gone.message_id AND m.state = 'pending';

-- name: expire
-- Those of the unopened claims whose time is over while they wait for a slot.
UPDATE mailpipe.message m SET state = 'expired', finished_at = clock_timestamp()
FROM mailpipe.outbox_claim c
WHERE c.message_id = ANY(CAST(:ids AS uuid[])) AND c.owner = :owner AND c.opened_at IS NULL
  AND m.message_id = c.message_id AND m.state = 'pending'
  AND coalesce(m.expires_at, m.send_at + make_interval(secs => :validity)) <= clock_timestamp()
RETURNING m.message_id;

-- name: retract
-- The call was not made. Answers whose claims are still ours.
WITH closed AS (
    UPDATE mailpipe.outbox_claim c SET opened_at = NULL
    WHERE c.message_id = ANY(CAST(:ids AS uuid[])) AND c.owner = :owner
    RETURNING c.message_id
),
again AS (
    UPDATE mailpipe.message m SET state = 'pending' FROM closed WHERE m.message_id = closed.message_id AND m.state = 'sending'
)
SELECT message_id FROM closed;

-- name: release
-- Back to the queue, as they were.
WITH gone AS (
    DELETE FROM mailpipe.outbox_claim c
    WHERE c.message_id = ANY(CAST(:ids AS uuid[])) AND c.owner = :owner AND c.opened_at IS NULL
    RETURNING c.message_id
)
INSERT INTO mailpipe.outbox (lane, due_at, message_id)
SELECT m.lane, m.due_at, m.message_id FROM gone JOIN mailpipe.message m USING (message_id) WHERE m.state = 'pending';

-- name: release_unknown
-- Back to the queue: claims of this process about which no thread of it knows. Their answer was lost with a connection.
WITH gone AS (
    DELETE FROM mailpipe.outbox_claim c
    WHERE c.owner = :owner AND c.lane = :lane AND c.opened_at IS NULL AND NOT c.message_id = ANY(CAST(:held AS uuid[]))
    RETURNING c.message_id
)
INSERT INTO mailpipe.outbox (lane, due_at, message_id)
SELECT m.lane, m.due_at, m.message_id FROM gone JOIN mailpipe.message m USING (message_id) WHERE m.state = 'pending';

-- name: record
-- The answers of one call. What the provider's events have proved by now is not doubted any more.
WITH told AS (
    SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:nos AS integer[]), CAST(:attempts AS smallint[]), CAST(:results AS text[]),
                         CAST(:reasons AS text[]), CAST(:details AS text[]), CAST(:provider_ids AS text[]),
                         CAST(:states AS text[]), CAST(:next_attempts AS smallint[]), CAST(:tries AS smallint[]),
                         CAST(:delays AS double precision[]))
        AS x(message_id, no, attempt, result, reason, detail, provider_id, state, next_attempt, tries, delay)
),
freed AS (
    DELETE FROM mailpipe.outbox_claim c USING told t
    WHERE c.message_id = t.message_id AND c.owner = :owner AND c.opened_at IS NOT NULL
    RETURNING c.message_id, c.opened_at
),
changed AS (
    UPDATE mailpipe.message m
    SET state = mailpipe.after_call(t.state, t.result, m.events, t.attempt), reason = t.reason, detail = t.detail, tries = t.tries,
        provider_id = coalesce(t.provider_id, m.provider_id),
        attempt = CASE mailpipe.after_call(t.state, t.result, m.events, t.attempt) WHEN 'pending' THEN t.next_attempt ELSE m.attempt END,
        due_at = CASE mailpipe.after_call(t.state, t.result, m.events, t.attempt)
                 WHEN 'pending' THEN clock_timestamp() + make_interval(secs => t.delay) ELSE m.due_at END,
        finished_at = CASE WHEN mailpipe.after_call(t.state, t.result, m.events, t.attempt) <> 'pending' THEN clock_timestamp() END
    FROM freed JOIN told t USING (message_id)
    WHERE m.message_id = freed.message_id AND m.state = 'sending'
    RETURNING m.message_id, m.state, m.lane, m.due_at
),
history AS (
    INSERT INTO mailpipe.message_call (message_id, no, attempt, owner, opened_at, seconds, result, reason, detail, provider_id)
    SELECT t.message_id, t.no, t.attempt, :owner, freed.opened_at, CAST(:seconds AS real), t.result, t.reason, t.detail, t.provider_id
    FROM freed JOIN told t USING (message_id)
    ON CONFLICT (message_id, no) DO NOTHING
),
queued AS (
    INSERT INTO mailpipe.outbox (lane, due_at, message_id)
    SELECT lane, due_at, message_id FROM changed WHERE state = 'pending'
)
SELECT message_id FROM freed;

-- name: record_late
-- The sweeper was faster. An answer wins over its `unknown`, if it is about the newest call; that an earlier attempt was accepted is
-- enough for one that waits to be sent again. Once only: the row that the sweeper wrote about the call becomes the answer's.
WITH told AS (
    SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:nos AS integer[]), CAST(:attempts AS smallint[]), CAST(:results AS text[]),
                         CAST(:reasons AS text[]), CAST(:details AS text[]), CAST(:provider_ids AS text[]),
                         CAST(:states AS text[]), CAST(:next_attempts AS smallint[]), CAST(:tries AS smallint[]),
                         CAST(:delays AS double precision[]))
        AS x(message_id, no, attempt, result, reason, detail, provider_id, state, next_attempt, tries, delay)
),
news AS (
    UPDATE mailpipe.message_call c
    SET result = t.result, reason = t.reason, detail = t.detail, provider_id = t.provider_id, seconds = CAST(:seconds AS real),
        at = clock_timestamp()
    FROM told t
    WHERE c.message_id = t.message_id AND c.no = t.no AND c.owner = :owner AND c.result = 'unknown' AND c.reason = 'worker_lost'
    RETURNING c.message_id
),
locked AS (
    SELECT m.message_id, m.state AS was, m.lane, m.due_at FROM mailpipe.message m JOIN news USING (message_id) FOR UPDATE OF m
),
changed AS (
    UPDATE mailpipe.message m
    SET state = t.state, reason = t.reason, detail = t.detail, provider_id = coalesce(t.provider_id, m.provider_id),
        tries = t.tries,
        due_at = CASE WHEN t.state = 'pending' THEN clock_timestamp() + make_interval(secs => t.delay) ELSE m.due_at END,
        finished_at = CASE WHEN t.state <> 'pending' THEN clock_timestamp() END
    FROM locked l JOIN told t USING (message_id)
    WHERE m.message_id = l.message_id
      AND (m.state = 'unknown' AND (m.calls = t.no AND t.result <> 'unknown' OR t.state = 'sent')
           OR m.state = 'pending' AND m.attempt > t.attempt AND t.state = 'sent')
    RETURNING m.message_id, m.state, m.lane, m.due_at
),
dequeued AS (
    DELETE FROM mailpipe.outbox o USING locked l JOIN changed c USING (message_id)
    WHERE l.was = 'pending' AND c.state = 'sent' AND o.lane = l.lane AND o.due_at = l.due_at AND o.message_id = l.message_id
),
queued AS (
    INSERT INTO mailpipe.outbox (lane, due_at, message_id)
    SELECT lane, due_at, message_id FROM changed WHERE state = 'pending'
)
SELECT message_id FROM changed;

-- name: bury
-- Before `seize`, in one transaction: a beat of that moment either comes first, and the process lives, or finds its row gone.
DELETE FROM mailpipe.lane_worker WHERE leased_until < clock_timestamp();

-- name: seize
-- The claims of the dead. Whatever their process is writing at this moment is waited for; `sweep` then sees what it wrote.
DELETE FROM mailpipe.outbox_claim c
WHERE NOT EXISTS (SELECT FROM mailpipe.lane_worker w WHERE w.owner = c.owner)
RETURNING c.message_id, c.owner, c.opened_at;

-- name: sweep
-- What was in no call goes back to the queue. What was in one is `unknown`, or, in the lanes that resend and once only, goes back as a
-- new attempt.
WITH lost AS (
    SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:owners AS uuid[]), CAST(:opened_ats AS timestamptz[]))
        AS x(message_id, owner, opened_at)
),
decided AS (
    SELECT l.*, m.attempt, m.calls,
           CASE WHEN m.state = 'pending' THEN 'pending'
                WHEN mailpipe.mailed(m.events) THEN 'sent'
                WHEN m.lane = ANY(CAST(:resend AS text[])) AND m.attempt = 1 THEN 'pending'
                ELSE 'unknown' END AS state
    FROM lost l JOIN mailpipe.message m USING (message_id)
    WHERE m.state = 'pending' OR m.state = 'sending' AND l.opened_at IS NOT NULL
    FOR UPDATE OF m
),
changed AS (
    UPDATE mailpipe.message m
    SET state = d.state, attempt = m.attempt + CAST(m.state = 'sending' AND d.state = 'pending' AS integer),
        reason = CASE WHEN m.state = 'sending' AND d.state <> 'sent' THEN 'worker_lost' ELSE m.reason END,
        due_at = CASE WHEN m.state = 'sending' AND d.state = 'pending' THEN clock_timestamp() ELSE m.due_at END,
        finished_at = CASE WHEN d.state <> 'pending' THEN clock_timestamp() END
    FROM decided d WHERE m.message_id = d.message_id AND m.state IN ('pending', 'sending')
    RETURNING m.message_id, m.state, m.lane, m.due_at
),
history AS (
    INSERT INTO mailpipe.message_call (message_id, no, attempt, owner, opened_at, result, reason)
    SELECT d.message_id, d.calls, d.attempt, d.owner, d.opened_at, 'unknown', 'worker_lost' FROM decided d
    WHERE d.opened_at IS NOT NULL AND d.calls > 0
    ON CONFLICT (message_id, no) DO NOTHING
),
queued AS (
    INSERT INTO mailpipe.outbox (lane, due_at, message_id)
    SELECT lane, due_at, message_id FROM changed WHERE state = 'pending'
)
SELECT message_id, state FROM changed;
