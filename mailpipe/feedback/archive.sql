-- name: partitions
SELECT c.relname, substring(c.relname FROM '\d{6}$') FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = CAST('mailpipe.event' AS regclass) ORDER BY c.relname;
