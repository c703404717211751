-- The classic row ledger: one row a person, a text status that changes twice.

-- name: create
CREATE TABLE classic_recipient (
    campaign_id integer NOT NULL,
    seq         integer NOT NULL,
    user_id     text NOT NULL,
    email       text NOT NULL,
    timezone    text,
    locale      text,
    variables   text[] NOT NULL,
    status      text NOT NULL DEFAULT 'pending',
    reason      text,
    message_id  text,
    sent_at     timestamptz,
    PRIMARY KEY (campaign_id, seq),
    UNIQUE (campaign_id, user_id)
);

-- name: snapshot
-- The same people in the same order as the segment `active_opted_in`, each address once.
INSERT INTO classic_recipient (campaign_id, seq, user_id, email, timezone, locale, variables)
SELECT :campaign_id, row_number() OVER (ORDER BY last_login_at DESC NULLS LAST, user_id),
       user_id, email, timezone, locale, ARRAY[first_name, city, country, tier]
FROM (
    SELECT DISTINCT ON (mailpipe.email_key(email)) *
    FROM users person
    WHERE is_active AND marketing_opt_in AND created_at <= :as_of
      AND NOT EXISTS (SELECT FROM mailpipe.suppression s
                      WHERE s.email_key = mailpipe.email_key(person.email) AND s.scope IN ('all', 'marketing', 'topic:news'))
      AND NOT EXISTS (SELECT FROM mailpipe.opt_out o WHERE o.person_id = CAST(person.user_id AS text) AND o.topic IN ('marketing', 'news'))
      AND EXISTS (SELECT FROM users u WHERE u.user_id = person.user_id AND u.marketing_opt_in AND u.is_active)
    ORDER BY mailpipe.email_key(email), last_login_at DESC NULLS LAST, user_id
) AS once;

-- name: snapshot_without_duplicates
INSERT INTO classic_recipient (campaign_id, seq, user_id, email, timezone, locale, variables)
SELECT :campaign_id, row_number() OVER (ORDER BY last_login_at DESC NULLS LAST, user_id),
       user_id, email, timezone, locale, ARRAY[first_name, city, country, tier]
FROM users person
WHERE is_active AND marketing_opt_in AND created_at <= :as_of
  AND NOT EXISTS (SELECT FROM mailpipe.suppression s
                  WHERE s.email_key = mailpipe.email_key(person.email) AND s.scope IN ('all', 'marketing', 'topic:news'))
  AND NOT EXISTS (SELECT FROM mailpipe.opt_out o WHERE o.person_id = CAST(person.user_id AS text) AND o.topic IN ('marketing', 'news'))
  AND EXISTS (SELECT FROM users u WHERE u.user_id = person.user_id AND u.marketing_opt_in AND u.is_active);

-- name: claim
-- From a low-water mark, without which each claim would walk over all that were claimed before.
WITH next AS (
    SELECT seq FROM classic_recipient
    WHERE campaign_id = :campaign_id AND seq > :low AND status = 'pending' ORDER BY seq LIMIT 500 FOR UPDATE SKIP LOCKED
)
UPDATE classic_recipient person
SET status = CASE WHEN refusal IS NULL THEN 'sending' ELSE 'skipped' END, reason = refusal
FROM (
    SELECT p.seq, CASE WHEN EXISTS (SELECT FROM mailpipe.suppression s
                                    WHERE s.email_key = mailpipe.email_key(p.email) AND s.scope IN ('all', 'marketing', 'topic:news'))
                       THEN 'suppressed'
                       WHEN EXISTS (SELECT FROM mailpipe.opt_out o WHERE o.person_id = p.user_id AND o.topic IN ('marketing', 'news'))
                         OR NOT EXISTS (SELECT FROM users u WHERE u.user_id = CAST(p.user_id AS bigint)
                                        AND u.marketing_opt_in AND u.is_active) THEN 'opted_out' END AS refusal
    FROM next JOIN classic_recipient p ON p.campaign_id = :campaign_id AND p.seq = next.seq
) AS judged
WHERE person.campaign_id = :campaign_id AND person.seq = judged.seq
RETURNING person.seq, person.user_id, person.email, person.timezone, person.locale, person.variables, person.status;

-- name: mark
UPDATE classic_recipient person
SET status = x.status, reason = x.reason, message_id = x.message_id, sent_at = clock_timestamp()
FROM unnest(CAST(:seqs AS integer[]), CAST(:statuses AS text[]), CAST(:reasons AS text[]), CAST(:message_ids AS text[]))
     AS x(seq, status, reason, message_id)
WHERE person.campaign_id = :campaign_id AND person.seq = x.seq AND person.status = 'sending';

-- name: progress
SELECT status, count(*) FROM classic_recipient WHERE campaign_id = :campaign_id GROUP BY status;
