-- Suppressed addresses and opt-outs of people. An address is always compared by `mailpipe.email_key`.

-- name: suppress
-- A fact that is older than somebody's order to take the address off the list does not bring it back.
INSERT INTO mailpipe.suppression AS s (email_key, scope, reason, source, at)
SELECT x.email_key, x.scope, x.reason, x.source, coalesce(x.at, clock_timestamp())
FROM unnest(CAST(:keys AS text[]), CAST(:scopes AS text[]), CAST(:reasons AS text[]), CAST(:sources AS text[]),
            CAST(:times AS timestamptz[])) AS x(email_key, scope, reason, source, at)
WHERE x.at IS NULL OR NOT EXISTS (SELECT FROM mailpipe.suppression_removed r
                                  WHERE r.email_key = x.email_key AND r.scope = x.scope AND r.removed_at > x.at)
ON CONFLICT (email_key, scope) DO UPDATE SET reason = excluded.reason, source = excluded.source, at = excluded.at
WHERE array_position(CAST(:strength AS text[]), excluded.reason) < array_position(CAST(:strength AS text[]), s.reason);

-- name: lift
WITH gone AS (
    DELETE FROM mailpipe.suppression
    WHERE email_key = :key AND (CAST(:scope AS text) IS NULL OR scope = :scope)
    RETURNING email_key, scope, reason, source, at
),
kept AS (
    INSERT INTO mailpipe.suppression_removed (email_key, scope, reason, source, at, actor, why)
    SELECT email_key, scope, reason, source, at, :actor, :why FROM gone
)
SELECT email_key, scope, reason, source, at FROM gone ORDER BY scope;

-- name: find
SELECT email_key, scope, reason, source, at FROM mailpipe.suppression WHERE email_key = :key ORDER BY scope;

-- name: every
SELECT email_key, scope, reason, source, at FROM mailpipe.suppression ORDER BY email_key, scope;

-- name: unsubscribe
INSERT INTO mailpipe.opt_out (person_id, topic, source) VALUES (:person_id, :topic, :source)
ON CONFLICT (person_id, topic) DO NOTHING;

-- name: resubscribe
DELETE FROM mailpipe.opt_out WHERE person_id = :person_id AND topic = :topic;

-- name: opt_outs
SELECT person_id, topic, source, at FROM mailpipe.opt_out WHERE person_id = :person_id ORDER BY topic;
