-- Campaigns that come again: each fire of the cron makes one. A schedule that was deleted keeps its row, and its key.
CREATE TABLE mailpipe.schedule (
    schedule_id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key              text NOT NULL UNIQUE CHECK (key ~ '^[a-z0-9_-]{1,45}$'),
    cron_expression  text NOT NULL,
    timezone         text NOT NULL,       -- of the cron; `recipient`: the wall time of each recipient
    is_active        boolean NOT NULL DEFAULT true,
    next_slot        timestamp,           -- what the clocks of the zone show at the next fire, and its name
    next_run_at      timestamptz,         -- when that is; NULL: never again
    wake_at          timestamptz,         -- when its campaign is made: so long before that its audience can be frozen
    last_run_at      timestamptz,         -- the newest fire that has made a campaign
    spec             jsonb NOT NULL,      -- the schedule file as it was checked
    author           text NOT NULL CHECK (author <> ''),
    approver         text CHECK (approver <> author),
    template_version text REFERENCES mailpipe.template_version, -- what was approved for the whole series
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at       timestamptz,
    CHECK ((next_slot IS NULL) = (next_run_at IS NULL) AND (next_slot IS NULL) = (wake_at IS NULL)),
    CHECK ((approver IS NULL) = (template_version IS NULL)),
    CHECK (deleted_at IS NULL OR NOT is_active)
);
CREATE INDEX schedule_wake_at ON mailpipe.schedule (wake_at) WHERE is_active;

-- What became of each fire. The key makes it one campaign for each local slot, whoever asks: two daemons, a restart, another cron.
CREATE TABLE mailpipe.occurrence (
    schedule_id integer NOT NULL REFERENCES mailpipe.schedule,
    slot        timestamp NOT NULL,
    due_at      timestamptz NOT NULL,
    state       text NOT NULL CHECK (state IN ('made', 'missed', 'failed')),
    campaign_id integer UNIQUE REFERENCES mailpipe.campaign,
    reason      text,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, slot),
    CHECK ((state = 'made') = (campaign_id IS NOT NULL)),
    CHECK ((state = 'made') = (reason IS NULL))
);
