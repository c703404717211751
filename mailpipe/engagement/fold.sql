-- One day of mails and what came back, folded into one row for each person. Everything happens in one transaction, under one lock.

-- name: lock
-- One folder at a time: what a fold adds depends on what it finds.
SELECT pg_advisory_xact_lock(782638, 6);

-- name: tables
CREATE TEMPORARY TABLE engagement_reaction (
    campaign_id integer NOT NULL, seq integer NOT NULL, opened_at timestamptz, clicked_at timestamptz,
    last_engaged_at timestamptz, last_clicked_at timestamptz, apple boolean NOT NULL, told_at timestamptz NOT NULL
) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_reader (
    person_id text NOT NULL, engaged_at timestamptz, clicked_at timestamptz, opened boolean NOT NULL, apple boolean NOT NULL,
    told_at timestamptz NOT NULL
) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_exposure (place smallint NOT NULL, x real[] NOT NULL) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_sent (seq integer NOT NULL, variant text, at timestamptz NOT NULL) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_mail (
    person_id text NOT NULL, zone text, shift interval NOT NULL, variant text, sent_at timestamptz NOT NULL, hour smallint NOT NULL,
    place smallint NOT NULL, weight real, reacted_hour smallint, opened_at timestamptz, clicked_at timestamptz,
    engaged_at timestamptz, last_clicked_at timestamptz, apple boolean NOT NULL, told boolean NOT NULL
) ON COMMIT DROP;
CREATE TEMPORARY TABLE engagement_decay (
    as_of date NOT NULL, machine boolean NOT NULL, old real NOT NULL, new real NOT NULL, exposed real NOT NULL
) ON COMMIT DROP;

-- name: visits
-- Everything that those did who opened or clicked in the window, machines too, beside the time of the delivery.
WITH reacted AS (
    SELECT DISTINCT campaign_id, seq FROM mailpipe.event
    WHERE at >= :since AND at < :until AND kind IN ('open', 'click') AND campaign_id IS NOT NULL
),
told AS (
    SELECT e.campaign_id, e.seq, e.kind, e.at, coalesce(e.agent, '') AS agent, e.ip, e.link,
           min(e.at) FILTER (WHERE e.kind = 'delivery') OVER (PARTITION BY e.campaign_id, e.seq) AS delivered_at
    FROM reacted x JOIN mailpipe.event e ON e.campaign_id = x.campaign_id AND e.seq = x.seq
    WHERE e.at >= :context AND e.at < :until AND e.kind IN ('open', 'click', 'delivery')
)
SELECT campaign_id, seq, kind, at, delivered_at, agent, ip, link FROM told WHERE kind <> 'delivery'
ORDER BY campaign_id, seq, at, kind, link;

-- name: campaigns
-- With mails or reactions in the window; both are asked one campaign at a time, so that no other one's people are read.
SELECT g.campaign_id, g.key, EXISTS (
    SELECT FROM mailpipe.call k WHERE k.campaign_id = g.campaign_id AND k.at >= :since AND k.at < :until
) AS mailed, EXISTS (SELECT FROM engagement_reaction x WHERE x.campaign_id = g.campaign_id) AS reacted
FROM mailpipe.campaign g ORDER BY g.campaign_id;

-- name: readers
INSERT INTO engagement_reader
SELECT r.user_id, x.last_engaged_at, x.last_clicked_at, x.opened_at IS NOT NULL, x.apple, x.told_at
FROM engagement_reaction x JOIN mailpipe.recipient r ON r.campaign_id = :campaign_id AND r.seq = x.seq
WHERE x.campaign_id = :campaign_id AND r.user_id <> '';

-- name: new_readers
INSERT INTO mailpipe.engagement (person_id, as_of, since, tier)
SELECT r.person_id, :day, min(r.told_at), 5 FROM engagement_reader r
WHERE NOT EXISTS (SELECT FROM mailpipe.engagement e WHERE e.person_id = r.person_id) GROUP BY r.person_id;

-- name: flags
-- Behind the proxy is whose opens are Apple's alone; one open that a human made says that the others would be seen too.
UPDATE mailpipe.engagement e SET machine = NOT r.opened
FROM (SELECT person_id, bool_or(opened) AS opened FROM engagement_reader GROUP BY person_id
      HAVING bool_or(opened) OR bool_or(apple)) r
