-- Messages from outside: enqueued, looked at, called off, ordered anew. What workers do with them is in lanes/claims.sql.

-- name: latest_template
-- By its full versioned name, or the version of this template that was published last.
SELECT name FROM mailpipe.template_version WHERE name = :name OR template = :name
ORDER BY name = :name DESC, published_at DESC LIMIT 1;

-- name: enqueue
-- A message whose key is there already, here or in another transaction that is waited for, is not kept and not told.
WITH kept AS (
    INSERT INTO mailpipe.message (message_id, lane, email, sender, reply_to, template_version, variables, subject, body_text,
                                  body_html, idempotency_key, body_sha256, cancel_key, send_at, due_at, expires_at)
    SELECT x.message_id, x.lane, x.email, x.sender, x.reply_to, x.template_version, CAST(x.variables AS jsonb), x.subject,
           x.body_text, x.body_html, x.idempotency_key, x.body_sha256, x.cancel_key, t.at, t.at,
           t.at + make_interval(secs => x.expires_in)
    FROM unnest(CAST(:message_ids AS uuid[]), CAST(:lanes AS text[]), CAST(:emails AS text[]), CAST(:senders AS text[]),
                CAST(:reply_tos AS text[]), CAST(:template_versions AS text[]), CAST(:variables AS text[]),
                CAST(:subjects AS text[]), CAST(:texts AS text[]), CAST(:htmls AS text[]), CAST(:idempotency_keys AS text[]),
                CAST(:bodies AS bytea[]), CAST(:cancel_keys AS text[]), CAST(:send_ats AS timestamptz[]),
                CAST(:delays AS double precision[]), CAST(:expires_ins AS double precision[]))
         AS x(message_id, lane, email, sender, reply_to, template_version, variables, subject, body_text, body_html,
              idempotency_key, body_sha256, cancel_key, send_at, delay, expires_in)
    CROSS JOIN LATERAL (SELECT coalesce(x.send_at, clock_timestamp() + make_interval(secs => x.delay)) AS at) AS t
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING message_id, lane, due_at
),
queued AS (
    INSERT INTO mailpipe.outbox (lane, due_at, message_id) SELECT lane, due_at, message_id FROM kept
)
SELECT message_id FROM kept;

-- name: by_key
SELECT idempotency_key, message_id, body_sha256 FROM mailpipe.message
WHERE idempotency_key = ANY(CAST(:idempotency_keys AS text[]));

-- name: get
SELECT m.message_id, m.lane, m.state, m.reason, m.detail, v.template, m.template_version, m.idempotency_key, m.cancel_key,
       m.created_at, m.send_at, m.due_at, m.expires_at, m.attempt, m.tries, m.finished_at, m.provider_id, m.events
FROM mailpipe.message m LEFT JOIN mailpipe.template_version v ON v.name = m.template_version
WHERE m.message_id = :message_id;

-- name: calls
SELECT no, attempt, owner, opened_at, at, seconds, result, reason, detail, provider_id FROM mailpipe.message_call
WHERE message_id = :message_id ORDER BY no;

-- name: of_state
SELECT message_id, lane, state, reason, detail, attempt, tries, created_at, finished_at FROM mailpipe.message
WHERE state = :state AND (CAST(:lane AS text) IS NULL OR lane = :lane) ORDER BY finished_at LIMIT :most;

-- name: cancel
-- Only while it is in no call. One that a worker has in its hands without a call is found cancelled when it is to be opened.
WITH gone AS (
    UPDATE mailpipe.message SET state = 'cancelled', finished_at = clock_timestamp()
    WHERE message_id = :message_id AND state = 'pending'
    RETURNING lane, due_at, message_id
),
dequeued AS (
    DELETE FROM mailpipe.outbox o USING gone g WHERE o.lane = g.lane AND o.due_at = g.due_at AND o.message_id = g.message_id
)
SELECT message_id FROM gone;

-- name: cancel_by_key
SELECT mailpipe.cancel(:cancel_key);

-- name: requeue
-- On a person's order. Who may have the mail already gets it as a new attempt. Its time begins anew: what ended unsent is often older
-- than it was valid for.
WITH again AS (
    UPDATE mailpipe.message
    SET state = 'pending', reason = NULL, detail = NULL, tries = 0, attempt = attempt + CAST(state = 'unknown' AS integer),
        due_at = clock_timestamp(), send_at = clock_timestamp(), expires_at = clock_timestamp() + (expires_at - send_at),
        finished_at = NULL
    WHERE message_id = :message_id AND state = :state
    RETURNING lane, due_at, message_id, attempt
),
queued AS (
    INSERT INTO mailpipe.outbox (lane, due_at, message_id) SELECT lane, due_at, message_id FROM again
)
SELECT attempt FROM again;

