-- Unsubscribes by domain and minute.

-- name: recent
-- Campaigns of the last week alone: a scanner is quick, and each costs a look into its index.
SELECT campaign_id FROM mailpipe.snapshot WHERE taken_at > now() - interval '7 days' ORDER BY campaign_id DESC LIMIT 50;

-- name: domain
-- Where the person was mailed last. The campaigns are written out, so that no other partition is planned for or locked.
SELECT split_part(mailpipe.email_key(email), '@', 2) FROM mailpipe.recipient
WHERE campaign_id IN ({{campaigns}}) AND hashtextextended(user_id, 0) = hashtextextended(:person_id, 0) AND user_id = :person_id
  AND email LIKE '%@%'
ORDER BY campaign_id DESC LIMIT 1;

-- name: count
-- This one included. Minutes that are over go, so the table stays as small as the last minutes are.
WITH gone AS (
    DELETE FROM mailpipe.unsubscribe_minute WHERE (domain, minute) IN (
        SELECT domain, minute FROM mailpipe.unsubscribe_minute WHERE minute < now() - interval '1 minute' * (2 * :minutes)
        LIMIT 100 FOR UPDATE SKIP LOCKED)
),
counted AS (
    INSERT INTO mailpipe.unsubscribe_minute AS m (domain, minute, people) VALUES (:domain, date_trunc('minute', now()), 1)
    ON CONFLICT (domain, minute) DO UPDATE SET people = m.people + 1
    RETURNING people, alarmed
)
SELECT counted.people + coalesce(others.people, 0), counted.alarmed OR coalesce(others.alarmed, false)
FROM counted,
     LATERAL (SELECT sum(people) AS people, bool_or(alarmed) AS alarmed FROM mailpipe.unsubscribe_minute
              WHERE domain = :domain AND minute < date_trunc('minute', now())
                AND minute > now() - interval '1 minute' * :minutes) others;

-- name: alarmed
UPDATE mailpipe.unsubscribe_minute SET alarmed = true WHERE domain = :domain AND minute = date_trunc('minute', now());
