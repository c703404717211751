-- name: count
INSERT INTO mailpipe.latency AS l (campaign_id, bucket, people)
SELECT * FROM unnest(CAST(:campaign_ids AS integer[]), CAST(:buckets AS smallint[]), CAST(:people AS integer[]))
ON CONFLICT (campaign_id, bucket) DO UPDATE SET people = l.people + excluded.people;

-- name: get
SELECT bucket, people FROM mailpipe.latency WHERE campaign_id = :campaign_id ORDER BY bucket;
