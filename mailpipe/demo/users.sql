-- Invented people, made in one statement from small tables. Every choice is a hash of the person's number and the seed,
-- or the person's place in a permutation of all, so the same call gives the same people.

-- name: owner
SELECT to_regclass('public.users') IS NOT NULL AS present,
       obj_description(to_regclass('public.users'), 'pg_class') AS comment;

-- name: create
DROP TABLE IF EXISTS public.users;
CREATE TABLE public.users (
    user_id          bigint NOT NULL,
    email            text NOT NULL,
    first_name       text,
    last_name        text NOT NULL,
    country          text NOT NULL,          -- ISO 3166-1, two letters
    city             text,
    timezone         text NOT NULL,          -- IANA
    locale           text NOT NULL,          -- BCP 47
    tier             text NOT NULL,          -- free, plus, pro
    source           text NOT NULL,          -- organic, referral, ads, partner
    referral_code    text,
    is_active        boolean NOT NULL,
    marketing_opt_in boolean NOT NULL,
    created_at       timestamptz NOT NULL,
    last_login_at    timestamptz
);
CREATE TEMPORARY TABLE demo_name (country text, kind text, name text, ascii text) ON COMMIT DROP;
CREATE TEMPORARY TABLE demo_city (country text, city text, timezone text, locale text, weight bigint) ON COMMIT DROP;
CREATE TEMPORARY TABLE demo_domain (domain text, weight bigint) ON COMMIT DROP;

-- name: slots
-- A weighted choice is a look-up: of 8,192 numbered slots each city holds as many as its weight says.
CREATE TEMPORARY TABLE demo_place ON COMMIT DROP AS
WITH weighted AS (
    SELECT *, sum(weight) OVER cities - weight AS low, sum(weight) OVER cities AS high, sum(weight) OVER () AS total
    FROM demo_city
    WINDOW cities AS (ORDER BY country COLLATE "C", city COLLATE "C")
), named AS (
    SELECT country,
           array_agg(name ORDER BY line) FILTER (WHERE kind = 'first') AS firsts,
           array_agg(ascii ORDER BY line) FILTER (WHERE kind = 'first') AS firsts_ascii,
           array_agg(name ORDER BY line) FILTER (WHERE kind = 'last') AS lasts,
           array_agg(ascii ORDER BY line) FILTER (WHERE kind = 'last') AS lasts_ascii
    FROM (SELECT *, ctid AS line FROM demo_name) AS lines
    GROUP BY country
)
SELECT slot::bigint AS slot, country, city, timezone, locale, firsts, firsts_ascii, lasts, lasts_ascii
FROM generate_series(0, 8191) AS slot
JOIN weighted ON slot * total >= low * 8192 AND slot * total < high * 8192
JOIN named USING (country);

CREATE TEMPORARY TABLE demo_provider ON COMMIT DROP AS
WITH weighted AS (
    SELECT *, sum(weight) OVER domains - weight AS low, sum(weight) OVER domains AS high, sum(weight) OVER () AS total
    FROM demo_domain
    WINDOW domains AS (ORDER BY domain COLLATE "C")
)
SELECT slot::bigint AS slot, domain, octet_length(domain) = length(domain) AS is_ascii
FROM generate_series(0, 1023) AS slot
JOIN weighted ON slot * total >= low * 1024 AND slot * total < high * 1024;

ANALYZE demo_place, demo_provider;

-- name: fill
INSERT INTO public.users
SELECT user_id,
       CASE role
           WHEN 'bounce' THEN 'bounce+' || user_id || '@simulator.amazonses.com'
           WHEN 'complaint' THEN 'complaint+' || user_id || '@simulator.amazonses.com'
           WHEN 'duplicate' THEN
               upper(local) || '@' || CASE WHEN is_ascii AND position % 2 = 0 THEN upper(domain) ELSE domain END
           -- A suppression key is in ASCII; plain lower() makes one of these addresses.
           WHEN 'suppressed' THEN local || '@' || CASE WHEN is_ascii THEN domain ELSE 'gmail.example.com' END
           WHEN 'unusable' THEN CASE position % 5
               WHEN 0 THEN local || '.' || domain
               WHEN 1 THEN replace(local, user_id::text, ' ' || user_id) || '@' || domain
               WHEN 2 THEN 'é' || local || '@' || domain
               WHEN 3 THEN local || '.@' || domain
               ELSE replace(local, user_id::text, '..' || user_id) || '@' || domain
           END
           ELSE CASE WHEN (traits >> 58) & 31 = 0 THEN initcap(local) ELSE local END || '@' || domain
       END,
       CASE WHEN name_position >= :without_first_name THEN firsts[first_index] END,
       lasts[last_index],
       country,
       CASE WHEN role <> 'without_city' THEN city END,
       timezone,
       locale,
       CASE WHEN habits & 1023 < 820 THEN 'free' WHEN habits & 1023 < 970 THEN 'plus' ELSE 'pro' END,
       source,
       CASE WHEN source = 'referral' THEN 'R' || upper(lpad(to_hex(traits & 268435455), 7, '0')) END,
       role <> 'inactive',
       role <> 'opted_out',
       created_at,
       CASE
           WHEN (habits >> 60) & 15 = 0 THEN NULL
           WHEN role = 'inactive' THEN greatest(created_at, :as_of - (400 + 500 * seen) * interval '1 day')
           ELSE greatest(created_at, :as_of + ln(1 - seen) * 50 * interval '1 day')
       END
