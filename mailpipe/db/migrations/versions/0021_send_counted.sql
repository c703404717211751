-- What came of the people of an optimised campaign within a day, by group; of who explored also by hour. Events are kept for some days
-- only, so this is counted while they are there.
CREATE TABLE mailpipe.send_counted (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    label       text NOT NULL CHECK (label IN ('optimised', 'control', 'explore')),
    hour        smallint NOT NULL,                                 -- drawn and best hour of who explored; of others -1
    best_hour   smallint NOT NULL,
    propensity  real NOT NULL,                                     -- of the drawn hour; of others 1
    people      integer NOT NULL,                                  -- whose mail was accepted
    clickers    integer NOT NULL,                                  -- by a person's click
    readable    integer NOT NULL,                                  -- people whose opens are seen: not behind Apple's proxy
    openers     integer NOT NULL,                                  -- of those, by a person's open
    counted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (campaign_id, label, hour, best_hour, propensity)
);
