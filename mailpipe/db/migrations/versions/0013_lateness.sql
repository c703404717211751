ALTER TABLE mailpipe.pace ALTER COLUMN transit SET DEFAULT 0.025;
UPDATE mailpipe.pace SET transit = DEFAULT;
