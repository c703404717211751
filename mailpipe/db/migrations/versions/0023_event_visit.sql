-- Who did something on a day, among forty times as many deliveries.
CREATE INDEX event_visit ON mailpipe.event (at) WHERE kind IN ('open', 'click') AND campaign_id IS NOT NULL;
