CREATE TABLE mailpipe.wave_gate (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    stage       smallint NOT NULL CHECK (stage >= 1),
    verdict     text NOT NULL CHECK (verdict IN ('pass', 'repeat', 'drop', 'hold')),
    rung        smallint CHECK (rung >= 1),
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text NOT NULL CHECK (actor <> ''),
    reason      text NOT NULL,
    numbers     jsonb NOT NULL,
    PRIMARY KEY (campaign_id, stage)
);
