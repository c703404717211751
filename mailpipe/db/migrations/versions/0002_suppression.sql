-- The one form by which addresses are compared: that of `address.key`, for an address as it is sent. Never by the database's own
-- collation: a Turkish one makes another letter of a capital I.
CREATE FUNCTION mailpipe.email_key(address text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(address COLLATE "C");

ALTER TABLE mailpipe.suppression DROP CONSTRAINT suppression_email_key_check, DROP CONSTRAINT suppression_scope_check,
    DROP CONSTRAINT suppression_reason_check;
UPDATE mailpipe.suppression SET reason = 'hard_bounce' WHERE reason = 'bounce';
ALTER TABLE mailpipe.suppression
    ADD CONSTRAINT suppression_email_key_check CHECK (email_key = mailpipe.email_key(email_key)),
    ADD CONSTRAINT suppression_scope_check CHECK (scope ~ '^(all|marketing|topic:[a-z0-9_-]{1,32})$'),
    ADD CONSTRAINT suppression_reason_check
        CHECK (reason IN ('complaint', 'hard_bounce', 'provider_list', 'soft_bounces', 'unsubscribe', 'manual'));

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

-- People who do not want a topic; `marketing` means all of them. By person, not by address: an unsubscribe link holds no more, and
-- works when its campaign is long gone.
CREATE TABLE mailpipe.opt_out (
    person_id text NOT NULL CHECK (person_id <> ''),
    topic     text NOT NULL CHECK (topic ~ '^[a-z0-9_-]{1,32}$'),
    source    text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (person_id, topic)
);
