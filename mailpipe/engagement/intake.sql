-- Bringing in a history that somebody else kept: staged, told apart from machines, counted once for each mail, added to the people.

-- name: known
SELECT source, at, rows, events, machines, people FROM mailpipe.engagement_import WHERE digest = :digest;

-- name: stage
CREATE TEMPORARY TABLE engagement_told (
    person_id text NOT NULL, kind text NOT NULL, at timestamptz NOT NULL, sent_at timestamptz, timezone text, agent text, ip text
) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_agent (agent text NOT NULL, ip text NOT NULL, who text NOT NULL) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_share (shift interval NOT NULL, x real[] NOT NULL) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_exposure (place smallint NOT NULL, x real[] NOT NULL) ON COMMIT DROP;

-- name: copy_query
INSERT INTO engagement_told
SELECT CAST(q.recipient_id AS text), lower(btrim(CAST(q.event_type AS text))), q.opened_at, {{sent_at}}, {{timezone}}, {{agent}}, {{ip}}
FROM ({{query}}
) AS q;

-- name: kinds
SELECT kind, count(*) FROM engagement_told GROUP BY kind;

-- name: wrong
SELECT count(*) FILTER (WHERE person_id = ''), count(*) FILTER (WHERE position('@' IN person_id) > 0),
       count(*) FILTER (WHERE sent_at > at), count(*) FILTER (WHERE at NOT BETWEEN '2000-01-01Z' AND :latest)
FROM engagement_told;

-- name: rename_kind
UPDATE engagement_told SET kind = :to WHERE kind = :from;

-- name: drop_kind
DELETE FROM engagement_told WHERE kind = :kind;

-- name: content
-- The same for the same rows, in whatever order the server reads them.
SELECT count(*), coalesce(sum(CAST(hashtextextended(CAST(t AS text), 0) AS numeric)), 0) FROM engagement_told t;

-- name: span
SELECT count(*), min(at), max(at), min(sent_at) FROM engagement_told;

-- name: agents
SELECT DISTINCT agent, coalesce(ip, '') FROM engagement_told WHERE agent IS NOT NULL;

-- name: texts
SELECT DISTINCT coalesce(e.zone, t.timezone, '')
FROM engagement_told t LEFT JOIN mailpipe.engagement e ON e.person_id = t.person_id;

-- name: people
-- Everybody of the history, with what is known of them by now.
CREATE TEMPORARY TABLE engagement_person ON COMMIT DROP AS
SELECT t.person_id, coalesce(max(e.zone), max(t.timezone), '') AS given, min(t.at) AS since,
       bool_or(a.who = 'apple_mpp') AS apple, bool_or(t.kind = 'open' AND coalesce(a.who, 'browser') IN ('browser', 'proxy')) AS opened
FROM engagement_told t
LEFT JOIN engagement_agent a ON a.agent = t.agent AND a.ip = coalesce(t.ip, '')
LEFT JOIN mailpipe.engagement e ON e.person_id = t.person_id
GROUP BY t.person_id;

-- name: events
-- One for each mail, or where mails are not known for each hour: the click if there is one, else the first open.
CREATE TEMPORARY TABLE engagement_event ON COMMIT DROP AS
SELECT DISTINCT ON (t.person_id, coalesce(t.sent_at, date_trunc('hour', t.at, 'UTC')), t.sent_at IS NULL)
       t.person_id, t.kind, t.at, t.sent_at, z.shift,
       CAST(CASE t.kind WHEN 'click' THEN :click ELSE :open END AS real) AS weight,
       mailpipe.engagement_weight(CAST(t.at AT TIME ZONE 'UTC' AS date), :day) AS fade,
       CAST(extract(hour FROM (t.at + z.shift) AT TIME ZONE 'UTC') AS smallint) AS hour,
       CAST(extract(hour FROM (t.sent_at + z.shift + interval '30 minutes') AT TIME ZONE 'UTC') * 24
            + least(23, floor(extract(epoch FROM t.at - t.sent_at) / 3600)) AS smallint) AS place
FROM engagement_told t
JOIN engagement_person p ON p.person_id = t.person_id
JOIN engagement_clock z ON z.given = p.given AND t.at >= z.since AND t.at < z.until
LEFT JOIN engagement_agent a ON a.agent = t.agent AND a.ip = coalesce(t.ip, '')
WHERE coalesce(a.who, 'browser') IN ('browser', 'proxy')
ORDER BY t.person_id, coalesce(t.sent_at, date_trunc('hour', t.at, 'UTC')), t.sent_at IS NULL, t.kind, t.at;

