ALTER TABLE mailpipe.event_mask DROP CONSTRAINT event_mask_kind_check,
    ADD CONSTRAINT event_mask_kind_check CHECK (kind IN (
        'send', 'delivery', 'bounce', 'hard_bounce', 'soft_bounce', 'content_bounce', 'provider_list', 'policy_bounce', 'complaint',
        'reject', 'rendering_failure', 'delivery_delay', 'open', 'click'));

CREATE INDEX suppression_removed_key ON mailpipe.suppression_removed (email_key, scope);

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
