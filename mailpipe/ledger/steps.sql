-- The statements of a worker's steps. Each one re-checks its own right to act, so launching again is the recovery.

-- part: letter
-- The template of a chunk `c` of the campaign `g`: its variant's, where that has one of its own.
CASE WHEN c.variant IS NULL THEN g.template_version
     ELSE coalesce((SELECT v.template_version FROM mailpipe.campaign_variant v
                    WHERE v.campaign_id = :campaign_id AND v.variant = c.variant), g.template_version) END

-- name: lease
-- From a low-water mark, so that chunks known to be finished are not read again (it halves the cost at 2,000 chunks).
WITH free AS (
    SELECT c.chunk_no FROM mailpipe.chunk c
    WHERE c.campaign_id = :campaign_id AND c.chunk_no >= :low AND c.slice BETWEEN :first_slice AND :last_slice
      AND c.state = 'pending' AND c.held IS NULL AND c.due_at <= clock_timestamp()
      AND coalesce(least(c.expires_at, c.quiet_at), 'infinity') > clock_timestamp()
      AND (SELECT g.state = 'sending' FROM mailpipe.campaign g WHERE g.campaign_id = :campaign_id)
      -- Not waited for: the first opening, whose commit is, takes it to the disk too. Under a lease that a crash of the server forgets
      -- nobody was opened; whoever gets its fence again comes by another name, or later.
      AND set_config('synchronous_commit', 'off', true) = 'off'
    ORDER BY c.chunk_no LIMIT 1 FOR UPDATE OF c SKIP LOCKED
)
UPDATE mailpipe.chunk c
SET state = 'leased', owner = :owner, fence = c.fence + 1,
    leased_until = clock_timestamp() + make_interval(secs => :seconds)
FROM free WHERE c.campaign_id = :campaign_id AND c.chunk_no = free.chunk_no
RETURNING c.chunk_no, c.slice, c.first_seq, c.size, c.fence, CAST(c.finished AS text) AS finished,
          (SELECT {{letter}} FROM mailpipe.campaign g WHERE g.campaign_id = :campaign_id) AS template_version;

-- name: people
-- A campaign's own table instead of the partitioned one: a plan that is kept would look at every campaign's.
SELECT seq, user_id, email, timezone, locale, variables FROM {{recipients}}
WHERE campaign_id = :campaign_id AND seq BETWEEN :first_seq AND CAST(:first_seq AS integer) + :size - 1 ORDER BY seq;

-- name: earlier
-- What is known about people of a chunk from before: refusals that count, and orders to mail them again.
SELECT seq, tries, attempt FROM mailpipe.outcome
WHERE campaign_id = :campaign_id AND seq BETWEEN :first_seq AND CAST(:first_seq AS integer) + :size - 1
  AND (tries > 0 OR attempt > 1);

-- part: answered
-- Of the statements that write answers, once `settled` has changed the chunk: the calls, and who is an exception, also those
-- `refused` at the opening.
kept AS (
    INSERT INTO mailpipe.call (campaign_id, chunk_no, no, seconds, positions, accepted, codes, message_ids, message_ids_text)
    {{calls}} WHERE EXISTS (SELECT FROM settled)
),
excepted AS (
    INSERT INTO mailpipe.outcome AS o (campaign_id, seq, chunk_no, state, reason, detail, tries, attempt)
    SELECT :campaign_id, x.seq, :chunk_no, x.state, x.reason, x.detail, x.tries, x.attempt FROM settled, (
        SELECT * FROM json_to_recordset(CAST(:exceptions AS json))
            AS told(seq integer, state text, reason text, detail text, tries smallint, attempt smallint)
        UNION ALL SELECT seq, 'skipped', refusal, NULL, CAST(0 AS smallint), CAST(1 AS smallint) FROM refused
    ) AS x(seq, state, reason, detail, tries, attempt)
    ON CONFLICT (campaign_id, seq) DO UPDATE
    SET state = excluded.state, reason = excluded.reason, detail = excluded.detail,
        tries = greatest(o.tries, excluded.tries), at = clock_timestamp()
)

-- part: calls
-- The calls that were answered, as rows of `call`.
SELECT :campaign_id, :chunk_no, told.no, told.seconds, CAST(told.positions AS bit varying), told.accepted, told.codes, told.message_ids,
       convert_from(told.message_ids_text, 'UTF8')
FROM unnest(CAST(:nos AS integer[]), CAST(:took AS real[]), CAST(:positions AS text[]), CAST(:accepted AS smallint[]),
            CAST(:codes AS text[]), CAST(:message_ids AS bytea[]), CAST(:message_ids_text AS bytea[]))
     AS told(no, seconds, positions, accepted, codes, message_ids, message_ids_text)

