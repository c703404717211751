-- Who is due around some days, for the frequency cap. Chunks come in the order of time or nearly so; an update of anything else stays HOT.
CREATE INDEX chunk_due_at ON mailpipe.chunk USING brin (due_at) WITH (pages_per_range = 32, autosummarize = on);
