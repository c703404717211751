-- How far SES's own list was read, and which addresses it knows.
CREATE TABLE mailpipe.suppression_sync (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    read_until timestamptz NOT NULL
);
CREATE TABLE mailpipe.suppression_at_ses (
    email_key text PRIMARY KEY CHECK (email_key = mailpipe.email_key(email_key))
);
