CREATE SEQUENCE mailpipe.pace_refused_rate;
CREATE SEQUENCE mailpipe.pace_refused_calls;
CREATE SEQUENCE mailpipe.pace_refused_quota;
