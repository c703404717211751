-- The whole schema of mailpipe, top to bottom. Migrations are proved to arrive exactly here.
--
-- The life of a campaign: `campaign` is created (draft), approved (its template frozen in `template_version`), and
-- frozen into a `snapshot`: N immutable rows of `recipient`, cut into `chunk`s of up to 500. A sender leases a chunk,
-- opens calls of up to 50 people (bits in `chunk.opened`, committed before the request leaves), calls SES, and records the answer:
-- bits move to `chunk.finished`, one `call` row keeps the message ids, and only exceptions get an `outcome` row.
-- The view `delivery` gives every recipient exactly one state. SES events set bits in `event_mask`.
--
-- Who may write what: campaign.py `campaign`, `template_version`, `audit`; snapshot.py `snapshot`, `recipient` and new `chunk`s;
-- ledger/ all that changes in `chunk`, `call` and `outcome`, but that hold.py alone frees who is `held`; event.py `event_mask`; feedback/ingest.py `event`, `feedback` and
-- `soft_bounce`; latency.py `latency`; breaker.py `breaker_trip` and `postmaster_rate`; suppression.py `suppression`,
-- `suppression_removed` and `opt_out`; suppression_sync.py its two tables; pace.py `pace`; identity.py `instance`; scanner_guard.py `unsubscribe_minute`.
-- engagement/ its four tables, waves/advance.py `wave_gate`, and how held people are cut into chunks anew. Under experiment/: decision.py `experiment`, assign.py `holdout`. Under schedule/: timing.py `due`, window.py the windows of `chunk`, recurring.py `schedule` and `occurrence`.
-- sendtime/hours.py `send_hours`, `send_curve` and `send_refresh`, sendtime/plan.py `send_explored`, sendtime/uplift.py `send_counted`.

CREATE SCHEMA mailpipe;