-- name: shares
-- When people of the same offset react: what they were exposed to, where nobody kept what was sent. Groups of a few hundred lean on
-- everybody.
WITH told AS (
    SELECT shift, hour, sum(weight * fade) AS weight, count(*) AS events FROM engagement_event WHERE sent_at IS NULL GROUP BY shift, hour
),
everybody AS (SELECT hour, sum(weight) / (SELECT sum(weight) FROM told) AS share FROM told GROUP BY hour),
sized AS (SELECT shift, sum(weight) AS weight FROM told GROUP BY shift)
INSERT INTO engagement_share
SELECT s.shift, array_agg(CAST((coalesce(t.weight, 0) + :lean * coalesce(e.share, 0)) / (s.weight + :lean) AS real) ORDER BY h.hour)
FROM sized s CROSS JOIN generate_series(0, 23) AS h(hour)
LEFT JOIN told t ON t.shift = s.shift AND t.hour = h.hour LEFT JOIN everybody e ON e.hour = h.hour
GROUP BY s.shift;

-- name: sums
CREATE TEMPORARY TABLE engagement_sum ON COMMIT DROP AS
SELECT v.person_id, CAST(sum(v.fade) AS real) AS events, CAST(sum(v.fade) / CAST(:rate AS real) AS real) AS mails,
       max(v.at) AS engaged_at, max(v.at) FILTER (WHERE v.kind = 'click') AS clicked_at, max(v.sent_at) AS sent_at,
       ARRAY[{{ev}}] AS ev, ARRAY[{{ex}}] AS ex
FROM engagement_event v
LEFT JOIN engagement_exposure x ON x.place = v.place
LEFT JOIN engagement_share s ON v.sent_at IS NULL AND s.shift = v.shift
GROUP BY v.person_id;

-- name: new_people
INSERT INTO mailpipe.engagement (person_id, zone, as_of, since, tier, machine)
SELECT p.person_id, z.zone, :day, p.since, 5, coalesce(p.apple AND NOT p.opened, false)
FROM engagement_person p LEFT JOIN (SELECT DISTINCT given, zone FROM engagement_clock) z ON z.given = p.given
WHERE NOT EXISTS (SELECT FROM mailpipe.engagement e WHERE e.person_id = p.person_id);

-- name: settle_zones
-- As in a fold: what was counted by UTC moves to the hours of the zone that is known now.
UPDATE mailpipe.engagement e SET zone = z.zone, ev = e.ev[25 - z.k : 24] || e.ev[1 : 24 - z.k], ex = e.ex[25 - z.k : 24] || e.ex[1 : 24 - z.k]
FROM engagement_person p JOIN (
    SELECT DISTINCT ON (given) given, zone, mod(24 + CAST(round(extract(epoch FROM shift) / 3600) AS integer), 24) AS k
    FROM engagement_clock WHERE zone IS NOT NULL ORDER BY given, since DESC
) z ON z.given = p.given
WHERE e.person_id = p.person_id AND e.zone IS NULL;

-- name: add
UPDATE mailpipe.engagement e SET
    as_of = greatest(e.as_of, :day),
    events = e.events * w.old + d.events * w.new, mails = e.mails * w.old + d.mails * w.new,
    ev = ARRAY[{{ev}}], ex = ARRAY[{{ex}}],
    last_sent_at = greatest(e.last_sent_at, d.sent_at), last_engaged_at = greatest(e.last_engaged_at, d.engaged_at),
    last_clicked_at = greatest(e.last_clicked_at, d.clicked_at)
FROM engagement_sum d CROSS JOIN (
    SELECT as_of, mailpipe.engagement_weight(as_of, greatest(as_of, :day)) AS old,
           mailpipe.engagement_weight(:day, greatest(as_of, :day)) AS new
    FROM (SELECT DISTINCT as_of FROM mailpipe.engagement) AS days
) w
WHERE e.person_id = d.person_id AND w.as_of = e.as_of;

-- name: retier
UPDATE mailpipe.engagement e SET
    since = least(e.since, p.since),
    tier = mailpipe.engagement_tier(e.last_engaged_at, e.last_clicked_at, e.last_bought_at, least(e.since, p.since), clock_timestamp())
FROM engagement_person p WHERE e.person_id = p.person_id;

-- name: counts
SELECT (SELECT count(*) FROM engagement_event),
       (SELECT count(*) FROM engagement_told t JOIN engagement_agent a ON a.agent = t.agent AND a.ip = coalesce(t.ip, '')
        WHERE a.who NOT IN ('browser', 'proxy')),
       (SELECT count(*) FROM engagement_person);

-- name: keep
INSERT INTO mailpipe.engagement_import (digest, source, rows, events, machines, people)
VALUES (:digest, :source, :rows, :events, :machines, :people);
