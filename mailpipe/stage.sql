-- The staged people of a segment, and the campaign's table that they become. All statements of one snapshot run in one transaction;
-- `{{table}}` is the campaign's own partition, which is filled bare, indexed, and only then attached: half the time of inserting into
-- indexed tables.

-- name: stage
-- One pass over the segment, in its own order, and written once: numbered as if nobody were left out but those whom this pass finds.
-- Where that holds, this table becomes the campaign's own; else its people are numbered and written anew. `place` is their order in
-- the segment. The people are kept in memory between, because who has an address twice is known only when all have been seen.
-- Addresses are compared as hashes, like everywhere in a snapshot: a quarter of the time of comparing texts.
CREATE {{kind}} TABLE {{staged}} AS
WITH person AS MATERIALIZED (
    SELECT hashed.*,
           CASE WHEN user_id IS NULL THEN 'nameless'
                WHEN email_hash IN (SELECT hashtextextended(email_key, 0) FROM mailpipe.suppression
                                    WHERE scope = ANY(CAST(:scopes AS text[]))) THEN 'suppressed'
                WHEN user_id IN (SELECT person_id FROM mailpipe.opt_out WHERE topic = ANY(CAST(:topics AS text[]))) THEN 'opted_out'
                ELSE '' END AS refusal
    FROM (
        SELECT CAST(row_number() OVER () AS integer) AS place, CAST(segment.user_id AS text) AS user_id,
               CAST(segment.email AS text) AS email, {{timezone}} AS timezone, {{locale}} AS locale,
               CAST(ARRAY[{{variables}}] AS text[]) AS variables,
               hashtextextended(mailpipe.email_key(CAST(segment.email AS text)), 0) AS email_hash
        FROM (
{{segment}}
        ) AS segment
        OFFSET 0
    ) AS hashed
    OFFSET 0
),
special AS MATERIALIZED (
    SELECT place, email_hash, btrim(email, E' \t\r\n') <> '' AS known, refusal FROM person
    -- Sorting a million hashes takes half the time of a hash table of them; the planner expects a few hundred.
    WHERE refusal <> '' OR email_hash IN (
        SELECT email_hash FROM (SELECT email_hash FROM person ORDER BY email_hash) AS every GROUP BY email_hash HAVING count(*) > 1
    )
),
twice AS MATERIALIZED (
    SELECT place FROM (
        SELECT place, row_number() OVER (PARTITION BY email_hash ORDER BY place) AS no FROM special WHERE refusal = '' AND known
    ) AS ranked
    WHERE no > 1
)
SELECT {{campaign_id}} AS campaign_id,
       -- Less the number of those before who are left out.
       CASE WHEN refusal = '' THEN place - width_bucket(place, ARRAY(
           SELECT place FROM special WHERE refusal <> '' UNION ALL SELECT place FROM twice ORDER BY place
       )) END AS seq,
       user_id, email, timezone, locale, variables, place, refusal
FROM (
    SELECT place, user_id, email, timezone, locale, variables,
           CASE WHEN place IN (SELECT place FROM twice) THEN 'duplicate' ELSE refusal END AS refusal
    FROM person
    OFFSET 0
) AS judged;

-- name: note
-- Of whom there is anything to say: who is left out, and whose address is not plain. One walk over the stage, with all processors.
CREATE TEMPORARY TABLE noted ON COMMIT DROP AS
SELECT looked_at.*, ({{plain}}) IS NOT TRUE AS unusual FROM (
    SELECT place, seq, refusal, ctid AS tid, btrim(email, E' \t\r\n') AS email, email <> btrim(email, E' \t\r\n') AS spaced
    FROM {{staged}} WHERE seq IS NULL OR ({{plain}}) IS NOT TRUE
    OFFSET 0
) AS looked_at;

-- name: refuse
-- Who has an address twice is looked for again if anybody else is refused later: it may be the one who stays.
CREATE TEMPORARY TABLE refused ON COMMIT DROP AS
SELECT place, refusal AS reason FROM noted WHERE refusal NOT IN ('', 'duplicate');

-- name: refused
SELECT count(*) FROM refused;

-- name: spaced
SELECT count(*) FROM noted WHERE spaced AND NOT unusual;

-- name: changed
-- Whose address is written anew, and where they are.
CREATE TEMPORARY TABLE changed (place integer, email text, tid tid) ON COMMIT DROP;

-- name: trim
INSERT INTO changed SELECT place, email, tid FROM noted WHERE spaced AND NOT unusual;

-- name: consenting
-- Most segments ask for consent themselves, and everybody has it. To count them is a join that the server does with all of its
-- processors; to find those who have none is not.
SELECT count(*) FROM {{staged}} AS person WHERE (seq IS NOT NULL OR refusal = 'duplicate') AND ({{consent}});