-- The one form by which addresses are compared: that of `address.key`, for an address as it is sent. Never by the database's own
-- collation: a Turkish one makes another letter of a capital I.
CREATE FUNCTION mailpipe.email_key(address text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(address COLLATE "C");

CREATE TABLE mailpipe.template_version (
    name         text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9_-]{1,64}$'),
    template     text NOT NULL,
    content      jsonb NOT NULL,          -- subject, html, text as published, and the declared variables
    published_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE mailpipe.campaign (
    campaign_id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key              text NOT NULL UNIQUE CHECK (key ~ '^[a-z0-9_-]{1,63}$'),
    state            text NOT NULL DEFAULT 'draft'
                     CHECK (state IN ('draft', 'approved', 'sending', 'paused', 'done', 'cancelled')),
    state_reason     text,
    spec             jsonb NOT NULL,      -- the campaign file as it was checked
    template_version text REFERENCES mailpipe.template_version,
    rate             double precision CHECK (rate > 0),   -- recipients per second; NULL: only the account's limit
    due_at           timestamptz NOT NULL,
    author           text NOT NULL CHECK (author <> ''),
    approver         text CHECK (approver <> author),
    approved_at      timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((approver IS NULL) = (approved_at IS NULL)),
    CHECK (state NOT IN ('approved', 'sending', 'paused', 'done') OR approver IS NOT NULL AND template_version IS NOT NULL)
);

-- What people ordered, and why: never changed, never removed.
CREATE TABLE mailpipe.audit (
    audit_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    campaign_id integer REFERENCES mailpipe.campaign,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text NOT NULL CHECK (actor <> ''),
    action      text NOT NULL,
    detail      jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE mailpipe.snapshot (
    campaign_id    integer PRIMARY KEY REFERENCES mailpipe.campaign,
    taken_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    segment        text NOT NULL,
    segment_sha256 text NOT NULL,
    segment_sql    text NOT NULL,
    as_of          timestamptz NOT NULL,
    parameters     jsonb NOT NULL,
    variables      text[] NOT NULL,                            -- names of the columns that travel as template variables
    returned       integer NOT NULL CHECK (returned >= 0),     -- rows of the segment
    excluded       jsonb NOT NULL,                             -- reason -> rows left out: duplicate, suppressed, opted_out
    recipients     integer NOT NULL CHECK (recipients >= 0),
    timing         jsonb NOT NULL DEFAULT '{}'                 -- who is due when, whose zone is unknown, who was past their time
);

-- Immutable: who, address, zone, locale, variables. One partition per campaign, filled bare, indexed, then attached.
CREATE TABLE mailpipe.recipient (
    campaign_id integer NOT NULL,
    seq         integer NOT NULL CHECK (seq >= 1),             -- 1..N without holes, in sending order
    user_id     text NOT NULL,
    email       text NOT NULL,                                 -- as it is sent; its key is mailpipe.email_key(email)
    timezone    text,
    locale      text,
    variables   text[] NOT NULL,                               -- values of snapshot.variables, in that order
    PRIMARY KEY (campaign_id, seq)
) PARTITION BY LIST (campaign_id);
-- One row per person, and the look-up by person. Hashes, not texts: eight bytes an entry and half the time to build; two
-- people of one campaign share a hash once in ten million campaigns of a million, and then one is left out as a duplicate.
-- An empty address is no address, and many people may have none. The hash first: what differs from the beginning sorts twice as fast.
CREATE UNIQUE INDEX recipient_user_id ON mailpipe.recipient (hashtextextended(user_id, 0), campaign_id);
CREATE UNIQUE INDEX recipient_email ON mailpipe.recipient (hashtextextended(mailpipe.email_key(email), 0), campaign_id) WHERE email <> '';

-- Nothing that changes with a call is indexed and a third of each page is free, so every such update is HOT.
CREATE TABLE mailpipe.chunk (
    campaign_id  integer NOT NULL REFERENCES mailpipe.campaign,
    chunk_no     integer NOT NULL,
    slice        smallint NOT NULL,
    first_seq    integer NOT NULL,
    size         smallint NOT NULL,
    due_at       timestamptz NOT NULL,
    state        text NOT NULL DEFAULT 'pending',
    fence        integer NOT NULL DEFAULT 0,                   -- grows with each lease; an old holder can write nothing
    owner        text,
    leased_until timestamptz,
    calls        integer NOT NULL DEFAULT 0,                   -- the last number given to a request
    opened       bit varying(1000) NOT NULL,                   -- bit seq - first_seq: in a call whose answer is not recorded
    finished     bit varying(1000) NOT NULL,                   -- bit seq - first_seq: has its final state
    sent         smallint NOT NULL DEFAULT 0,
    failed       smallint NOT NULL DEFAULT 0,
    skipped      smallint NOT NULL DEFAULT 0,
    unknown      smallint NOT NULL DEFAULT 0,
    expires_at   timestamptz,                                  -- not after this instant; NULL: at any time
    quiet_at     timestamptz,                                  -- quiet hours begin: not after it, until the chunk is put off
    timezone     text,                                         -- the zone by whose clocks they begin and end
    variant      text,                                         -- of an experiment; NULL: the campaign's own mail, or not decided yet
    held         text,                                         -- nobody is mailed before a decision frees it
    labels       text[] NOT NULL DEFAULT '{}',                 -- what the plan calls its people: test, rest, explore, T1, day:3 ...
    PRIMARY KEY (campaign_id, chunk_no)
) WITH (fillfactor = 66);
-- The laws of a chunk, whoever writes it. In a function, because the server reads the text of each CHECK anew for every statement: as
-- fifteen of them they took a tenth of what it needs to open a call.
CREATE FUNCTION mailpipe.is_sound(c mailpipe.chunk) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN c.slice BETWEEN 0 AND 99 AND c.first_seq >= 1 AND c.size BETWEEN 1 AND 1000
       AND c.state IN ('pending', 'leased', 'done', 'cancelled', 'expired')
       AND length(c.opened) = c.size AND length(c.finished) = c.size
       AND bit_count(c.opened & c.finished) = 0
       AND least(c.sent, c.failed, c.skipped, c.unknown) >= 0
       AND c.sent + c.failed + c.skipped + c.unknown = bit_count(c.finished)
       AND (c.state = 'leased') = (c.owner IS NOT NULL)
       AND (c.owner IS NULL) = (c.leased_until IS NULL)
       AND (c.state <> 'done' OR bit_count(c.finished) = c.size)
       AND (c.state = 'leased' OR bit_count(c.opened) = 0)
       AND (c.quiet_at IS NULL) = (c.timezone IS NULL)
       AND (c.held IS NULL OR c.held IN ('experiment', 'wave') AND c.state <> 'leased');
END
$$;
ALTER TABLE mailpipe.chunk ADD CONSTRAINT chunk_is_sound CHECK (mailpipe.is_sound(chunk));
CREATE INDEX chunk_first_seq ON mailpipe.chunk (campaign_id, first_seq);
-- Who is due around some days, for the frequency cap. Chunks come in the order of time or nearly so; an update of anything else stays HOT.
CREATE INDEX chunk_due_at ON mailpipe.chunk USING brin (due_at) WITH (pages_per_range = 32, autosummarize = on);

-- The mail of a variant, where it is not the campaign's own. Frozen with the approval.
CREATE TABLE mailpipe.campaign_variant (
    campaign_id      integer NOT NULL REFERENCES mailpipe.campaign,
    variant          text NOT NULL CHECK (variant ~ '^[a-z0-9_-]{1,32}$'),
    template_version text NOT NULL REFERENCES mailpipe.template_version,
    PRIMARY KEY (campaign_id, variant)
);

-- Once, when all mails of the test have left: when it is decided. Once more, then: what was decided, and the numbers as they were
-- counted. A decision is never changed; what people do later is counted elsewhere.
CREATE TABLE mailpipe.experiment (
    campaign_id integer PRIMARY KEY REFERENCES mailpipe.campaign,
    decide_at   timestamptz NOT NULL,
    decided_at  timestamptz,
    outcome     text CHECK (outcome IN ('winner', 'inconclusive', 'manual')),
    winner      text,
    reason      text,
    actor       text CHECK (actor <> ''),
    rule        smallint,                                      -- version of the rule that decides, and of the one that knows machines
    machine_rule smallint,
    numbers     jsonb,                                         -- the arms, and what the rule made of them
    released    integer,                                       -- people who were freed by it
    CHECK ((decided_at IS NULL) = (outcome IS NULL) AND (decided_at IS NULL) = (winner IS NULL)
           AND (decided_at IS NULL) = (reason IS NULL) AND (decided_at IS NULL) = (actor IS NULL)
           AND (decided_at IS NULL) = (numbers IS NULL) AND (decided_at IS NULL) = (released IS NULL))
);

-- People who were left out of a campaign, so that its effect can be seen.
CREATE TABLE mailpipe.holdout (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    person_id   text NOT NULL,
    PRIMARY KEY (campaign_id, person_id)
);

-- When which slices of a campaign are due, from its snapshot on: runs are launched from it, and none twice for one due time.
CREATE TABLE mailpipe.due (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    due_at      timestamptz NOT NULL,
    first_slice smallint NOT NULL CHECK (first_slice BETWEEN 0 AND 99),
    last_slice  smallint NOT NULL CHECK (last_slice BETWEEN first_slice AND 99),
    people      integer NOT NULL CHECK (people >= 1),
    launched_at timestamptz,                                   -- a run has begun to work on it
    PRIMARY KEY (campaign_id, due_at)
);

-- What was decided between two parts of a campaign that goes in waves: frozen, but for a person's `hold`, which a person's `pass` ends.
CREATE TABLE mailpipe.wave_gate (
    campaign_id integer NOT NULL REFERENCES mailpipe.campaign,
    stage       smallint NOT NULL CHECK (stage >= 1),          -- the day or wave before the gate
    verdict     text NOT NULL CHECK (verdict IN ('pass', 'repeat', 'drop', 'hold')),
    rung        smallint CHECK (rung >= 1),                    -- the day of the ramp that follows; NULL: there is no ramp
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text NOT NULL CHECK (actor <> ''),
    reason      text NOT NULL,
    numbers     jsonb NOT NULL,                                -- the rates against their lines
    PRIMARY KEY (campaign_id, stage)
);

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

-- Insert-only: one row per answered request.
CREATE TABLE mailpipe.call (
    campaign_id integer NOT NULL,
    chunk_no    integer NOT NULL,
    no          integer NOT NULL CHECK (no >= 1),              -- counts the requests of the chunk
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds     real NOT NULL,                                 -- from request to answer
    positions   bit varying(1000) NOT NULL,                    -- who was in it: bit seq - first_seq
    accepted    smallint NOT NULL CHECK (accepted BETWEEN 0 AND bit_count(positions)),
    codes       text CHECK (length(codes) = bit_count(positions)),  -- a letter a person in seq order; NULL: all accepted
    message_ids bytea,                                         -- of the accepted ones in seq order, 24 bytes each ...
    message_ids_text text,                                     -- ... or separated by spaces if SES changes their form
    PRIMARY KEY (campaign_id, chunk_no, no),
    CHECK ((codes IS NULL) = (accepted = bit_count(positions))),
    CHECK ((accepted = 0) = (message_ids IS NULL AND message_ids_text IS NULL)),
    CHECK (length(message_ids) = accepted * 24)
);
CREATE INDEX call_at ON mailpipe.call (campaign_id, at);       -- the rate of the last minute

-- Only exceptions. No row: the bits of the chunk say all there is to say. `attempt` grows only by a person's order to mail an
-- `unknown` again, and never shrinks: such a row stays, whatever becomes of them. Else `sent` is a person's word (reason `resolved`).
CREATE TABLE mailpipe.outcome (
    campaign_id integer NOT NULL,
    seq         integer NOT NULL,
    chunk_no    integer NOT NULL,
    state       text NOT NULL CHECK (state IN ('retry', 'sent', 'failed', 'skipped', 'unknown')),
    reason      text NOT NULL,
    detail      text,
    tries       smallint NOT NULL DEFAULT 0 CHECK (tries >= 0), -- certain refusals that count (TRANSIENT_FAILURE)
    attempt     smallint NOT NULL DEFAULT 1 CHECK (attempt >= 1), -- times that SES may have accepted this person
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (campaign_id, seq),
    CHECK (state <> 'sent' OR attempt > 1 OR reason = 'resolved')
);
CREATE INDEX outcome_chunk ON mailpipe.outcome (campaign_id, chunk_no);

-- What SES said later: idempotent, free of order. A bit per recipient of a chunk for each kind of event and each attempt.
CREATE TABLE mailpipe.event_mask (
    campaign_id integer NOT NULL,
    chunk_no    integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('send', 'delivery', 'bounce', 'hard_bounce', 'soft_bounce', 'content_bounce',
                                              'provider_list', 'policy_bounce', 'complaint', 'reject', 'rendering_failure',
                                              'delivery_delay', 'open', 'click')),
    attempt     smallint NOT NULL CHECK (attempt >= 1),
    mask        bit varying(1000) NOT NULL,
    PRIMARY KEY (campaign_id, chunk_no, kind, attempt)
) WITH (fillfactor = 66);

-- What SES said, word by word, one row for each recipient it is about. Kept for some days, dropped month by month; the time is the
-- event's own, so that the same event always meets itself in the same partition. `digest` is the same whenever SES tells it again.
CREATE TABLE mailpipe.event (
    at          timestamptz NOT NULL,
    digest      bytea NOT NULL CHECK (length(digest) = 16),
    kind        text NOT NULL,
    campaign_id integer,                                       -- whom it is about: a person of a campaign ...
    seq         integer,
    attempt     smallint NOT NULL DEFAULT 1,
    message     text,                                          -- ... or a message of the outbox; neither: nobody that we know (yet)
    ses_id      text NOT NULL,
    accepted_at timestamptz,                                   -- when SES took the mail
    detail      text,
    link        text,
    agent       text,
    ip          text,
    sns_id      text,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    body        text NOT NULL,
    PRIMARY KEY (at, digest)
) PARTITION BY RANGE (at);
CREATE INDEX event_person ON mailpipe.event (campaign_id, seq) WHERE campaign_id IS NOT NULL;
-- Who did something on a day, among forty times as many deliveries.
CREATE INDEX event_visit ON mailpipe.event (at) WHERE kind IN ('open', 'click') AND campaign_id IS NOT NULL;
CREATE INDEX event_unbound ON mailpipe.event (received_at) WHERE campaign_id IS NULL AND message IS NULL;

-- The exceptional ones, for ever and with their times: the first of each kind.
CREATE TABLE mailpipe.feedback (
    campaign_id integer NOT NULL,
    seq         integer NOT NULL,
    attempt     smallint NOT NULL,
    kind        text NOT NULL,
    at          timestamptz NOT NULL,
    detail      text,                                          -- SES's word: bounceSubType, complaintFeedbackType, delayType
    PRIMARY KEY (campaign_id, seq, attempt, kind)
);

-- Seconds from SES's acceptance to the delivery, as a histogram: bucket b ends at 1.1 ^ b milliseconds.
CREATE TABLE mailpipe.latency (
    campaign_id integer NOT NULL,
    bucket      smallint NOT NULL,
    people      integer NOT NULL CHECK (people > 0),
    PRIMARY KEY (campaign_id, bucket)
) WITH (fillfactor = 50);

-- Mailboxes that did not take a campaign for the moment.
CREATE TABLE mailpipe.soft_bounce (
    email_key   text NOT NULL CHECK (email_key = mailpipe.email_key(email_key)),
    campaign_id integer NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (email_key, campaign_id)
);

-- Each time that the breaker stopped a campaign, and what it had counted: once a person has resumed it, counting starts here.
CREATE TABLE mailpipe.breaker_trip (
    campaign_id  integer NOT NULL REFERENCES mailpipe.campaign,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text NOT NULL,
    sent         integer NOT NULL,
    delivered    integer NOT NULL,
    complaints   integer NOT NULL,
    hard_bounces integer NOT NULL,
    delayed      integer NOT NULL,
    PRIMARY KEY (campaign_id, at)
);

-- Spam rates that Google's Postmaster Tools shows: Gmail tells SES of no complaints.
CREATE TABLE mailpipe.postmaster_rate (
    domain text NOT NULL CHECK (domain = mailpipe.email_key(domain)),
    day    date NOT NULL,
    rate   double precision NOT NULL CHECK (rate BETWEEN 0 AND 1),
    PRIMARY KEY (domain, day)
);

-- Whom nobody may mail. One row for each scope; of several reasons the strongest.
CREATE TABLE mailpipe.suppression (
    email_key text NOT NULL CHECK (email_key = mailpipe.email_key(email_key)),
    scope     text NOT NULL DEFAULT 'all' CHECK (scope ~ '^(all|marketing|topic:[a-z0-9_-]{1,32})$'),
    reason    text NOT NULL
              CHECK (reason IN ('complaint', 'hard_bounce', 'provider_list', 'soft_bounces', 'unsubscribe', 'manual')),
    source    text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (email_key, scope)
);

-- What was taken off the list: by whom, and why.
CREATE TABLE mailpipe.suppression_removed (
    removal_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email_key  text NOT NULL,
    scope      text NOT NULL,
    reason     text NOT NULL,
    source     text NOT NULL,
    at         timestamptz NOT NULL,
    actor      text NOT NULL CHECK (actor <> ''),
    why        text NOT NULL CHECK (why <> ''),
    removed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX suppression_removed_key ON mailpipe.suppression_removed (email_key, scope);

-- How far SES's own list was read, and which addresses it knows.
CREATE TABLE mailpipe.suppression_sync (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    read_until timestamptz NOT NULL
);
CREATE TABLE mailpipe.suppression_at_ses (
    email_key text PRIMARY KEY CHECK (email_key = mailpipe.email_key(email_key))
);

-- People who do not want a topic; `marketing` means all of them. By person, not by address: an unsubscribe link holds no more, and
-- works when its campaign is long gone.
CREATE TABLE mailpipe.opt_out (
    person_id text NOT NULL CHECK (person_id <> ''),
    topic     text NOT NULL CHECK (topic ~ '^[a-z0-9_-]{1,32}$'),
    source    text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (person_id, topic)
);

-- How many people of a mail domain have opted out in a minute, for the last minutes: a mail gateway that presses buttons is noticed.
CREATE TABLE mailpipe.unsubscribe_minute (
    domain  text NOT NULL,
    minute  timestamptz NOT NULL,
    people  integer NOT NULL CHECK (people >= 1),
    alarmed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (domain, minute)
);

-- One row: which database this is, and when it was last sent with. A file outside of it remembers the same (identity.py), so a dump
-- that was restored is noticed before it mails people again.
CREATE TABLE mailpipe.instance (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    instance_id       uuid NOT NULL DEFAULT gen_random_uuid(),
    mark              timestamptz,                              -- grows every second while somebody sends; NULL: never sent
    confirmed_at      timestamptz,                              -- when a person accepted the database after a restore ...
    confirmed_surplus double precision NOT NULL DEFAULT 0       -- ... and what SES had sent that it did not know of
);
INSERT INTO mailpipe.instance DEFAULT VALUES;

-- One row: what the account may do, as last read, what our settings allow, and until when SES asked us to wait.
CREATE TABLE mailpipe.pace (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ceiling          double precision CHECK (ceiling > 0),     -- of our settings, recipients per second; NULL: none
    account_rate     double precision CHECK (account_rate > 0),-- MaxSendRate of GetAccount
    daily_quota      double precision,                         -- Max24HourSend; -1: unlimited
    sent_last_day    double precision,
    account_read_at  timestamptz,
    blocked_until    timestamptz,
    blocked_reason   text CHECK (blocked_reason IN ('rate', 'quota')),
    order_rate       double precision CHECK (order_rate > 0),  -- a person's order until it is taken back, recipients per second
    call_ceiling     double precision CHECK (call_ceiling > 0),-- of our settings, calls per second
    call_rate        double precision CHECK (call_rate > 0),   -- what SES's refusals taught, calls per second, at call_rate_at
    call_rate_at     timestamptz,
    ease             double precision NOT NULL DEFAULT 1 CHECK (ease > 0 AND ease <= 1),  -- part of the rate that is used, at eased_at
    eased_at         timestamptz,
    marketing_share  double precision NOT NULL DEFAULT 0.5 CHECK (marketing_share > 0 AND marketing_share <= 1),  -- of the daily quota
    reserve_share    double precision NOT NULL DEFAULT 0.05 CHECK (reserve_share >= 0 AND reserve_share < 1),     -- of the rate
    most             smallint NOT NULL DEFAULT 50 CHECK (most BETWEEN 1 AND 50),  -- recipients of a call
    provider_rates   jsonb NOT NULL DEFAULT '{}',              -- provider -> recipients per second
    handed_at_read   bigint,                                   -- pace_handed when the account was read
    transit          double precision NOT NULL DEFAULT 0.015 CHECK (transit >= 0 AND transit <= 0.1),  -- seconds that ways to SES differ by
    CHECK ((blocked_until IS NULL) = (blocked_reason IS NULL)),
    CHECK ((call_rate IS NULL) = (call_rate_at IS NULL))
);
INSERT INTO mailpipe.pace DEFAULT VALUES;

-- Who wants slots now: campaigns, and with campaign_id 0 the messages of a lane. Written once a second at the most.
CREATE TABLE mailpipe.pace_claim (
    lane        text NOT NULL CHECK (lane IN ('critical', 'high', 'normal', 'low')),
    campaign_id integer NOT NULL,
    since       timestamptz NOT NULL,                          -- wanted without a gap since then
    wanted_at   timestamptz NOT NULL,
    PRIMARY KEY (lane, campaign_id)
) WITH (fillfactor = 50);

-- The counters below, once a minute: the difference over 24 hours is what was handed over in them.
CREATE TABLE mailpipe.pace_count (
    at        timestamptz PRIMARY KEY,
    handed    bigint NOT NULL,
    marketing bigint NOT NULL
);

-- The limiter's state are the last slots that were given away: microseconds since 1970 times 128, and what kind of slot it was.
-- Sequences, not rows: they leave no dead versions behind, so they stay as fast while a dump holds a snapshot open (a row slowed
-- down 17-fold), and a rollback does not take a slot back. `pace_account` is the line of bulk, or of all; each campaign has one
-- beside it, `pace_campaign_ID`.
CREATE SEQUENCE mailpipe.pace_account;
CREATE SEQUENCE mailpipe.pace_reserve;
CREATE SEQUENCE mailpipe.pace_calls;
CREATE SEQUENCE mailpipe.pace_provider_gmail;
CREATE SEQUENCE mailpipe.pace_provider_microsoft;
CREATE SEQUENCE mailpipe.pace_provider_yahoo;
CREATE SEQUENCE mailpipe.pace_provider_apple;
CREATE SEQUENCE mailpipe.pace_provider_other;
-- When somebody's share of bulk lets them have the next slot, in microseconds: messages here, each campaign has `pace_share_ID`.
CREATE SEQUENCE mailpipe.pace_share_normal;
CREATE SEQUENCE mailpipe.pace_share_low;
-- Recipients handed over since the beginning: all, and those of bulk.
CREATE SEQUENCE mailpipe.pace_handed;
CREATE SEQUENCE mailpipe.pace_marketing;
-- How often SES has refused since the beginning, by what it was for.
CREATE SEQUENCE mailpipe.pace_refused_rate;
CREATE SEQUENCE mailpipe.pace_refused_calls;
CREATE SEQUENCE mailpipe.pace_refused_quota;

-- Never less than none: the clock may have been set back since.
CREATE FUNCTION mailpipe.seconds_since(at timestamptz) RETURNS double precision LANGUAGE sql VOLATILE
RETURN CASE WHEN at IS NOT NULL THEN greatest(0, CAST(extract(epoch FROM clock_timestamp() - at) AS double precision)) END;

-- Note that somebody wants slots; `served` seconds without a word are a gap. Keeps the limiter's lock until the transaction ends.
CREATE FUNCTION mailpipe.claim_pace(own_lane text, own_campaign integer, served double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz;
BEGIN
    -- A slot lost in a crash of the server is lost with less than a second of others: no flush for each.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(782638, 1);
    now_at := clock_timestamp();
    INSERT INTO mailpipe.pace_claim AS c VALUES (own_lane, own_campaign, now_at, now_at)
    ON CONFLICT (lane, campaign_id) DO UPDATE
    SET wanted_at = now_at,
        since = CASE WHEN c.wanted_at < now_at - make_interval(secs => served) THEN now_at ELSE least(c.since, now_at) END
    WHERE c.wanted_at < now_at - interval '1 second' OR c.wanted_at > now_at;
    IF NOT EXISTS (SELECT FROM mailpipe.pace_count WHERE at > now_at - interval '1 minute') THEN
        INSERT INTO mailpipe.pace_count VALUES (now_at, coalesce(pg_sequence_last_value('mailpipe.pace_handed'), 0),
                                                coalesce(pg_sequence_last_value('mailpipe.pace_marketing'), 0));
        DELETE FROM mailpipe.pace_count
        WHERE at < (SELECT max(at) FROM mailpipe.pace_count WHERE at <= now_at - interval '24 hours');
        DELETE FROM mailpipe.pace_claim WHERE wanted_at < now_at - interval '1 day';
    END IF;
END;
$$;

-- Give away the next slot that all `lines` allow: each `gaps` microseconds after its own last one, `apart` after one of another kind
-- (`tags`), and `lead` seconds from now at the earliest. Not given away, only told, is a slot
-- - further away than `patience` seconds;
-- - that would leave more than `hole` seconds of the first line unused;
-- - that comes before `share` says, unless the first line is booked for less than `near` seconds; each slot moves it by `share_gap`
--   microseconds, within bounds, so that neither an idle time nor one alone weighs for long;
-- - for more `recipients` than a counter may still count (`spent`; `returned` were counted and not handed over);
-- - that was decided on before `valid_until` seconds since 1970, but comes later (`stale`).
-- No slot is booked more than a second ahead. Where a last one is further away, the clock was set back: those that were booked before
-- are used within a second from now, so the last one is put there, as one of another kind.
-- Answers the slot, when to ask again, and the present, in seconds since 1970. The advisory lock makes the decision one step for
-- all processes; the clock is the database's alone.
CREATE FUNCTION mailpipe.take_slot(
    lines regclass[], gaps bigint[], tags integer[], apart bigint, share regclass, share_gap bigint, near double precision,
    hole double precision, counters regclass[], most bigint[], recipients integer, returned integer, valid_until double precision,
    lead double precision, patience double precision,
    OUT granted boolean, OUT slot double precision, OUT again double precision, OUT present double precision, OUT stale boolean,
    OUT spent boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_at bigint;
    first_at bigint;
    base_at bigint;
    slot_at bigint;
    again_at bigint;
    share_at bigint;
    last bigint;
    furthest CONSTANT bigint := greatest(1, patience) * 1e6;
BEGIN
    -- As in `claim_pace`.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(782638, 1);
    now_at := (extract(epoch FROM clock_timestamp()) * 1e6)::bigint;
    first_at := now_at + (lead * 1e6)::bigint;
    slot_at := first_at;
    base_at := first_at;
    FOR i IN 1 .. cardinality(lines) LOOP
        last := coalesce(pg_sequence_last_value(lines[i]), 0);
        IF last / 128 > now_at + furthest THEN
            last := (now_at + furthest) * 128 + 127;
            PERFORM setval(lines[i], last);
        END IF;
        IF last % 128 = tags[i] OR gaps[i] = 0 THEN
            slot_at := greatest(slot_at, last / 128 + gaps[i]);
        ELSE
            slot_at := greatest(slot_at, last / 128 + greatest(gaps[i], apart));
        END IF;
        IF i = 1 THEN
            base_at := slot_at;
        END IF;
    END LOOP;
    share_at := coalesce(pg_sequence_last_value(share), 0);
    stale := now_at > valid_until * 1e6;
    spent := false;
    FOR i IN 1 .. cardinality(counters) LOOP
        spent := spent OR coalesce(pg_sequence_last_value(counters[i]), 0) + recipients - returned > most[i];
    END LOOP;
    again_at := now_at;
    granted := NOT stale AND NOT spent;
    IF slot_at - now_at > patience * 1e6 THEN
        granted := false;
        again_at := greatest(again_at, slot_at - (patience * 1e6)::bigint);
    END IF;
    IF slot_at - base_at > hole * 1e6 THEN
        granted := false;
        again_at := greatest(again_at, slot_at - first_at + now_at - (hole * 1e6)::bigint);
    END IF;
    IF share IS NOT NULL AND slot_at < share_at AND slot_at - first_at > near * 1e6 THEN
        granted := false;
        -- Others may book the line up to there at any moment, so it is asked again soon, but not at once.
        again_at := greatest(again_at, now_at + 20000,
                             least(share_at - (patience * 1e6)::bigint, slot_at - first_at + now_at - (near * 1e6)::bigint));
    END IF;
    IF granted THEN
        FOR i IN 1 .. cardinality(lines) LOOP
            PERFORM setval(lines[i], slot_at * 128 + tags[i]);
        END LOOP;
        IF share IS NOT NULL THEN
            PERFORM setval(share, least(greatest(share_at, slot_at - 4 * share_gap) + share_gap, slot_at + 2 * share_gap));
        END IF;
        FOR i IN 1 .. cardinality(counters) LOOP
            PERFORM setval(counters[i], greatest(1, coalesce(pg_sequence_last_value(counters[i]), 0) + recipients - returned));
        END LOOP;
    END IF;
    slot := slot_at / 1e6;
    again := again_at / 1e6;
    present := extract(epoch FROM clock_timestamp());
END;
$$;

-- Exactly one state for every recipient.
CREATE VIEW mailpipe.delivery AS
SELECT r.campaign_id, r.seq, c.slice, r.user_id, r.email, r.timezone, r.locale,
       coalesce(o.attempt, CAST(1 AS smallint)) AS attempt, c.chunk_no, c.due_at,
       CASE
           WHEN o.state <> 'retry' THEN o.state
           WHEN get_bit(c.opened, r.seq - c.first_seq) = 1 THEN 'sending'
           WHEN get_bit(c.finished, r.seq - c.first_seq) = 1 THEN 'sent'
           WHEN c.state IN ('cancelled', 'expired') THEN 'skipped'
           ELSE 'pending'
       END AS state,
       CASE
           WHEN o.state <> 'retry' THEN o.reason
           WHEN c.state IN ('cancelled', 'expired') AND get_bit(c.finished, r.seq - c.first_seq) = 0 THEN c.state
           ELSE o.reason
       END AS reason,
       c.variant, c.labels
FROM mailpipe.chunk c
JOIN mailpipe.recipient r ON r.campaign_id = c.campaign_id AND r.seq BETWEEN c.first_seq AND c.first_seq + c.size - 1
LEFT JOIN mailpipe.outcome o ON o.campaign_id = r.campaign_id AND o.seq = r.seq;

COMMENT ON VIEW mailpipe.delivery IS 'Every recipient of every campaign with exactly one state: pending, sending, sent, failed, skipped or unknown.';

-- Transactional mail. `message` is the durable row: what is sent, and what became of it. A row of `outbox` exists only while a message
-- waits for its time or for a worker, a row of `outbox_claim` only while a worker has it in its hands, and `message_call` keeps every
-- call whose end is known. Who may write what: outbox.py all five tables.

-- Ids that grow with time (UUID version 7, RFC 9562), so that new rows go to the end of the index.
CREATE FUNCTION mailpipe.new_message_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT CAST(encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex') AS uuid)
$$;

-- Nothing that changes is indexed, so every update is HOT.
CREATE TABLE mailpipe.message (
    message_id       uuid PRIMARY KEY DEFAULT mailpipe.new_message_id(),
    lane             text NOT NULL DEFAULT 'normal' CHECK (lane IN ('critical', 'high', 'normal', 'low')),
    state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'sent', 'failed', 'unknown', 'skipped',
                                                                      'expired', 'cancelled', 'dead')),
    reason           text,
    detail           text,
    email            text NOT NULL CHECK (email <> ''),
    sender           text,                                     -- NULL: the setting's
    reply_to         text,
    template_version text REFERENCES mailpipe.template_version,
    variables        jsonb NOT NULL DEFAULT '{}',
    subject          text,                                     -- inline content, where there is no template
    body_text        text,
    body_html        text,
    idempotency_key  text CHECK (idempotency_key <> ''),
    body_sha256      bytea NOT NULL,                           -- of what was asked for, to tell another mail under the same key
    cancel_key       text CHECK (cancel_key <> ''),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    send_at          timestamptz NOT NULL,                     -- wanted
    due_at           timestamptz NOT NULL,                     -- of its row in `outbox`: later than wanted after a retry
    expires_at       timestamptz,                              -- NULL: the lane's validity after `send_at`
    attempt          smallint NOT NULL DEFAULT 1 CHECK (attempt >= 1), -- times that the provider may have accepted it
    tries            smallint NOT NULL DEFAULT 0 CHECK (tries >= 0),   -- calls that certainly sent nothing, and count
    calls            integer NOT NULL DEFAULT 0 CHECK (calls >= 0),    -- calls opened so far
    finished_at      timestamptz,
    provider_id      text,                                     -- what the provider calls it
    events           jsonb NOT NULL DEFAULT '{}',              -- `kind/attempt` -> when, as the provider's events tell
    CHECK ((template_version IS NULL) = (subject IS NOT NULL)),
    CHECK (template_version IS NOT NULL OR coalesce(body_text, body_html) IS NOT NULL),
    CHECK ((state IN ('pending', 'sending')) = (finished_at IS NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX message_idempotency_key ON mailpipe.message (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX message_cancel_key ON mailpipe.message (cancel_key) WHERE cancel_key IS NOT NULL;

-- Deleted when a worker takes the message: a search for what is due meets no rows that are done. One index, in the order of work.
CREATE TABLE mailpipe.outbox (
    lane       text NOT NULL,
    due_at     timestamptz NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (lane, due_at, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

-- One row per process of `mailpipe lanes`. Its lease covers all that the process has in its hands; a new id is a new fence.
CREATE TABLE mailpipe.lane_worker (
    owner        uuid PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    threads      jsonb NOT NULL DEFAULT '{}',                  -- lane -> how many work in it
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE mailpipe.outbox_claim (
    message_id uuid PRIMARY KEY,
    lane       text NOT NULL,
    owner      uuid NOT NULL,
    opened_at  timestamptz                                     -- NULL: no call is open
) WITH (fillfactor = 50);

-- Insert-only: one row per call whose end is known.
CREATE TABLE mailpipe.message_call (
    message_id  uuid NOT NULL,
    no          integer NOT NULL CHECK (no >= 1),
    attempt     smallint NOT NULL CHECK (attempt >= 1),
    owner       uuid NOT NULL,
    opened_at   timestamptz NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds     real,                                          -- from request to answer; NULL: there was none
    result      text NOT NULL CHECK (result IN ('sent', 'failed', 'retry', 'again', 'unknown')),
    reason      text,
    detail      text,
    provider_id text,
    PRIMARY KEY (message_id, no)
);
-- The calls of the last minute, for the metrics. Rows come in the order of time, so a block range index is enough, and costs a call nothing.
CREATE INDEX message_call_at ON mailpipe.message_call USING brin (at) WITH (pages_per_range = 16, autosummarize = on);

-- The way for SQL: one message, in the caller's own transaction. The same key twice is one message and the same answer.
CREATE FUNCTION mailpipe.enqueue(
    email text, template text DEFAULT NULL, variables jsonb DEFAULT '{}', subject text DEFAULT NULL, body_text text DEFAULT NULL,
    body_html text DEFAULT NULL, lane text DEFAULT 'normal', sender text DEFAULT NULL, reply_to text DEFAULT NULL,
    idempotency_key text DEFAULT NULL, send_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    cancel_key text DEFAULT NULL, expires_in interval DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    version text;
    at timestamptz := coalesce(enqueue.send_at, clock_timestamp() + coalesce(enqueue.delay, interval '0'));
    asked bytea := sha256(convert_to(CAST(jsonb_build_array(
        enqueue.email, enqueue.template, enqueue.variables, enqueue.subject, enqueue.body_text, enqueue.body_html, enqueue.lane,
        enqueue.sender, enqueue.reply_to, extract(epoch FROM enqueue.send_at), enqueue.delay, enqueue.cancel_key,
        enqueue.expires_in) AS text), 'UTF8'));
    made mailpipe.message;
BEGIN
    IF enqueue.template IS NOT NULL THEN
        SELECT v.name INTO version FROM mailpipe.template_version v
        WHERE v.name = enqueue.template OR v.template = enqueue.template
        ORDER BY v.name = enqueue.template DESC, v.published_at DESC LIMIT 1;
        IF version IS NULL THEN
            RAISE EXCEPTION 'template "%" was never published; run: mailpipe template publish %', enqueue.template, enqueue.template
                USING ERRCODE = 'foreign_key_violation';
        END IF;
    END IF;
    INSERT INTO mailpipe.message (lane, email, sender, reply_to, template_version, variables, subject, body_text, body_html,
                                  idempotency_key, body_sha256, cancel_key, send_at, due_at, expires_at)
    VALUES (enqueue.lane, enqueue.email, enqueue.sender, enqueue.reply_to, version, enqueue.variables, enqueue.subject,
            enqueue.body_text, enqueue.body_html, enqueue.idempotency_key, asked, enqueue.cancel_key, at, at,
            at + enqueue.expires_in)
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING * INTO made;
    IF made.message_id IS NULL THEN
        SELECT * INTO made FROM mailpipe.message m WHERE m.idempotency_key = enqueue.idempotency_key;
        IF made.body_sha256 <> asked THEN
            RAISE EXCEPTION 'another message was enqueued under this idempotency_key' USING ERRCODE = 'unique_violation';
        END IF;
        RETURN made.message_id;
    END IF;
    INSERT INTO mailpipe.outbox (lane, due_at, message_id) VALUES (made.lane, made.due_at, made.message_id);
    RETURN made.message_id;
END;
$$;

-- The way for SQL to call off what was enqueued under a `cancel_key`. Answers how many messages will not be sent.
CREATE FUNCTION mailpipe.cancel(cancel_key text) RETURNS integer LANGUAGE sql AS $$
    WITH gone AS (
        UPDATE mailpipe.message m SET state = 'cancelled', finished_at = clock_timestamp()
        WHERE m.cancel_key = cancel.cancel_key AND m.state = 'pending'
        RETURNING m.lane, m.due_at, m.message_id
    ),
    dequeued AS (
        DELETE FROM mailpipe.outbox o USING gone g
        WHERE o.lane = g.lane AND o.due_at = g.due_at AND o.message_id = g.message_id
    )
    SELECT CAST(count(*) AS integer) FROM gone
$$;

-- Why the provider could not make the mail of an attempt that it had accepted, as its events tell; NULL: it could.
CREATE FUNCTION mailpipe.refusal(events jsonb, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT kind FROM unnest(ARRAY['reject', 'rendering_failure']) AS kind WHERE events ? (kind || '/' || attempt) ORDER BY kind LIMIT 1
$$;

-- Whether the events prove that some attempt became a mail.
CREATE FUNCTION mailpipe.mailed(events jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (SELECT FROM jsonb_object_keys(events) AS k
                   WHERE split_part(k, '/', 1) NOT IN ('reject', 'rendering_failure')
                     AND mailpipe.refusal(events, CAST(split_part(k, '/', 2) AS integer)) IS NULL)
$$;

-- What a message becomes by an answer: what the events have proved by now is not doubted any more.
CREATE FUNCTION mailpipe.after_call(state text, result text, events jsonb, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN result = 'unknown' AND mailpipe.mailed(events) THEN 'sent'
                WHEN result = 'sent' AND mailpipe.refusal(events, attempt) IS NOT NULL THEN 'failed'
                ELSE state END
$$;

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