WHERE e.person_id = r.person_id AND e.machine = r.opened;

-- name: timezones
SELECT DISTINCT coalesce(timezone, '') FROM mailpipe.recipient WHERE campaign_id = :campaign_id;

-- name: decay
INSERT INTO engagement_decay
SELECT d.as_of, m.machine, mailpipe.engagement_weight(d.as_of, greatest(d.as_of, :day)),
       mailpipe.engagement_weight(:day, greatest(d.as_of, :day)),
       mailpipe.engagement_weight(:day, greatest(d.as_of, :day)) * CASE WHEN m.machine THEN CAST(:thinning AS real) ELSE 1 END
FROM (SELECT as_of FROM mailpipe.engagement UNION SELECT CAST(:day AS date)) d
CROSS JOIN (VALUES (true), (false)) AS m(machine);

-- name: sent
-- The mails of a campaign on a day: accepted, and not bounced, refused or still on their way. Kept by itself, because nobody can guess
-- how many people a bit string holds: planned as one statement with the next, it took a hundred times as long.
INSERT INTO engagement_sent
WITH lost AS (
    SELECT chunk_no, bit_or(mask) FILTER (WHERE kind IN ('bounce', 'reject', 'rendering_failure')) AS dead,
           bit_or(mask) FILTER (WHERE kind = 'delivery_delay') AS late, bit_or(mask) FILTER (WHERE kind = 'delivery') AS delivered
    FROM mailpipe.event_mask WHERE campaign_id = :campaign_id
     AND kind IN ('bounce', 'reject', 'rendering_failure', 'delivery_delay', 'delivery') GROUP BY chunk_no
),
called AS MATERIALIZED (
    SELECT c.first_seq, c.variant, k.at, k.positions, k.codes, l.dead, l.late, l.delivered
    FROM mailpipe.call k JOIN mailpipe.chunk c ON c.campaign_id = :campaign_id AND c.chunk_no = k.chunk_no
    LEFT JOIN lost l ON l.chunk_no = k.chunk_no
    WHERE k.campaign_id = :campaign_id AND k.at >= :since AND k.at < :until AND k.accepted > 0
)
SELECT k.first_seq + i, k.variant, k.at
FROM called k
CROSS JOIN LATERAL generate_series(position(B'1' IN k.positions) - 1, length(rtrim(CAST(k.positions AS text), '0')) - 1) AS i
WHERE get_bit(k.positions, i) = 1
  AND (k.codes IS NULL OR substr(k.codes, CAST(bit_count(substring(k.positions FROM 1 FOR i + 1)) AS integer), 1) = 's')
  AND (k.dead IS NULL OR get_bit(k.dead, i) = 0)
  AND (k.late IS NULL OR get_bit(k.late, i) = 0 OR k.delivered IS NOT NULL AND get_bit(k.delivered, i) = 1);

-- name: known_zones
SELECT DISTINCT zone FROM mailpipe.engagement WHERE zone IS NOT NULL;

-- name: zone_of_person
-- A segment need not select zones: whose zone it does not tell is counted by the one that is known of them.
LEFT JOIN mailpipe.engagement e ON e.person_id = r.user_id AND coalesce(r.timezone, '') = ANY(CAST(:zoneless AS text[]))

-- name: mails
-- The hour of a send is the one in which most of its first sixty minutes lie; one offset holds for a mail and its day. What is clicked
-- within a day is a click, else it may be an open.
INSERT INTO engagement_mail
SELECT r.user_id, z.zone, z.shift, s.variant, s.at, h.hour,
       h.hour * 24 + CASE WHEN w.at IS NULL THEN 23
                          ELSE least(23, greatest(0, floor(extract(epoch FROM w.at - s.at) / 3600))) END,
       CASE WHEN w.at IS NULL THEN NULL WHEN w.at = x.clicked_at THEN CAST(:click AS real) ELSE CAST(:open AS real) END,
       extract(hour FROM (w.at + z.shift) AT TIME ZONE 'UTC'), x.opened_at, x.clicked_at, x.last_engaged_at, x.last_clicked_at,
       coalesce(x.apple, false), x.seq IS NOT NULL