-- name: refuse_unconsenting
INSERT INTO refused
SELECT place, 'opted_out' FROM {{staged}} AS person
WHERE (seq IS NOT NULL OR refusal = 'duplicate') AND ({{consent}}) IS NOT TRUE AND place NOT IN (SELECT place FROM refused);

-- name: unusual
SELECT place, email, spaced, seq, CAST(tid AS text) FROM noted WHERE unusual;

-- name: readdress
-- Not by an update: it would leave a chain of versions, for which PostgreSQL does not use the new indexes as long as any older
-- snapshot lives, a dump's for example.
WITH gone AS (DELETE FROM {{staged}} WHERE ctid = ANY(ARRAY(SELECT tid FROM changed)) RETURNING *),
put AS (
    INSERT INTO {{staged}} (campaign_id, seq, user_id, email, timezone, locale, variables, place, refusal)
    SELECT g.campaign_id, g.seq, g.user_id, x.email, g.timezone, g.locale, g.variables, g.place, g.refusal
    FROM gone g JOIN changed x USING (place)
    RETURNING place, ctid AS tid
)
UPDATE noted n SET tid = put.tid FROM put WHERE n.place = put.place;

-- name: refuse_readdressed
-- Whose address is suppressed in the spelling that would be sent.
INSERT INTO refused
SELECT x.place, 'suppressed' FROM changed x
WHERE x.place NOT IN (SELECT place FROM refused)
  AND EXISTS (SELECT FROM mailpipe.suppression s
              WHERE s.email_key = mailpipe.email_key(x.email) AND s.scope = ANY(CAST(:scopes AS text[])));

-- name: unchanged
DROP TABLE changed;

-- name: refuse_twice
-- Those whom the first pass has found.
INSERT INTO refused SELECT place, refusal FROM noted WHERE refusal = 'duplicate';

-- name: refuse_duplicates
-- The first row of a person stays, of those that are not refused already.
INSERT INTO refused
SELECT place, 'duplicate'
FROM (
    SELECT place, row_number() OVER (PARTITION BY {{hash}} ORDER BY place) AS no FROM {{staged}}
    WHERE {{hash}} IN (SELECT hash FROM (SELECT {{hash}} AS hash FROM {{staged}} WHERE {{known}}) AS every GROUP BY hash HAVING count(*) > 1)
      AND {{known}} AND place NOT IN (SELECT place FROM refused)
) AS ranked
WHERE no > 1;

-- name: excluded
SELECT reason, count(*) FROM refused GROUP BY reason;

-- name: fill
CREATE TABLE {{table}} AS
SELECT {{campaign_id}} AS campaign_id, CAST(row_number() OVER (ORDER BY {{order}}place) AS integer) AS seq,
       user_id, email, timezone, locale, variables
FROM {{staged}} AS person {{join}} WHERE place NOT IN (SELECT place FROM refused);

-- name: leave_out
DELETE FROM {{staged}} WHERE ctid = ANY(ARRAY(SELECT tid FROM noted WHERE refusal <> ''));

-- name: adopt
-- Columns are dropped in the catalogue alone; a few bytes of each row stay unused.
ALTER TABLE {{staged}} RENAME TO {{name}};
ALTER TABLE {{table}} DROP COLUMN place, DROP COLUMN refusal;

-- name: tidy
ALTER TABLE {{table}} ALTER campaign_id SET NOT NULL, ALTER seq SET NOT NULL, ALTER user_id SET NOT NULL,
    ALTER email SET NOT NULL, ALTER variables SET NOT NULL,
    ADD CONSTRAINT recipient_seq_check CHECK (seq >= 1), ADD CHECK (campaign_id = {{campaign_id}});

-- name: index_user
CREATE UNIQUE INDEX ON {{table}} (hashtextextended(user_id, 0), campaign_id);

-- name: index_email
CREATE UNIQUE INDEX ON {{table}} (hashtextextended(mailpipe.email_key(email), 0), campaign_id) WHERE email <> '';

-- name: seqs
-- Which numbers the people of these places have got, if they were not left out.
SELECT r.seq FROM {{staged}} s
JOIN {{table}} r ON hashtextextended(r.user_id, 0) = hashtextextended(s.user_id, 0) AND r.user_id = s.user_id
WHERE r.campaign_id = :campaign_id AND s.place = ANY(CAST(:places AS integer[])) AND s.place NOT IN (SELECT place FROM refused);

-- name: attach
ALTER TABLE {{table}} ADD PRIMARY KEY (campaign_id, seq);
ALTER TABLE mailpipe.recipient ATTACH PARTITION {{table}} FOR VALUES IN ({{campaign_id}});

-- name: unstage
DROP TABLE {{staged}};
