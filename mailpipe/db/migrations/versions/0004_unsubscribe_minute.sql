-- How many people of a mail domain have opted out in a minute, for the last minutes: a mail gateway that presses buttons is noticed.
CREATE TABLE mailpipe.unsubscribe_minute (
    domain  text NOT NULL,
    minute  timestamptz NOT NULL,
    people  integer NOT NULL CHECK (people >= 1),
    alarmed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (domain, minute)
);