FROM (
    SELECT *,
           CASE WHEN (traits >> 55) & 7 < 4 THEN firsts_ascii[first_index] || '.' || lasts_ascii[last_index]
                WHEN (traits >> 55) & 7 < 5 THEN firsts_ascii[first_index]
                WHEN (traits >> 55) & 7 < 6 THEN left(firsts_ascii[first_index], 1) || lasts_ascii[last_index]
                WHEN (traits >> 55) & 7 < 7 THEN lasts_ascii[last_index] || '.' || firsts_ascii[first_index]
                ELSE firsts_ascii[first_index] || '_' || lasts_ascii[last_index]
           END || person AS local
    FROM (
        SELECT *,
               -- Squared, because the first names of the list are the commoner ones.
               (1 + floor(cardinality(firsts) * (((traits >> 13) & 65535) / 65536::float8) ^ 2))::integer AS first_index,
               (1 + floor(cardinality(lasts) * (((traits >> 29) & 65535) / 65536::float8) ^ 2))::integer AS last_index,
               ((habits >> 40) & 1048575) / 1048576::float8 AS seen,
               :as_of - (((habits >> 20) & 1048575) / 1048576::float8) ^ 1.5 * interval '1826 days' AS created_at,
               CASE WHEN (habits >> 10) & 1023 < 560 THEN 'organic' WHEN (habits >> 10) & 1023 < 790 THEN 'ads'
                    WHEN (habits >> 10) & 1023 < 940 THEN 'referral' ELSE 'partner' END AS source
        FROM (
            -- OFFSET 0 keeps each of these layers from being folded into the next, which would compute a hash or a name
            -- again wherever it is used.
            SELECT *,
                   hashint8extended(person, :seed) AS traits,
                   hashint8extended(user_id, CAST(:seed AS bigint) + 1) AS habits
            FROM (
                SELECT *,
                       -- The same person under a second number; the neighbour's place is never a special one.
                       CASE WHEN role <> 'duplicate' THEN user_id WHEN user_id = 1 THEN :people ELSE user_id - 1 END
                           AS person
                FROM (
                    SELECT *,
                           CASE WHEN position < :until_duplicate THEN 'duplicate'
                                WHEN position < :until_unusable THEN 'unusable'
                                WHEN position < :until_bounce THEN 'bounce'
                                WHEN position < :until_complaint THEN 'complaint'
                                WHEN position < :until_without_city THEN 'without_city'
                                WHEN position < :until_suppressed THEN 'suppressed'
                                WHEN position < :until_inactive THEN 'inactive'
                                WHEN position < :until_opted_out THEN 'opted_out'
                                ELSE 'ordinary'
                           END AS role
                    FROM (
                        SELECT user_id,
                               (user_id * :step + :shift) % :people AS position,
                               (user_id * :name_step + :shift) % :people AS name_position
                        FROM generate_series(1, CAST(:people AS bigint)) AS user_id
                    ) AS placed
                ) AS roled
                OFFSET 0
            ) AS people
            OFFSET 0
        ) AS hashed
        JOIN demo_place ON demo_place.slot = traits & 8191
        JOIN demo_provider ON demo_provider.slot = (traits >> 45) & 1023
        OFFSET 0
    ) AS indexed
    OFFSET 0
) AS named;

-- name: finish
ALTER TABLE public.users ADD PRIMARY KEY (user_id);
-- Who may be mailed is asked again before each call, and answered from this index alone.
CREATE INDEX users_mailable ON public.users (user_id) WHERE is_active AND marketing_opt_in;
ANALYZE public.users;

-- name: suppress
INSERT INTO mailpipe.suppression (email_key, scope, reason, source)
SELECT lower(email),
       CASE WHEN user_id % 4 = 0 THEN 'marketing' ELSE 'all' END,
       (ARRAY['unsubscribe', 'hard_bounce', 'complaint', 'manual'])[user_id % 4 + 1],
       :source
FROM public.users
WHERE (user_id * :step + :shift) % :people >= :until_without_city
  AND (user_id * :step + :shift) % :people < :until_suppressed
ON CONFLICT DO NOTHING;

-- name: opt_out
WITH late AS (
    SELECT user_id FROM (
        SELECT user_id, email, city FROM public.users
        WHERE is_active AND marketing_opt_in
        ORDER BY last_login_at NULLS FIRST, user_id DESC
        LIMIT greatest(1, (SELECT count(*) / 4 FROM public.users WHERE is_active AND marketing_opt_in))
    ) AS last_quarter
    WHERE city IS NOT NULL
      AND NOT EXISTS (SELECT FROM mailpipe.suppression AS s WHERE s.email_key = lower(email))
    ORDER BY hashint8extended(user_id, :seed), user_id
    LIMIT :number
)
UPDATE public.users SET marketing_opt_in = false FROM late WHERE users.user_id = late.user_id;
