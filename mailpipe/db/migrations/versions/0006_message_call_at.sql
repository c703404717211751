-- The calls of the last minute, for the metrics. Rows come in the order of time, so a block range index is enough, and costs a call nothing.
CREATE INDEX message_call_at ON mailpipe.message_call USING brin (at) WITH (pages_per_range = 16, autosummarize = on);