FROM engagement_sent s
JOIN mailpipe.recipient r ON r.campaign_id = :campaign_id AND r.seq = s.seq AND r.user_id <> ''
{{zone}}
JOIN engagement_clock z ON z.given = {{given}} AND s.at >= z.since AND s.at < z.until
LEFT JOIN engagement_reaction x ON x.campaign_id = :campaign_id AND x.seq = s.seq
CROSS JOIN LATERAL (SELECT CAST(extract(hour FROM (s.at + z.shift + interval '30 minutes') AT TIME ZONE 'UTC') AS smallint)) AS h(hour)
CROSS JOIN LATERAL (
    SELECT CASE WHEN x.clicked_at < s.at + interval '24 hours' THEN x.clicked_at
                WHEN x.opened_at < s.at + interval '24 hours' THEN x.opened_at END
) AS w(at);

-- name: zoneless
SELECT EXISTS (SELECT FROM mailpipe.engagement WHERE zone IS NULL);

-- name: settle_zones
-- What was counted by UTC moves to the hours of the zone that is known now.
UPDATE mailpipe.engagement e SET zone = m.zone, ev = e.ev[25 - m.k : 24] || e.ev[1 : 24 - m.k], ex = e.ex[25 - m.k : 24] || e.ex[1 : 24 - m.k]
FROM (SELECT person_id, zone, mod(24 + CAST(round(extract(epoch FROM shift) / 3600) AS integer), 24) AS k
      FROM engagement_mail WHERE zone IS NOT NULL) m
WHERE e.person_id = m.person_id AND e.zone IS NULL;

-- name: add
-- Written out element by element: a subquery over the arrays takes four times as long.
UPDATE mailpipe.engagement e SET
    as_of = greatest(e.as_of, :day), zone = coalesce(m.zone, e.zone),
    events = e.events * w.old + CASE WHEN m.weight IS NULL THEN 0 ELSE w.new END,
    mails = e.mails * w.old + w.new,
    ev = CASE WHEN e.events = 0 AND m.weight IS NULL THEN e.ev ELSE ARRAY[{{ev}}] END,
    ex = ARRAY[{{ex}}],
    last_sent_at = greatest(e.last_sent_at, m.sent_at),
    last_engaged_at = greatest(e.last_engaged_at, m.engaged_at), last_clicked_at = greatest(e.last_clicked_at, m.last_clicked_at),
    tier = mailpipe.engagement_tier(greatest(e.last_engaged_at, m.engaged_at), greatest(e.last_clicked_at, m.last_clicked_at),
                                    e.last_bought_at, e.since, :until)
FROM engagement_mail m JOIN engagement_exposure x ON x.place = m.place CROSS JOIN engagement_decay w
WHERE e.person_id = m.person_id AND w.as_of = e.as_of AND w.machine = e.machine;

-- name: new_people
-- Whoever is not there by now has done nothing yet: those who have were put in with the readers.
INSERT INTO mailpipe.engagement (person_id, zone, as_of, since, mails, ex, last_sent_at, tier)
SELECT m.person_id, m.zone, :day, m.sent_at, 1, x.x, m.sent_at, mailpipe.engagement_tier(NULL, NULL, NULL, m.sent_at, :until)
FROM engagement_mail m JOIN engagement_exposure x ON x.place = m.place
WHERE NOT EXISTS (SELECT FROM mailpipe.engagement e WHERE e.person_id = m.person_id)
-- Somebody whom a person ordered to mail again may have been accepted twice.
ON CONFLICT DO NOTHING;

-- name: counted
-- Only whom we can see: whose mails Apple alone has opened teaches nothing about how soon mails are read.
SELECT count(*) AS mails, count(*) FILTER (WHERE weight = :open), count(*) FILTER (WHERE weight = :click),
       count(*) FILTER (WHERE told AND opened_at IS NULL AND clicked_at IS NULL),
       count(*) FILTER (WHERE NOT apple),
       count(*) FILTER (WHERE NOT apple AND weight = :open), count(*) FILTER (WHERE NOT apple AND weight = :click)
FROM engagement_mail;

