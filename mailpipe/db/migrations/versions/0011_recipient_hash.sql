-- One row per person, by hashes that come first in the index, and by the one form of addresses whatever the database's collation.
DROP INDEX mailpipe.recipient_user_id;
DROP INDEX mailpipe.recipient_email;
CREATE UNIQUE INDEX recipient_user_id ON mailpipe.recipient (hashtextextended(user_id, 0), campaign_id);
CREATE UNIQUE INDEX recipient_email ON mailpipe.recipient (hashtextextended(mailpipe.email_key(email), 0), campaign_id) WHERE email <> '';
