-- name: person
SELECT e.person_id, e.tier, e.zone, e.machine, e.events * w.weight AS events, e.mails * w.weight AS mails, e.since, e.last_sent_at,
       e.last_engaged_at, e.last_clicked_at, e.last_bought_at,
       ARRAY(SELECT x * w.weight FROM unnest(e.ev) WITH ORDINALITY AS u(x, n) ORDER BY n) AS ev,
       ARRAY(SELECT x * w.weight FROM unnest(e.ex) WITH ORDINALITY AS u(x, n) ORDER BY n) AS ex
FROM mailpipe.engagement e LEFT JOIN mailpipe.engagement_state s ON true
CROSS JOIN LATERAL (SELECT mailpipe.engagement_weight(e.as_of, coalesce(s.folded_to, e.as_of))) AS w(weight)
WHERE e.person_id = :person_id;

-- name: people
SELECT count(*), count(*) FILTER (WHERE events > 0), count(*) FILTER (WHERE machine), count(*) FILTER (WHERE zone IS NULL),
       count(*) FILTER (WHERE tier = 1), count(*) FILTER (WHERE tier = 2), count(*) FILTER (WHERE tier = 3),
       count(*) FILTER (WHERE tier = 4), count(*) FILTER (WHERE tier = 5)
FROM mailpipe.engagement;

-- name: imports
SELECT count(*) FROM mailpipe.engagement_import;

-- name: days
SELECT day, people, mails, opens, clicks, machines, bought, tiers, seconds FROM mailpipe.engagement_fold ORDER BY day DESC LIMIT :days;
