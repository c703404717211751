"""Experiments: variants of one campaign are tried on a part of its audience, and the better one goes to the rest.

`spec` is what the file says, `buckets` who gets what, `power` how many people it takes, `posterior` and `rule` what the
numbers mean, `letters` the mails of the variants, `assign` the cells of an audience, `counts` what came back, `decision`
the one decision."""
