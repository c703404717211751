CREATE TABLE mailpipe.experiment (
    campaign_id  integer PRIMARY KEY REFERENCES mailpipe.campaign,
    decide_at    timestamptz NOT NULL,
    decided_at   timestamptz,
    outcome      text CHECK (outcome IN ('winner', 'inconclusive', 'manual')),
    winner       text,
    reason       text,
    actor        text CHECK (actor <> ''),
    rule         smallint,
    machine_rule smallint,
    numbers      jsonb,
    released     integer,
    CHECK ((decided_at IS NULL) = (outcome IS NULL) AND (decided_at IS NULL) = (winner IS NULL)
           AND (decided_at IS NULL) = (reason IS NULL) AND (decided_at IS NULL) = (actor IS NULL)
           AND (decided_at IS NULL) = (numbers IS NULL) AND (decided_at IS NULL) = (released IS NULL))
);

CREATE TABLE mailpipe.holdout (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    person_id   text NOT NULL,
    PRIMARY KEY (campaign_id, person_id)
);
