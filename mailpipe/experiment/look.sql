-- name: held_out
SELECT count(*) FROM mailpipe.holdout WHERE campaign_id = :campaign_id;