-- name: open
-- Commit this before a request leaves. People suppressed or no longer opted in *now* are skipped, the others' bits are
-- set; the answers of calls before, if there are any, are written with it: one flush to disk instead of two. No row, and nothing
-- is written: the lease, the fence, the campaign's state or its template is no longer what it was, and no call may be made.
WITH refused AS MATERIALIZED (
    SELECT person.seq, judged.refusal FROM {{recipients}} person
    -- OFFSET 0, so that each of these stays a look-up for one person: otherwise EXISTS is planned as a hash of the whole list, made anew
    -- for each call. array_position, because the index would be searched with `= ANY` too, which takes longer than to read what it finds.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN EXISTS (SELECT FROM mailpipe.suppression s
                                 WHERE s.email_key = mailpipe.email_key(person.email)
                                   AND array_position(CAST(:scopes AS text[]), s.scope) IS NOT NULL) THEN 'suppressed'
                    WHEN EXISTS (SELECT FROM mailpipe.opt_out o
                                 WHERE o.person_id = person.user_id AND array_position(CAST(:topics AS text[]), o.topic) IS NOT NULL)
                      OR ({{consent}}) IS NOT TRUE THEN 'opted_out' END AS refusal OFFSET 0
    ) AS judged
    WHERE person.campaign_id = :campaign_id AND person.seq BETWEEN :first AND :last
      AND get_bit(CAST(:asked AS bit varying), person.seq - :first_seq) = 1 AND judged.refusal IS NOT NULL
),
masks AS (
    -- Bits are made for the refused alone, who are few.
    SELECT coalesce(bit_or(set_bit(CAST(repeat('0', :size) AS bit varying), seq - :first_seq, 1)),
                    CAST(repeat('0', :size) AS bit varying)) AS refuse, count(*) AS people FROM refused
),
settled AS (
    UPDATE mailpipe.chunk c
    SET opened = c.opened & ~ CAST(:answered AS bit varying) | CAST(:asked AS bit varying) & ~ m.refuse,
        finished = c.finished | CAST(:final AS bit varying) | m.refuse,
        sent = c.sent + :sent, failed = c.failed + :failed, unknown = c.unknown + :unknown, skipped = c.skipped + m.people,
        calls = c.calls + CASE WHEN m.people < bit_count(CAST(:asked AS bit varying)) THEN CAST(:calls AS integer) ELSE 0 END,
        leased_until = clock_timestamp() + make_interval(secs => :seconds)
    FROM masks m
    WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no
      AND c.state = 'leased' AND c.owner = :owner AND c.fence = :fence AND c.leased_until > clock_timestamp()
      AND coalesce(least(c.expires_at, c.quiet_at), 'infinity') > clock_timestamp()
      AND bit_count((c.opened & ~ CAST(:answered AS bit varying) | c.finished | CAST(:final AS bit varying)) & CAST(:asked AS bit varying)) = 0
      AND bit_count(c.opened & CAST(:answered AS bit varying)) = bit_count(CAST(:answered AS bit varying))
      AND set_config('synchronous_commit', 'on', true) = 'on' -- whatever the session, a pooler or the role says
      AND (SELECT g.state = 'sending' AND {{letter}} = :template_version FROM mailpipe.campaign g WHERE g.campaign_id = :campaign_id)
    RETURNING c.calls
),
{{answered}}
SELECT settled.calls, ARRAY(SELECT seq FROM refused) FROM settled;

-- name: record
-- An answer is written whatever the campaign's state has become; only a changed fence means that the sweeper was faster.
WITH refused AS (SELECT CAST(NULL AS integer) AS seq, CAST(NULL AS text) AS refusal WHERE false),
settled AS (
    UPDATE mailpipe.chunk c
    SET opened = c.opened & ~ CAST(:answered AS bit varying), finished = c.finished | CAST(:final AS bit varying),
        sent = c.sent + :sent, failed = c.failed + :failed, unknown = c.unknown + :unknown,
        state = CASE WHEN bit_count(c.finished | CAST(:final AS bit varying)) = c.size THEN 'done' ELSE c.state END,
        owner = CASE WHEN bit_count(c.finished | CAST(:final AS bit varying)) < c.size THEN c.owner END,
        leased_until = CASE WHEN bit_count(c.finished | CAST(:final AS bit varying)) < c.size THEN c.leased_until END
    WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND c.fence = :fence AND c.owner = :owner
      AND bit_count(c.opened & CAST(:answered AS bit varying)) = bit_count(CAST(:answered AS bit varying))
    RETURNING c.state
),
cleared AS (
    -- Mostly of nobody: then the table is not looked at, whichever plan was made while it was small.
    DELETE FROM mailpipe.outcome o USING settled
    WHERE CAST(:cleared AS text) IS NOT NULL
      AND o.campaign_id = :campaign_id AND o.seq = ANY(CAST(CAST(:cleared AS text) AS integer[])) AND o.state = 'retry' AND o.attempt = 1
),
{{answered}}
SELECT state FROM settled;

