-- What SES's own list was told, and how far it was read.

-- name: since
SELECT read_until FROM mailpipe.suppression_sync;

-- name: learned
INSERT INTO mailpipe.suppression_sync (read_until) VALUES (:until) ON CONFLICT (only_row) DO UPDATE SET read_until = excluded.read_until;

-- name: known
INSERT INTO mailpipe.suppression_at_ses (email_key) SELECT DISTINCT unnest(CAST(:keys AS text[])) ON CONFLICT DO NOTHING;

-- name: untold
SELECT s.email_key, s.reason FROM mailpipe.suppression s
WHERE s.scope = 'all' AND s.reason = ANY(CAST(:reasons AS text[]))
  AND NOT EXISTS (SELECT FROM mailpipe.suppression_at_ses t WHERE t.email_key = s.email_key)
ORDER BY s.at LIMIT :limit;

-- name: left
SELECT count(*) FROM mailpipe.suppression s
WHERE s.scope = 'all' AND s.reason = ANY(CAST(:reasons AS text[]))
  AND NOT EXISTS (SELECT FROM mailpipe.suppression_at_ses t WHERE t.email_key = s.email_key);