-- name: hold
-- What is due in a restored database and was enqueued before the newer one was lost may have been sent by that one.
WITH waiting AS (
    DELETE FROM mailpipe.outbox o USING mailpipe.message m
    WHERE o.due_at <= statement_timestamp() AND m.message_id = o.message_id
      AND (CAST(:before AS timestamptz) IS NULL OR m.created_at <= :before)
    RETURNING o.message_id
),
claimed AS (
    DELETE FROM mailpipe.outbox_claim RETURNING message_id
)
UPDATE mailpipe.message m SET state = 'unknown', reason = 'database_restored', finished_at = clock_timestamp()
FROM (SELECT message_id FROM waiting UNION SELECT message_id FROM claimed) AS x
WHERE m.message_id = x.message_id AND m.state IN ('pending', 'sending');

-- name: from_the_front
-- For a transaction that counts from the front of the queue: a planner who expects a few rows where there are millions would first
-- collect them all.
SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);

-- name: depths
-- Only what is due is counted, and no more than `most` of it: neither millions of delayed messages nor millions of due ones are looked at.
SELECT l.lane,
       (SELECT count(*) FROM (SELECT FROM mailpipe.outbox o WHERE o.lane = l.lane AND o.due_at <= statement_timestamp() LIMIT :most) c)
           AS pending,
       (SELECT count(*) FROM mailpipe.outbox_claim c WHERE c.lane = l.lane) AS processing,
       CAST(coalesce(extract(epoch FROM statement_timestamp() - least(
           (SELECT min(o.due_at) FROM mailpipe.outbox o WHERE o.lane = l.lane AND o.due_at <= statement_timestamp()),
           (SELECT min(m.due_at) FROM mailpipe.outbox_claim c JOIN mailpipe.message m USING (message_id) WHERE c.lane = l.lane)
       )), 0) AS double precision) AS oldest_age_seconds
FROM unnest(CAST(:lanes AS text[])) AS l(lane);

-- name: estimate
-- Due messages of each lane, counted in `pages` pages that lie evenly over the table. Statistics would be cheaper still, and wrong after a
-- burst or a flood that has just been worked off.
WITH size AS (
    SELECT greatest(1, pg_relation_size('mailpipe.outbox') / CAST(current_setting('block_size') AS integer)) AS pages
),
looked AS (
    SELECT i * pages / least(:pages, pages) AS page, CAST(pages AS double precision) / least(:pages, pages) AS share
    FROM size, generate_series(0, least(:pages, pages) - 1) AS i
)
SELECT o.lane, CAST(sum(o.messages * l.share) AS bigint)
FROM looked l CROSS JOIN LATERAL (
    SELECT lane, count(*) AS messages FROM mailpipe.outbox
    WHERE ctid >= CAST('(' || l.page || ',0)' AS tid) AND ctid < CAST('(' || l.page + 1 || ',0)' AS tid)
      AND due_at <= statement_timestamp()
    GROUP BY lane
) o GROUP BY o.lane;

-- name: settle
-- What the provider's events prove. The first time of each kind is kept, and what follows is decided from all of them, so order and
-- repetition change nothing. Nobody is mailed because of an event: `unknown`, or a second attempt that has not begun, becomes `sent`; a
-- mail that the provider took and could not make becomes `failed`.
WITH told AS (
    SELECT x.message_id, jsonb_object_agg(x.kind || '/' || x.attempt, to_jsonb(x.at)) AS events
    FROM unnest(CAST(:message_ids AS uuid[]), CAST(:kinds AS text[]), CAST(:attempts AS smallint[]), CAST(:ats AS timestamptz[]))
        AS x(message_id, kind, attempt, at)
    GROUP BY x.message_id
),
locked AS (
    SELECT m.message_id, m.state AS was, m.lane, m.due_at, m.attempt, m.reason, t.events || m.events AS events
    FROM told t JOIN mailpipe.message m USING (message_id)
    ORDER BY m.message_id FOR UPDATE OF m
),
decided AS (
    SELECT l.*, CASE
        WHEN mailpipe.mailed(l.events) AND (l.was = 'unknown' OR l.was = 'pending' AND l.attempt > 1
             OR l.was = 'failed' AND l.reason IN ('reject', 'rendering_failure')) THEN 'sent'
        WHEN NOT mailpipe.mailed(l.events) AND l.was IN ('sent', 'unknown')
             AND mailpipe.refusal(l.events, l.attempt) IS NOT NULL THEN 'failed'
        ELSE l.was END AS becomes
    FROM locked l
),
changed AS (
    UPDATE mailpipe.message m
    SET events = d.events, state = d.becomes,
        reason = CASE WHEN d.becomes = d.was THEN m.reason WHEN d.becomes = 'failed' THEN mailpipe.refusal(d.events, d.attempt) END,
        detail = CASE WHEN d.becomes = d.was THEN m.detail END,
        finished_at = CASE WHEN d.becomes = d.was THEN m.finished_at ELSE clock_timestamp() END
    FROM decided d WHERE m.message_id = d.message_id
    RETURNING d.becomes <> d.was AS moved
),
dequeued AS (
    DELETE FROM mailpipe.outbox o USING decided d
    WHERE d.was = 'pending' AND d.becomes = 'sent' AND o.lane = d.lane AND o.due_at = d.due_at AND o.message_id = d.message_id
)
SELECT count(*), count(*) FILTER (WHERE moved) FROM changed;
