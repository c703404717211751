-- Who reads, and at which hour. `engagement` has one row for each person that was ever mailed, reacted or bought; it is folded day by
-- day (`engagement_fold`), and from histories that others kept (`engagement_import`). Who may write what: engagement/ all four tables.

-- What a mail or a reaction of the day `of` still counts on another day: half of it after 60 days.
CREATE FUNCTION mailpipe.engagement_weight(of date, day date) RETURNS real LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(power(0.5, (day - of) / 60.0) AS real);

-- How engaged somebody is at an instant, 1 the most: clicked or bought within 30 days; within 90, or opened within 30; any of it within
-- 180; on the list for less than a year (`since`: opted in, or first mailed); the rest. NULL is never. Machines' opens are no opens.
CREATE FUNCTION mailpipe.engagement_tier(
    engaged timestamptz, clicked timestamptz, bought timestamptz, since timestamptz, at timestamptz
) RETURNS smallint LANGUAGE sql STABLE PARALLEL SAFE
RETURN CAST(CASE
    WHEN greatest(clicked, bought) >= at - interval '30 days' THEN 1
    WHEN greatest(clicked, bought) >= at - interval '90 days' OR engaged >= at - interval '30 days' THEN 2
    WHEN greatest(engaged, clicked, bought) >= at - interval '180 days' THEN 3
    WHEN since >= at - interval '365 days' THEN 4
    ELSE 5 END AS smallint);

-- Element h + 1 of the arrays is the hour h of the person's own clocks (UTC where `zone` is NULL). They and the totals are decayed to
-- the row's own day `as_of`: whoever compares people multiplies by mailpipe.engagement_weight(as_of, engagement_state.folded_to).
-- So a fold writes the rows of those it is about, and no others. Half of each page is free: one update of everybody is HOT.
CREATE TABLE mailpipe.engagement (
    person_id       text PRIMARY KEY CHECK (person_id <> ''),
    zone            text,                                      -- IANA; NULL: not known
    as_of           date NOT NULL,
    events          real NOT NULL DEFAULT 0,                   -- mails that a human reacted to
    mails           real NOT NULL DEFAULT 0,
    ev              real[] NOT NULL DEFAULT array_fill(CAST(0 AS real), ARRAY[24]) CHECK (cardinality(ev) = 24), -- a click 2, an open 1
    ex              real[] NOT NULL DEFAULT array_fill(CAST(0 AS real), ARRAY[24]) CHECK (cardinality(ex) = 24), -- 1 a mail that stays unread
    since           timestamptz NOT NULL,                      -- opted in, as far as that is known; else the first mail
    last_sent_at    timestamptz,
    last_engaged_at timestamptz,                               -- a human's open or click
    last_clicked_at timestamptz,
    last_bought_at  timestamptz,
    machine         boolean NOT NULL DEFAULT false,            -- opens come from Apple's prefetch: only clicks tell anything
    tier            smallint NOT NULL CHECK (tier BETWEEN 1 AND 5)
) WITH (fillfactor = 50);

-- What the whole audience has taught so far; no row before the first fold or import.
CREATE TABLE mailpipe.engagement_state (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    folded_to date,                                            -- every day up to this one is folded
    freshness real[] NOT NULL CHECK (cardinality(freshness) = 24), -- part of a mail's chance that falls to each hour after the send
    thinning  real NOT NULL CHECK (thinning BETWEEN 0 AND 1),  -- exposure of people behind Apple's proxy counts so much
    ages      real[] NOT NULL CHECK (cardinality(ages) = 24),  -- reactions by hours after the send, decayed to `folded_to` ...
    mails     real NOT NULL,                                   -- ... and the mails they belong to; both without people behind the proxy
    opens     real NOT NULL,                                   -- of these reactions, those that stayed opens
    clicks    real NOT NULL
);

-- One row for each day that was folded.
CREATE TABLE mailpipe.engagement_fold (
    day       date PRIMARY KEY,
    folded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    people    integer NOT NULL,                                -- who were mailed
    mails     integer NOT NULL,
    opens     integer NOT NULL,                                -- mails of which somebody human opened, and did not click
    clicks    integer NOT NULL,
    machines  integer NOT NULL,                                -- mails with reactions, none of them human
    bought    integer NOT NULL,                                -- people with an order on that day
    tiers     integer[] NOT NULL CHECK (cardinality(tiers) = 5), -- people of T1 to T5 after it
    seconds   real NOT NULL
);

-- Histories that were brought in, by their content: the same one again changes nothing.
CREATE TABLE mailpipe.engagement_import (
    digest   bytea PRIMARY KEY CHECK (length(digest) = 32),
    source   text NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows     bigint NOT NULL,
    events   bigint NOT NULL,                                  -- human reactions, one for each mail or hour
    machines bigint NOT NULL,
    people   integer NOT NULL
);
