ALTER TABLE mailpipe.pace ALTER COLUMN transit SET DEFAULT 0.015;
UPDATE mailpipe.pace SET transit = DEFAULT WHERE transit = 0.025;