-- name: ages
SELECT mod(place, 24), count(*) FROM engagement_mail WHERE weight IS NOT NULL AND NOT apple GROUP BY 1;

-- name: people
SELECT count(*) FROM mailpipe.engagement WHERE last_sent_at >= :since AND last_sent_at < :until;

-- name: engaged
UPDATE mailpipe.engagement e SET last_engaged_at = greatest(e.last_engaged_at, r.engaged_at),
                                 last_clicked_at = greatest(e.last_clicked_at, r.clicked_at)
FROM (SELECT person_id, max(engaged_at) AS engaged_at, max(clicked_at) AS clicked_at FROM engagement_reader GROUP BY person_id) r
WHERE e.person_id = r.person_id AND (r.engaged_at > coalesce(e.last_engaged_at, '-infinity')
                                     OR r.clicked_at > coalesce(e.last_clicked_at, '-infinity'));

-- name: bought
-- From the last order that is known on, so that none is missed where nobody asked for a while; older than 180 days makes nobody engaged.
INSERT INTO mailpipe.engagement AS e (person_id, as_of, since, last_bought_at, tier)
SELECT o.user_id, :day, min(o.ordered_at), max(o.ordered_at), 5
FROM ({{orders}}) AS o WHERE o.ordered_at < :until AND o.user_id <> ''
  AND o.ordered_at >= greatest(CAST(:since AS timestamptz) - interval '180 days', least(
      CAST(:since AS timestamptz), coalesce((SELECT max(last_bought_at) FROM mailpipe.engagement), '-infinity') - interval '1 day'))
GROUP BY o.user_id
ON CONFLICT (person_id) DO UPDATE SET last_bought_at = excluded.last_bought_at
WHERE excluded.last_bought_at > coalesce(e.last_bought_at, '-infinity');

-- name: buyers
SELECT count(DISTINCT o.user_id) FROM ({{orders}}) AS o WHERE o.ordered_at >= :since AND o.ordered_at < :until;

-- name: opted_in
UPDATE mailpipe.engagement e SET since = o.opted_in_at
FROM (SELECT CAST(user_id AS text) AS user_id, CAST(max(opted_in_at) AS timestamptz) AS opted_in_at FROM ({{opt_ins}}) AS q
      GROUP BY 1) o
WHERE e.person_id = o.user_id AND e.since <> o.opted_in_at;

-- name: tiers
UPDATE mailpipe.engagement SET tier = mailpipe.engagement_tier(last_engaged_at, last_clicked_at, last_bought_at, since, :until)
WHERE tier <> mailpipe.engagement_tier(last_engaged_at, last_clicked_at, last_bought_at, since, :until);

-- name: count_tiers
SELECT tier, count(*) FROM mailpipe.engagement GROUP BY tier;

-- name: keep_state
INSERT INTO mailpipe.engagement_state (folded_to, freshness, thinning, ages, mails, opens, clicks)
VALUES (:folded_to, CAST(:freshness AS real[]), :thinning, CAST(:ages AS real[]), :mails, :opens, :clicks)
ON CONFLICT (only_row) DO UPDATE SET folded_to = excluded.folded_to, freshness = excluded.freshness, thinning = excluded.thinning,
    ages = excluded.ages, mails = excluded.mails, opens = excluded.opens, clicks = excluded.clicks;

-- name: keep_fold
INSERT INTO mailpipe.engagement_fold (day, people, mails, opens, clicks, machines, bought, tiers, seconds)
VALUES (:day, :people, :mails, :opens, :clicks, :machines, :bought, CAST(:tiers AS integer[]), :seconds);

-- name: export_mails
-- Spelled out: how the server writes a time by itself is a matter of its settings.
SELECT person_id, variant, to_char(sent_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), hour FROM engagement_mail;

-- name: export_reactions
SELECT m.person_id, m.variant, to_char(m.sent_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), r.kind,
       CAST(extract(hour FROM (r.at + m.shift) AT TIME ZONE 'UTC') AS smallint), extract(epoch FROM r.at - m.sent_at)
FROM engagement_mail m CROSS JOIN LATERAL (VALUES ('open', m.opened_at), ('click', m.clicked_at)) AS r(kind, at)
WHERE r.at IS NOT NULL;
