"""The SES stand-in: a separate process that speaks the SES v2 API (rest-json) on a local port.

It stands in for Amazon SES in the demo, in tests and in benchmarks, and it is an independent witness: it
imports nothing of mailpipe outside this package, and mailpipe knows only its address. What it accepted is in
its own journal, whatever the sender believes.

Reading order: `options`, `wire` (answers and typed errors), `rules` (what a field may hold), `account`
(quotas and switches), `templates`, `suppression`, `fates` (what becomes of an address), `events`, `journal`,
`sending` (the two send operations), `administration` (all other operations), `faults`, `control` (the door
for tests), `connection`, `http` (the application), `server`, `__main__`; and `child`, which starts all this
as a child process.
"""

from mailpipe.simulator.options import Options
from mailpipe.simulator.server import serve

__all__ = ["Options", "serve"]