-- name: lock_chunk
SELECT CAST(opened AS text), CAST(finished AS text), state FROM mailpipe.chunk
WHERE campaign_id = :campaign_id AND chunk_no = :chunk_no FOR UPDATE;

-- name: lock_campaign
-- Before `lock_chunk`, where both are needed: whoever cancels or orders a re-send locks in this order too.
SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR SHARE;

-- name: record_late
-- The sweeper was faster and called these people `unknown`. The answer wins over it, whoever owns the chunk by now; a person
-- whom an event or somebody's order has settled meanwhile stays so. Only for an answer that `keep_call` did not know: a second time
-- it could meet an `unknown` that somebody else's call has left. For the same reason an answer about an earlier attempt frees and
-- fails nobody; that it was accepted is enough, though: this person has the mail, and nobody shall order a third one.
WITH campaign AS MATERIALIZED (
    SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR SHARE
),
late AS (
    SELECT x.* FROM json_to_recordset(CAST(:exceptions AS json))
        AS x(seq integer, state text, reason text, detail text, tries smallint, attempt smallint)
    JOIN mailpipe.outcome o ON o.campaign_id = :campaign_id AND o.chunk_no = :chunk_no AND o.seq = x.seq AND o.state = 'unknown'
    WHERE x.state <> 'unknown' AND (o.attempt = x.attempt OR x.state = 'sent')
),
gone AS (
    DELETE FROM mailpipe.outcome o USING late
    WHERE o.campaign_id = :campaign_id AND o.seq = late.seq AND o.attempt = 1
      AND (late.state = 'sent' OR late.state = 'again' AND o.tries = 0)
),
changed AS (
    UPDATE mailpipe.outcome o
    -- Refusals that were counted before stay counted; the sweeper has overwritten what they were called.
    SET state = CASE late.state WHEN 'again' THEN 'retry' ELSE late.state END, detail = late.detail,
        reason = CASE WHEN late.state = 'again' AND o.attempt = 1 THEN 'transient_failure' ELSE late.reason END,
        tries = CASE late.state WHEN 'again' THEN o.tries ELSE late.tries END, at = clock_timestamp()
    FROM late
    WHERE o.campaign_id = :campaign_id AND o.seq = late.seq
      AND (late.state IN ('failed', 'retry') OR o.attempt > 1 OR late.state = 'again' AND o.tries > 0)
),
totals AS (
    SELECT count(*) FILTER (WHERE state = 'sent') AS sent, count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) AS all_people, count(*) FILTER (WHERE state IN ('again', 'retry')) AS pending,
           coalesce(bit_or(set_bit(CAST(repeat('0', :size) AS bit varying), seq - :first_seq, 1))
                    FILTER (WHERE state IN ('again', 'retry')), CAST(repeat('0', :size) AS bit varying)) AS back
    FROM late
)
UPDATE mailpipe.chunk c
SET unknown = c.unknown - t.all_people, sent = c.sent + t.sent, failed = c.failed + t.failed,
    finished = c.finished & ~ t.back,
    state = CASE WHEN t.pending = 0 OR c.state <> 'done' THEN c.state
                 WHEN g.state = 'cancelled' THEN 'cancelled' ELSE 'pending' END
FROM totals t, campaign g WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND t.all_people > 0;

-- name: keep_call
INSERT INTO mailpipe.call (campaign_id, chunk_no, no, seconds, positions, accepted, codes, message_ids, message_ids_text)
{{calls}}
ON CONFLICT (campaign_id, chunk_no, no) DO NOTHING RETURNING no;

-- name: retract
-- The call was opened and certainly not made: its people are pending again.
UPDATE mailpipe.chunk c SET opened = c.opened & ~ CAST(:asked AS bit varying)
WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND c.fence = :fence AND c.owner = :owner;

