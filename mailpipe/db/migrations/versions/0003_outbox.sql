-- Transactional mail. `message` is the durable row: what is sent, and what became of it. A row of `outbox` exists only while a message
-- waits for its time or for a worker, a row of `outbox_claim` only while a worker has it in its hands, and `message_call` keeps every
-- call whose end is known. Who may write what: outbox.py all five tables.

-- Ids that grow with time (UUID version 7, RFC 9562), so that new rows go to the end of the index.
CREATE FUNCTION mailpipe.new_message_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT CAST(encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex') AS uuid)
$$;

-- Nothing that changes is indexed, so every update is HOT.
CREATE TABLE mailpipe.message (
    message_id       uuid PRIMARY KEY DEFAULT mailpipe.new_message_id(),
    lane             text NOT NULL DEFAULT 'normal' CHECK (lane IN ('critical', 'high', 'normal', 'low')),
    state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'sent', 'failed', 'unknown', 'skipped',
                                                                      'expired', 'cancelled', 'dead')),
    reason           text,
    detail           text,
    email            text NOT NULL CHECK (email <> ''),
    sender           text,                                     -- NULL: the setting's
    reply_to         text,
    template_version text REFERENCES mailpipe.template_version,
    variables        jsonb NOT NULL DEFAULT '{}',
    subject          text,                                     -- inline content, where there is no template
    body_text        text,
    body_html        text,
    idempotency_key  text CHECK (idempotency_key <> ''),
    body_sha256      bytea NOT NULL,                           -- of what was asked for, to tell another mail under the same key
    cancel_key       text CHECK (cancel_key <> ''),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    send_at          timestamptz NOT NULL,                     -- wanted
    due_at           timestamptz NOT NULL,                     -- of its row in `outbox`: later than wanted after a retry
    expires_at       timestamptz,                              -- NULL: the lane's validity after `send_at`
    attempt          smallint NOT NULL DEFAULT 1 CHECK (attempt >= 1), -- times that the provider may have accepted it
    tries            smallint NOT NULL DEFAULT 0 CHECK (tries >= 0),   -- calls that certainly sent nothing, and count
    calls            integer NOT NULL DEFAULT 0 CHECK (calls >= 0),    -- calls opened so far
    finished_at      timestamptz,
    provider_id      text,                                     -- what the provider calls it
    events           jsonb NOT NULL DEFAULT '{}',              -- `kind/attempt` -> when, as the provider's events tell
    CHECK ((template_version IS NULL) = (subject IS NOT NULL)),
    CHECK (template_version IS NOT NULL OR coalesce(body_text, body_html) IS NOT NULL),
    CHECK ((state IN ('pending', 'sending')) = (finished_at IS NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX message_idempotency_key ON mailpipe.message (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX message_cancel_key ON mailpipe.message (cancel_key) WHERE cancel_key IS NOT NULL;

-- Deleted when a worker takes the message: a search for what is due meets no rows that are done. One index, in the order of work.
CREATE TABLE mailpipe.outbox (
    lane       text NOT NULL,
    due_at     timestamptz NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (lane, due_at, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

-- One row per process of `mailpipe lanes`. Its lease covers all that the process has in its hands; a new id is a new fence.
CREATE TABLE mailpipe.lane_worker (
    owner        uuid PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    threads      jsonb NOT NULL DEFAULT '{}',                  -- lane -> how many work in it
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE mailpipe.outbox_claim (
    message_id uuid PRIMARY KEY,
    lane       text NOT NULL,
    owner      uuid NOT NULL,
    opened_at  timestamptz                                     -- NULL: no call is open
) WITH (fillfactor = 50);

-- Insert-only: one row per call whose end is known.
CREATE TABLE mailpipe.message_call (
    message_id  uuid NOT NULL,
    no          integer NOT NULL CHECK (no >= 1),
    attempt     smallint NOT NULL CHECK (attempt >= 1),
    owner       uuid NOT NULL,
    opened_at   timestamptz NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds     real,                                          -- from request to answer; NULL: there was none
    result      text NOT NULL CHECK (result IN ('sent', 'failed', 'retry', 'again', 'unknown')),
    reason      text,
    detail      text,
    provider_id text,
    PRIMARY KEY (message_id, no)
);

-- The way for SQL: one message, in the caller's own transaction. The same key twice is one message and the same answer.
CREATE FUNCTION mailpipe.enqueue(
    email text, template text DEFAULT NULL, variables jsonb DEFAULT '{}', subject text DEFAULT NULL, body_text text DEFAULT NULL,
    body_html text DEFAULT NULL, lane text DEFAULT 'normal', sender text DEFAULT NULL, reply_to text DEFAULT NULL,
    idempotency_key text DEFAULT NULL, send_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    cancel_key text DEFAULT NULL, expires_in interval DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    version text;
    at timestamptz := coalesce(enqueue.send_at, clock_timestamp() + coalesce(enqueue.delay, interval '0'));
    asked bytea := sha256(convert_to(CAST(jsonb_build_array(
        enqueue.email, enqueue.template, enqueue.variables, enqueue.subject, enqueue.body_text, enqueue.body_html, enqueue.lane,
        enqueue.sender, enqueue.reply_to, extract(epoch FROM enqueue.send_at), enqueue.delay, enqueue.cancel_key,
        enqueue.expires_in) AS text), 'UTF8'));
    made mailpipe.message;
BEGIN
    IF enqueue.template IS NOT NULL THEN
        SELECT v.name INTO version FROM mailpipe.template_version v
        WHERE v.name = enqueue.template OR v.template = enqueue.template
        ORDER BY v.name = enqueue.template DESC, v.published_at DESC LIMIT 1;
        IF version IS NULL THEN
            RAISE EXCEPTION 'template "%" was never published; run: mailpipe template publish %', enqueue.template, enqueue.template
                USING ERRCODE = 'foreign_key_violation';
        END IF;
    END IF;
    INSERT INTO mailpipe.message (lane, email, sender, reply_to, template_version, variables, subject, body_text, body_html,
                                  idempotency_key, body_sha256, cancel_key, send_at, due_at, expires_at)
    VALUES (enqueue.lane, enqueue.email, enqueue.sender, enqueue.reply_to, version, enqueue.variables, enqueue.subject,
            enqueue.body_text, enqueue.body_html, enqueue.idempotency_key, asked, enqueue.cancel_key, at, at,
            at + enqueue.expires_in)
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING * INTO made;
    IF made.message_id IS NULL THEN
        SELECT * INTO made FROM mailpipe.message m WHERE m.idempotency_key = enqueue.idempotency_key;
        IF made.body_sha256 <> asked THEN
            RAISE EXCEPTION 'another message was enqueued under this idempotency_key' USING ERRCODE = 'unique_violation';
        END IF;
        RETURN made.message_id;
    END IF;
    INSERT INTO mailpipe.outbox (lane, due_at, message_id) VALUES (made.lane, made.due_at, made.message_id);
    RETURN made.message_id;
END;
$$;

-- The way for SQL to call off what was enqueued under a `cancel_key`. Answers how many messages will not be sent.
CREATE FUNCTION mailpipe.cancel(cancel_key text) RETURNS integer LANGUAGE sql AS $$
    WITH gone AS (
        UPDATE mailpipe.message m SET state = 'cancelled', finished_at = clock_timestamp()
        WHERE m.cancel_key = cancel.cancel_key AND m.state = 'pending'
        RETURNING m.lane, m.due_at, m.message_id
    ),
    dequeued AS (
        DELETE FROM mailpipe.outbox o USING gone g
        WHERE o.lane = g.lane AND o.due_at = g.due_at AND o.message_id = g.message_id
    )
    SELECT CAST(count(*) AS integer) FROM gone
$$;

-- Why the provider could not make the mail of an attempt that it had accepted, as its events tell; NULL: it could.
CREATE FUNCTION mailpipe.refusal(events jsonb, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT kind FROM unnest(ARRAY['reject', 'rendering_failure']) AS kind WHERE events ? (kind || '/' || attempt) ORDER BY kind LIMIT 1
$$;

-- Whether the events prove that some attempt became a mail.
CREATE FUNCTION mailpipe.mailed(events jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (SELECT FROM jsonb_object_keys(events) AS k
                   WHERE split_part(k, '/', 1) NOT IN ('reject', 'rendering_failure')
                     AND mailpipe.refusal(events, CAST(split_part(k, '/', 2) AS integer)) IS NULL)
$$;

-- What a message becomes by an answer: what the events have proved by now is not doubted any more.
CREATE FUNCTION mailpipe.after_call(state text, result text, events jsonb, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN result = 'unknown' AND mailpipe.mailed(events) THEN 'sent'
                WHEN result = 'sent' AND mailpipe.refusal(events, attempt) IS NOT NULL THEN 'failed'
                ELSE state END
$$;
