-- When a mail is best sent, by the recipient's own clock. Written anew as a whole by sendtime/hours.py, from `engagement`; plans read it.
CREATE TABLE mailpipe.send_hours (
    person_id  text PRIMARY KEY,
    hour       smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),    -- the best one in daytime
    confidence real NOT NULL CHECK (confidence BETWEEN 0 AND 1),   -- 0: others decide; 1: the person's own data do
    worth      bytea NOT NULL CHECK (length(worth) = 24),          -- of sending at each hour, in 255ths of the best one
    why        text NOT NULL CHECK (why IN ('own', 'segment', 'everybody', 'default')) -- whose data
);

-- The same of people who are not in `send_hours`, by zone; the row without one is for all other zones.
CREATE TABLE mailpipe.send_curve (
    zone   text PRIMARY KEY,                                       -- '': of none of these
    hour   smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),
    worth  bytea NOT NULL CHECK (length(worth) = 24),
    why    text NOT NULL CHECK (why IN ('segment', 'everybody', 'default')),
    events real NOT NULL                                           -- decayed engagements that it rests on
);

-- One row: when both were written last.
CREATE TABLE mailpipe.send_refresh (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    refreshed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    folded_to    date,                                             -- of the engagement that it was made of
    people       integer NOT NULL,
    prior        real NOT NULL,                                    -- how much a person's own data had to outweigh
    seconds      real NOT NULL
);

-- People of a campaign whose hour was drawn among all allowed ones, so that hours can be compared afterwards.
CREATE TABLE mailpipe.send_explored (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    user_id     text NOT NULL,
    hour        smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),   -- the one drawn, by the person's clock
    best_hour   smallint NOT NULL CHECK (best_hour BETWEEN 0 AND 23), -- the one that they would have got
    propensity  real NOT NULL CHECK (propensity > 0 AND propensity <= 1), -- with which each of the allowed ones was drawn
    PRIMARY KEY (campaign_id, user_id)
);
