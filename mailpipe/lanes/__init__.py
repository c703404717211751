"""The standing worker of the outbox: takes messages that are due and sends them, lane by lane.

`claims` holds the statements, `outcome` what follows from an answer, `hands` one thread's protocol, `crew` the threads of a lane,
`run` the process, `separate` what must never be shared with campaigns.
"""