-- name: refuse
-- People who cannot be mailed at all (a missing variable, an unusable address): final before any call.
WITH unfit AS (
    SELECT x.* FROM unnest(CAST(:seqs AS integer[]), CAST(:states AS text[]), CAST(:reasons AS text[]), CAST(:details AS text[]))
        AS x(seq, state, reason, detail)
),
settled AS (
    UPDATE mailpipe.chunk c
    SET finished = c.finished | CAST(:final AS bit varying),
        failed = c.failed + (SELECT count(*) FROM unfit WHERE state = 'failed'),
        skipped = c.skipped + (SELECT count(*) FROM unfit WHERE state = 'skipped')
    WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND c.fence = :fence AND c.owner = :owner
      AND c.state = 'leased' AND c.leased_until > clock_timestamp()
      AND bit_count((c.opened | c.finished) & CAST(:final AS bit varying)) = 0
    RETURNING c.chunk_no
)
INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason, detail)
SELECT :campaign_id, unfit.seq, :chunk_no, unfit.state, unfit.reason, unfit.detail FROM unfit, settled
ON CONFLICT (campaign_id, seq) DO UPDATE
SET state = excluded.state, reason = excluded.reason, detail = excluded.detail, at = clock_timestamp();

-- name: release
-- Give a chunk back; `delay` seconds keep it from being leased again at once. With nobody left in it, it is done. The lock makes
-- it wait for somebody who cancels the campaign at this moment, and who has not seen this chunk as pending.
WITH campaign AS MATERIALIZED (
    SELECT state FROM mailpipe.campaign WHERE campaign_id = :campaign_id FOR SHARE
)
UPDATE mailpipe.chunk c
SET state = CASE WHEN bit_count(c.finished) = c.size THEN 'done' WHEN g.state = 'cancelled' THEN 'cancelled' ELSE 'pending' END,
    owner = NULL, leased_until = NULL,
    due_at = CASE WHEN :delay > 0 THEN greatest(c.due_at, clock_timestamp() + make_interval(secs => :delay)) ELSE c.due_at END
FROM campaign g
WHERE c.campaign_id = :campaign_id AND c.chunk_no = :chunk_no AND c.fence = :fence AND c.owner = :owner
  AND bit_count(c.opened) = 0;

-- name: renew
-- Only what a living thread holds: a lease of which the process knows nothing (its answer was lost with the connection) runs out.
UPDATE mailpipe.chunk c SET leased_until = clock_timestamp() + make_interval(secs => :seconds)
FROM unnest(CAST(:chunks AS integer[]), CAST(:fences AS integer[]), CAST(:owners AS text[])) AS held(chunk_no, fence, owner)
WHERE c.campaign_id = :campaign_id AND c.chunk_no = held.chunk_no AND c.fence = held.fence AND c.owner = held.owner
  AND c.state = 'leased' AND c.leased_until > clock_timestamp();

-- name: expire_leases
-- A holder that has been silent for a whole lease: who was in its open call is `unknown` - never sent again by machine - and the
-- rest is free for others. SKIP LOCKED leaves alone what somebody is writing at this moment, and a campaign that is being cancelled.
WITH dead AS MATERIALIZED (
    SELECT c.campaign_id, c.chunk_no, c.first_seq, c.size, c.opened, g.state AS campaign_state FROM mailpipe.chunk c
    JOIN mailpipe.campaign g USING (campaign_id)
    WHERE g.state IN ('sending', 'paused', 'cancelled') AND c.campaign_id = coalesce(CAST(:campaign_id AS integer), c.campaign_id)
      AND c.state = 'leased' AND c.leased_until < clock_timestamp()
    FOR UPDATE OF c SKIP LOCKED FOR SHARE OF g SKIP LOCKED
),
lost AS (
    INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason)
    SELECT d.campaign_id, d.first_seq + i, d.chunk_no, 'unknown', 'no_answer'
    FROM dead d, generate_series(0, d.size - 1) AS i WHERE get_bit(d.opened, i) = 1
    ON CONFLICT (campaign_id, seq) DO UPDATE SET state = 'unknown', reason = 'no_answer', detail = NULL, at = clock_timestamp()
    RETURNING 1
),
freed AS (
    UPDATE mailpipe.chunk c
    SET opened = CAST(repeat('0', c.size) AS bit varying), finished = c.finished | c.opened,
        unknown = c.unknown + bit_count(c.opened), fence = c.fence + 1, owner = NULL, leased_until = NULL,
        state = CASE WHEN bit_count(c.finished | c.opened) = c.size THEN 'done'
                     WHEN d.campaign_state = 'cancelled' THEN 'cancelled' ELSE 'pending' END
    FROM dead d WHERE c.campaign_id = d.campaign_id AND c.chunk_no = d.chunk_no
    RETURNING 1
)
SELECT (SELECT count(*) FROM freed), (SELECT count(*) FROM lost);
